package host

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

func sdpaP(scale float64, inference int64) *recipes.Params {
	return params("ns_Sdpa::Params", recipes.Field{Name: "scale", Type: recipes.F32, Float: float32(scale)}, ints("is_causal", recipes.U8, 0),
		recipes.Field{Name: "dropout.ratio", Type: recipes.F32}, ints("dropout.seed", recipes.U32, 0),
		ints("dropout.disableMaskOut", recipes.U8, 1), ints("is_inference", recipes.U8, inference))
}

// attentionCase is a node with random operands; hidden keys lie in the middle.
func attentionCase(g gen, dt dtype.Type, stats bool) testCase {
	d, dv, sq, sk, group := 1+g.IntN(20), 1+g.IntN(20), 1+g.IntN(9), 1+g.IntN(70), 1+g.IntN(3)
	outer := []int{1 + g.IntN(3)} // heads, and in each second case a batch
	if g.IntN(2) == 0 {
		outer = append(outer, 1+g.IntN(3))
	}
	shape := func(d ...int) []int { return append(d, outer...) }
	broad := []int{sk, pick(g, 1, sq), pick(g, 1, group)}
	for _, n := range outer {
		broad = append(broad, pick(g, 1, n))
	}
	mask := g.values(dt, false, broad...)
	for i := range mask.x {
		if i%sk > 0 && g.IntN(3) == 0 {
			mask.x[i] = rounded(dt, -1e30)
		}
	}
	q := g.values(dt, false, shape(d, sq, group)...)
	operands := []*val{q, g.values(dt, false, shape(d, sk, 1)...), g.values(dt, false, shape(dv, sk, 1)...), mask}
	if g.IntN(4) == 0 {
		operands = operands[:3]
	}
	for i := range q.x { // scores without much cancellation
		q.x[i] = rounded(dt, q.x[i]/64)
	}
	c := testCase{
		guid: sdpaGUID + "_" + dt.String(), params: sdpaP(1/math.Sqrt(float64(d)), 1),
		in:  operands,
		out: []*val{newVal(dt, shape(dv, sq, group)...)},
	}
	if stats {
		c.params = sdpaP(1/math.Sqrt(float64(d)), 0)
		c.out = append(c.out, newVal(dt, shape(1, sq, group)...), newVal(f32, shape(1, sq, group)...))
	}
	return c
}

// Attention as one node has the meaning that docs/nodes.md gives it, and the
// same bits fused and unfused.
func TestSDPA(t *testing.T) {
	for seed := range 60 {
		for _, dt := range []dtype.Type{f32, bf16} {
			g := newGen(uint64(seed))
			c := attentionCase(g, dt, seed%2 == 1)
			got := c.run(t)
			r, _ := c.recipe()
			mem := make([]byte, r.Sections[0].Size)
			for i := range mem { // numbers that are not large, bf16 or f32
				mem[i] = byte(0x3f - i%2)
			}
			for i := range mem[:len(mem)/2] {
				mem[2*i] = byte(g.IntN(256))
			}
			arena := map[recipes.Buffer][]byte{recipes.Arena: mem}
			require.Equal(t, runOn(t, Options{Unfused: true, Threads: 1}, r, arena), runOn(t, Options{Threads: 2}, r, arena))
			q, k, v := c.in[0], c.in[1], c.in[2]
			scale, _ := c.params.FloatOf("scale")
			out := make([][]float64, len(got))
			for i := range got {
				out[i] = c.out[i].decode(got[i])
			}
			newVal(f32, c.out[0].dims[1:]...).each(func(row int, x []int) {
				sk, outer := k.dims[1], x[2:]
				at := func(d ...int) []int { return append(d, outer...) }
				s, top := make([]float64, sk), math.Inf(-1)
				for j := range s {
					for l := range k.dims[0] {
						s[j] += q.get(at(l, x[0], x[1])...) * k.get(at(l, j, 0)...)
					}
					s[j] *= float64(scale)
					if len(c.in) > 3 {
						s[j] += c.in[3].get(at(j, x[0], x[1])...)
					}
					top = max(top, s[j])
				}
				sum := 0.0
				for j := range s {
					s[j] = math.Exp(s[j] - top)
					sum += s[j]
				}
				for e := range v.dims[0] {
					want := 0.0
					for j := range s {
						want += s[j] / sum * v.get(at(e, j, 0)...)
					}
					require.InDelta(t, want, out[0][row*v.dims[0]+e], 200*epsOf(dt)*(1+math.Abs(want)), "seed %d", seed)
				}
				if len(out) == 3 {
					m := out[1][row]
					require.InDelta(t, top, m, epsOf(dt)*(100+4*math.Abs(top)))
					require.InEpsilon(t, math.Exp(top-m)*sum, 1/out[2][row], 1e-3)
				}
			})
		}
	}
}

