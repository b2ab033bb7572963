//go:build linux

package hpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// member is the process of a rank.
type member struct {
	rank  int
	cmd   *exec.Cmd
	conn  *conn
	done  bool          // it has replied to the present request
	ended chan struct{} // closed when the process is gone
	err   error         // how it ended, from then on
}

// reply is a packet from a rank, or the end of what it has to say.
type reply struct {
	rank int
	kind kind
	body []byte
	err  error
}

// spawn starts the process of a rank.
func (g *Group) spawn(rank int) (*member, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	cmd := g.opt.Command()
	cmd.ExtraFiles = []*os.File{far, g.shared.file}
	cmd.Stderr = g.opt.Log
	// Where the group dies without a word the rank must not keep its card.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		near.Close()
		return nil, err
	}
	m := &member{rank: rank, cmd: cmd, conn: near, ended: make(chan struct{})}
	go func() {
		m.err = cmd.Wait()
		close(m.ended)
	}()
	go m.listen(g.replies)
	return m, nil
}

// listen passes on what a rank says, until it says no more.
func (m *member) listen(to chan<- reply) {
	for {
		k, body, err := m.conn.receive()
		if err != nil {
			m.pass(to, reply{rank: m.rank, err: errGone})
			return
		}
		if len(body) > 0 {
			body = bytes.Clone(body)
		}
		m.pass(to, reply{rank: m.rank, kind: k, body: body})
	}
}

// pass passes a reply on, unless the rank is gone and nobody takes it.
func (m *member) pass(to chan<- reply, r reply) {
	select {
	case to <- r:
	case <-m.ended:
		select {
		case to <- r:
		default:
		}
	}
}

var errGone = errors.New("the process of the rank is gone")

// why is what is known of a rank that does not talk any more.
func (m *member) why(err error) error {
	select {
	case <-m.ended:
	case <-time.After(stateLimit):
		return err
	}
	if m.err == nil {
		return fmt.Errorf("%w: it ended without an error", err)
	}
	return fmt.Errorf("%w: %w", err, m.err)
}

// end waits until all processes are gone, and kills them after a limit.
func (g *Group) end(limit time.Duration) {
	after := time.After(limit)
	for _, m := range g.members {
		select {
		case <-m.ended:
		case <-after:
			after = time.After(0)
			_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) // it may be gone
			<-m.ended
		}
		m.conn.Close()
	}
}
