package buckets

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

func TestFile(t *testing.T) {
	d := deployment(256, 4, 16, 64, 64)
	list := func(text string) (*Set, error) {
		return Make(Spec{Strategy: File, List: &Text{"b.txt", []byte(text)}}, d, costs)
	}
	set, err := list("# two\nprefill q=64,16 c=0,16\n\ndecode b=4 n=64,4 # full\ndecode b=4 n=64\n")
	require.NoError(t, err)
	var names []string
	for _, b := range set.Buckets {
		names = append(names, b.String())
	}
	require.Equal(t, []string{
		"prefill/q=16,c=0", "prefill/q=16,c=16", "prefill/q=64,c=0", "prefill/q=64,c=16", "decode/b=4,n=4", "decode/b=4,n=64", "logits/r=1", "logits/r=4",
	}, names)
	require.NoError(t, set.Covered())
	for _, c := range [][2]string{
		{"warmup q=1 c=1", `b.txt:1: "warmup" is not a phase`},
		{"\nprefill q=1", "b.txt:2: a prefill line needs both q=… and c=…"},
		{"prefill q=1 n=1", `"n=1": a prefill line takes q=… and c=…`},
		{"prefill q=x c=1", `"x" in q=x is not a count`},
		{"prefill q=-1 c=1", "not a count"},
		{"prefill q=1 q=2 c=0", "q is given twice"},
		{"prefill q=0 c=0", "q must be at least 1"},
		{"prefill q=65 c=0", "q is more than a chunk can have, 64"},
		{"prefill q=1 c=17", "more than the 16 blocks of max_model_len"},
		{"decode b=5 n=5", "not from 1 to 4"},
		{"decode b=2 n=33", "n is not from b (a block each) to 32"},
		{"decode b=2 n=1", "n is not from b"},
		{"prefill q=" + strings.Repeat("1,", 300) + "1 c=" + strings.Repeat("1,", 300) + "1", "90601 combinations, more than 65536"},
	} {
		_, err := list(c[0])
		require.ErrorContains(t, err, c[1], c[0])
		require.ErrorContains(t, err, "b.txt:", c[0])
	}
}

// What a list leaves out is named.
func TestFileHoles(t *testing.T) {
	d := deployment(256, 4, 16, 64, 64)
	for _, c := range []struct{ list, want string }{
		{"prefill q=64 c=0,15\ndecode b=4 n=64", "the buckets leave holes\n  prefill: no bucket covers 15 of 988 admissible shapes, 1.5 %:\n    prefill/q=1..15,c=16 (1..15 tokens after 241..255)"},
		{"prefill q=16 c=16\ndecode b=4 n=64", "prefill/q=17..64,c=0 (17..64 tokens after 0)"},
		{"prefill q=64 c=16\ndecode b=4 n=63", "the buckets leave holes\n  decode: no bucket covers 1 of 154 admissible shapes, 0.65 %:\n    decode/b=4,n=64"},
		{"prefill q=64 c=16\ndecode b=3 n=48", "decode/b=4,n=4..64\n  logits: no bucket covers 1 of 4 admissible shapes, 25 %:\n    logits/r=4"},
		{"", "prefill/q=1..64,c=0 (1..64 tokens after 0)"},
	} {
		set, err := Make(Spec{Strategy: File, List: &Text{"b.txt", []byte(c.list)}}, d, costs)
		require.NoError(t, err)
		require.ErrorContains(t, set.Covered(), c.want, c.list)
	}
	wide := d
	wide.MaxBatchedTokens = 17
	set, err := Make(Spec{Strategy: File, List: &Text{"b.txt", []byte("prefill q=16 c=16\ndecode b=4 n=64")}}, wide, costs)
	require.NoError(t, err)
	require.ErrorContains(t, set.Covered(), "prefill/q=17,c=0 (17 tokens after 0)")
}

func traced(t *testing.T, d recipes.Deployment, most int, text string) (*Set, error) {
	t.Helper()
	return Make(Spec{Strategy: Optimal, Most: most, Trace: &Text{"t.csv", []byte(text)}}, d, costs)
}

func TestTraceErrors(t *testing.T) {
	d := deployment(256, 4, 16, 64, 64)
	for _, c := range [][2]string{
		{"", "t.csv:1: the trace has no steps"},
		{" \n\n", "t.csv:1: the trace has no steps"},
		{"query,context,batch\n", "t.csv:1: the trace has no steps"},
		{"query,context\n1,2\n", "t.csv:1: the first line has to be the columns query, context and batch"},
		{"query,context,size\n1,2,1\n", `t.csv:1: "size": the first line has to be the columns`},
		{"query,query,batch\n1,2,1\n", `t.csv:1: "query": the first line has to be`},
		{"query,context,batch\n1,2,1\n1,x,1\n", `t.csv:3: context: "x" is not a count` + "\n  1,x,1"},
		{"query,context,batch\n1,2\n", "t.csv:2: wrong number of fields"},
		{"query,context,batch\n\n1,2,\"1\n", "t.csv:"},
		{"query,context,batch\n0,2,1\n", "t.csv:2: query is 0, want 1 or more"},
		{"query,context,batch\n1,2,0\n", "t.csv:2: batch is 0, want 1 or more"},
		{"query,context,batch\n65,2,1\n", "t.csv:2: query is 65, more than max_batched_tokens 64"},
		{"query,context,batch\n64,193,1\n", "t.csv:2: 64 tokens after 193 are more than max_model_len 256"},
		{"query,context,batch\n2,2,2\n", "t.csv:2: batch is 2: a prefill chunk (query above 1) is of one sequence"},
		{"query,context,batch\n1,2,5\n", "t.csv:2: batch is 5, want 1 to 4 (max_num_seqs"},
		{"{\"query\":1,\"context\":2,\"batch\":1}\n\n{\"query\":1,\"context\":2}\n", "t.csv:3: batch is missing"},
		{"{\"query\":1,\"context\":2,\"batch\":1}\n{\"query\":-1,\"context\":2,\"batch\":1}\n", "t.csv:2: query is -1, want 1 or more"},
		{"{\"query\":1,\"kontext\":2,\"batch\":1}", `t.csv:1: json: unknown field "kontext"`},
		{"{\"query\":1,\"context\":2,\"batch\":1} {}", "t.csv:1: more than one value"},
		{"{\"query\":1.5,\"context\":2,\"batch\":1}", "t.csv:1: json: cannot unmarshal number 1.5"},
		{"{\"query\":", "t.csv:1: "},
	} {
		_, err := traced(t, d, 100, c[0])
		require.ErrorContains(t, err, c[1], c[0])
	}
	s := Spec{Strategy: Optimal, Sharing: 1, Trace: &Text{"t.csv", []byte("query,context,batch\n1,255,4\n")}}
	d.KVBlocks = 63
	_, err := Make(s, d, costs)
	require.ErrorContains(t, err, "t.csv:2: 4 sequences of 256 tokens refer to 64 blocks, more than 63 (what sharing allows)")
}

