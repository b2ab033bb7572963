//go:build linux

package hpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"quill/recipes"
)

// Group and rank talk over a socket that keeps packets whole. A packet is a kind
// and what belongs to it. Each request has one reply, done or failed, and between
// them there may be reports of progress; abort and state may come at any time.
type kind byte

const (
	// To a rank.
	askOpen   kind = iota + 1 // openRequest: take a card, allocate, load recipes
	askUnique                 // make an identity of the communicator; the reply has it
	askJoin                   // that identity: join the communicator
	askBind                   // bindRequest: make a plan ready
	askLoad                   // load the weights
	askRun                    // planBytes, the number of a plan
	askClear                  // name of a buffer
	askWrite                  // rangeRequest, and data behind the line
	askRead                   // rangeRequest; the reply has the data
	askState                  // what the rank is at, while a request is executed
	askAbort                  // leave the communicator and end
	askClose                  // release everything and end

	// From a rank.
	sayDone
	sayFailed   // failure
	sayProgress // progress
	sayState    // State
)

// maxPacket bounds a packet; the system's limit is some 200 KiB.
const maxPacket = 64 << 10

// planBytes are the bytes of a plan's number, little-endian.
const planBytes = 4

// maxChunk is how many bytes one write or read moves.
const maxChunk = 32 << 10

// openRequest is all that a rank must know.
type openRequest struct {
	Rank      int           `json:"rank"`
	Ranks     int           `json:"ranks"`
	Bundle    string        `json:"bundle"`
	Manifest  recipes.Hash  `json:"manifest"` // of the bundle that the group has
	Model     string        `json:"model"`
	Precision string        `json:"precision"`
	Library   string        `json:"library"`
	Module    uint32        `json:"module"`
	Deadline  time.Duration `json:"deadline"` // of leaving the communicator
	Patience  time.Duration `json:"patience"` // how long to wait for a card that is not free
}

// bindRequest tells a rank how a plan's inputs and outputs lie in shared memory.
type bindRequest struct {
	Plan  int        `json:"plan"`
	Stage []transfer `json:"stage"`
	Fetch []transfer `json:"fetch"`
}

// transfer is a range of the arena and where it lies in shared memory.
type transfer struct {
	Arena  int64 `json:"arena"`
	Shared int64 `json:"shared"`
	Bytes  int64 `json:"bytes"`
}

type rangeRequest struct {
	Buffer recipes.Buffer `json:"buffer"`
	Offset int64          `json:"offset"`
	Bytes  int64          `json:"bytes"`
}

type progress struct{ Done, Total int64 }

// failure is an error of a rank.
type failure struct {
	Text string `json:"text"`
	Lost bool   `json:"lost"` // the card can do nothing more
}

// conn is one end of the socket between the group and a rank. One goroutine may
// send while another receives.
type conn struct {
	*net.UnixConn
	out, in []byte
}

func newConn(f *os.File) (*conn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("socket between group and rank: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("socket between group and rank: it is a %T", c), c.Close())
	}
	return &conn{u, make([]byte, maxPacket), make([]byte, maxPacket)}, nil
}

// socketPair is the two ends of a socket, the second for another process.
func socketPair() (*conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket between group and rank: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "rank"), os.NewFile(uintptr(fds[1]), "group")
	c, err := newConn(near)
	near.Close() // c has a descriptor of its own
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return c, far, nil
}

// send sends a packet whose body is parts, one behind the other.
func (c *conn) send(k kind, parts ...[]byte) error {
	c.out[0] = byte(k)
	n := 1
	for _, p := range parts {
		if copy(c.out[n:], p) < len(p) {
			return fmt.Errorf("packet %d is larger than %d bytes", k, maxPacket)
		}
		n += len(p)
	}
	_, err := c.Write(c.out[:n])
	return err
}

// sendJSON sends a packet with a value.
func (c *conn) sendJSON(k kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.send(k, data)
}

// sendState sends a state. It may be called while another goroutine sends.
func (c *conn) sendState(s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = c.Write(append([]byte{byte(sayState)}, data...))
	return err
}

// receive waits for a packet. Its body is good until the next receive.
func (c *conn) receive() (kind, []byte, error) {
	n, err := c.Read(c.in)
	if err != nil {
		return 0, nil, err
	}
	if n == 0 {
		return 0, nil, errors.New("empty packet")
	}
	return kind(c.in[0]), c.in[1:n], nil
}

// parse reads the value of a packet.
func parse[T any](body []byte) (T, error) {
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("packet: %w", err)
	}
	return v, nil
}
