package interp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

func TestMatmul(t *testing.T) {
	x := f32(sh(2, 3), 1, 2, 3, 4, 5, 6)
	y := f32(sh(3, 2), 1, 0, 0, 1, 2, -1)
	big := float32(1 << 60)
	runCases(t, []opCase{
		{"plain", "%r = matmul %a, %b {dtype = f32, trans_b = false}", in(x, y), in(f32(sh(2, 2), 7, -1, 16, -1))},
		{"trans_b", "%r = matmul %a, %b {dtype = f32, trans_b = true}", in(x, f32(sh(2, 3), 1, 0, 2, 0, 1, -1)), in(f32(sh(2, 2), 7, -1, 16, -1))},
		{
			"batch", "%r = matmul %a, %b {dtype = f32, trans_b = false}",
			in(f32(sh(2, 1, 2), 1, 2, 3, 4), f32(sh(2, 2, 1), 10, 100, 1, -1)), in(f32(sh(2, 1, 1), 210, -1)),
		},
		{
			"batch of x repeats", "%r = matmul %a, %b {dtype = f32, trans_b = true}",
			in(f32(sh(1, 1, 2), 1, 2), f32(sh(2, 2, 2), 1, 0, 0, 1, 1, 1, 2, 2)), in(f32(sh(2, 1, 2), 1, 2, 3, 6)),
		},
		{
			"batch of y repeats", "%r = matmul %a, %b {dtype = f32, trans_b = false}",
			in(f32(sh(2, 1, 1, 1), 2, 3), f32(sh(1, 2, 1, 1), 5, 7)), in(f32(sh(2, 2, 1, 1), 10, 14, 15, 21)),
		},
		{"bf16", "%r = matmul %a, %b {dtype = bf16, trans_b = true}", in(bf16(sh(1, 2), 256, 1), bf16(sh(1, 2), 1, 3)), in(f32to16(sh(1, 1), 260))},
		{"bf16 to f32", "%r = matmul %a, %b {dtype = f32, trans_b = true}", in(bf16(sh(1, 2), 256, 1), bf16(sh(1, 2), 1, 3)), in(f32(sh(1, 1), 259))},
		{
			"sums in order", "%r = matmul %a, %b {dtype = f32, trans_b = true}",
			in(f32(sh(2, 3), big, 1, -big, big, -big, 1), f32(sh(1, 3), 1, 1, 1)), in(f32(sh(2, 1), 0, 1)),
		},
		{
			"NaN stays in its row", "%r = matmul %a, %b {dtype = f32, trans_b = true}",
			in(f32(sh(2, 1), nan, 1), f32(sh(2, 1), 2, inf)), in(f32(sh(2, 2), nan, nan, 2, inf)),
		},
	})
}

func TestModelPieces(t *testing.T) {
	runCases(t, []opCase{
		{
			"rms_norm", "%r = rms_norm %a, %b {eps = 0.0}", in(f32(sh(2, 2), 3, 4, -3, 4), f32(sh(2), 2, 0.5)),
			in(f32(sh(2, 2), 1.6970563, 0.56568545, -1.6970563, 0.56568545)),
		},
		{"rms_norm eps", "%r = rms_norm %a, %b {eps = 4.0}", in(f32(sh(1, 2), 0, 0), f32(sh(2), 2, 0.5)), in(f32(sh(1, 2), 0, 0))},
		{"rms_norm eps counts", "%r = rms_norm %a, %b {eps = 3.5}", in(f32(sh(1, 2), 3, 4), f32(sh(2), 1, 1)), in(f32(sh(1, 2), 0.75, 1))},
		// t = 0.848528 is rounded to 0.84765625 first; without that the product
		// would be 1.03125.
		{
			"rms_norm bf16 rounds twice", "%r = rms_norm %a, %b {eps = 0.0}", in(bf16(sh(2), 3, 4), bf16(sh(2), 1.2109375, 1)),
			in(f32to16(sh(2), 1.0234375, 1.1328125)),
		},

		{"short_conv", "%r = short_conv %a, %b", in(f32(sh(5, 1), 1, 2, 3, 4, 5), f32(sh(4, 1), 0.5, 0.25, 2, 1)), in(f32(sh(2, 1), 15, 19.75))},
		{
			"short_conv channels and batch", "%r = short_conv %a, %b",
			in(f32(sh(2, 2, 2), 1, 10, 2, 20, 3, 30, 4, 40), f32(sh(2, 2), 1, 0.5, -1, 0)), in(f32(sh(2, 1, 2), 1, 25, 3, 55)),
		},
		// 256 + 1.5 + 1.5 in one rounding.
		{"short_conv bf16", "%r = short_conv %a, %b", in(bf16(sh(3, 1), 1, 1, 256), f32(sh(3, 1), 1.5, 1.5, 0)), in(f32to16(sh(1, 1), 260))},
	})
}