// Both forms of a trace mean the same; a trace of few shapes has buckets for just
// these, beside those that the bound on padding needs.
func TestTrace(t *testing.T) {
	d := small(8192)
	steps := [][3]int{{4096, 0, 1}, {4096, 4096, 1}, {1, 8191, 7}, {1, 8192, 7}, {1, 200000, 1}, {1, 5, 1}, {500, 100001, 1}}
	csv, lines := "query, context, batch\n", ""
	for _, s := range steps {
		csv += fmt.Sprintf("%d,%d,%d\n", s[0], s[1], s[2])
		line, err := json.Marshal(map[string]int{"query": s[0], "context": s[1], "batch": s[2]})
		require.NoError(t, err)
		lines += string(line) + "\n"
	}
	set, err := traced(t, d, 400, csv)
	require.NoError(t, err)
	require.NoError(t, set.Covered())
	same, err := traced(t, d, 0, lines) // 400 is the default
	require.NoError(t, err)
	require.Equal(t, set, same)
	tight, err := Make(Spec{Strategy: Optimal, Padding: 1.6, Trace: &Text{"t", []byte(lines)}}, d, costs)
	require.NoError(t, err)
	require.LessOrEqual(t, len(tight.Buckets), 400)
	require.Greater(t, len(tight.Buckets), len(set.Buckets), "a bound needs more")
	for _, need := range []recipes.Bucket{
		{Phase: recipes.Prefill, Seqs: 1, Query: 4096},
		{Phase: recipes.Prefill, Seqs: 1, Query: 4096, Blocks: 32},
		{Phase: recipes.Prefill, Seqs: 1, Query: 512, Blocks: 782},
		{Phase: recipes.Decode, Seqs: 7, Blocks: 7 * 64},
		{Phase: recipes.Decode, Seqs: 7, Blocks: 7 * 65},
		{Phase: recipes.Decode, Seqs: 1, Blocks: 1563},
		{Phase: recipes.Decode, Seqs: 1, Blocks: 1},
	} {
		require.Contains(t, set.Buckets, need)
	}
}

// On a trace its own buckets cost less than exp's of the same number, and less
// than those that are made for all shapes alike.
func TestTraceIsCheaper(t *testing.T) {
	d := small(8192)
	exp := made(t, Spec{Strategy: Exp}, d)
	r := rand.New(rand.NewPCG(17, 18))
	text := "query,context,batch\n"
	l, shapes := newLimits(d, 0), map[recipes.Bucket]int64{}
	for range 3000 {
		q, c, b := 1, 1000+int(20000*r.ExpFloat64())%100000, 1+r.IntN(16)
		if r.IntN(3) == 0 {
			q, b = 2+int(900*r.ExpFloat64())%8000, 1
		}
		text += fmt.Sprintf("%d,%d,%d\n", q, c, b)
		require.NoError(t, l.count(shapes, &step{&q, &c, &b}))
	}
	total := func(s *Set) (sum float64) {
		sel := recipes.NewSelector(&costs, d.BlockSize, s.Buckets)
		for need, n := range shapes {
			sum += float64(n) * float64(price(&d, s.Buckets[sel.Select(need)], need))
		}
		return sum
	}
	all := made(t, Spec{Strategy: Optimal, Most: len(exp.Buckets)}, d)
	own, err := traced(t, d, len(exp.Buckets), text)
	require.NoError(t, err)
	t.Logf("%d buckets cost %.4g with exp, %.4g for all shapes alike, %.4g for the trace", len(exp.Buckets), total(exp), total(all), total(own))
	require.LessOrEqual(t, len(own.Buckets), len(exp.Buckets))
	require.Less(t, total(own), total(all))
	require.Less(t, total(own), total(exp))
}

// Any text is read or refused; nothing panics.
func FuzzTexts(f *testing.F) {
	f.Add("prefill q=1 c=0\ndecode b=1 n=1", "query,context,batch\n1,2,3\n")
	f.Add("prefill q=,", `{"query":1,"context":2,"batch":1}`)
	f.Fuzz(func(t *testing.T, list, trace string) {
		d := deployment(64, 2, 8, 16, 16)
		for _, s := range []Spec{{Strategy: File, List: &Text{"l", []byte(list)}}, {Strategy: Optimal, Trace: &Text{"t", []byte(trace)}}} {
			if set, err := Make(s, d, costs); err == nil && s.Strategy == Optimal && set.Covered() != nil {
				t.Fatalf("%v", set.Covered())
			}
		}
	})
}
