package ir

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Printing is a fixed point and loses nothing.
func TestRandomModulesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModule(t)
		require.NoError(t, Verify(m), "%s", m)
		text := m.String()
		back, err := VerifyText("printed.qir", []byte(text))
		require.NoError(t, err, "%s", text)
		require.Equal(t, text, back.String())
		requireSame(t, m, back)

		// Result types can be inferred, and attributes may come in any order.
		bare, err := Parse("bare.qir", []byte(withoutTypes(text)))
		require.NoError(t, err, "%s", withoutTypes(text))
		require.Equal(t, text, bare.String())
		shuffled, err := Parse("shuffled.qir", []byte(reversedAttrs(text)))
		require.NoError(t, err, "%s", reversedAttrs(text))
		require.Equal(t, text, shuffled.String())
	})
}

// withoutTypes leaves out the types of op results.
func withoutTypes(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if !strings.HasPrefix(l, "  %") {
			continue
		}
		head, rest, ok := strings.Cut(l, " : ")
		if !ok {
			continue
		}
		lines[i] = head
		if _, loc, ok := strings.Cut(rest, " loc("); ok {
			lines[i] += " loc(" + loc
		}
	}
	return strings.Join(lines, "\n")
}

var (
	attrsRE = regexp.MustCompile(`(?m)^((?:module|  %).* )\{([^"{}]*)\}(.*)$`)
	attrRE  = regexp.MustCompile(`[a-z_]+ = (?:\[[^\]]*\]|[^,]*)`)
)

// reversedAttrs turns around the attributes of module and ops.
func reversedAttrs(text string) string {
	return attrsRE.ReplaceAllStringFunc(text, func(l string) string {
		m := attrsRE.FindStringSubmatch(l)
		attrs := attrRE.FindAllString(m[2], -1)
		for i, j := 0, len(attrs)-1; i < j; i, j = i+1, j-1 {
			attrs[i], attrs[j] = attrs[j], attrs[i]
		}
		return m[1] + "{" + strings.Join(attrs, ", ") + "}" + m[3]
	})
}

func TestReversedAttrs(t *testing.T) {
	require.Equal(t, "module @m {tp = 1, level = model}\n  %0 = slice %x {stop = q, start = 0, axis = 0} : f32[q] loc(\"{a = 1}\")\n  %1 = reshape %0 {shard = 1, shape = [1, q]} : f32[1, q]",
		reversedAttrs("module @m {level = model, tp = 1}\n  %0 = slice %x {axis = 0, start = 0, stop = q} : f32[q] loc(\"{a = 1}\")\n  %1 = reshape %0 {shape = [1, q], shard = 1} : f32[1, q]"))
}

// requireSame compares modules part by part.
func requireSame(t require.TestingT, a, b *Module) {
	require.Equal(t, []any{a.Name, a.Level, a.TP, len(a.Syms), len(a.Funcs)}, []any{b.Name, b.Level, b.TP, len(b.Syms), len(b.Funcs)})
	for i, s := range a.Syms {
		require.Equal(t, s.String(), b.Syms[i].String())
	}
	for i, f := range a.Funcs {
		sameFunc(t, f, b.Funcs[i])
	}
}

func sameFunc(t require.TestingT, f, g *Func) {
	require.Equal(t, []any{f.Name, len(f.Params), len(f.Ops), len(f.Results), len(f.Return)}, []any{g.Name, len(g.Params), len(g.Ops), len(g.Results), len(g.Return)})
	same := map[*Value]*Value{}
	sameType := func(a, b Type) { require.True(t, a.Equal(b), "%s and %s", a, b) }
	for i, p := range f.Params {
		q := g.Params[i]
		same[p.Value] = q.Value
		require.Equal(t, []any{p.Name, p.Kind}, []any{q.Name, q.Kind})
		require.Equal(t, p.Source, q.Source)
		sameType(p.Value.Type, q.Value.Type)
	}
	for i, r := range f.Results {
		require.Equal(t, []any{r.Name, r.Kind}, []any{g.Results[i].Name, g.Results[i].Kind})
		sameType(r.Type, g.Results[i].Type)
	}
	sameArgs := func(a, b []*Value) {
		require.Len(t, b, len(a))
		for i := range a {
			require.Same(t, same[a[i]], b[i])
		}
	}
	for i, o := range f.Ops {
		p := g.Ops[i]
		require.Equal(t, []any{o.Name(), o.Loc, len(o.Attrs), len(o.Results)}, []any{p.Name(), p.Loc, len(p.Attrs), len(p.Results)})
		sameArgs(o.Args, p.Args)
		for j, at := range o.Attrs { // both in the table's order
			bt := p.Attrs[j]
			require.Equal(t, []any{at.Name, at.Float, at.Str, at.Bool, at.DType}, []any{bt.Name, bt.Float, bt.Str, bt.Bool, bt.DType})
			require.True(t, at.Dim.Equal(bt.Dim) && SameShape(at.Dims, bt.Dims))
			if at.Func != nil {
				require.Equal(t, at.Func.Name, bt.Func.Name)
			}
		}
		for j, r := range o.Results {
			same[r] = p.Results[j]
			sameType(r.Type, p.Results[j].Type)
		}
	}
	sameArgs(f.Return, g.Return)
}
