package passes

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
)

// nothing is a pass that does nothing.
func nothing(name string, after ...Order) Pass {
	return Pass{
		Name: name, Summary: "does nothing", Stages: Family, Optional: true, After: after,
		Run: func(*Context, *ir.Module) (bool, error) { return false, nil },
	}
}

// testTable has a pass of every kind.
func testTable() Table {
	a, b, c := nothing("fuse-a"), nothing("fuse-b", Order{"fuse-a", "it looks for what fuse-a makes"}), nothing("late")
	a.Options = []Option{
		{Name: "budget", Kind: Bytes, Default: "1MiB"},
		{Name: "rows", Kind: Int, Default: "7"},
		{Name: "deep", Kind: Bool, Default: "false"},
		{Name: "mode", Kind: Choice, Default: "exact", Choices: []string{"exact", "fast"}},
	}
	c.Stages = Bucket
	return Table{a, b, c, outlinePass}
}

func TestPipelinesAreReadAndSpelled(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"  ":                                "",
		"fuse-a":                            "fuse-a",
		" fuse-a , fuse-b ":                 "fuse-a,fuse-b",
		"fuse-a{rows=3,budget=64MiB}":       "fuse-a{budget=64MiB,rows=3}",
		"fuse-a{ deep=true } , fuse-a":      "fuse-a{deep=true},fuse-a",
		"fuse-a,outline-segments,late":      "fuse-a,outline-segments,late",
		"fuse-a{mode=fast},fuse-b,fuse-a":   "fuse-a{mode=fast},fuse-b,fuse-a",
		"outline-segments,late,late":        "outline-segments,late,late",
		"fuse-a{budget=0},outline-segments": "fuse-a{budget=0},outline-segments",
	} {
		p, err := testTable().Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, p.String())
		again, err := testTable().Parse(p.String())
		require.NoError(t, err)
		require.Equal(t, p.String(), again.String())
	}
}

func TestPipelineErrorsShowThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"fuse-b,fuse-e": "there is no pass \"fuse-e\"; did you mean fuse-a?\n" +
			"  fuse-b,fuse-e\n" +
			"         ^",
		"nope":                              "there is no pass \"nope\"; there are fuse-a, fuse-b, late, outline-segments\n  nope\n  ^",
		"fuse-a,":                           "want the name of a pass\n  fuse-a,\n         ^",
		"fuse-a}":                           "want a comma between passes\n  fuse-a}\n        ^",
		"fuse-a{rows=1":                     "want } or a comma behind an option of fuse-a\n  fuse-a{rows=1\n               ^",
		"fuse-a{}":                          "want the name of an option of fuse-a: budget, rows, deep, mode\n  fuse-a{}\n         ^",
		"fuse-b{x=1}":                       "fuse-b has no options\n  fuse-b{x=1}\n         ^",
		"fuse-a{row=1}":                     "fuse-a has no option \"row\"; did you mean rows?\n  fuse-a{row=1}\n         ^",
		"fuse-a{zzzzz=1}":                   "fuse-a has no option \"zzzzz\"; it has budget, rows, deep, mode\n  fuse-a{zzzzz=1}\n         ^",
		"fuse-a{rows}":                      "want = and a value behind option rows\n  fuse-a{rows}\n             ^",
		"fuse-a{rows=1,rows=2}":             "option rows is given twice\n  fuse-a{rows=1,rows=2}\n                ^",
		"fuse-a{rows=-1}":                   "fuse-a: option rows is \"-1\", want a number from 0\n  fuse-a{rows=-1}\n              ^",
		"fuse-a{budget=1MB}":                "fuse-a: option budget is \"1MB\", want a number from 0, with KiB, MiB or GiB behind it or nothing for bytes\n  fuse-a{budget=1MB}\n                ^",
		"fuse-a{budget=9999999999GiB}":      "fuse-a: option budget is \"9999999999GiB\", want a number from 0, with KiB, MiB or GiB behind it or nothing for bytes\n  fuse-a{budget=9999999999GiB}\n                ^",
		"fuse-a{deep=yes}":                  "fuse-a: option deep is \"yes\", want true or false\n  fuse-a{deep=yes}\n              ^",
		"fuse-a{mode=slow}":                 "fuse-a: option mode is \"slow\", want one of exact, fast\n  fuse-a{mode=slow}\n              ^",
		"fuse-b,fuse-a":                     "fuse-b must follow fuse-a: it looks for what fuse-a makes\n  fuse-b,fuse-a\n  ^",
		"late":                              "late runs in the bucket stage only; put it behind outline-segments\n  late\n  ^",
		"outline-segments,fuse-a":           "fuse-a runs in the family stage only; put it before outline-segments\n  outline-segments,fuse-a\n                   ^",
		"outline-segments,outline-segments": "outline-segments comes twice; it ends the family stage\n  outline-segments,outline-segments\n                   ^",
	} {
		_, err := testTable().Parse(text)
		require.EqualError(t, err, want, "%q", text)
	}
}

func TestOptionsHaveTypesAndDefaults(t *testing.T) {
	table := testTable()
	p, err := table.Parse("fuse-a,fuse-a{budget=2KiB,rows=3,deep=true,mode=fast}")
	require.NoError(t, err)
	c := Context{step: p[0]}
	require.Equal(t, []any{int64(1 << 20), int64(7), false, "exact"}, []any{c.Int("budget"), c.Int("rows"), c.Bool("deep"), c.Choice("mode")})
	c.step = p[1]
	require.Equal(t, []any{int64(2 << 10), int64(3), true, "fast"}, []any{c.Int("budget"), c.Int("rows"), c.Bool("deep"), c.Choice("mode")})
	require.Panics(t, func() { c.Bool("rows") }, "of another kind")
	require.Panics(t, func() { c.Int("nope") })
}

