package ir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// infers returns the types that are inferred for an op with parameters such as
// "%x: f32[q, 4]", in a segment of a module on 4 ranks.
func infers(params, op string) (string, error) {
	list := strings.Split(params, "; ")
	for i, p := range list {
		list[i] = "temp " + p
		if strings.HasPrefix(p, "%state") {
			list[i] = "state " + p
		}
	}
	if params == "" {
		list = nil
	}
	results := "%out"
	if strings.HasPrefix(op, "topk") {
		results = "%out, %out.1"
	}
	m, err := Parse("op.qir", fmt.Appendf(nil, "module @m {level = plan, tp = 4}\nsym q: 1..8\nsym n: 1..8\nfunc @f(%s) -> () {\n  %s = %s\n  return\n}\n",
		strings.Join(list, ", "), results, op))
	if err != nil {
		return "", err
	}
	var types []string
	for _, r := range m.Entry().Ops[0].Results {
		types = append(types, r.Type.String())
	}
	return strings.Join(types, " "), nil
}

func TestShapeRules(t *testing.T) {
	for _, c := range []struct{ params, op, want string }{
		{"", "const 1 {dtype = bf16}", "bf16[1]"},
		{"", "iota {size = 2*q + n}", "i32[n + 2*q]"},
		{"%x: f32[q, 1]; %y: f32[1, 2*q]", "add %x, %y", "f32[q, 2*q]"},
		{"%x: i32[q]; %y: i32[q]", "sub %x, %y", "i32[q]"},
		{"%x: f32[]; %y: f32[]", "mul %x, %y", "f32[]"},
		{"%x: bf16[1, n, 3]; %y: bf16[q, n, 1]", "div %x, %y", "bf16[q, n, 3]"},
		{"%x: i32[q, 1]; %y: i32[1, n]", "lt %x, %y", "i8[q, n]"},
		{"%x: i8[q, 1]; %y: i8[1, n]", "and %x, %y", "i8[q, n]"},
		{"%c: i8[q, 1]; %x: f32[1, n]; %y: f32[1, 1]", "select %c, %x, %y", "f32[q, n]"},
		{"%x: i32[q]", "neg %x", "i32[q]"},
		{"%x: bf16[q, n]", "silu %x", "bf16[q, n]"},
		{"%x: i8[q, n]", "cast %x {dtype = f32}", "f32[q, n]"},
		{"%x: f32[2*q, n*3]", "reshape %x {shape = [n, q, 6]}", "f32[n, q, 6]"},
		{"%x: f32[1, 1]", "reshape %x {shape = []}", "f32[]"},
		{"%x: f32[]", "reshape %x {shape = [1, 1]}", "f32[1, 1]"},
		{"%x: f32[q, 2, n]", "transpose %x {perm = [2, 0, 1]}", "f32[n, q, 2]"},
		{"%x: f32[]", "transpose %x {perm = []}", "f32[]"},
		{"%x: f32[q, 1]", "broadcast %x {shape = [q, 2*n]}", "f32[q, 2*n]"},
		{"%x: f32[2*q, n]", "slice %x {axis = 0, start = q, stop = 2*q}", "f32[q, n]"},
		{"%x: f32[q, n]", "slice %x {axis = 1, start = 0, stop = n}", "f32[q, n]"},
		{"%x: f32[q, n]; %y: f32[3, n]", "concat %x, %y, %x {axis = 0}", "f32[2*q + 3, n]"},
		{"%x: f32[q, n]", "reduce_sum %x {axis = 0}", "f32[1, n]"},
		{"%x: bf16[q, n]", "reduce_max %x {axis = 1}", "bf16[q, 1]"},
		{"%x: bf16[q, n]", "softmax %x", "bf16[q, n]"},
		{"%x: f32[q, 5]", "topk %x {k = 5}", "f32[q, 5] i32[q, 5]"},
		{"%x: f32[q, n, 3]; %i: i32[2, n]", "gather %x, %i {axis = 1}", "f32[q, 2, n, 3]"},
		{"%x: i8[q]; %i: i32[1]", "gather %x, %i {axis = 0}", "i8[1]"},
		{"%x: f32[q, n]; %i: i32[q, 3]", "gather_elements %x, %i {axis = 1}", "f32[q, 3]"},
		{"%x: f32[q, n]; %i: i32[2, 1]", "gather_elements %x, %i {axis = 0}", "f32[2, n]"},
		{"%x: f32[q, 3]; %y: f32[3, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "f32[q, n]"},
		{"%x: bf16[q, 3]; %y: bf16[n, 3]", "matmul %x, %y {trans_b = true, dtype = f32}", "f32[q, n]"},
		{"%x: bf16[n, 1, q, 3]; %y: bf16[1, 2, 5, 3]", "matmul %x, %y {trans_b = true, dtype = bf16}", "bf16[n, 2, q, 5]"},
		{"%x: bf16[q, n, 8]; %w: bf16[8]", "rms_norm %x, %w {eps = 1e-06}", "bf16[q, n, 8]"},
		{"%x: bf16[q + 3, 8]; %w: f32[4, 8]", "short_conv %x, %w", "bf16[q, 8]"},
		{"%x: bf16[n, q + 2, 8]; %w: f32[3, 8]", "short_conv %x, %w", "bf16[n, q, 8]"},
		{"%x: bf16[q, 8]; %e: i32[q, 2]; %w: bf16[q, 2]; %a: bf16[5, 2, 3, 8]; %b: bf16[5, 8, 3]", "moe %x, %e, %w, %a, %b", "bf16[q, 8]"},
		{"%t: bf16[100, 8]@shard(0, 4); %i: i32[q]; %o: i32[1]@shard(0, 4)", "embedding %t, %i, %o", "bf16[q, 8]@partial"},
		{"%state: bf16[64, 2, 8]; %i: i32[q]", "kv_read %state, %i {block_size = 16}", "bf16[q, 16, 2, 8]"},
		{"%state: bf16[64, 2, 8]; %i: i32[q]; %r: bf16[q, 2, 8]", "kv_write %state, %i, %r", "bf16[64, 2, 8]"},
		{"%state: bf16[64, 3, n]; %i: i32[q]", "conv_read %state, %i", "bf16[q, 3, n]"},
		{"%state: bf16[64, 3, n]; %i: i32[q]; %r: bf16[q, 3, n]", "conv_write %state, %i, %r", "bf16[64, 3, n]"},
		{"%x: f32[q, n]@partial", "all_reduce %x", "f32[q, n]"},
		{"%x: i8[q, n]@shard(0, 4)", "all_gather %x {axis = 0}", "i8[4*q, n]"},
	} {
		got, err := infers(c.params, c.op)
		require.NoError(t, err, "%s (%s)", c.op, c.params)
		require.Equal(t, c.want, got, "%s (%s)", c.op, c.params)
	}
}

func TestShapeRulesRefuse(t *testing.T) {
	for _, c := range []struct{ params, op, want string }{
		{"%x: f32[q]; %y: f32[q, 1]", "add %x, %y", "operands have ranks 1 and 2"},
		{"%x: f32[q]; %y: f32[n]", "add %x, %y", "axis 0 is q in one operand and n in another"},
		{"%x: f32[2*q]; %y: f32[q]", "lt %x, %y", "axis 0 is 2*q in one operand and q in another"},
		{"%c: i8[q]; %x: f32[q]; %y: bf16[q]", "select %c, %x, %y", "a is f32 but b is bf16"},
		{"%c: i8[3]; %x: f32[q]; %y: f32[q]", "select %c, %x, %y", "axis 0 is 3 in one operand and q in another"},
		{"%x: f32[q, n]", "reshape %x {shape = [q + n]}", "[q, n] has n*q elements but [n + q] has n + q"},
		{"%x: f32[q, n]", "transpose %x {perm = [0]}", "perm has 1 entries for rank 2"},
		{"%x: f32[q, n]", "transpose %x {perm = [0, 0]}", "perm [0 0] is not a permutation"},
		{"%x: f32[q, n]", "transpose %x {perm = [0, -1]}", "perm [0 -1] is not a permutation"},
		{"%x: f32[q, n]", "transpose %x {perm = [2, 0]}", "perm [2 0] is not a permutation"},
		{"%x: f32[q]", "broadcast %x {shape = [q, 1]}", "rank 1 to rank 2"},
		{"%x: f32[q]", "broadcast %x {shape = [2*q]}", "axis 0 is q and cannot become 2*q"},
		{"%x: f32[q]", "slice %x {axis = 1, start = 0, stop = 1}", "axis 1 is outside rank 1"},
		{"%x: f32[q]", "slice %x {axis = -1, start = 0, stop = 1}", "axis -1 is outside rank 1"},
		{"%x: f32[4]", "slice %x {axis = 0, start = -1, stop = 1}", "[-1, 1) is outside axis 0 of size 4"},
		{"%x: f32[4]", "slice %x {axis = 0, start = 3, stop = 2}", "[3, 2) is outside axis 0 of size 4"},
		{"%x: f32[4]", "slice %x {axis = 0, start = q, stop = 5}", "[q, 5) is outside axis 0 of size 4"},
		{"%x: f32[q]; %y: f32[q, 1]", "concat %x, %y {axis = 0}", "operand 1 has rank 2, want 1"},
		{"%x: f32[q, 2]; %y: f32[q, 3]", "concat %x, %y {axis = 0}", "axis 1 of operand 1 is 3, want 2"},
		{"%x: f32[q]; %y: bf16[q]", "concat %x, %y {axis = 0}", "operand 0 is f32 but operand 1 is bf16"},
		{"%x: f32[]", "concat %x, %x {axis = 0}", "axis 0 is outside rank 0"},
		{"%x: f32[]", "reduce_sum %x {axis = 0}", "axis 0 is outside rank 0"},
		{"%x: f32[q]", "reduce_max %x {axis = 7}", "axis 7 is outside rank 1"},
		{"%x: f32[]", "softmax %x", "the operand has no axis"},
		{"%x: f32[]", "topk %x {k = 1}", "the operand has no axis"},
		{"%x: f32[3]", "topk %x {k = 4}", "k = 4 of 3 elements"},
		{"%x: f32[3]", "topk %x {k = 0}", "k = 0 of 3 elements"},
		{"%x: f32[3]; %i: i32[]", "gather %x, %i {axis = 0}", "the index has no axis"},
		{"%x: f32[]; %i: i32[1]", "gather %x, %i {axis = 0}", "axis 0 is outside rank 0"},
		{"%x: f32[q, n]; %i: i32[q]", "gather_elements %x, %i {axis = 1}", "index has rank 1, want 2"},
		{"%x: f32[q, n]; %i: i32[3, n]", "gather_elements %x, %i {axis = 1}", "axis 0 of index is 3, want q"},
		{"%x: f32[3]; %y: f32[3]", "matmul %x, %y {trans_b = false, dtype = f32}", "operands have ranks 1 and 1; want equal ranks of at least 2"},
		{"%x: f32[1, 3, 3]; %y: f32[3, 3]", "matmul %x, %y {trans_b = false, dtype = f32}", "operands have ranks 3 and 2"},
		{"%x: f32[q, 3]; %y: f32[4, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "axis 0 of y is 4, want 3 (the contracted size)"},
		{"%x: f32[q, 3]; %y: f32[3, n]", "matmul %x, %y {trans_b = true, dtype = f32}", "axis 1 of y is n, want 3 (the contracted size)"},
		{"%x: f32[2, q, 3]; %y: f32[3, 3, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "axis 0 is 2 in one operand and 3 in another"},
		{"%x: f32[q, 3]; %y: bf16[3, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "x is f32 but y is bf16"},
		{"%x: f32[]; %w: f32[1]", "rms_norm %x, %w {eps = 0}", "x has no axis"},
		{"%x: f32[q, 8]; %w: f32[1]", "rms_norm %x, %w {eps = 0}", "axis 0 of weight is 1, want 8 (the last axis of x)"},
		{"%x: f32[q, 8]; %w: f32[1, 8]", "rms_norm %x, %w {eps = 0}", "weight has rank 2, want 1"},
		{"%x: f32[q, 8]; %w: bf16[8]", "rms_norm %x, %w {eps = 0}", "x is f32 but weight is bf16"},
		{"%x: f32[8]; %w: f32[4, 8]", "short_conv %x, %w", "the window has rank 1, want at least 2"},
		{"%x: f32[q, 8]; %w: f32[8]", "short_conv %x, %w", "taps has rank 1, want 2"},
		{"%x: f32[q, 8]; %w: f32[4, 1]", "short_conv %x, %w", "axis 1 of taps is 1, want 8"},
		{"%x: f32[q, 8]; %w: bf16[4, 8]", "short_conv %x, %w", "taps is bf16, want f32"},
		{"%x: f32[8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b", "x has rank 1, want 2"},
		{"%x: f32[q, 8]; %e: i32[n, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b", "axis 0 of experts is n, want q (one row a token)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 3]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b", "axis 1 of weights is 3, want 2 (one weight an expert)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 1, 3, 8]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b", "axis 1 of w13 is 1, want 2 (gate and up)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 7]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b", "axis 3 of w13 is 7, want 8 (the hidden size)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[4, 8, 3]", "moe %x, %e, %w, %a, %b", "axis 0 of w2 is 4, want 5 (the number of experts)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 4]", "moe %x, %e, %w, %a, %b", "axis 2 of w2 is 4, want 3 (the expert width)"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 3]", "moe %x, %e, %w, %a, %b, %a", "the last bank has a w13 and no w2"},
		{"%x: f32[q, 8]; %e: i32[q, 2]; %w: f32[q, 2]; %a: f32[5, 2, 3, 8]; %b: f32[5, 8, 3]; %c: f32[1, 2, 4, 8]; %d: f32[1, 8, 4]", "moe %x, %e, %w, %a, %b, %c, %d", "axis 2 of w13 is 4, want 3 (the expert width)"},
		{"%x: f32[q, 8]; %a: f32[3, 8]; %b: f32[8]", "matmul_joined %x, %a, %b {dtype = f32}", "operand 2 has rank 1, want 2 or 3"},
		{"%x: f32[q, 8]; %a: f32[3, 8]; %b: f32[2, 3, 7]", "matmul_joined %x, %a, %b {dtype = f32}", "axis 2 of operand 2 is 7, want 8 (the contracted size)"},
		{"%x: f32[1, q, 8]; %a: f32[3, 8]", "matmul_joined %x, %a {dtype = f32}", "x has rank 3, want 2"},
		{"%x: bf16[q, 8]; %a: f32[3, 8]", "matmul_joined %x, %a {dtype = f32}", "x is bf16 but operand 1 is f32"},
		{"%x: f32[q, 8]; %a: f32[3, 8]", "matmul_joined %x, %a {dtype = bf16}", "result type bf16; want f32 or f32"},
		{"%t: f32[9]; %i: i32[q]; %o: i32[1]", "embedding %t, %i, %o", "table has rank 1, want 2"},
		{"%t: f32[9, 8]; %i: i32[q, 1]; %o: i32[1]", "embedding %t, %i, %o", "ids has rank 2, want 1"},
		{"%t: f32[9, 8]; %i: i32[q]; %o: i32[2]", "embedding %t, %i, %o", "axis 0 of offset is 2, want 1 (one offset)"},
		{"%state: f32[64, 2]; %i: i32[q]", "kv_read %state, %i {block_size = 16}", "cache has rank 2, want 3"},
		{"%state: f32[64, 2, 8]; %i: i32[q, 1]", "kv_read %state, %i {block_size = 16}", "blocks has rank 2, want 1"},
		{"%state: f32[64, 2, 8]; %i: i32[q]", "kv_read %state, %i {block_size = 7}", "block_size 7 does not divide 64 slots"},
		{"%state: f32[64, 2, 8]; %i: i32[q]", "kv_read %state, %i {block_size = 0}", "block_size 0 does not divide 64 slots"},
		{"%state: f32[64, 2, 8]; %i: i32[q]; %r: f32[n, 2, 8]", "kv_write %state, %i, %r", "axis 0 of rows is n, want q (one index a row)"},
		{"%state: f32[64, 2, 8]; %i: i32[q]; %r: f32[q, 3, 8]", "kv_write %state, %i, %r", "axis 1 of rows is 3, want 2 (that of the state)"},
		{"%state: f32[64, 2, 8]; %i: i32[q]; %r: bf16[q, 2, 8]", "conv_write %state, %i, %r", "state is f32 but values is bf16"},
		{"%state: f32[64, 2, 8]; %i: i32[q]; %r: f32[q, 2, 9]", "conv_write %state, %i, %r", "axis 2 of values is 9, want 8 (that of the state)"},
		{"%state: f32[64, 8]; %i: i32[q]", "conv_read %state, %i", "state has rank 2, want 3"},
		{"%state: f32[64, 3, 8]; %i: i32[q, 1]", "conv_reads %i, %state", "rows has rank 2, want 1"},
		{"%state: f32[64, 3, 8]; %i: i32[q]; %r: f32[1, n, 3, 8]", "conv_writes %i, %r, %state", "axis 1 of values is n, want q (one index a row)"},
		{"%state: f32[64, 3, 8]; %i: i32[q]; %r: f32[2, q, 3, 8]", "conv_writes %i, %r, %state", "axis 0 of values is 2, want 1 (one a state)"},
		{"%x: f32[q]@shard(0, 4)", "all_gather %x {axis = 1}", "axis 1 is outside rank 1"},
		{"%x: i32[q]@partial", "all_reduce %x", "x is i32, want bf16 or f32"},
	} {
		_, err := infers(c.params, c.op)
		require.ErrorContains(t, err, c.want, "%s (%s)", c.op, c.params)
	}
}

// Distributions that no other test infers.
func TestDistributionRules(t *testing.T) {
	for _, c := range []struct{ params, op, want string }{
		{"%x: f32[1, q]@shard(0, 2); %y: f32[1, 1]", "add %x, %y", "f32[1, q]@shard(0, 2)"},
		{"%x: f32[1, q]@partial; %y: f32[n, 1]@partial", "add %x, %y", "f32[n, q]@partial"},
		{"%x: f32[1, q]@partial; %y: f32[n, 1]", "mul %x, %y", "f32[n, q]@partial"},
		{"%x: f32[1, q]@shard(1, 2)", "broadcast %x {shape = [n, q]}", "f32[n, q]@shard(1, 2)"},
		{"%x: f32[q, n]@shard(1, 4)", "reshape %x {shape = [q, n, 1]}", "f32[q, n, 1]@shard(1, 4)"},
		{"%x: f32[q, 2*n]@shard(1, 4)", "reshape %x {shape = [q, 2, n]}", "f32[q, 2, n]@shard(1, 4)"},
		{"%x: f32[q, n, 1]@shard(2, 4)", "reshape %x {shape = [q*n, 1]}", "f32[n*q, 1]@shard(1, 4)"},
		{"%x: f32[q, n, 1]@shard(2, 4)", "reshape %x {shape = [q, n, 1, 1], shard = 3}", "f32[q, n, 1, 1]@shard(3, 4)"},
		{"%x: f32[1, q]@shard(0, 4)", "reshape %x {shape = [q]}", "f32[q]@shard(0, 4)"},
		{"%x: f32[1, 1, q]@shard(1, 4)", "reshape %x {shape = [1, 1, 1, q]}", "f32[1, 1, 1, q]@shard(1, 4)"},
		{"%x: f32[1, q]@shard(1, 4)", "reshape %x {shape = [1, 1, q]}", "f32[1, 1, q]@shard(2, 4)"},
		{"%x: f32[q, n, 3]@shard(2, 4); %i: i32[2, 2]", "gather %x, %i {axis = 1}", "f32[q, 2, 2, 3]@shard(3, 4)"},
		{"%x: f32[q, n, 3]@shard(0, 4); %i: i32[2, 2]", "gather %x, %i {axis = 1}", "f32[q, 2, 2, 3]@shard(0, 4)"},
		{"%x: f32[q, n]@shard(0, 2)", "topk %x {k = 1}", "f32[q, 1]@shard(0, 2) i32[q, 1]@shard(0, 2)"},
		{"%x: bf16[q, n, 8]@shard(1, 2); %w: bf16[8]", "rms_norm %x, %w {eps = 0}", "bf16[q, n, 8]@shard(1, 2)"},
		{"%x: bf16[q, 8]; %e: i32[q, 2]; %w: bf16[q, 2]; %a: bf16[5, 2, 3, 8]@shard(2, 4); %b: bf16[5, 8, 3]@shard(2, 4)", "moe %x, %e, %w, %a, %b", "bf16[q, 8]@partial"},
		{"%x: f32[q, 3]@partial; %y: f32[3, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "f32[q, n]@partial"},
		{"%x: f32[q, 3]; %y: f32[n, 3]@partial", "matmul %x, %y {trans_b = true, dtype = f32}", "f32[q, n]@partial"},
		{"%x: f32[1, 3]@shard(0, 2); %y: f32[3, n]", "matmul %x, %y {trans_b = false, dtype = f32}", "f32[1, n]@shard(0, 2)"},
		{"%x: f32[q, 1, 3]; %y: f32[1, 3, n]@shard(0, 2)", "matmul %x, %y {trans_b = false, dtype = f32}", ""},
		{"%x: f32[1, 1, 3]; %y: f32[q, 3, n]@shard(0, 2)", "matmul %x, %y {trans_b = false, dtype = f32}", "f32[q, 1, n]@shard(0, 2)"},
		{"%state: bf16[64, 2, 8]@shard(2, 2); %i: i32[q]", "kv_read %state, %i {block_size = 16}", "bf16[q, 16, 2, 8]@shard(3, 2)"},
		{"%state: bf16[64, 2, 8]@shard(2, 2); %i: i32[q]", "conv_read %state, %i", "bf16[q, 2, 8]@shard(2, 2)"},
	} {
		got, err := infers(c.params, c.op)
		if c.want == "" {
			require.Error(t, err, "%s (%s)", c.op, c.params)
			continue
		}
		require.NoError(t, err, "%s (%s)", c.op, c.params)
		require.Equal(t, c.want, got, "%s (%s)", c.op, c.params)
	}
}
