package lower

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower/buckets"
	"quill/recipes"
)

func forecastOf(t *testing.T, path string, full bool) *Forecast {
	t.Helper()
	d, err := ReadDeployment(path)
	require.NoError(t, err)
	f, err := NewForecast(t.Context(), d, ForecastOptions{Full: full, Compare: []string{buckets.Exp, buckets.Optimal}})
	require.NoError(t, err)
	return f
}

// publishedDeployment deploys a published model on eight ranks.
func publishedDeployment(t *testing.T, model, rest string) string {
	t.Helper()
	dir, err := filepath.Abs("../testdata/configs/" + model)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte("model: "+dir+"\ntensor_parallel: 8\n"+rest), 0o644))
	return path
}

// The pool of Inkling-Small on eight ranks; of Inkling, whose local layers have another
// number of heads; and of states that are no whole number of aligned addresses.
func TestPoolLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ model, rest, want string }{
		{"inkling-small", "max_model_len: 131072\nkv_blocks: 2560\n", "2,562 blocks × 42 × 116,224 B = 12,506,167,296 B"},
		{"inkling", "max_model_len: 1024\nkv_blocks: 2560\n", "2,562 blocks × (55 × 207,872 B + 11 × 140,800 B) = 33,259,269,120 B"},
		{"inkling-small", "max_model_len: 3\nkv_blocks: 1\nblock_size: 3\n", "3 blocks × 42 × 52,224 B = 6,580,224 B"},
	} {
		d, err := ReadDeployment(publishedDeployment(t, c.model, c.rest))
		require.NoError(t, err)
		s := forecaster{cfg: published(t, c.model)}
		states, err := s.states(d, BF16)
		require.NoError(t, err)
		p := newPool(states, d.KVBlocks)
		require.Equal(t, c.want, p.String())
	}
	p := newPool([]cacheState{{"0", false, 48}, {"0", true, 6}, {"1", false, 48}, {"1", true, 6}}, 1)
	require.Equal(t, "3 blocks × 2 × 54 B + 444 B of padding = 768 B", p.String())
	require.EqualValues(t, 4*256-256, p.Bytes)
}

// The verdict of the published model, with what a rank needs line by line.
func TestForecastOfInklingSmall(t *testing.T) {
	t.Parallel()
	f := forecastOf(t, "../testdata/demo/small.yaml", false)
	require.Empty(t, f.Problems)
	m := &f.Memory[0]
	require.EqualValues(t, 12_506_167_296, m.Pool.Bytes)
	lines := map[string]int64{}
	sum := int64(0)
	for _, l := range m.Lines {
		lines[l.Name] = l.Bytes
		sum += l.Bytes
	}
	require.Equal(t, m.Bytes, sum)
	require.Equal(t, m.Pool.Bytes, lines["kv"]+lines["conv"])
	require.InDelta(t, 75.9, float64(m.Bytes)/(1<<30), 0.1)
	// Another block is 42 · 116,224 bytes of what is left.
	more := (m.LimitBytes - m.Bytes) / (42 * 116_224)
	require.EqualValues(t, 2560+more, f.LargestPool.Value)
	require.Equal(t, m.Bytes+more*42*116_224, f.LargestPool.Bytes)
	require.Equal(t, Largest{2560 * 128, f.LongestRequest.Bytes, "max_model_len 327681 needs 2561 blocks, kv_blocks is 2560: raise kv_blocks or lower max_model_len"}, f.LongestRequest)
	require.Greater(t, f.LongestRequest.Bytes, m.Bytes, "its steps are larger")
	require.Equal(t, []string{"exp", "optimal"}, []string{f.Strategies[0].Strategy, f.Strategies[1].Strategy})
	require.Equal(t, 206, f.Strategies[0].Buckets)
	for _, s := range f.Strategies {
		for _, c := range s.Coverage {
			require.Zero(t, c.Holes)
		}
	}
	require.Less(t, f.Strategies[1].Padding[1].Mean, f.Strategies[0].Padding[1].Mean)
}