// Hidden keys vanish in a mask of −1e30 as long as no score is larger than 1e22: of
// normalised rows with weights wq and wk, and the scale 1/D, none is larger than wq·wk.
// Then even a row that sees nothing has the same bits whatever its keys are.
func TestHiddenKeysVanish(t *testing.T) {
	const d, keys, rows = 16, 40, 3
	for _, dt := range []dtype.Type{f32, bf16} {
		g := newGen(3)
		q, k, v := g.values(dt, false, d, 1, rows, 1, 1), g.values(dt, false, d, keys, 1, 1, 1), g.values(dt, false, d, keys, 1, 1, 1)
		mask := newVal(dt, keys, 1, rows, 1, 1)
		for i := range mask.x {
			if row, key := i/keys, i%keys; key >= 13 || row == 2 {
				mask.x[i] = rounded(dt, -1e30)
			}
		}
		run := func(score float64) []byte { // of hidden keys with the first row
			square := 0.0
			for _, x := range q.x[:d] {
				square += x * x
			}
			other := &val{dt, k.dims, slices.Clone(k.x)}
			for i := 13 * d; i < len(other.x); i++ {
				other.x[i] = rounded(dt, q.x[i%d]*score/square*d)
			}
			c := testCase{guid: sdpaGUID + "_" + dt.String(), params: sdpaP(1.0/d, 1), in: []*val{q, other, v, mask}, out: []*val{newVal(dt, d, 1, rows, 1, 1)}}
			return c.run(t)[0]
		}
		want := run(0)
		for _, score := range []float64{1, -1, 1e10, 1e22, -1e22} {
			require.Equal(t, want, run(score), "%v, score %g", dt, score)
		}
		require.NotEqual(t, want, run(1e31), "the test is worth something")
	}
}

// What the node does not take is refused with a reason.
func TestSDPARefuses(t *testing.T) {
	set := func(field string, v int64) func(c *testCase) {
		return func(c *testCase) {
			for i := range c.params.Fields {
				if f := &c.params.Fields[i]; f.Name == field {
					f.Ints = []int64{v}
				}
			}
		}
	}
	for want, change := range map[string]func(c *testCase){
		"parameter is_causal: value 1, want 0":            set("is_causal", 1),
		"results: number 1, want 3":                       set("is_inference", 0),
		"operands: number 5, want 3 or 4":                 func(c *testCase) { c.in = append(c.in, newVal(i32, 2)) },
		"operands: number 2, want 3 or 4":                 func(c *testCase) { c.in = c.in[:2] },
		"absent, want a tensor":                           func(c *testCase) { c.in[1] = nil },
		"type suffix":                                     func(c *testCase) { c.guid = sdpaGUID + "_i32" },
		"parameter dropout.disableMaskOut: value 0":       set("dropout.disableMaskOut", 0),
		"dims [4 6 2 3], want [4 6 1 3]":                  func(c *testCase) { c.in[1] = newVal(f32, 4, 6, 2, 3) },
		"dims [6 2 2 3], want [6 5 2 3], or 1 above the":  func(c *testCase) { c.in[3] = newVal(f32, 6, 2, 2, 3) },
		"type i32, want f32":                              func(c *testCase) { c.in[3] = newVal(i32, 6, 1, 1, 1) },
		"rank 5, want 4":                                  func(c *testCase) { c.in[2] = newVal(f32, 4, 6, 1, 3, 1) },
		"dims [4 5 2 2], want [4 5 2 3]":                  func(c *testCase) { c.out[0] = newVal(f32, 4, 5, 2, 2) },
		"parameters: structure missing, want ns_Sdpa::Pa": func(c *testCase) { c.params = nil },
	} {
		c := testCase{
			guid: sdpaGUID + "_f32", params: sdpaP(1, 1),
			in:  []*val{newVal(f32, 4, 5, 2, 3), newVal(f32, 4, 6, 1, 3), newVal(f32, 4, 6, 1, 3), newVal(f32, 6, 1, 1, 1)},
			out: []*val{newVal(f32, 4, 5, 2, 3)},
		}
		load := func() error {
			r, _ := c.recipe()
			_, err := testDevice(t, 1).Load(r)
			return err
		}
		require.NoError(t, load())
		change(&c)
		err := load()
		require.ErrorContains(t, err, strings.TrimSpace(want))
	}
}