// A rank returns rows that it has, zeros for the others and for ids of no rank.
func TestEmbedding(t *testing.T) {
	got, err := evalRanks(t, 2, "%r = embedding %a, %b, %c", []string{"@shard(0, 2)", "", "@shard(0, 2)"}, [][]*Tensor{
		{f32(sh(2, 2), 1, 2, 3, 4), f32(sh(2, 2), 5, 6, 7, 8)},
		{i32(sh(5), 3, 0, 2, 4, -1), i32(sh(5), 3, 0, 2, 4, -1)},
		{i32(sh(1), 0), i32(sh(1), 2)},
	})
	require.NoError(t, err)
	same(t, f32(sh(5, 2), 0, 0, 1, 2, 0, 0, 0, 0, 0, 0), got[0][0])
	same(t, f32(sh(5, 2), 7, 8, 0, 0, 5, 6, 0, 0, 0, 0), got[0][1])
}

// silu(64) is 64 in f32, so that small experts can be computed by hand.
func TestMoE(t *testing.T) {
	const op = "%r = moe %a, %b, %c, %d, %e"
	big := float32(1 << 60)
	runCases(t, []opCase{
		// Expert 0: g = 64·1, u = 3·x1 → act; expert 1: g = 64·x0, u = −x0.
		{"two experts", op, in(
			f32(sh(2, 2), 1, 2, 1, 1),
			i32(sh(2, 2), 0, 1, 1, 1),
			f32(sh(2, 2), 0.5, 2, 0.25, 0.25),
			f32(sh(2, 2, 1, 2), 64, 0, 0, 3, 64, 0, -1, 0),
			f32(sh(2, 2, 1), 1, 0.5, 0.25, -1),
		), in(f32(sh(2, 2),
			// act 384 and −64: 0.5·[384, 192] + 2·[−16, 64]
			160, 224,
			// expert 1 twice: 0.5·[−16, 64]
			-8, 32))},
		{"width 2", op, in(
			f32(sh(1, 1), 1), i32(sh(1, 1), 0), f32(sh(1, 1), 1),
			f32(sh(1, 2, 2, 1), 64, 128, 1, 2), // gates 64 and 128, ups 1 and 2
			f32(sh(1, 1, 2), 1, 10),
		), in(f32(sh(1, 1), 64+2560))},
		// Rounded in between: g = 257 → 256, act = 256·1.0078125 = 258, output
		// 258·1.0078125 = 260.015625 → 260, half of it 130.
		{"bf16", op, in(
			bf16(sh(1, 2), 256, 1), i32(sh(1, 1), 0), bf16(sh(1, 1), 0.5),
			bf16(sh(1, 2, 1, 2), 1, 1, 0, 1.0078125),
			bf16(sh(1, 2, 1), 1.0078125, 1),
		), in(f32to16(sh(1, 2), 130, 129))},
		// u = 257 is rounded to 256; 96·257 would have become 24704.
		{"bf16 up", op, in(
			bf16(sh(1, 2), 256, 1), i32(sh(1, 1), 0), bf16(sh(1, 1), 1),
			bf16(sh(1, 2, 1, 2), 0.375, 0, 1, 1), bf16(sh(1, 2, 1), 1, 0),
		), in(f32to16(sh(1, 2), 24576, 0))},
		// Act 258·1.0078125 = 260.015625 is rounded to 260, so that the difference
		// to 128·2.03125 = 260 is 0; output 260·255/256 = 258.984375 to 258.
		{"bf16 act and output", op, in(
			bf16(sh(1, 2), 256, 2), i32(sh(1, 2), 0, 1), bf16(sh(1, 2), 1, -1),
			bf16(sh(2, 2, 2, 2), 1, 1, 0.5, 0, 0, 129.0/256, 0, 1.015625, 1, 1, 0.5, 0, 0, 129.0/256, 0, 1.015625),
			bf16(sh(2, 2, 2), 1, -1, 255.0/256, 0, 0, 0, 1, 0),
		), in(f32to16(sh(1, 2), 0, -2))},
		// The sum runs in ascending expert number: (2^60 + 1) − 2^60 is 0 in f64,
		// while the order of the routing table would give 1.
		{"ascending experts", op, in(
			f32(sh(1, 1), 1), i32(sh(1, 3), 0, 2, 1), f32(sh(1, 3), 1, 1, 1),
			f32(sh(3, 2, 1, 1), 64, 1.0/64, 64, 1.0/64, 64, 1.0/64),
			f32(sh(3, 1, 1), big, 1, -big),
		), in(f32(sh(1, 1), 0))},
		// Of experts 1 and 2 only: choices of 0 and 3 add nothing, and no number of theirs
		// is looked at.
		{"a part of the experts", op + " {first = 1}", in(
			f32(sh(2, 1), 1, 1), i32(sh(2, 3), 0, 2, 1, 3, 3, 1), f32(sh(2, 3), nan, 1, 1, inf, 5, 2),
			f32(sh(2, 2, 1, 1), 64, 1.0/64, 64, 1.0/64),
			f32(sh(2, 1, 1), 3, 4),
		), in(f32(sh(2, 1), 7, 6))},
	})
	_, err := eval(t, op, f32(sh(1, 1), 1), i32(sh(1, 1), 1), f32(sh(1, 1), 1), f32(sh(1, 2, 1, 1), 1, 1), f32(sh(1, 1, 1), 1))
	require.ErrorContains(t, err, "expert 1 at [0 0] is outside 0…0")
}