// Weights of Inkling alone are more than eight cards have: no pool and no request helps.
func TestForecastOfInkling(t *testing.T) {
	t.Parallel()
	f := forecastOf(t, publishedDeployment(t, "inkling", "max_model_len: 1024\nmax_num_seqs: 1\nkv_blocks: 2560\nmax_batched_tokens: 128\n"), false)
	m := &f.Memory[0]
	require.Equal(t, m.Bytes-m.LimitBytes, m.OverBytes)
	require.Equal(t, []string{fmt.Sprintf("bf16: a rank needs %s of device memory, %s more than the 96 GiB there is", exactBytes(m.Bytes), exactBytes(m.OverBytes))}, f.Problems)
	require.InDelta(t, 254, float64(m.Bytes)/(1<<30), 1)
	for _, l := range []Largest{f.LargestPool, f.LongestRequest} {
		require.Zero(t, l.Value)
		require.Contains(t, l.Next, "weights and pool alone need 1")
	}
}

// With all buckets a forecast has the numbers of the bundle; without it those of the
// buckets that need most.
func TestForecastIsWhatIsCompiled(t *testing.T) {
	t.Parallel()
	models, err := filepath.Abs("../testdata")
	require.NoError(t, err)
	for model, precision := range map[string]string{"nano-small": both, "nano-dense": BF16} {
		path := filepath.Join(t.TempDir(), "d.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil,
			"model: %s/%s\ntensor_parallel: 2\nmax_model_len: 128\nmax_num_seqs: 2\nblock_size: 32\nkv_blocks: 5\nmax_batched_tokens: 64\nprecision: %s\n", models, model, precision), 0o644))
		d, err := ReadDeployment(path)
		require.NoError(t, err)
		b, _, err := Compile(t.Context(), d, nil)
		require.NoError(t, err)
		full, most := forecastOf(t, path, true), forecastOf(t, path, false)
		require.Equal(t, b.Manifest.Deployment, full.Deployment)
		all := map[recipes.Hash]bool{}
		for i := range b.Sets {
			m := &full.Memory[i]
			checkForecast(t, b, &b.Sets[i], m, all)
			require.Equal(t, len(b.Sets[i].Plans), full.Strategies[0].Buckets)
			require.Less(t, most.Memory[i].Compiled, m.Compiled)
			require.LessOrEqual(t, most.Memory[i].Bytes, m.Bytes)
			require.InEpsilon(t, m.Bytes, most.Memory[i].Bytes, 0.01, "%s: %v %v", model, m.Lines, most.Memory[i].Lines)
		}
		require.Len(t, all, len(b.Recipes))
	}
}

func checkForecast(t *testing.T, b *recipes.Bundle, s *recipes.Set, m *MemoryForecast, all map[recipes.Hash]bool) {
	t.Helper()
	for _, l := range m.Lines {
		if l.Name == WorkspaceLine {
			require.True(t, l.Estimate)
			require.Equal(t, s.Info.WorkspaceBytes, l.Bytes)
			continue
		}
		require.False(t, l.Estimate, l.Name)
		require.Equal(t, s.Info.Bytes[recipes.Buffer(l.Name)], l.Bytes, l.Name)
	}
	require.Equal(t, s.Info.Bytes[recipes.KV]+s.Info.Bytes[recipes.Conv], m.Pool.Bytes)
	of, n := map[string]map[recipes.Hash]bool{}, map[string]int{}
	var bundle int64
	for i := range s.Plans {
		p := &s.Plans[i]
		n[p.Family]++
		bundle += int64(len(p.Encode()))
		for _, step := range p.Steps {
			if step.Launch == nil {
				continue
			}
			if of[p.Family] == nil {
				of[p.Family] = map[recipes.Hash]bool{}
			}
			of[p.Family][step.Launch.Recipe], all[step.Launch.Recipe] = true, true
		}
	}
	used := map[recipes.Hash]bool{}
	for _, f := range m.Families {
		require.Equal(t, FamilyForecast{f.Family, n[f.Family], n[f.Family], len(of[f.Family])}, f)
		maps.Copy(used, of[f.Family])
	}
	require.Len(t, m.Families, len(n))
	require.Equal(t, len(used), m.Recipes)
	for h := range used {
		bundle += int64(len(b.Recipes[h].Encode()))
	}
	require.Equal(t, bundle, m.Host.BundleBytes)
}

