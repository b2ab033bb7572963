package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// scratch is where bundles lie; it outlives the tests that made them, since
// other tests use them too.
var scratch string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "quill-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(scratch); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	code := m.Run()
	if err := closeIdle(0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	printSummary()
	return code
}

// soak reports whether to run everything rather than a sample.
func soak() bool { return os.Getenv("QUILL_SOAK") != "" }

// seed is what samples are drawn from: always the same one, so that a test that
// passed passes again, unless QUILL_SEED asks for another.
func seed(t testing.TB) uint64 {
	n := uint64(1)
	if text := os.Getenv("QUILL_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("QUILL_SEED: %v", err)
		}
	}
	t.Logf("seed %d", n)
	return n
}

// summary has the worst error of each suite.
var summary struct {
	sync.Mutex
	worst map[string]result
}

type result struct {
	worst, bound float64
	count        int
}

// record adds a measured error to a suite and fails the test if it is above the
// suite's bound. NaN is above every bound.
func record(t testing.TB, suite string, got, bound float64) {
	t.Helper()
	summary.Lock()
	if summary.worst == nil {
		summary.worst = map[string]result{}
	}
	r := summary.worst[suite]
	summary.worst[suite] = result{max(r.worst, got), max(r.bound, bound), r.count + 1}
	summary.Unlock()
	if !(got <= bound) {
		t.Errorf("%s: error %.3g, want at most %.3g", suite, got, bound)
	}
}

func printSummary() {
	var lines []string
	for suite, r := range summary.worst {
		lines = append(lines, fmt.Sprintf("%-44s %5d runs, worst error %.2e of %.2e", suite, r.count, r.worst, r.bound))
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Println(l)
	}
}
