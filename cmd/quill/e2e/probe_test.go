package e2e

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime"
)

func TestProbe(t *testing.T) {
	model, _ := filepath.Abs("../../../testdata/nano-small")
	for _, tp := range []int{1, 8} {
		dir := t.TempDir()
		p := filepath.Join(dir, "d.yaml")
		os.WriteFile(p, []byte(fmt.Sprintf("model: %s\ntensor_parallel: %d\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\nprecision: f32\n", model, tp)), 0o666)
		d, err := lower.ReadDeployment(p)
		if err != nil {
			t.Fatal(err)
		}
		t0 := time.Now()
		b, _, err := lower.Compile(context.Background(), d, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("compile", tp, time.Since(t0), len(b.Recipes), len(b.Sets[0].Plans))
		t0 = time.Now()
		bp := filepath.Join(dir, "b.quill")
		if err := recipes.WriteBundle(bp, b); err != nil {
			t.Fatal(err)
		}
		t.Log("write", time.Since(t0))
		t0 = time.Now()
		s, err := runtime.Open(context.Background(), bp, runtime.Options{Model: model})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("open", time.Since(t0))
		f, err := safetensors.Open(filepath.Join(model, "expected.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{17, 200} {
			tk, _ := f.Tensor(fmt.Sprintf("seq%d.tokens", n))
			toks, _ := tk.I32()
			lt, _ := f.Tensor(fmt.Sprintf("seq%d.logits_f32", n))
			want, _ := lt.F32()
			for _, o := range []runtime.ScoreOptions{{Chunk: 64, DecodeFrom: n}, {Chunk: 1, DecodeFrom: n}, {Chunk: 16, DecodeFrom: 1}, {Chunk: 16, DecodeFrom: 1, NoiseSeqs: 3}} {
				worst := 0.0
				t0 = time.Now()
				err := s.Score(context.Background(), toks, o, func(pos int, l []float32) error {
					for i, v := range l {
						worst = max(worst, math.Abs(float64(v-want[pos*len(l)+i])))
					}
					return nil
				})
				t.Log(n, o, time.Since(t0), worst, err)
			}
		}
		s.Close()
	}
}
