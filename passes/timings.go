package passes

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTimings writes a table of what each step took and did.
func WriteTimings(w io.Writer, list []Stats) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PASS\tSTAGE\tTIME\tRUNS\tCHANGED\tREWRITES\tOPS")
	var total time.Duration
	for _, s := range list {
		total += s.Time
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", s.Step, s.Stage, millis(s.Time), s.Runs, s.Changed, s.Rewrites, s.delta())
	}
	fmt.Fprintf(t, "total\t\t%s\n", millis(total))
	return t.Flush()
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// delta spells how the numbers of ops changed: their sum, then each name, the
// largest change first.
func (s *Stats) delta() string {
	if len(s.Ops) == 0 {
		return "-"
	}
	var names []string
	sum := 0
	for name, n := range s.Ops {
		names = append(names, name)
		sum += n
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(max(s.Ops[b], -s.Ops[b]), max(s.Ops[a], -s.Ops[a])), cmp.Compare(a, b))
	})
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%s %+d", name, s.Ops[name])
	}
	return fmt.Sprintf("%+d (%s)", sum, strings.Join(parts, ", "))
}
