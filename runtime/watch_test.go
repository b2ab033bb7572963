package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// watchedStep records that a step ran.
type watchedStep struct {
	Watched
	ran *[]string
}

func (s watchedStep) Run(ctx context.Context) error {
	what := "launch"
	if s.Plan.Steps[s.Step].Collective != nil {
		what = "collective"
	}
	*s.ran = append(*s.ran, fmt.Sprintf("%s %d %s", s.Plan.Bucket.Phase, s.Step, what))
	return s.Watched.Run.Run(ctx)
}

// Every step of every plan is watched, launches and collectives, in the order of
// execution, and what is computed is the same.
func TestWatch(t *testing.T) {
	bundle, model, embed, head := bigram(t)
	var ran []string
	bound := 0
	s, err := Open(ctx, bundle, Options{Model: model, Watch: func(w Watched) Launch {
		bound++
		return watchedStep{w, &ran}
	}})
	require.NoError(t, err)
	steps := 0
	b, err := recipes.ReadBundle(bundle)
	require.NoError(t, err)
	for i := range b.Sets[0].Plans {
		steps += len(b.Sets[0].Plans[i].Steps)
	}
	require.Equal(t, steps, bound)

	text := []int32{3, 1, 4}
	logits, err := s.Prefill(ctx, sequence(t, s, 3), text)
	require.NoError(t, err)
	require.Equal(t, bigramLogits(embed, head, text), logits)
	require.Equal(t, []string{
		"prefill 0 launch", "prefill 1 collective", "prefill 2 launch", "logits 0 launch", "logits 1 collective", "logits 2 launch",
	}, ran)
	c := s.Info().Counters
	require.EqualValues(t, 4, c.Launches)
	require.EqualValues(t, 2, c.Collectives)

	dev := s.dev.(*HostDevice)
	_, err = dev.Tap(&recipes.Recipe{}, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = dev.Tap(&recipes.Recipe{}, nil)
	require.Error(t, err)
}

// Weights can be read from the CPU device wherever they lie.
func TestReadWeights(t *testing.T) {
	bundle, model, embed, _ := bigram(t)
	s, err := Open(ctx, bundle, Options{Model: model})
	require.NoError(t, err)
	b, err := recipes.ReadBundle(bundle)
	require.NoError(t, err)
	for i := range b.Sets[0].Weights {
		w := &b.Sets[0].Weights[i]
		data := make([]byte, w.Bytes())
		require.NoError(t, s.dev.Read(0, recipes.Weights, w.Offset, data))
		if w.Tensor == "embed" {
			for j, v := range embed[0] {
				require.Equal(t, v, math.Float32frombits(binary.LittleEndian.Uint32(data[4*j:])))
			}
		}
	}
	require.Error(t, s.dev.Read(0, recipes.Weights, 1<<40, make([]byte, 4)))
	require.NoError(t, s.Close())
}

// An error of a step says which one it is.
func TestStepErrorNamesThePlace(t *testing.T) {
	bundle, model, _, _ := bigram(t)
	broken := errors.New("node 3 broke")
	s, err := Open(ctx, bundle, Options{Model: model, Watch: func(w Watched) Launch {
		if w.Plan.Steps[w.Step].Collective != nil {
			return failing{broken}
		}
		return w.Run
	}})
	require.NoError(t, err)
	_, err = s.Prefill(ctx, sequence(t, s, 3), []int32{3})
	require.ErrorIs(t, err, broken)
	require.Regexp(t, `plan prefill/q=\d+,c=0: step 1 of 3 \(all_\w+ ".*"\): node 3 broke`, err.Error())
	require.NoError(t, s.Close())
}

type failing struct{ err error }

func (l failing) Run(context.Context) error { return l.err }