// Whatever the deployment and its memory: the largest pool and the longest request
// compile, one block more of either does not.
func TestLargestOfAnyDeployment(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, seed := range []uint64{0, 1, 3, 6, 8} { // which have all cases below
		d := fitDraw{Rand: rand.New(rand.NewPCG(seed, 11)), dir: t.TempDir()}
		smallModel(t, d.dir, 2)
		shortModel(t, d.dir, 600)
		d.draw(t)
		if seed%3 == 0 { // it may fit, and longer requests have longer chunks
			d.keys["device_memory"] = fmt.Sprint(1 << (20 + seed))
			d.keys["max_model_len"], d.keys["max_batched_tokens"] = "33", "64"
		}
		path := filepath.Join(d.dir, "d.yaml")
		require.NoError(t, os.WriteFile(path, []byte(d.text()), 0o644))
		f := forecastOf(t, path, true)
		limit, err := strconv.ParseInt(d.keys["device_memory"], 10, 64)
		require.NoError(t, err)
		delete(d.keys, "device_memory") // compiling would look for what fits, and say no more
		need, err := d.needs(t, "", 0)
		require.NoError(t, err)
		require.Equal(t, need <= limit, len(f.Problems) == 0, "%s: %d %v", d.text(), limit, f.Problems)
		d.checkLargest(t, "kv_blocks", f.LargestPool, limit, ceilDiv(f.Deployment.MaxModelLen, 16), 1, seen)
		d.checkLargest(t, "max_model_len", f.LongestRequest, limit, 16, 16, seen)
	}
	require.Positive(t, seen["kv_blocks"])
	require.Positive(t, seen["kv_blocks, none"])
	require.Positive(t, seen["max_model_len"])
	require.Positive(t, seen["max_model_len, none"])
	require.Positive(t, seen["max_model_len, bound"])
}

// Where sequences share blocks a pool bounds the references of a step, so a larger one
// has larger steps. A list in a file covers no longer requests.
func TestLargestWhereBucketsChange(t *testing.T) {
	t.Parallel()
	d := fitDraw{dir: t.TempDir(), keys: map[string]string{
		"model": ".", "max_model_len": "128", "max_num_seqs": "3", "block_size": "16", "kv_blocks": "9", "max_batched_tokens": "16",
		"device_memory": "2500KiB", "buckets": "{strategy: exp, sharing: 1}",
	}}
	smallModel(t, d.dir, 2)
	path := filepath.Join(d.dir, "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(d.text()), 0o644))
	f := forecastOf(t, path, false)
	delete(d.keys, "device_memory")
	seen := map[string]int{}
	steps := map[int]int64{}
	for _, blocks := range []int{9, f.LargestPool.Value} {
		bytes, err := d.needs(t, "kv_blocks", blocks)
		require.NoError(t, err)
		steps[blocks] = bytes - f.Memory[0].Pool.Bytes/f.Memory[0].Pool.Blocks*int64(blocks+extraBlocks)
	}
	require.Greater(t, f.LargestPool.Value, 9)
	require.Greater(t, steps[f.LargestPool.Value], steps[9])
	d.checkLargest(t, "kv_blocks", f.LargestPool, 2500<<10, 8, 1, seen)
	require.Equal(t, map[string]int{"kv_blocks": 1}, seen)

	d.keys["buckets"] = "{strategy: file, path: list.txt}"
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, "list.txt"), []byte("prefill q=16 c=0,8\ndecode b=3 n=24\n"), 0o644))
	require.NoError(t, os.WriteFile(path, []byte(d.text()), 0o644))
	f = forecastOf(t, path, false)
	require.Equal(t, 8*16, f.LongestRequest.Value)
	require.Contains(t, f.LongestRequest.Next, "the buckets leave holes")
}

// shortModel lowers the longest request of a model.
func shortModel(t *testing.T, dir string, tokens int) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	src, err := os.ReadFile(path)
	require.NoError(t, err)
	key := regexp.MustCompile(`"model_max_length":[0-9]+`)
	require.Len(t, key.FindAll(src, -1), 1)
	require.NoError(t, os.WriteFile(path, key.ReplaceAll(src, fmt.Appendf(nil, `"model_max_length":%d`, tokens)), 0o644))
}

// needs is what a rank needs of the deployment with another value of a key, if there is
// such a deployment.
func (d *fitDraw) needs(t *testing.T, key string, v int) (int64, error) {
	e := fitDraw{dir: d.dir, keys: maps.Clone(d.keys)}
	if key != "" {
		e.keys[key] = fmt.Sprint(v)
	}
	path := filepath.Join(d.dir, "try.yaml")
	require.NoError(t, os.WriteFile(path, []byte(e.text()), 0o644))
	dep, err := ReadDeployment(path)
	if err != nil {
		return 0, err
	}
	b, _, err := Compile(t.Context(), dep, nil)
	if err != nil {
		return 0, err
	}
	f, _ := largest(b)
	return f.bytes, nil
}

