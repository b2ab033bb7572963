package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"quill/recipes"
	"quill/recipes/dl"
)

// process is a process that compiles, with a folder of its own. One goroutine uses it.
type process struct {
	cmd      *exec.Cmd
	requests *os.File
	answers  *os.File
	dir      string
	output   *os.File // what it and the library print
	hello    answer   // to the first request
	dead     bool
}

// death is the end of a process that should have answered.
type death struct {
	how    string
	output string // what it printed last, "" if nothing
	logs   string // errors in the library's logs
}

func (d *death) Error() string {
	text := "the process that compiles " + d.how
	if d.output != "" {
		text += "; it printed: " + d.output
	}
	if d.logs != "" {
		text += "; the library's logs: " + d.logs
	}
	return text
}

// refused is an error that the process answered.
type refused string

func (r refused) Error() string { return string(r) }

// start starts process number n, and has it load the library.
func (c *Compiler) start(ctx context.Context, n int) (*process, error) {
	p := &process{dir: filepath.Join(c.dir.path, fmt.Sprint("worker-", n))}
	if err := os.MkdirAll(p.logs(), 0o777); err != nil {
		return nil, err
	}
	if err := p.run(c.opt.Program()); err != nil {
		return nil, fmt.Errorf("cannot start a process that compiles: %w", err)
	}
	profile, err := c.opt.Profile.Format()
	if err == nil {
		var a *answer
		if a, err = p.ask(ctx, c.opt.Deadline, &request{Synapse: c.opt.Synapse, Profile: profile}); err == nil {
			p.hello = *a
		} else if ctx.Err() == nil {
			err = fmt.Errorf("the vendor's library does not load: %w", err)
		}
	}
	if err == nil && c.with.driver != "" && p.hello.Driver != c.with.driver {
		err = fmt.Errorf("the driver has version %s, it had %s when compiling began: compile again", p.hello.Driver, c.with.driver)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *process) logs() string { return filepath.Join(p.dir, "logs") }

// run starts the program.
func (p *process) run(cmd *exec.Cmd) error {
	var theirs [2]*os.File
	var err error
	if theirs[0], p.requests, err = os.Pipe(); err != nil {
		return err
	}
	defer theirs[0].Close() // the process has its own
	if p.answers, theirs[1], err = os.Pipe(); err != nil {
		return errors.Join(err, p.requests.Close())
	}
	defer theirs[1].Close()
	if p.output, err = os.Create(filepath.Join(p.dir, "output")); err != nil {
		return errors.Join(err, p.requests.Close(), p.answers.Close())
	}
	cmd.ExtraFiles = theirs[:]
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, logsVariable+"="+p.logs(), askedVariable+"=1")
	if os.Getenv("GOTRACEBACK") == "" {
		cmd.Env = append(cmd.Env, "GOTRACEBACK=none") // what crashes is the library
	}
	ownGroup(cmd)
	p.cmd = cmd
	if err := cmd.Start(); err != nil {
		return errors.Join(err, p.requests.Close(), p.answers.Close(), p.output.Close())
	}
	return nil
}

// close ends the process.
func (p *process) close() {
	p.end(0)
	_ = p.output.Close() // what was printed was read
}

// end waits for the process to end by itself, for so long, and then kills it.
func (p *process) end(grace time.Duration) *os.ProcessState {
	if p.dead {
		return p.cmd.ProcessState
	}
	p.dead = true
	timer := time.AfterFunc(grace, func() { kill(p.cmd) })
	_ = p.cmd.Wait() // how it ended is in its state
	timer.Stop()
	_ = p.requests.Close()
	_ = p.answers.Close()
	return p.cmd.ProcessState
}

// errDeadline is why a process was killed that took too long.
var errDeadline = errors.New("deadline")

// ask sends a request and waits for the answer. Without one the process is ended, and the
// error is that of ctx or a death; an error that is the answer is a refused.
func (p *process) ask(ctx context.Context, deadline time.Duration, q *request) (*answer, error) {
	logs, printed := dl.MarkLogs(p.logs()), p.printed()
	limited, cancel := context.WithTimeoutCause(ctx, deadline, errDeadline)
	defer cancel()
	stop := context.AfterFunc(limited, func() { kill(p.cmd) })
	var a answer
	err := send(p.requests, q)
	if err == nil || errors.Is(err, syscall.EPIPE) { // it may have answered before it died
		err = receive(p.answers, &a)
	}
	if !stop() && err == nil { // it answered, and was killed at once
		p.end(0)
	}
	switch {
	case err == nil && a.Error != "":
		return nil, refused(a.Error)
	case err == nil:
		return &a, nil
	}
	how := p.died(err, context.Cause(limited), deadline)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, &death{how, p.excerpt(printed), logs()}
}

// died ends a process that gave no answer, and says what became of it.
func (p *process) died(err, cause error, deadline time.Duration) string {
	switch {
	case cause == errDeadline:
		p.end(0)
		return fmt.Sprintf("did not answer in %v and was ended", deadline)
	case !errors.Is(err, io.EOF):
		p.end(0)
		return fmt.Sprintf("was ended: %v", err)
	}
	state := p.end(time.Second) // it closed its end, so it is about to end
	if wasKilled(state) {
		return "was killed, by the system if it ran out of memory: fewer at once (--native-jobs) need less"
	}
	return fmt.Sprintf("ended without an answer (%v)", state)
}

// printed is how much the process has printed.
func (p *process) printed() int64 {
	st, err := p.output.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// Of what a process printed, this many bytes from the beginning and from the end are told.
const excerptBytes = 400

// excerpt is what the process printed since, as one line.
func (p *process) excerpt(from int64) string {
	read := func(at int64) string {
		buf := make([]byte, excerptBytes)
		n, _ := p.output.ReadAt(buf, at) // what cannot be read is not told
		return string(buf[:n])
	}
	text := read(from)
	if end := p.printed(); end > from+excerptBytes {
		text += " … " + read(max(from+excerptBytes, end-excerptBytes))
	}
	lines := strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " | ")
}

// compile has the process compile a recipe.
func (p *process) compile(ctx context.Context, deadline time.Duration, r *recipes.Recipe) ([]byte, *answer, error) {
	out := filepath.Join(p.dir, "recipe")
	defer os.Remove(out) // if it is there
	a, err := p.ask(ctx, deadline, &request{Recipe: r.Encode(), Out: out})
	if err != nil {
		return nil, nil, err
	}
	data, err := recipes.ReadSmall(out, recipes.MaxNative)
	if err != nil {
		return nil, nil, refused(fmt.Sprintf("the process that compiles says that it wrote a file: %v", err))
	}
	return data, a, nil
}
