package interp

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

const indexed3 = `module @m {level = model, tp = 2}
sym q: 1..8

func @f(
  input %plain: i32[q],
  input %rows: i32[2*q],
  input %both: i32[q],
  input %moved: i32[q],
  input %summed: i32[q],
  input %blocks: i32[2],
  state %s: f32[24, 2, 4],
  weight %w: f32[7, 4] = "w",
  weight %v: f32[5, 4]@shard(1, 2) = "v",
  input %x: f32[q, 4]
) -> (output a: f32[2*q, 4], output b: f32[q, 4], output c: f32[q, 4], output d: f32[q, 4], output e: i8[q], output g: f32[2, 4, 2, 4], output h: f32[q, 1]) {
  %0 = gather %w, %rows {axis = 0}
  %1 = gather %w, %both {axis = 0}
  %2 = slice %w {axis = 0, start = 0, stop = 3}
  %3 = gather %2, %both {axis = 0}
  %4 = reshape %moved {shape = [1, q]}
  %5 = reshape %4 {shape = [q]}
  %6 = gather %w, %5 {axis = 0}
  %7 = add %summed, %summed
  %8 = gather %w, %7 {axis = 0}
  %9 = lt %plain, %both
  %10 = kv_read %s, %blocks {block_size = 4}
  %11 = add %1, %3
  %12 = matmul %x, %x {dtype = f32, trans_b = true}
  %13 = reduce_max %12 {axis = 1}
  return %0, %11, %6, %8, %9, %10, %13
}
`

func TestRandomArgsFitTheirUse(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte(indexed3))
	require.NoError(t, err)
	most := map[string]int64{}
	for seed := range uint64(40) {
		env := map[string]int64{"q": 4}
		args, err := RandomArgs(m, m.Entry(), env, seed, RandomOptions{})
		require.NoError(t, err)
		again, err := RandomArgs(m, m.Entry(), env, seed, RandomOptions{})
		require.NoError(t, err)
		for rank := range args {
			for name, x := range args[rank] {
				require.True(t, Equal(x, again[rank][name]), name)
				for _, n := range x.I {
					most[name] = max(most[name], n)
				}
			}
		}
		require.NotEqual(t, args[0]["v"].F, args[1]["v"].F, "shards")
		_, err = Run(t.Context(), m, m.Entry(), env, args, Options{})
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int64{"plain": 1, "rows": 6, "both": 2, "moved": 6, "summed": 1, "blocks": 5}, most)
}

// Weights of one checkpoint tensor agree, whichever stands first; what contradicts another
// one, or is of other shards, is by itself.
func TestRandomArgsOfOneTensor(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte(`module @m {tp = 2}
func @f(
  weight %new: f32[1, 3]@shard(1, 2) = "w" {rows = [3, 4], plus = 1},
  weight %all: f32[4, 3]@shard(1, 2) = "w", weight %again: bf16[4, 3]@shard(1, 2) = "w",
  weight %beyond: f32[2, 3]@shard(1, 2) = "w" {rows = [3, 5]}, weight %whole: f32[4, 6] = "w",
  weight %half: f32[2, 3]@shard(0, 2) = "v", weight %cut: f32[1, 3]@shard(0, 2) = "v" {rows = [0, 2]},
  weight %a: f32[1, 2] = "u" {rows = [1, 2]}, weight %b: f32[1, 2] = "u" {rows = [1, 2]},
  weight %turned: f32[3, 3] = "t" {perm = [1, 0]}, weight %t: f32[3, 3] = "t",
  weight %flat: f32[] = "s", weight %row: f32[1] = "s" {rows = [0, 1]}
) -> () {
  return
}`))
	require.NoError(t, err)
	args, err := RandomArgs(m, m.Entry(), nil, 3, RandomOptions{})
	require.NoError(t, err)
	for _, x := range args {
		for i, v := range x["all"].F[9:] {
			require.Equal(t, v+1, x["new"].F[i])
		}
		require.True(t, Equal(Cast(x["all"], dtype.BF16), x["again"]))
		require.True(t, Equal(x["a"], x["b"]))
		require.NotEqual(t, x["all"].F[9:], x["beyond"].F[:3])
		require.NotEqual(t, x["all"].F[:3], x["whole"].F[:3])
		require.NotEqual(t, x["half"].F[:3], x["cut"].F)
		require.NotEqual(t, x["turned"].F, x["t"].F)
		require.NotEqual(t, x["flat"].F, x["row"].F)
	}
}

// What a segment does with an index is seen from its caller.
func TestRandomArgsLookIntoCalls(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte(`module @m {level = plan, tp = 1}
func @seg(temp %i: i32[9], weight %w: f32[7, 4]) -> (temp y: f32[9, 4]) {
  %0 = gather %w, %i {axis = 0}
  return %0
}
func @f(input %i: i32[9], weight %w: f32[7, 4] = "w") -> (output y: f32[9, 4]) {
  %0 = call @seg %i, %w
  return %0
}`))
	require.NoError(t, err)
	args, err := RandomArgs(m, m.Entry(), nil, 1, RandomOptions{})
	require.NoError(t, err)
	require.Greater(t, slices.Max(args[0]["i"].I), int64(1))
	require.Less(t, slices.Max(args[0]["i"].I), int64(7))
}

func TestSpecialsAreAmongRandomArgs(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte("module @m {level = model, tp = 1}\nfunc @f(input %x: bf16[400]) -> (output y: bf16[400]) {\n  %0 = exp %x\n  return %0\n}"))
	require.NoError(t, err)
	args, err := RandomArgs(m, m.Entry(), nil, 1, RandomOptions{Specials: true})
	require.NoError(t, err)
	x := args[0]["x"]
	require.NoError(t, x.Check())
	seen := map[string]bool{}
	for _, v := range x.F {
		f := float64(v)
		seen["nan"] = seen["nan"] || math.IsNaN(f)
		seen["inf"] = seen["inf"] || math.IsInf(f, 0)
		seen["-0"] = seen["-0"] || f == 0 && math.Signbit(f)
	}
	require.Equal(t, map[string]bool{"nan": true, "inf": true, "-0": true}, seen)
}

func TestSameComparesBits(t *testing.T) {
	of := func(v ...float32) []map[string]*Tensor {
		return []map[string]*Tensor{{"y": FromF32([]int64{int64(len(v))}, v...)}}
	}
	require.NoError(t, Same(of(1, nan), of(1, nan), 0))
	require.ErrorContains(t, Same(of(negZ), of(0), 0), "a zero has another sign")
	require.NoError(t, Same(of(negZ), of(0), 1e-9))
	require.ErrorContains(t, Same(of(1), of(1.5), 0), "rank 0 result y: 1 of 1 elements differ")
	require.NoError(t, Same(of(1), of(1.5), 0.5))
	require.ErrorContains(t, Same([]map[string]*Tensor{{}}, of(1), 0), "there is no result y")
	require.ErrorContains(t, Same(nil, of(1), 0), "results of 0 ranks, want 1")
}

func TestCost(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte(indexed3))
	require.NoError(t, err)
	operations, elements, err := Cost(m, m.Entry(), map[string]int64{"q": 2})
	require.NoError(t, err)
	// Elements of results in order; the product has 4 of 4 terms each, the maximum
	// looks at 4.
	require.Equal(t, int64(2*(16+8+12+8+2+2+8+2+8+2+64+8+(4+4*4)+(2+4))), operations)
	require.Equal(t, int64(2*(2+4+2+2+2+2+24*8+28+20+8)), elements)
	_, _, err = Cost(m, m.Entry(), nil)
	require.ErrorContains(t, err, "has no value")
}
