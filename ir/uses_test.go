package ir

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Use lists that are kept up to date are those that would be collected anew.
func TestUsesStayTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModule(t)
		f := rapid.SampledFrom(m.Funcs).Draw(t, "function")
		u := NewUses(f)
		var values []*Value
		for _, p := range f.Params {
			values = append(values, p.Value)
		}
		for _, o := range f.Ops {
			values = append(values, o.Results...)
		}
		for range 8 {
			if len(values) == 0 {
				break
			}
			if len(f.Ops) > 0 && rapid.Bool().Draw(t, "remove") {
				i := rapid.IntRange(0, len(f.Ops)-1).Draw(t, "op")
				u.Remove(f.Ops[i])
			} else {
				u.ReplaceAll(rapid.SampledFrom(values).Draw(t, "old"), rapid.SampledFrom(values).Draw(t, "new"))
			}
			fresh := NewUses(f)
			for _, v := range values {
				require.Equal(t, fresh.Count(v), u.Count(v))
				require.Equal(t, fresh.Returned(v), u.Returned(v))
				require.ElementsMatch(t, fresh.Of(v), u.Of(v))
				for _, p := range u.Of(v) {
					if p.Op == nil {
						require.Same(t, v, f.Return[p.Index])
					} else {
						require.Same(t, v, p.Op.Args[p.Index])
					}
				}
			}
		}
	})
}

// A clone has the same text and shares nothing that a rewrite changes.
func TestClonesAreIndependent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModule(t)
		text := m.String()
		c := m.Clone()
		require.Equal(t, text, c.String())
		require.NoError(t, Verify(c))
		for _, f := range c.Funcs {
			for _, p := range f.Params {
				p.Name, p.Value.Type.Shape = "changed", nil
			}
			for _, o := range f.Ops {
				for i := range o.Attrs {
					o.Attrs[i].Dim, o.Attrs[i].Str = D(77), "changed"
					for j := range o.Attrs[i].Dims {
						o.Attrs[i].Dims[j] = D(77)
					}
				}
				for i := range o.Args {
					o.Args[i] = nil
				}
				for _, r := range o.Results {
					r.Type.Shape = nil
				}
			}
			f.Ops, f.Return, f.Results = nil, nil, nil
		}
		require.Equal(t, text, m.String())
	})
}

// Numbers that are kept across a rewrite change nothing else of the text.
func TestNumbersAreKept(t *testing.T) {
	m, err := Parse("test.qir", []byte(`module @m {level = model, tp = 1}
func @f(input %x: f32[4]) -> (output y: f32[4]) {
  %0 = exp %x
  %1 = neg %0
  %2 = silu %1
  return %2
}`))
	require.NoError(t, err)
	ns := m.Number(nil)
	require.Equal(t, m.String(), ns.Text(m))
	f := m.Entry()
	NewUses(f).ReplaceAll(f.Ops[1].Results[0], f.Ops[0].Results[0])
	f.Ops = append(f.Ops[:1], f.Ops[2])
	b := NewBuilder(m, f)
	f.Return[0] = b.Exp(f.Return[0])
	require.Contains(t, m.Number(ns).Text(m), "%0 = exp %x : f32[4]\n  %2 = silu %0 : f32[4]\n  %3 = exp %2 : f32[4]\n  return %3\n")
}
