package inkling

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

// published is the deployment that the published models are captured for.
func published(c *Config) Options {
	return Options{
		TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 2048,
		Precision: dtype.BF16,
	}
}

func nano(tp, block int, prec dtype.Type) Options {
	return Options{TP: tp, BlockSize: block, Blocks: 64, MaxModelLen: 256, MaxNumSeqs: 4, MaxBatchedTokens: 64, Precision: prec}
}

// Every family of every model verifies and prints to a fixed point.
func TestCaptureVerifies(t *testing.T) {
	type run struct {
		name string
		opt  Options
	}
	var runs []run
	for _, n := range []string{"configs/inkling-small", "configs/inkling"} {
		o := published(nil)
		runs = append(runs, run{n, o})
		o.ShardedEmbedding = true
		o.Precision = dtype.F32
		runs = append(runs, run{n, o})
	}
	for _, n := range []string{"nano-small", "nano-big", "nano-dense", "nano-chat"} {
		for _, tp := range []int{1, 2, 4, 8} {
			for i, b := range []int{1, 8, 16} {
				o := nano(tp, b, []dtype.Type{dtype.BF16, dtype.F32}[i%2])
				o.ShardedEmbedding = i == 2
				runs = append(runs, run{n, o})
			}
		}
	}
	for _, r := range runs {
		cfg := load(t, r.name)
		for _, fam := range cfg.Families(r.opt) {
			t.Run(fmt.Sprintf("%s/tp%d/b%d/%s", r.name, r.opt.TP, r.opt.BlockSize, fam), func(t *testing.T) {
				t.Parallel()
				m, err := Capture(cfg, r.opt, fam)
				require.NoError(t, err)
				require.NoError(t, ir.Verify(m))
				if r.opt.TP != 8 || r.opt.BlockSize == 8 || r.opt.BlockSize == 128 && r.opt.ShardedEmbedding {
					return // reading text takes most of the time
				}
				text := m.String()
				back, err := ir.VerifyText("printed.qir", []byte(text))
				require.NoError(t, err)
				require.Equal(t, text, back.String())
			})
		}
	}
}
