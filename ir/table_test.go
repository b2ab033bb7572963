package ir

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/ops"
)

// exampleParams are the parameters that the examples of the op table use.
var exampleParams = []struct{ name, typ string }{
	{"x", "f32[4, 8]"},
	{"y", "f32[4, 8]"},
	{"i", "i32[2]"},
	{"w", "f32[8]"},
	{"taps", "f32[4, 8]"},
	{"h", "f32[4, 8]"},
	{"e", "i32[4, 2]"},
	{"p", "f32[4, 2]"},
	{"w13", "f32[3, 2, 5, 8]@shard(2, 2)"},
	{"w2", "f32[3, 8, 5]@shard(2, 2)"},
	{"table", "f32[6, 8]@shard(0, 2)"},
	{"offset", "i32[1]@shard(0, 2)"},
	{"rows", "f32[2, 2, 4]"},
	{"shards", "f32[4, 8]@shard(1, 2)"},
	{"left", "f32[4, 8]@shard(1, 2)"},
}

// exampleModule wraps the example of an op into a module. Parameters whose
// names the example defines are left out, and %part is made if it is used.
func exampleModule(o *ops.Op) string {
	uses := func(name string) bool { return regexp.MustCompile(`%` + name + `\b`).MatchString(o.Example) }
	defines := func(name string) bool {
		return regexp.MustCompile(`(?m)^[^=]*%` + name + `\b[^=]*=`).MatchString(o.Example)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "module @example {level = %s, tp = 2}\n", levelName(o.Levels&-o.Levels))
	b.WriteString("func @segment(temp %x: f32[4, 8]) -> (temp y: f32[4, 8]) {\n  return %x\n}\n")
	b.WriteString("func @f(")
	sep := ""
	param := func(s string) {
		b.WriteString(sep + s)
		sep = ", "
	}
	for _, p := range exampleParams {
		if (uses(p.name) || p.name == "left" && uses("part")) && !defines(p.name) {
			source := fmt.Sprintf("%q", p.name)
			if p.name == "offset" {
				source = "fill(0, 6)" // the first row of each rank's part of the table
			}
			param(fmt.Sprintf("weight %%%s: %s = %s", p.name, p.typ, source))
		}
	}
	result := ""
	if uses("cache") {
		param("state %cache: f32[8, 2, 4]")
		if o.Has(ops.StateWrite) {
			result = "cache"
		}
	}
	if result == "" {
		b.WriteString(") -> () {\n")
	} else {
		b.WriteString(") -> (state cache: f32[8, 2, 4]) {\n")
	}
	if uses("part") {
		b.WriteString("%part = reduce_sum %left {axis = 1}\n")
	}
	b.WriteString(o.Example + "\n")
	if result == "" {
		b.WriteString("return\n}\n")
	} else {
		b.WriteString("return %y2\n}\n")
	}
	return b.String()
}

func TestExamples(t *testing.T) {
	for i := range ops.Table {
		o := &ops.Table[i]
		t.Run(o.Name, func(t *testing.T) {
			text := exampleModule(o)
			m, err := VerifyText("example.qir", []byte(text))
			require.NoError(t, err, "%s", text)
			used := slices.ContainsFunc(m.Entry().Ops, func(p *Op) bool { return p.Def == o })
			require.True(t, used, "the example of %s does not use it", o.Name)
			once := m.String()
			back, err := VerifyText("printed.qir", []byte(once))
			require.NoError(t, err, "%s", once)
			require.Equal(t, once, back.String())
			requireSame(t, m, back)
			for _, p := range m.Entry().Ops {
				requireWhole(t, p)
				require.NoError(t, p.Check())
			}
		})
	}
}

func TestTable(t *testing.T) {
	names := map[string]bool{}
	rules := map[ops.Dist]bool{}
	for i := range ops.Table {
		o := &ops.Table[i]
		require.False(t, names[o.Name], "%s is there twice", o.Name)
		names[o.Name] = true
		found, ok := ops.ByName(o.Name)
		require.True(t, ok)
		require.Same(t, o, found)
		require.Regexp(t, `^[a-z_]+$`, o.Name)
		require.NotEmpty(t, o.Summary, o.Name)
		require.NotZero(t, o.Levels, o.Name)
		require.Contains(t, shapeRules, o.Name, "a shape rule")
		rules[o.Dist] = true
		if o.Dist != ops.DistCall && o.Dist != ops.DistNone {
			require.True(t, distRules[o.Dist] != nil || eachDistRules[o.Dist] != nil, "a distribution rule of %s", o.Name)
			require.NotEmpty(t, o.Results, o.Name)
		}
		for j, x := range o.Operands {
			require.True(t, !x.Variadic && !x.Optional || j == len(o.Operands)-1, "%s: only the last operand repeats or may be missing", o.Name)
			require.False(t, x.Variadic && x.Optional, o.Name)
		}
		attrs := map[string]bool{}
		for _, a := range o.Attrs {
			require.False(t, attrs[a.Name], "%s has %s twice", o.Name, a.Name)
			attrs[a.Name] = true
			require.NotEmpty(t, a.Doc, "%s %s", o.Name, a.Name)
			require.False(t, a.Lead && (a.Optional || a.Type == ops.Ints || a.Type == ops.Dims || a.Type == ops.DType || a.Type == ops.Bool),
				"%s: the grammar has no such leading attribute", o.Name)
		}
		require.Equal(t, o.Has(ops.StateWrite), o.Has(ops.StateWrite) && len(o.Results) == 1 && len(o.Operands) > 0, o.Name)
		require.True(t, !o.PerOperand || o.Variadic() && len(o.Results) == 1, o.Name)
	}
	require.Len(t, shapeRules, len(ops.Table), "a rule for an op that is not there")
	for d := range distRules {
		require.True(t, rules[d], "rule %d is not used", d)
	}
	_, ok := ops.ByName("no_such_op")
	require.False(t, ok)
}
