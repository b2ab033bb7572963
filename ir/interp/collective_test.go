package interp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCollectives(t *testing.T) {
	big := float32(1 << 60)
	cases := []struct {
		name, body, dist string
		in               []*Tensor
		want             *Tensor
	}{
		{"reduce 2", "%r = all_reduce %a", "@partial", in(f32(sh(2), 1, 2), f32(sh(2), 10, -2)), f32(sh(2), 11, 0)},
		{"reduce 4", "%r = all_reduce %a", "@partial", in(f32(sh(1), 1), f32(sh(1), 10), f32(sh(1), 100), f32(sh(1), 1000)), f32(sh(1), 1111)},
		{"reduce rounds once", "%r = all_reduce %a", "@partial", in(bf16(sh(1), 256), bf16(sh(1), 1), bf16(sh(1), 1), bf16(sh(1), 1)), f32to16(sh(1), 260)},
		{"reduce in f64", "%r = all_reduce %a", "@partial", in(f32(sh(1), 1<<24), f32(sh(1), 1), f32(sh(1), 1), f32(sh(1), 0)), f32(sh(1), 1<<24+2)},
		{
			"reduce in rank order", "%r = all_reduce %a", "@partial",
			in(f32(sh(2), big, big), f32(sh(2), 1, -big), f32(sh(2), -big, 1), f32(sh(2), 0, 0)), f32(sh(2), 0, 1),
		},
		{"reduce NaN", "%r = all_reduce %a", "@partial", in(f32(sh(1), inf), f32(sh(1), negInf)), f32(sh(1), nan)},
		{"gather 2", "%r = all_gather %a {axis = 0}", "@shard(0, 2)", in(i32(sh(2), 1, 2), i32(sh(2), 3, 4)), i32(sh(4), 1, 2, 3, 4)},
		{
			"gather 4", "%r = all_gather %a {axis = 1}", "@shard(1, 4)",
			in(f32(sh(2, 1), 1, 5), f32(sh(2, 1), 2, 6), f32(sh(2, 1), 3, 7), f32(sh(2, 1), 4, 8)), f32(sh(2, 4), 1, 2, 3, 4, 5, 6, 7, 8),
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := evalRanks(t, len(c.in), c.body, []string{c.dist}, [][]*Tensor{c.in})
			require.NoError(t, err)
			require.Len(t, got[0], len(c.in))
			for _, x := range got[0] {
				same(t, c.want, x)
			}
		})
	}
}
