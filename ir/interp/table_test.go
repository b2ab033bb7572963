package interp

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

func TestEveryOpHasARule(t *testing.T) {
	for i := range ops.Table {
		require.Contains(t, rules, ops.Table[i].Name)
	}
	require.Len(t, rules, len(ops.Table))
}

// exampleParams are what the examples of the op table use without defining it.
var exampleParams = map[string]string{
	"x": "f32[4, 8]", "y": "f32[4, 8]", "i": "i32[2]", "w": "f32[8]", "taps": "f32[3, 8]",
	"h": "bf16[4, 8]", "e": "i32[4, 2]", "p": "bf16[4, 2]", "w13": "bf16[3, 2, 5, 8]", "w2": "bf16[3, 8, 5]",
	"cache": "f32[8, 3, 4]", "rows": "f32[2, 3, 4]",
	"table": "f32[6, 4]@shard(0, 2)", "offset": "i32[1]@shard(0, 2)",
	"part": "f32[4]@partial", "shards": "f32[4, 2]@shard(1, 2)",
}

// Every example of the op table evaluates.
func TestExamples(t *testing.T) {
	for i := range ops.Table {
		o := &ops.Table[i]
		t.Run(o.Name, func(t *testing.T) {
			defined := map[string]bool{}
			for _, m := range regexp.MustCompile(`(?m)^(%\w+(, %\w+)*) =`).FindAllStringSubmatch(o.Example, -1) {
				for _, name := range strings.Split(m[1], ", ") {
					defined[name[1:]] = true
				}
			}
			var params []string
			for _, m := range regexp.MustCompile(`%(\w+)`).FindAllStringSubmatch(o.Example, -1) {
				if name := m[1]; !defined[name] {
					defined[name] = true
					require.Contains(t, exampleParams, name)
					params = append(params, fmt.Sprintf("temp %%%s: %s", name, exampleParams[name]))
				}
			}
			m := parse(t, fmt.Sprintf(`module @m {tp = 2}
func @segment(temp %%x: f32[4, 8]) -> (temp r: f32[4, 8]) {
%%1 = neg %%x
return %%1
}
func @f(%s) -> () {
%s
return
}`, strings.Join(params, ", "), o.Example))
			seen := false
			_, err := Run(context.Background(), m, m.Entry(), nil, randomArgs(t, m, m.Entry()), Options{
				Tap: func(_ int, op *ir.Op, _ int, x *Tensor) {
					require.NoError(t, x.Check())
					seen = seen || op.Name() == o.Name
				},
			})
			require.NoError(t, err)
			require.True(t, seen || o.Name == "graph_break")
		})
	}
}

// randomArgs makes arguments that fit the parameters' types and distributions;
// integers are 0 or 1, which suits every index.
func randomArgs(t testing.TB, m *ir.Module, f *ir.Func) []map[string]*Tensor {
	args := make([]map[string]*Tensor, m.TP)
	for r := range args {
		args[r] = map[string]*Tensor{}
		for i, p := range f.Params {
			ty := p.Value.Type
			shape, err := evalShape(ty.Shape, nil)
			require.NoError(t, err)
			part, ok := partOf(ty.Dist, r, m.TP)
			if !ok {
				part = r
			}
			seed := uint64(i*100 + part)
			if ty.DType == dtype.I32 {
				args[r][p.Name] = RandomInts(seed, dtype.I32, 0, 2, shape...)
			} else {
				args[r][p.Name] = Random(seed, ty.DType, shape...)
			}
		}
	}
	return args
}
