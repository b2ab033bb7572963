package simsynapse

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// tracer writes calls as lines of JSON: their number, name, arguments, results and status.
// Addresses and handles are numbers, bytes are base64.
type tracer struct {
	file *os.File
	n    int
}

func (t *tracer) open(path string) (err error) {
	if path != "" {
		t.file, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	}
	return err
}

// line is a line of the trace.
type line struct {
	N      int    `json:"n"`
	PID    int    `json:"pid"`
	Call   string `json:"call"`
	Args   args   `json:"args,omitempty"`
	Out    any    `json:"out,omitempty"`
	Status int32  `json:"status"`
}

func (t *tracer) call(name string, a args, out any, status int32) {
	t.n++
	if t.file == nil {
		return
	}
	if _, nothing := out.(none); nothing || status != 0 {
		out = nil
	}
	b, err := json.Marshal(line{t.n, os.Getpid(), name, a, out, status})
	if err != nil {
		b, _ = json.Marshal(line{t.n, os.Getpid(), name, args{"error": err.Error()}, nil, status})
	}
	_, _ = t.file.Write(append(b, '\n')) // a trace that cannot be written must not change what it shows
}

// logs are the log files, in the folder of the real library and under its names.
type logs struct {
	dir  string
	mu   sync.Mutex
	last string
}

func (g *logs) runtime(format string, a ...any)  { g.write("synapse_runtime.log", format, a...) }
func (g *logs) compiler(format string, a ...any) { g.write("graph_compiler.log", format, a...) }

func (g *logs) write(file, format string, a ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = fmt.Sprintf(format, a...)
	if g.dir == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return // a log that cannot be written changes nothing
	}
	defer f.Close()
	fmt.Fprintf(f, "[%s][%d][error] %s\n", time.Now().Format("15:04:05.000"), os.Getpid(), g.last)
}

// LastError is the last line of the logs.
func (l *Library) LastError() string {
	l.logs.mu.Lock()
	defer l.logs.mu.Unlock()
	return l.logs.last
}

// Account is what a process has not given back. It is kept up to date in
// SIMSYNAPSE_DIR/account-PID.json, so that it is there even if the process is killed.
type Account struct {
	PID         int   `json:"pid"`
	Destroyed   bool  `json:"destroyed"` // by synDestroy, which is when the rest was counted
	Module      int   `json:"module"`    // −1 if none is acquired
	DeviceBytes int64 `json:"device_bytes"`
	Allocations int   `json:"allocations"`
	HostMapped  int   `json:"host_mapped"`
	Streams     int   `json:"streams"`
	Events      int   `json:"events"`
	Recipes     int   `json:"recipes"`
	Graphs      int   `json:"graphs"`
	Comms       int   `json:"comms"`
	Launches    int   `json:"launches"` // made; not counted as a change
}

// Clean reports whether everything was given back.
func (a Account) Clean() bool {
	return a == Account{PID: a.PID, Destroyed: a.Destroyed, Module: -1, Launches: a.Launches}
}

func (l *Library) balance() Account {
	a := Account{
		PID: os.Getpid(), Module: l.module(), Streams: len(l.streams), Events: len(l.events), Recipes: len(l.recipes), Graphs: len(l.graphs), Comms: len(l.comms),
	}
	if d := l.device; d != nil {
		a.Allocations, a.HostMapped, a.Launches = len(d.allocations), len(d.mapped), d.launches
		for _, x := range d.allocations {
			a.DeviceBytes += x.size
		}
	}
	return a
}

// account writes the account if it has changed.
func (l *Library) account() {
	if l.config.Dir == "" || !l.initialized {
		return
	}
	a := l.balance()
	a.Launches = l.accounted.Launches
	if a == l.accounted {
		return
	}
	if err := l.writeAccount(false); err != nil {
		l.logs.runtime("account: %v", err)
	}
}

func (l *Library) writeAccount(destroyed bool) error {
	if l.config.Dir == "" {
		return nil
	}
	l.accounted = l.balance()
	a := l.accounted
	a.Destroyed = destroyed
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	path := filepath.Join(l.config.Dir, fmt.Sprintf("account-%d.json", a.PID))
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o666); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
