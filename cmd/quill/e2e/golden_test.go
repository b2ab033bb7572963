package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/safetensors"
)

// lengths are the sequences that every nano model has expected outputs of.
var lengths = []int{1, 5, 17, 48, 200}

// models are the untrained checkpoints with expected logits, each with the
// numbers of ranks that divide it.
var models = []struct {
	name string
	tps  []int
}{
	{"nano-small", []int{1, 2, 4, 8}},
	{"nano-big", []int{1, 2, 4}},
	{"nano-dense", []int{1, 2, 4, 8}},
}

// modelDir is the directory of a checkpoint of testdata.
func modelDir(name string) string {
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "testdata", name))
	if err != nil {
		panic(err) // no working directory
	}
	return dir
}

// golden is an expected output.
type golden struct {
	tokens []int32
	// logits has a row for each position: arithmetic in F32, and with BF16
	// rounding where the published implementation rounds.
	logits, bf16 [][]float32
}

// expectedFiles are open until the process ends.
var expectedFiles struct {
	sync.Mutex
	byModel map[string]*safetensors.File
}

// expected finds a tensor among a model's expected outputs.
func expected(t testing.TB, model, name string) safetensors.Tensor {
	t.Helper()
	expectedFiles.Lock()
	defer expectedFiles.Unlock()
	f := expectedFiles.byModel[model]
	if f == nil {
		var err error
		f, err = safetensors.Open(filepath.Join(modelDir(model), "expected.safetensors"))
		require.NoError(t, err)
		if expectedFiles.byModel == nil {
			expectedFiles.byModel = map[string]*safetensors.File{}
		}
		expectedFiles.byModel[model] = f
	}
	x, ok := f.Tensor(name)
	require.True(t, ok, "no expected tensor %s", name)
	return x
}

func expectedF32(t testing.TB, model, name string) []float32 {
	t.Helper()
	v, err := expected(t, model, name).F32()
	require.NoError(t, err)
	return v
}

func expectedI32(t testing.TB, model, name string) []int32 {
	t.Helper()
	v, err := expected(t, model, name).I32()
	require.NoError(t, err)
	return v
}

// goldenOf reads the expected output of the sequence of n tokens.
func goldenOf(t testing.TB, model string, n int) golden {
	t.Helper()
	seq := fmt.Sprintf("seq%d.", n)
	return golden{
		tokens: expectedI32(t, model, seq+"tokens"),
		logits: inRows(expectedF32(t, model, seq+"logits_f32"), n),
		bf16:   inRows(expectedF32(t, model, seq+"logits_bf16path"), n),
	}
}

// inRows cuts a row-major matrix of n rows.
func inRows(x []float32, n int) [][]float32 {
	rows := make([][]float32, n)
	for i := range rows {
		rows[i] = x[i*len(x)/n : (i+1)*len(x)/n]
	}
	return rows
}

// farthest is the largest absolute difference of two rows: infinite if they
// have different lengths, NaN if any element is NaN.
func farthest(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i, v := range got {
		worst = max(worst, math.Abs(float64(v)-float64(want[i])))
	}
	return worst
}

// farthestRow is farthest over all rows.
func farthestRow(got, want [][]float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		worst = max(worst, farthest(got[i], want[i]))
	}
	return worst
}

// medianRow is the median of the rows' largest differences.
func medianRow(got, want [][]float32) float64 {
	if len(got) != len(want) || len(got) == 0 {
		return math.Inf(1)
	}
	off := make([]float64, len(got))
	for i := range got {
		off[i] = farthest(got[i], want[i])
	}
	slices.Sort(off)
	return off[len(off)/2]
}

// scale is the largest magnitude.
func scale(rows ...[]float32) float64 {
	most := 0.0
	for _, r := range rows {
		for _, v := range r {
			most = max(most, math.Abs(float64(v)))
		}
	}
	return most
}

// sameBits finds the first element of two lists of rows whose bits differ.
func sameBits(t testing.TB, want, got [][]float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		require.Len(t, got[i], len(want[i]), "%s: row %d", what, i)
		for j := range want[i] {
			if math.Float32bits(want[i][j]) != math.Float32bits(got[i][j]) {
				require.Failf(t, "bits differ", "%s: row %d, column %d: got %v, want %v", what, i, j, got[i][j], want[i][j])
			}
		}
	}
}
