package dump

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/stretchr/testify/require"
)

// goldenModel makes a model of two layers of nano-small: the first with a window and a
// dense MLP, the second without and with experts. So it has the kinds of segments that
// the whole has, but for those of layers alike.
func goldenModel(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nano-small/config.json")
	require.NoError(t, err)
	var c map[string]any
	require.NoError(t, json.Unmarshal(text, &c))
	m := c["text_config"].(map[string]any)
	m["num_hidden_layers"], m["local_layer_ids"], m["dense_mlp_idx"] = 2, []int{0}, 1
	m["n_routed_experts"], m["num_experts_per_tok"] = 4, 2
	text, err = json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666))
}

// Dumps of each kind of recipe are what they were. A kind is a list of GUIDs: families
// share some. Experts' parameters have the layout of standin.h.
func TestGoldenDumps(t *testing.T) {
	dir := t.TempDir()
	goldenModel(t, dir)
	b := compileIn(t, dir, "model: .\ntensor_parallel: 2\nmax_model_len: 128\nmax_num_seqs: 1\nblock_size: 16\nmax_batched_tokens: 16\n", "")
	set := &b.Sets[0]
	families, kinds, files := map[string]bool{}, map[string]bool{}, []string{}
	for i := range set.Plans {
		p := &set.Plans[i]
		if families[p.Family] {
			continue
		}
		families[p.Family] = true
		for _, e := range OfPlan(b, set, p).Entries {
			guids := ""
			for j := range e.Recipe.Nodes {
				guids += e.Recipe.Nodes[j].GUID + " "
			}
			if kinds[guids] {
				continue
			}
			kinds[guids] = true
			l := &Listing{Name: p.Family + " " + e.Recipe.Name, Entries: []Entry{e}}
			graph, err := l.JSON(standIn(t))
			require.NoError(t, err)
			name := p.Family + "-" + e.Recipe.Name
			golden(t, name+".txt", l.Text())
			golden(t, name+".json", graph)
			files = append(files, name+".txt", name+".json")
			if strings.Contains(guids, "moe_") {
				golden(t, name+".dot", l.Dot())
				files = append(files, name+".dot")
			}
		}
	}
	require.Len(t, families, 6)
	there, err := filepath.Glob("testdata/golden/*")
	require.NoError(t, err)
	for _, f := range there {
		require.True(t, slices.Contains(files, filepath.Base(f)), "%s is of no kind any more: remove it", f)
	}
}

// golden compares with a file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if os.Getenv("QUILL_BLESS") != "" {
		require.NoError(t, os.WriteFile(file, got, 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if string(want) != string(got) {
		t.Errorf("QUILL_BLESS=1 rewrites it:\n%s", diff.Diff(file, want, "made", got))
	}
}
