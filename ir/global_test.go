package ir

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir/ops"
)

// whole is the op on whole values that the ranks perform together. It is nil
// where the table has no such op.
func whole(o *Op) *Op {
	w := &Op{Def: o.Def, Attrs: slices.Clone(o.Attrs)}
	for _, a := range o.Args {
		w.Args = append(w.Args, &Value{Type: a.Type.global()})
	}
	switch o.Name() {
	case "all_reduce", "all_gather", "call", "graph_break":
		return nil
	case "reshape", "broadcast": // the attribute is the shape of a rank's part
		i := slices.IndexFunc(w.Attrs, func(a Attr) bool { return a.Name == "shape" })
		w.Attrs[i].Dims = o.Results[0].Type.global().Shape
	case "embedding":
		w.Args[2].Type.Shape = []Dim{D(1)} // the first rank's offset
	case "matmul":
		x, y := o.Args[0].Type, o.Args[1].Type
		if a := x.Dist.Axis; x.Dist.Kind == Sharded && y.Dist.Kind == Sharded && x.Dist.Ways != y.Dist.Ways {
			coarse, fine := w.Args[0], w.Args[1] // heads that are shared stand for groups of heads
			if x.Dist.Ways > y.Dist.Ways {
				coarse, fine = fine, coarse
			}
			if n, ok := coarse.Type.Shape[a].Div(D(int64(min(x.Dist.Ways, y.Dist.Ways)))); !ok || !n.Is(1) {
				return w // which has no meaning
			}
			coarse.Type.Shape[a] = fine.Type.Shape[a]
		}
	}
	return w
}

// requireWhole checks that the results are parts of those of the whole op.
func requireWhole(t require.TestingT, o *Op) {
	w := whole(o)
	if w == nil {
		for i, r := range o.Results {
			if o.Def.Has(ops.Collective) {
				require.True(t, r.Type.global().Equal(o.Args[i].Type.global()), o.Name())
			}
		}
		return
	}
	want, err := shapeRules[o.Name()](w)
	require.NoError(t, err, "%s has no meaning on whole values", o.Name())
	for i, r := range o.Results {
		got := r.Type.global()
		require.True(t, want[i].Equal(got), "%s: the whole result is %s, the parts make %s", o.Name(), want[i], got)
	}
}

// What every rank does to its parts is the same op on the whole values: their
// shapes must go together too.
func TestDistributionRulesMakeWholeOps(t *testing.T) {
	made, sharded, partial := map[string]int{}, map[string]int{}, map[string]int{}
	check := func(t require.TestingT, m *Module) {
		for _, f := range m.Funcs {
			for _, o := range f.Ops {
				requireWhole(t, o)
				made[o.Name()]++
				for _, r := range o.Results {
					switch r.Type.Dist.Kind {
					case Sharded:
						sharded[o.Name()]++
					case Partial:
						partial[o.Name()]++
					}
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, drawModule(t)) })
	for seed := range 1500 {
		check(t, rapid.Custom(drawModule).Example(seed))
	}
	for i := range ops.Table { // the test is worth something
		def := &ops.Table[i]
		require.Greater(t, made[def.Name], 1, def.Name)
		switch def.Dist {
		case ops.DistConst, ops.DistAllReduce, ops.DistAllGather, ops.DistNone:
			require.Zero(t, sharded[def.Name]+partial[def.Name], def.Name)
		case ops.DistMoE, ops.DistEmbedding:
			require.NotZero(t, partial[def.Name], def.Name)
		default:
			require.NotZero(t, sharded[def.Name], def.Name)
		}
		switch def.Dist {
		case ops.DistAdd, ops.DistMul, ops.DistUnaryLinear, ops.DistBroadcast, ops.DistReshape, ops.DistTranspose, ops.DistSlice, ops.DistConcat, ops.DistReduceLinear, ops.DistMatmul, ops.DistGather:
			require.NotZero(t, partial[def.Name], def.Name)
		}
	}
}
