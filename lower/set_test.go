package lower

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/store"
)

// keptOptions compiles with a store, several buckets at once.
func keptOptions(s *store.Store, jobs int, progress Progress) Options {
	return Options{Jobs: jobs, Store: s, Build: "test", Progress: progress, Passes: func(p passes.Params) *passes.Manager { return defaultManager(p) }}
}

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir, store.Options{Warn: func(e *store.Error) { t.Errorf("store: %v", e) }})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// However many buckets are compiled at once, in whatever order, with a store that has
// all of them, some or none, the bundle is the same.
func TestBundlesDoNotDependOnHowTheyAreCompiled(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "moe: gather\n", "attention: masked\nsub_block_rows: 5\n", "far: exact\nsub_block_rows: 7\nembedding: sharded\n"} {
		d, err := deployment(t, small+"precision: both\n"+text)
		require.NoError(t, err)
		want, _, err := CompileWith(t.Context(), d, keptOptions(nil, 1, nil))
		require.NoError(t, err)
		dir := t.TempDir()
		same := func(s *store.Store, jobs int, kept func(Step) bool, what string) {
			var last Step
			b, _, err := CompileWith(t.Context(), d, keptOptions(s, jobs, func(p Step) { last = p }))
			require.NoError(t, err)
			require.Equal(t, last.Total, last.Done)
			require.Zero(t, last.Running)
			require.True(t, kept(last), "%s: %+v", what, last)
			require.Equal(t, want, b, what)
		}
		none := func(p Step) bool { return p.Kept == 0 }
		all := func(p Step) bool { return p.Kept == p.Total }
		same(nil, 3, none, "without a store, three at once")

		// A compile that ends in the middle leaves what it has made.
		s := openStore(t, filepath.Join(dir, "broken off"))
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err = CompileWith(ctx, d, keptOptions(s, 2, func(p Step) {
			if p.Done == 7 {
				cancel()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		same(s, 2, func(p Step) bool { return p.Kept >= 7 && p.Kept < p.Total }, "after one that was broken off")
		same(s, 4, all, "with a warm store")
		same(openStore(t, filepath.Join(dir, "broken off")), 1, all, "opened again")
	}
}

// Whatever a result depends on is in its key: another value of it is another key, and
// nothing that was kept is taken.
func TestKeysHaveWhatResultsDependOn(t *testing.T) {
	t.Parallel()
	s := openStore(t, t.TempDir())
	compile := func(text string, change func(*Options)) Step {
		d, err := deployment(t, text)
		require.NoError(t, err)
		var last Step
		opt := keptOptions(s, 2, func(p Step) { last = p })
		change(&opt)
		b, _, err := CompileWith(t.Context(), d, opt)
		require.NoError(t, err)
		if last.Kept > 0 {
			want, _, err := CompileWith(t.Context(), d, Options{Passes: opt.Passes})
			require.NoError(t, err)
			require.Equal(t, want, b, text)
		}
		return last
	}
	same := func(*Options) {}
	const base = "model: ../nano-dense\ntensor_parallel: 1\nmax_model_len: 32\nmax_num_seqs: 1\nblock_size: 16\nmax_batched_tokens: 16\nkv_blocks: 4\nprecision: f32\n"
	first := compile(base, same)
	require.Zero(t, first.Kept)
	require.Equal(t, first.Total, compile(base, same).Kept)
	for _, c := range []struct {
		text   string
		change func(*Options)
	}{
		{strings.Replace(base, "nano-dense", "nano-small", 1), same},
		{strings.Replace(base, "f32", "bf16", 1), same},
		{strings.Replace(base, "tensor_parallel: 1", "tensor_parallel: 2", 1), same},
		{strings.Replace(base, "kv_blocks: 4", "kv_blocks: 5", 1), same},
		{strings.Replace(base, "block_size: 16", "block_size: 8", 1), same},
		{base + "embedding: sharded\n", same},
		{base + "attention: plain\n", same},
		{base + "far: tiled\n", same},
		{base + "sub_block_rows: 5\n", same},
		{base + "mask_budget: 2KiB\n", same},
		{base, func(o *Options) { o.Build = "another" }},
		{base, func(o *Options) {
			o.Passes = func(p passes.Params) *passes.Manager {
				pipeline, err := passes.Default().Without(passes.Passes(), "fuse-qkvr")
				require.NoError(t, err)
				return passes.NewManager(passes.Config{Pipeline: pipeline, Params: p})
			}
		}},
	} {
		require.Zero(t, compile(c.text, c.change).Kept, "%s", c.text)
	}
	// More buckets of the same families are compiled beside those that are kept.
	more := compile(base+"buckets: {strategy: optimal, padding: 1.1}\n", same)
	require.Less(t, more.Kept, more.Total)
	require.Positive(t, more.Kept)
}

// inputsOf are the sizes of a plan's inputs, which tell its bucket from others.
func inputsOf(m *ir.Module) string {
	text := ""
	for _, p := range m.Entry().Params {
		if p.Kind == ir.Host {
			text += fmt.Sprint(p.Name, p.Value.Type, " ")
		}
	}
	return text
}

// The error is that of the first bucket that has one, whatever was at work; with
// KeepGoing it has all of them.
func TestFirstErrorIsOfTheFirstBucket(t *testing.T) {
	t.Parallel()
	d, err := deployment(t, small)
	require.NoError(t, err)
	names := map[string]string{}
	run := func(opt Options, trap func(m *ir.Module) error) error {
		pass := &passes.Pass{Name: "trap", Stages: passes.Bucket, Run: func(_ *passes.Context, m *ir.Module) (bool, error) { return false, trap(m) }}
		opt.Passes = func(p passes.Params) *passes.Manager {
			return passes.NewManager(passes.Config{Pipeline: append(slices.Clone(passes.Default()), passes.Step{Pass: pass}), Params: p})
		}
		_, _, err := CompileWith(t.Context(), d, opt)
		return err
	}
	require.NoError(t, run(Options{Planned: func(_ string, p *Planned) { names[inputsOf(p.Module)] = p.Plan.Bucket.String() }}, func(*ir.Module) error { return nil }))
	for _, jobs := range []int{1, 2, 5} {
		for _, keepGoing := range []bool{false, true} {
			var begun atomic.Int64
			err := run(Options{Jobs: jobs, KeepGoing: keepGoing}, func(m *ir.Module) error {
				begun.Add(1)
				switch names[inputsOf(m)] {
				case "prefill/q=32,c=1": // ends last
					time.Sleep(200 * time.Millisecond)
					return errors.New("trapped")
				case "prefill/q=32,c=2", "decode/b=1,n=4":
					return errors.New("trapped")
				}
				return nil
			})
			require.ErrorContains(t, err, "bucket prefill/q=32,c=1: ")
			if keepGoing {
				require.ErrorContains(t, err, "bucket prefill/q=32,c=2: ")
				require.ErrorContains(t, err, "bucket decode/b=1,n=4: ")
				require.EqualValues(t, len(names), begun.Load())
			} else {
				require.NotContains(t, err.Error(), "bucket decode")
				require.Less(t, begun.Load(), int64(len(names)))
			}
		}
	}
}

// A store whose data is not a plan is no fault of the user's.
func TestKeptPlansAreDecoded(t *testing.T) {
	_, err := takePlan(&store.Result{Data: []byte("x")})
	require.ErrorContains(t, err, "the store's plan does not begin with")
	plan := (&recipes.Plan{}).Encode()
	_, err = takePlan(&store.Result{Data: plan, Blobs: map[recipes.Hash][]byte{recipes.Sum(plan): plan}})
	require.ErrorContains(t, err, fmt.Sprintf("the store's recipe %v does not begin with", recipes.Sum(plan)))
}
