package main

import (
	"cmp"
	"slices"
	"time"
)

// kindStat is what all units of one kind did in a recording.
type kindStat struct {
	Kind    string  `json:"kind"`
	Units   int     `json:"units"` // executions
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"` // of the time of the calls
	// Rates count weights and products only.
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	FlopsPerSecond float64 `json:"flops_per_second,omitempty"`
}

// outside is the kind of what units do not account for.
const outside = "(outside launches: inputs, collectives, logits)"

// kinds adds up a recording, the most time first. Ranks of one team execute one
// after the other, those of other teams are not in the trace, so the times add
// up to that of the calls.
func (r *recording) kinds() []kindStat {
	var total, rest time.Duration
	for _, s := range r.spans {
		total += s.end - s.start
	}
	rest = total
	type sums struct {
		units        int
		time         time.Duration
		bytes, flops int64
	}
	byKind := make(map[string]*sums)
	for _, e := range r.trace.Events {
		s := byKind[e.Unit.Kind]
		if s == nil {
			s = &sums{}
			byKind[e.Unit.Kind] = s
		}
		s.units++
		s.time += e.End - e.Start
		s.bytes += e.Unit.WeightBytes + int64(e.Experts)*e.Unit.ExpertBytes
		s.flops += e.Unit.Flops + e.Unit.ExpertFlops
		rest -= e.End - e.Start
	}
	byKind[outside] = &sums{time: max(rest, 0)}
	var stats []kindStat
	for kind, s := range byKind {
		t := s.time.Seconds()
		stats = append(stats, kindStat{kind, s.units, t, ratio(t, total.Seconds()), ratio(float64(s.bytes), t), ratio(float64(s.flops), t)})
	}
	slices.SortFunc(stats, func(a, b kindStat) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Kind, b.Kind))
	})
	return stats
}

// experts is the mean number of distinct experts that a layer read; 0 if no
// unit read any.
func (r *recording) experts() float64 {
	var sum, n float64
	for _, e := range r.trace.Events {
		if e.Experts > 0 {
			sum += float64(e.Experts)
			n++
		}
	}
	return ratio(sum, n)
}

// ratio is a/b, 0 if there is no b.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// percentile is the smallest of the values that at least p of 100 do not exceed.
func percentile[T cmp.Ordered](values []T, p int) (none T) {
	if len(values) == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
