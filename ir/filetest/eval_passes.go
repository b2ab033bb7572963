package filetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// checkFires compares FIRE and NO-FIRE with every command that ran the pass.
func (e *evaluation) checkFires() {
	for _, want := range e.c.Fires {
		ran := false
		for i := range e.outcomes {
			o := &e.outcomes[i]
			got, ok := o.res.Fired[want.Pass]
			if !ok {
				continue
			}
			ran, o.seen = true, true
			if got != want.Count {
				e.fail(want.Line, 0, "%s\n  %s", want.mismatch(got), o.run)
			}
		}
		if !ran {
			e.fail(want.Line, 0, "pass %s did not run%s", want.Pass, e.passesRun())
		}
	}
}

// mismatch describes a pass that fired another number of times.
func (x ExpectedFire) mismatch(got int) string {
	if x.Count == 0 {
		return fmt.Sprintf("pass %s fired %d times, but must not", x.Pass, got)
	}
	return fmt.Sprintf("pass %s fired %d times, expected %d", x.Pass, got, x.Count)
}

// passesRun lists the passes that did run, for the sake of misspelt names.
func (e *evaluation) passesRun() string {
	ran := map[string]bool{}
	for _, o := range e.outcomes {
		for pass := range o.res.Fired {
			ran[pass] = true
		}
	}
	if len(ran) == 0 {
		return "; no command reports what passes it ran"
	}
	return "; those that did: " + strings.Join(slices.Sorted(maps.Keys(ran)), ", ")
}

// checkRemarks compares REMARK with the remarks of all commands.
func (e *evaluation) checkRemarks() {
	wants := e.c.Remarks
	if len(wants) == 0 {
		return
	}
	var remarks []string
	for i := range e.outcomes {
		o := &e.outcomes[i]
		o.seen = o.seen || len(o.res.Remarks) > 0
		remarks = append(remarks, o.res.Remarks...)
	}
	matched := assign(len(wants), len(remarks), func(i, j int) bool {
		return strings.Contains(remarks[j], wants[i].Text)
	})
	for i, want := range wants {
		if matched[i] < 0 {
			e.fail(want.Line, 0, "missing remark %q%s", want.Text, listed(remarks))
		}
	}
}

// listed shows the remarks there are.
func listed(remarks []string) string {
	if len(remarks) == 0 {
		return "; there are no remarks"
	}
	return "; the remarks are:\n    " + strings.Join(remarks, "\n    ")
}