// checkLargest compiles a deployment with the largest value of a key, and with the next
// one, step more; without a value with the least.
func (d *fitDraw) checkLargest(t *testing.T, key string, l Largest, limit int64, least, step int, seen map[string]int) {
	t.Helper()
	if l.Value == 0 {
		seen[key+", none"]++
		bytes, err := d.needs(t, key, least)
		require.NoError(t, err)
		require.Greater(t, bytes, limit, "%s %d of %s", key, least, d.text())
		return
	}
	bytes, err := d.needs(t, key, l.Value)
	require.NoError(t, err)
	require.Equal(t, l.Bytes, bytes, "%s %d of %s", key, l.Value, d.text())
	require.LessOrEqual(t, bytes, limit)
	more, err := d.needs(t, key, (l.Value/step+1)*step)
	if err != nil {
		seen[key+", bound"]++
		require.NotContains(t, l.Next, "more than there is")
		return
	}
	seen[key]++
	require.Greater(t, more, limit, "%s above %d of %s", key, l.Value, d.text())
	require.Equal(t, tooMuch("a rank would need", more-limit), l.Next)
}

// Holes are a problem, and the memory is there all the same.
func TestForecastOfHoles(t *testing.T) {
	t.Parallel()
	models, err := filepath.Abs("../testdata")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(small, "../nano-small", models+"/nano-small", 1)+"buckets: {strategy: exp-compat}\n"), 0o644))
	f := forecastOf(t, path, false)
	require.Len(t, f.Problems, 1)
	require.Contains(t, f.Problems[0], "the buckets leave holes\n  prefill: no bucket covers")
	require.Equal(t, []string{"exp-compat", "exp", "optimal"}, []string{f.Strategies[0].Strategy, f.Strategies[1].Strategy, f.Strategies[2].Strategy})
	require.Positive(t, f.Strategies[0].Coverage[0].Holes)
	require.Zero(t, f.Strategies[1].Coverage[0].Holes)
	require.Positive(t, f.Memory[0].Bytes)
	require.Equal(t, Largest{Next: "the buckets leave holes"}, f.LargestPool)
}

// Where nothing can be said of a strategy that is compared, the reason is.
func TestComparedStrategyFails(t *testing.T) {
	t.Parallel()
	d, err := deployment(t, small+"buckets: {strategy: exp, most: 60}\n")
	require.NoError(t, err)
	f, err := NewForecast(t.Context(), d, ForecastOptions{Compare: []string{buckets.Linear}})
	require.NoError(t, err)
	require.Contains(t, f.Strategies[1].Error, "strategy linear makes")
	require.NotContains(t, f.Strategies[1].Error, "\n")
}

// The boundary is found whatever is guessed.
func TestLargestIsFound(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 3))
	for range 2000 {
		n := 1 + r.IntN(5000)
		edge := r.IntN(n + 1)
		s := search{forecaster: &forecaster{limit: 1000}, bound: "bound", rests: map[int][]int64{1 + r.IntN(n): {r.Int64N(2000)}}, states: [][]cacheState{{}}}
		s.make = func(i int) variant { return variant{i * 3, &Deployment{}} }
		tries := 0
		s.attempt = func(i int, _ *Deployment) (int64, string, error) {
			tries++
			s.rests[i] = []int64{r.Int64N(2000)} // which misleads
			if i > edge {
				return 0, "too much", nil
			}
			return int64(i), "", nil
		}
		l, err := s.largest(n)
		require.NoError(t, err)
		want := Largest{edge * 3, int64(edge), "too much"}
		if edge == n {
			want.Next = "bound"
		}
		require.Equal(t, want, l)
		require.LessOrEqual(t, tries, 3*14+2)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	var got []string
	for _, n := range []int64{0, 7, 999, 1000, 12_345, 123_456, 1_234_567} {
		got = append(got, thousands(n))
	}
	require.True(t, slices.Equal([]string{"0", "7", "999", "1,000", "12,345", "123,456", "1,234,567"}, got), "%v", got)
}
