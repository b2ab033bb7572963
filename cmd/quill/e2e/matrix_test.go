package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"quill/runtime"
)

// trial is one way to feed one expected sequence.
type trial struct {
	model     string
	tp, block int
	length    int
	chunk     int
	from      int // position of the first decode step
	noise     int // other sequences in the batches
}

func (r trial) String() string {
	return fmt.Sprintf("%s/tp%d/b%d/seq%d/chunk%d/from%d/noise%d", r.model, r.tp, r.block, r.length, r.chunk, r.from, r.noise)
}

// f32Bound is how far F32 logits may be from those of the independent
// implementation, absolutely.
const f32Bound = 1e-4

// run compares the logits after every token.
func (r trial) run(t *testing.T, suite string) {
	g := goldenOf(t, r.model, r.length)
	s := nano(r.model, r.tp, r.block, "f32").open(t)
	got := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: r.chunk, DecodeFrom: r.from, NoiseSeqs: r.noise, Seed: uint64(r.length)})
	record(t, suite, farthestRow(got, g.logits), f32Bound)
}

// The levels of the matrix. The middle of a sequence is its own level.
var (
	matrixTPs    = []int{1, 2, 4, 8}
	matrixChunks = []int{1, 3, 16, 64}
	matrixFroms  = []func(length int) int{
		func(int) int { return 1 },
		func(int) int { return 17 },
		func(n int) int { return n / 2 },
	}
	matrixBlocks = []int{8, 16}
	matrixNoise  = []int{0, 3}
)

func matrix() factors {
	return factors{
		levels: []int{len(models), len(matrixTPs), len(lengths), len(matrixChunks), len(matrixFroms), len(matrixBlocks), len(matrixNoise)},
		forbidden: func(i, a, j, b int) bool {
			return i == 0 && j == 1 && !slices.Contains(models[a].tps, matrixTPs[b])
		},
	}
}

func trialOf(row []int) trial {
	n := lengths[row[2]]
	return trial{
		model: models[row[0]].name, tp: matrixTPs[row[1]], length: n, chunk: matrixChunks[row[3]],
		from: matrixFroms[row[4]](n), block: matrixBlocks[row[5]], noise: matrixNoise[row[6]],
	}
}

// every lists all rows without forbidden pairs.
func (f *factors) every() [][]int {
	rows := [][]int{nil}
	for _, n := range f.levels {
		var longer [][]int
		for _, row := range rows {
			for level := range n {
				longer = append(longer, append(slices.Clone(row), level))
			}
		}
		rows = longer
	}
	return slices.DeleteFunc(rows, func(row []int) bool { return !f.possible(row) })
}

// However a sequence is cut into chunks and decode steps, on however many
// ranks, alone or in company: the logits are those of the independent
// implementation. Any two of the choices meet in some trial.
func TestLogitsMatchTheIndependentImplementation(t *testing.T) {
	t.Parallel()
	f := matrix()
	runTrials(t, f.cover(rand.New(rand.NewPCG(seed(t), 0))))
}

// TestSoakEveryCombination is the same for all combinations.
func TestSoakEveryCombination(t *testing.T) {
	t.Parallel()
	if !soak() {
		t.Skip("takes half an hour; QUILL_SOAK=1 runs it")
	}
	f := matrix()
	runTrials(t, f.every())
}

func runTrials(t *testing.T, rows [][]int) {
	done := map[trial]bool{} // the middle of a short sequence can be another level too
	for _, row := range rows {
		r := trialOf(row)
		if done[r] {
			continue
		}
		done[r] = true
		t.Run(r.String(), func(t *testing.T) { r.run(t, "logits, f32") })
	}
}
