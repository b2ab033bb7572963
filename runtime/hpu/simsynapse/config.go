package simsynapse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"quill/recipes/target"
	"quill/recipes/target/header"
)

// Config says what a library simulates. Each field is a variable of the environment, which
// FromEnv reads.
type Config struct {
	// Dir (SIMSYNAPSE_DIR) is a folder that the processes of one machine share: locks of
	// modules, and an account of each process. Without one, processes do not see each
	// other's devices.
	Dir string
	// Trace (SIMSYNAPSE_TRACE) is a file to which every call is appended, a line of JSON
	// each. %d in it is the number of the process.
	Trace string
	// Profile (SIMSYNAPSE_PROFILE) is what the target takes: the name of a built-in
	// profile, a profile's JSON file, or a header (.h) that adds to the default one.
	Profile string
	// Faults (SIMSYNAPSE_FAULTS) are what goes wrong; see parseFaults.
	Faults string
	// DRAM (SIMSYNAPSE_DRAM) is the bytes of a device's memory, 96 GiB by default. They
	// are taken from the machine only where they are written.
	DRAM int64
	// Modules (SIMSYNAPSE_MODULES) is the number of devices of the machine, 8 by default.
	Modules int
	// Threads (SIMSYNAPSE_THREADS) is the number of threads that execute recipes, 1 by
	// default. Results do not depend on it.
	Threads int
	// Lag (SIMSYNAPSE_LAG) is how long work waits before it is done, if nobody waits for
	// it: what is read without synchronising is old. 1 ms by default.
	Lag time.Duration
	// NoPoison (SIMSYNAPSE_POISON=0) leaves new device memory and the workspaces of
	// launches as they are, instead of filling them with a pattern.
	NoPoison bool
	// Version (SIMSYNAPSE_VERSION) is the software's version, 1.20.0 by default.
	Version string
	// Logs (HABANA_LOGS) is the folder of the log files, none if it is empty.
	Logs string
	// Kernels (GC_KERNEL_PATH) are files of kernels, separated by colons. Only that one
	// of them is there is checked, since a graph for Gaudi 2 does not compile without.
	Kernels string
	// CommID (HCCL_COMM_ID) is the address of the coordinator, if it is not to be told
	// by a unique id.
	CommID string
	// Die ends the process by a signal, for faults; without one it exits with 128 and the
	// signal's number.
	Die func(syscall.Signal)
}

// FromEnv reads the environment.
func FromEnv() (Config, error) {
	env := os.Getenv
	c := Config{
		Dir: env("SIMSYNAPSE_DIR"), Trace: env("SIMSYNAPSE_TRACE"), Profile: env("SIMSYNAPSE_PROFILE"), Faults: env("SIMSYNAPSE_FAULTS"),
		NoPoison: env("SIMSYNAPSE_POISON") == "0", Version: env("SIMSYNAPSE_VERSION"), Logs: env("HABANA_LOGS"), Kernels: env("GC_KERNEL_PATH"), CommID: env("HCCL_COMM_ID"),
	}
	for _, n := range []struct {
		name string
		set  func(int64)
	}{
		{"SIMSYNAPSE_DRAM", func(n int64) { c.DRAM = n }},
		{"SIMSYNAPSE_MODULES", func(n int64) { c.Modules = int(n) }},
		{"SIMSYNAPSE_THREADS", func(n int64) { c.Threads = int(n) }},
	} {
		if text := env(n.name); text != "" {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < 1 || v > 1<<42 {
				return c, fmt.Errorf("%s is %q, want a number from 1", n.name, text)
			}
			n.set(v)
		}
	}
	if text := env("SIMSYNAPSE_LAG"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return c, fmt.Errorf("SIMSYNAPSE_LAG is %q, want a time such as 5ms", text)
		}
		c.Lag = max(d, 1) // nothing given is the default
	}
	return c, nil
}

// defaults fills in what is not given.
func (c *Config) defaults() {
	if c.DRAM == 0 {
		c.DRAM = 96 << 30
	}
	if c.Modules == 0 {
		c.Modules = 8
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.Lag == 0 {
		c.Lag = time.Millisecond
	}
	if c.Version == "" {
		c.Version = "1.20.0"
	}
	if c.Die == nil {
		c.Die = func(s syscall.Signal) { os.Exit(128 + int(s)) }
	}
	c.Trace = strings.ReplaceAll(c.Trace, "%d", strconv.Itoa(os.Getpid()))
}

// profile loads what Profile names.
func (c *Config) profile() (*target.Profile, error) {
	switch {
	case c.Profile == "":
		return target.Load(target.Default)
	case filepath.Ext(c.Profile) == ".h":
		p, err := target.Load(target.Default)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(c.Profile)
		if err != nil {
			return nil, err
		}
		h, err := header.Parse(c.Profile, text, nil)
		if err != nil {
			return nil, err
		}
		_, err = h.Merge(p, filepath.Base(c.Profile), false)
		return p, err
	case !strings.ContainsAny(c.Profile, "/.") || slices.Contains(target.Names(), c.Profile):
		return target.Load(c.Profile)
	}
	text, err := os.ReadFile(c.Profile)
	if err != nil {
		return nil, err
	}
	p, err := target.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Profile, err)
	}
	return p, nil
}

// kernelLibrary reports whether one of the files of kernels is there.
func (c *Config) kernelLibrary() bool {
	for _, path := range filepath.SplitList(c.Kernels) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}
