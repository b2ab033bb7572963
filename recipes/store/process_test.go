package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// child, if it is set, makes the test binary one of the processes below: its name, the
// folder of the store and a number.
const child = "QUILL_STORE_CHILD"

func TestMain(m *testing.M) {
	args := strings.Split(os.Getenv(child), "|")
	if len(args) != 3 {
		os.Exit(m.Run())
	}
	n, err := strconv.Atoi(args[2])
	if err == nil {
		err = map[string]func(string, int) error{"step": dieAtStep, "work": work, "rounds": rounds, "hold": hold}[args[0]](args[1], n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func process(t *testing.T, name, dir string, n int) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%d", child, name, dir, n))
	cmd.Stderr = os.Stderr
	return cmd
}

// openChild opens a store in which nothing may go wrong.
func openChild(dir string, o Options) (*Store, error) {
	o.Warn = func(e *Error) {
		fmt.Fprintln(os.Stderr, "unexpected:", e)
		os.Exit(1)
	}
	return Open(dir, o)
}

func doRight(s *Store, n int) error {
	r, err := s.Do(context.Background(), testKey(n), build(n))
	if err != nil {
		return err
	}
	want := testResult(n)
	for h, blob := range want.Blobs {
		if string(r.Blobs[h]) != string(blob) || string(r.Data) != string(want.Data) {
			return fmt.Errorf("action %d has another result", n)
		}
	}
	return nil
}

// dieAtStep writes and collects, and kills itself before the n-th step.
func dieAtStep(dir string, n int) error {
	var steps atomic.Int64
	s, err := openChild(dir, Options{step: func(string, string) error {
		if steps.Add(1) == int64(n) {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				_ = self.Kill()
			}
			select {} // the signal comes; if not, the test ends by its time
		}
		return nil
	}})
	if err != nil {
		return err
	}
	for i := range 2 {
		if err := doRight(s, i); err != nil {
			return err
		}
	}
	if _, err := s.GC(context.Background(), GCOptions{MaxBytes: 1}); err != nil {
		return err
	}
	s.Close()
	return nil
}

// A process that ends before any step of writing or removing leaves nothing half done,
// no lock, and what the next one removes.
func TestKilledAtEveryStep(t *testing.T) {
	for n := 1; ; n++ {
		require.Less(t, n, 100)
		dir := t.TempDir()
		err := process(t, "step", dir, n).Run()
		s, warned := open(t, dir, Options{})
		r, fault := s.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, fault)
		require.Empty(t, r.Faults)
		for i := range 3 {
			require.NoError(t, doRight(s, i))
		}
		require.Empty(t, warned.take())
		s.Close()
		tidy(t, dir)
		if err == nil {
			require.Greater(t, n, 25)
			return
		}
		exit, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok && exit.ExitCode() != 1, "%v", err)
	}
}

// work writes, reads and collects until it is killed.
func work(dir string, seed int) error {
	s, err := openChild(dir, Options{MaxBytes: 30_000})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	for {
		if err := doRight(s, rng.IntN(40)); err != nil {
			return err
		}
	}
}

// Processes that are killed at any moment, two at a time, leave nothing that is damaged.
func TestKilledAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 5))
	for i := range more(25) {
		var cmds [2]*exec.Cmd
		for j := range cmds {
			cmds[j] = process(t, "work", dir, 2*i+j)
			out, err := cmds[j].StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmds[j].Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "ready\n", line)
		}
		for _, cmd := range cmds {
			time.Sleep(time.Duration(rng.IntN(30_000)) * time.Microsecond)
			require.NoError(t, cmd.Process.Kill())
			exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
			require.True(t, ok && exit.ExitCode() != 1, "seed %d, process %d: %v", seed, i, exit)
		}
		s, err := Open(dir, Options{ReadOnly: true})
		require.NoError(t, err)
		r, err := s.Verify(t.Context(), VerifyOptions{})
		require.NoError(t, err)
		require.Empty(t, r.Faults, "seed %d, process %d", seed, i)
	}
	s, warned := open(t, dir, Options{})
	for n := range 40 {
		require.NoError(t, doRight(s, n))
	}
	require.Empty(t, warned.take())
	s.Close()
	tidy(t, dir)
}

// roundsEach is how often each of the processes opens the store.
const roundsEach = 20

// rounds opens the store anew each time, for actions that the other processes want at
// the same time, and notes what it made.
func rounds(dir string, worker int) error {
	made, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "made"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer made.Close()
	for round := range roundsEach {
		s, err := openChild(dir, Options{MaxBytes: 1 << 20})
		if err != nil {
			return err
		}
		for i := range 3 {
			n := 3*round + (i+worker)%3
			r, err := s.Do(context.Background(), testKey(n), func(context.Context) (*Result, error) {
				time.Sleep(time.Millisecond)
				_, err := fmt.Fprintln(made, n)
				return testResult(n), err
			})
			if err != nil || string(r.Data) != fmt.Sprintf("plan %d", n) {
				return fmt.Errorf("action %d: %v, %w", n, r, err)
			}
		}
		s.Close()
	}
	return nil
}

// Of eight processes that want the same results at the same time, each result is made
// by one.
func TestProcessesShareTheWork(t *testing.T) {
	for range more(1) {
		base := t.TempDir()
		dir := filepath.Join(base, "store")
		var cmds [8]*exec.Cmd
		for i := range cmds {
			cmds[i] = process(t, "rounds", dir, i)
			require.NoError(t, cmds[i].Start())
		}
		for _, cmd := range cmds {
			require.NoError(t, cmd.Wait())
		}
		made, err := os.ReadFile(filepath.Join(base, "made"))
		require.NoError(t, err)
		times := map[string]int{}
		for _, n := range strings.Fields(string(made)) {
			times[n]++
		}
		require.Len(t, times, 3*roundsEach)
		for n, count := range times {
			require.Equal(t, 1, count, "action %s", n)
		}
		require.Equal(t, 3*roundsEach, tidy(t, dir).Whole.Actions)
	}
}

// hold makes an action and never ends.
func hold(dir string, n int) error {
	s, err := openChild(dir, Options{})
	if err != nil {
		return err
	}
	_, err = s.Do(context.Background(), testKey(n), func(context.Context) (*Result, error) {
		fmt.Println("holding")
		select {}
	})
	return err
}

// A process that is killed while it makes an action does not hold it any longer.
func TestDeadOwner(t *testing.T) {
	dir := t.TempDir()
	cmd := process(t, "hold", dir, 1)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	told := make(chan Owner, 1)
	s, _ := open(t, dir, Options{Wait: func(_ Key, o Owner) { told <- o }})
	done := make(chan error)
	go func() { done <- doRight(s, 1) }()
	require.Equal(t, cmd.Process.Pid, (<-told).PID)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NoError(t, <-done)
	s.Close()
	s, _ = open(t, dir, Options{})
	s.Close()
	tidy(t, dir)
}