const embeddingText = `module @m {tp = 4}
func @f(weight %table: bf16[3, 5]@shard(0, 4) = "embed", weight %whole: bf16[12, 5] = "embed",
        weight %offset: i32[1]@shard(0, 4) = fill(0, 3), input %ids: i32[7]) -> (output a: bf16[7, 5], output b: bf16[7, 5]) {
  %1 = embedding %table, %ids, %offset
  %2 = all_reduce %1
  %3 = gather %whole, %ids {axis = 0}
  return %2, %3
}`

// A vocabulary-sharded embedding, reduced, is a gather.
func TestEmbeddingIsGather(t *testing.T) {
	m, err := ir.VerifyText("embedding.qir", []byte(embeddingText))
	require.NoError(t, err)
	f := m.Entry()
	embed := Random(1, dtype.BF16, 12, 5)
	args := make([]map[string]*Tensor, m.TP)
	for r := range args {
		args[r] = map[string]*Tensor{"ids": i32(sh(7), 11, 0, 3, 2, 3, 8, 6)}
	}
	for _, p := range f.Params {
		if p.Kind == ir.Weight {
			parts, err := Weight(m, p, nil, embed)
			require.NoError(t, err)
			for r := range args {
				args[r][p.Name] = parts[r]
			}
		}
	}
	out, err := Run(context.Background(), m, f, nil, args, Options{})
	require.NoError(t, err)
	for r := range out {
		same(t, out[r]["b"], out[r]["a"])
	}
}

// Experts cut along their width and reduced give what whole experts give.
func TestMoESharded(t *testing.T) {
	x, w13, w2 := Random(1, dtype.F32, 5, 6), Random(2, dtype.F32, 4, 2, 8, 6), Random(3, dtype.F32, 4, 6, 8)
	experts, weights := RandomInts(4, dtype.I32, 0, 4, 5, 2), Random(5, dtype.F32, 5, 2)
	whole, err := eval(t, "%r = moe %a, %b, %c, %d, %e", x, experts, weights, w13, w2)
	require.NoError(t, err)
	for _, tp := range []int{2, 4} {
		args := make([][]*Tensor, 5)
		dists := make([]string, 5)
		for i, a := range in(x, experts, weights, w13, w2) {
			d := ir.Dist{}
			if i >= 3 {
				d = ir.Shard(2, tp)
			}
			dists[i] = d.String()
			args[i], err = Shard(a, d, tp)
			require.NoError(t, err)
		}
		got, err := evalRanks(t, tp, "%p = moe %a, %b, %c, %d, %e\n%r = all_reduce %p", dists, args)
		require.NoError(t, err)
		require.NoError(t, Close(got[0][0], whole[0], 1e-5, 1e-5))
	}
}
