package buckets

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"quill/recipes"
)

// file reads lists such as
//
//	prefill q=16,64 c=0,4,16
//	decode  b=1,4   n=1,16,64
//
// each line giving all combinations. # starts a comment. Combinations that
// cannot occur are errors, since they would only hide a mistake.
func (l *limits) file(t *Text) ([]recipes.Bucket, error) {
	if t == nil {
		return nil, keyError("buckets", "strategy file needs path: the file with the list")
	}
	var bs []recipes.Bucket
	for i, text := range strings.Split(string(t.Src), "\n") {
		line, _, _ := strings.Cut(text, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		list, err := l.fileLine(fields)
		if err == nil && len(bs)+len(list) > 2*MaxBuckets {
			err = fmt.Errorf("more than %d combinations so far", 2*MaxBuckets)
		}
		if err != nil {
			return nil, t.lineError(i, text, err)
		}
		bs = append(bs, list...)
	}
	return bs, nil
}

// lineError is an error about a line, counted from 0.
func (t *Text) lineError(i int, text string, err error) error {
	return fmt.Errorf("%s:%d: %w\n  %.200s", t.Path, i+1, err, text)
}

func (l *limits) fileLine(fields []string) ([]recipes.Bucket, error) {
	keys := map[string][2]string{"prefill": {"q", "c"}, "decode": {"b", "n"}}
	want, ok := keys[fields[0]]
	if !ok {
		return nil, fmt.Errorf("%q is not a phase; want prefill or decode", fields[0])
	}
	lists := map[string][]int{}
	for _, f := range fields[1:] {
		key, text, ok := strings.Cut(f, "=")
		if !ok || key != want[0] && key != want[1] {
			return nil, fmt.Errorf("%q: a %s line takes %s=… and %s=…", f, fields[0], want[0], want[1])
		}
		if lists[key] != nil {
			return nil, fmt.Errorf("%s is given twice", key)
		}
		for _, v := range strings.Split(text, ",") {
			n, err := count(v)
			if err != nil {
				return nil, fmt.Errorf("%q in %s is not a count", v, f)
			}
			lists[key] = append(lists[key], n)
		}
	}
	if lists[want[0]] == nil || lists[want[1]] == nil {
		return nil, fmt.Errorf("a %s line needs both %s=… and %s=…", fields[0], want[0], want[1])
	}
	if n := len(lists[want[0]]) * len(lists[want[1]]); n > MaxBuckets {
		return nil, fmt.Errorf("%d combinations, more than %d", n, MaxBuckets)
	}
	var bs []recipes.Bucket
	for _, x := range lists[want[0]] {
		for _, y := range lists[want[1]] {
			b := recipes.Bucket{Phase: recipes.Decode, Seqs: x, Blocks: y}
			if fields[0] == "prefill" {
				b = recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: x, Blocks: y}
			}
			if err := l.possible(b); err != nil {
				return nil, fmt.Errorf("%s: %w", b, err)
			}
			bs = append(bs, b)
		}
	}
	return bs, nil
}

// count reads a number that is none below 0.
func count(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err == nil && (n < 0 || n > math.MaxInt32) {
		err = errors.New("out of range")
	}
	return n, err
}

// possible reports why a bucket can never be needed.
func (l *limits) possible(b recipes.Bucket) error {
	switch {
	case b.Phase == recipes.Prefill && b.Query < 1:
		return fmt.Errorf("q must be at least 1")
	case b.Phase == recipes.Prefill && b.Query > l.chunk:
		return fmt.Errorf("q is more than a chunk can have, %d (max_batched_tokens, max_model_len)", l.chunk)
	case b.Phase == recipes.Prefill && b.Blocks > l.perSeq:
		return fmt.Errorf("c is more than the %d blocks of max_model_len", l.perSeq)
	case b.Phase == recipes.Decode && (b.Seqs < 1 || b.Seqs > l.seqs):
		return fmt.Errorf("b is not from 1 to %d (max_num_seqs, or what sharing allows)", l.seqs)
	case b.Phase == recipes.Decode && (b.Blocks < b.Seqs || b.Blocks > l.most(b.Seqs)):
		return fmt.Errorf("n is not from b (a block each) to %d (max_model_len each, or what sharing allows)", l.most(b.Seqs))
	}
	return nil
}

// rising sorts a list and drops duplicates.
func rising(vs []int) []int {
	slices.Sort(vs)
	return slices.Compact(vs)
}
