package lower

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

func dep(mml, seqs, block, mbt int) *Deployment {
	d, err := parseDeployment("/d.yaml", fmt.Appendf(nil, "model: m\nmax_model_len: %d\nmax_num_seqs: %d\nblock_size: %d\nmax_batched_tokens: %d\n", mml, seqs, block, mbt))
	if err != nil {
		panic(err)
	}
	return d
}

// bucketed makes the buckets of the small deployment with the given keys of buckets;
// line 7 is theirs. files are what they may name.
func bucketed(t *testing.T, keys string, files map[string]string) ([]recipes.Bucket, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	path := filepath.Join(dir, "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(small, "../nano-small", "m", 1)+"buckets: {"+keys+"}\n"), 0o644))
	d, err := ReadDeployment(path)
	require.NoError(t, err)
	for name := range files {
		require.Contains(t, d.Reads(), filepath.Join(dir, name))
	}
	return d.covering(published(t, "inkling-small"))
}

// Every strategy makes buckets, from files that are relative to the deployment.
func TestStrategies(t *testing.T) {
	for keys, files := range map[string]map[string]string{
		"strategy: exp":                                    nil,
		"strategy: exp, sharing: 1":                        nil,
		"strategy: pad, padding: 1.5":                      nil,
		"strategy: linear, most: 500":                      nil,
		"strategy: optimal":                                nil,
		"strategy: optimal, most: 60, padding: 3":          nil,
		"strategy: file, path: b.txt":                      {"b.txt": "prefill q=16,64 c=0,16\ndecode b=4 n=64\n"},
		"strategy: optimal, most: 50, trace: steps.csv":    {"steps.csv": "query,context,batch\n7,100,1\n"},
		"strategy: optimal, trace: t.jsonl, padding: 1.75": {"t.jsonl": `{"query": 1, "context": 9, "batch": 4}`},
	} {
		bs, err := bucketed(t, keys, files)
		require.NoError(t, err, keys)
		require.NotEmpty(t, bs)
	}
}

// Holes are refused with the list of them; faults of files have their lines, those of
// keys the deployment's.
func TestBucketsRefused(t *testing.T) {
	for _, c := range []struct {
		keys, file, text string
		want             []string
	}{
		{"strategy: file, path: b.txt", "b.txt", "prefill q=16 c=0,16\ndecode b=3 n=48\n", []string{
			"line 7: buckets: the buckets leave holes\n  prefill: no bucket covers", "    prefill/q=17..64,c=0 (17..64 tokens after 0)\n", "    decode/b=4,n=4..64\n", "buckets: {strategy: file",
		}},
		{"strategy: file, path: b.txt", "b.txt", "prefill q=16 c=0,16\ndecode b=3 m=48\n", []string{"b.txt:2: \"m=48\": a decode line takes b=… and n=…"}},
		{"strategy: file, path: b.txt", "c.txt", "", []string{"line 7: buckets.path: ", "b.txt: no such file"}},
		{"strategy: exp-compat", "", "", []string{"line 7: buckets: the buckets leave holes", "prefill/q=1..15,c=16 (1..15 tokens after 241..255)"}},
		{"strategy: exp, most: 9", "", "", []string{"line 7: buckets.most: strategy exp makes", "above the limit 9: raise it"}},
		{"strategy: optimal, padding: 1.2, most: 30", "", "", []string{"line 7: buckets: strategy optimal needs ", " buckets to pad no size by more than 1.2 (padding), and may make 30 (most)"}},
		{"strategy: optimal, trace: t.csv", "t.csv", "query,context,batch\n1,2,9\n", []string{"t.csv:2: batch is 9, want 1 to 4", "\n  1,2,9"}},
		{"strategy: optimal, trace: t.csv", "x.csv", "", []string{"line 7: buckets.trace: ", "t.csv: no such file"}},
	} {
		dir := t.TempDir()
		if c.file != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644))
		}
		path := filepath.Join(dir, "d.yaml")
		require.NoError(t, os.WriteFile(path, []byte(small+"buckets: {"+c.keys+"}\n"), 0o644))
		d, err := ReadDeployment(path)
		require.NoError(t, err)
		_, err = d.covering(published(t, "inkling-small"))
		for _, want := range c.want {
			require.ErrorContains(t, err, want, c.keys)
		}
	}
}

// The set is there to be looked at even where compiling refuses it.
func TestPlanBuckets(t *testing.T) {
	models, err := filepath.Abs("../testdata")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(small, "../nano-small", models+"/nano-small", 1)+"buckets: {strategy: exp-compat}\n"), 0o644))
	d, err := ReadDeployment(path)
	require.NoError(t, err)
	set, err := PlanBuckets(d)
	require.NoError(t, err)
	require.Positive(t, set.Coverage[0].Holes)
	require.Len(t, set.Padding, 5)
	_, _, err = Compile(t.Context(), d, nil)
	require.ErrorContains(t, err, "d.yaml: line 7: buckets: the buckets leave holes")
}