func TestStagesAndWithout(t *testing.T) {
	table := testTable()
	p, err := table.Parse("fuse-a,fuse-b,outline-segments,late")
	require.NoError(t, err)
	require.Equal(t, "fuse-a,fuse-b,outline-segments", p.Stage(Family).String())
	require.Equal(t, "late", p.Stage(Bucket).String())
	less, err := p.Without(table, "fuse-a", "late")
	require.NoError(t, err)
	require.Equal(t, "fuse-b,outline-segments", less.String())
	require.Equal(t, "fuse-a,fuse-b,outline-segments,late", p.String())
	_, err = p.Without(table, "outline-segments")
	require.EqualError(t, err, "pass outline-segments cannot be left out: lowering needs what it makes")
	_, err = p.Without(table, "fuse-aa")
	require.ErrorContains(t, err, "did you mean fuse-a?")
	require.NoError(t, p.CheckComplete(table))
	p, err = table.Parse("fuse-a")
	require.NoError(t, err)
	require.Equal(t, "fuse-a", p.Stage(Family).String())
	require.Empty(t, p.Stage(Bucket))
	require.ErrorContains(t, p.CheckComplete(table), "the pipeline lacks outline-segments, which lowering needs")
}

func TestRandomPipelinesKeepTheOrder(t *testing.T) {
	table := testTable()
	for range 3 {
		table = append(Table{nothing("z" + string(rune('a'+len(table))))}, table...)
	}
	seen := map[string]bool{}
	for seed := range uint64(50) {
		p := table.Random(seed)
		require.Equal(t, p.String(), table.Random(seed).String())
		_, err := table.Parse(p.String())
		require.NoError(t, err)
		require.Len(t, p, len(table)-1, "all but the bucket stage's")
		seen[p.String()] = true
	}
	require.Greater(t, len(seen), 20)
}

// The table is well formed: names are unique, orders name passes and are
// possible, defaults are values, and the default pipeline is complete.
func TestTable(t *testing.T) {
	table := Passes()
	names := map[string]bool{}
	for i := range table {
		p := &table[i]
		require.False(t, names[p.Name], p.Name)
		names[p.Name] = true
		require.NotEmpty(t, p.Summary)
		require.NotZero(t, p.Stages)
		require.NotNil(t, p.Run)
		for _, o := range p.After {
			require.NotNil(t, table.Find(o.Pass), "%s follows %s", p.Name, o.Pass)
			require.NotEmpty(t, o.Why)
		}
		for _, o := range p.Options {
			require.NotEmpty(t, o.Doc)
			_, err := o.parse(o.Default)
			require.NoError(t, err)
		}
	}
	require.NoError(t, Default().CheckComplete(table))
	table.Random(0)
	var optional []string
	for i := range table {
		if table[i].Optional {
			optional = append(optional, table[i].Name)
		}
	}
	p, err := Default().Without(table, optional...)
	require.NoError(t, err)
	require.Equal(t, "outline-segments", p.String())
	require.False(t, slices.Contains(optional, "outline-segments"))
}

func TestParams(t *testing.T) {
	p := Params{Target: "gaudi2", BlockSize: 128, Blocks: 7, MaxModelLen: 99, MaxNumSeqs: 4, MaxBatchedTokens: 64, Attention: Banded, Far: FarTiled, MaskBudget: 5, SubBlockRows: 6, MoE: GatheredExperts, ExpertsPerNode: 8}
	require.Equal(t, []string{
		"target=gaudi2", "attention=banded", "far=tiled", "moe=gather", "block_size=128", "kv_blocks=7", "max_model_len=99", "max_num_seqs=4", "max_batched_tokens=64",
		"mask_budget=5", "sub_block_rows=6", "moe_experts_per_node=8",
	}, p.Texts())
	var q Params
	for _, s := range p.Texts() {
		require.NoError(t, q.Set(s))
	}
	require.Equal(t, p, q)
	require.Empty(t, Params{}.Texts())
	require.EqualError(t, q.Set("block_size"), `parameter "block_size" is not of the form key=value`)
	require.EqualError(t, q.Set("block_size=0"), `parameter block_size is "0", want a number from 1`)
	require.EqualError(t, q.Set("mask_budget=64KB"), `parameter mask_budget is "64KB", want a number from 1, with KiB, MiB or GiB behind it or nothing for bytes`)
	require.NoError(t, q.Set("mask_budget=64KiB"))
	require.Equal(t, 64<<10, q.MaskBudget)
	require.ErrorContains(t, q.Set("size=3"), `there is no parameter "size"; there are target, attention, far, moe, block_size`)
	require.EqualError(t, q.Set("far=away"), `parameter far is "away", want one of mask, exact, tiled`)
}

// The design document describes each pass once, in the order in which compiling runs it
// first.
func TestDesignDescribesAllPasses(t *testing.T) {
	text, err := os.ReadFile("../docs/design.md")
	require.NoError(t, err)
	var got, want []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z-]+) \| `).FindAllSubmatch(text, -1) {
		if name := string(row[1]); Passes().Find(name) != nil {
			got = append(got, name)
		}
	}
	for _, s := range Default() {
		if !slices.Contains(want, s.Pass.Name) {
			want = append(want, s.Pass.Name)
		}
	}
	require.Equal(t, want, got)
	require.Len(t, got, len(Passes()))
}
