package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/recipes/safetensors"
	"quill/runtime"
)

// logitsName is the tensor that score writes.
const logitsName = "logits"

type scoreOptions struct {
	modelFlags
	bundle string
	from   string
	out    string
	json   bool
	feed   runtime.ScoreOptions
}

func newScore() *cobra.Command {
	var o scoreOptions
	cmd := &cobra.Command{
		Use:   "score BUNDLE.quill --model DIR --tokens-from FILE.safetensors:TENSOR --out LOGITS.safetensors",
		Short: "Write the logits that follow every token of a known sequence",
		Long: `Feed a known sequence through the serving path and write the logits that follow
every token: tensor "` + logitsName + `", F32 [tokens, valid vocabulary].

The first tokens are prefilled in chunks, those from --decode-from on are
decoded one at a time. --noise-seqs random sequences share the session and its
decode batches; whatever they are, they must not change the logits.`,
		Example: examples(
			"quill score chat.quill --model models/chat --tokens-from ref.safetensors:tokens --out logits.safetensors",
			"quill score chat.quill --model models/chat --tokens-from ref.safetensors:tokens --out logits.safetensors --chunk 16 --decode-from 32",
			"quill score chat.quill --model models/chat --tokens-from ref.safetensors:tokens --out logits.safetensors --decode-from 1 --noise-seqs 3 --seed 7",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			if err := o.check(cmd); err != nil {
				return err
			}
			done, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.json {
				return writeJSON(cmd.OutOrStdout(), done)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), done)
			return err
		},
	}
	f := cmd.Flags()
	o.modelFlags.add(cmd)
	f.StringVar(&o.from, "tokens-from", "", "the sequence: a tensor of ids (I32 or I64, one dimension) in a file")
	f.StringVar(&o.out, "out", "", "file to write")
	f.IntVar(&o.feed.Chunk, "chunk", 0, "most tokens of a prefill step (default: what the deployment allows)")
	f.IntVar(&o.feed.DecodeFrom, "decode-from", math.MaxInt, "first position that is decoded instead of prefilled (default: none is)")
	f.Lookup("decode-from").DefValue = "0" // so that help does not show a number that means nothing
	f.IntVar(&o.feed.NoiseSeqs, "noise-seqs", 0, "random sequences that share the session")
	f.Uint64Var(&o.feed.Seed, "seed", 0, "what chooses the random sequences")
	f.BoolVar(&o.json, "json", false, "print what was written as JSON")
	return cmd
}

func (o *scoreOptions) check(cmd *cobra.Command) error {
	if err := o.modelFlags.check(cmd); err != nil {
		return err
	}
	if err := needFlag(cmd, "tokens-from", "the sequence, as FILE.safetensors:TENSOR"); err != nil {
		return err
	}
	if err := needFlag(cmd, "out", "the file to write"); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"chunk", o.feed.Chunk}, {"decode-from", o.feed.DecodeFrom}, {"noise-seqs", o.feed.NoiseSeqs}} {
		if f.v < 0 {
			return usagef("--%s %d is negative", f.name, f.v)
		}
	}
	if o.feed.Chunk == 0 && cmd.Flags().Changed("chunk") {
		return usagef("--chunk 0: want at least 1 token")
	}
	_, _, err := splitTensor(o.from)
	return err
}

// scored is what a score produced.
type scored struct {
	Out     string  `json:"out"`
	Tensor  string  `json:"tensor"`
	Shape   []int64 `json:"shape"`
	Seconds float64 `json:"seconds"`
}

func (s *scored) String() string {
	return fmt.Sprintf("%s: %s, F32 [%d, %d], %.1f s", s.Out, s.Tensor, s.Shape[0], s.Shape[1], s.Seconds)
}

func (o *scoreOptions) run(ctx context.Context, stderr io.Writer) (*scored, error) {
	start := time.Now()
	tokens, err := readTokens(o.from)
	if err != nil {
		return nil, err
	}
	if n := o.feed.DecodeFrom; n > len(tokens) && n != math.MaxInt {
		return nil, usagef("--decode-from %d is beyond the sequence, which has %d tokens", n, len(tokens))
	}
	path, _, _ := splitTensor(o.from)
	if err := checkOutput("--out", o.out, path, o.bundle, o.model); err != nil {
		return nil, err
	}
	s, err := openSession(ctx, o.bundle, o.options(), stderr)
	if err != nil {
		return nil, err
	}
	defer s.Close() // everything was read from it
	vocab := s.Info().Model.ValidVocab
	if err := checkTokens(tokens, vocab); err != nil {
		return nil, err
	}
	if longest := s.Info().Deployment.MaxModelLen; len(tokens) > longest {
		return nil, fmt.Errorf("the sequence has %d tokens, max_model_len is %d: compile the deployment with a larger one", len(tokens), longest)
	}
	data, err := o.logits(ctx, s, tokens, vocab, stderr)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := safetensors.Tensor{Name: logitsName, DType: "F32", Shape: []int64{int64(len(tokens)), int64(vocab)}, Data: data}
	if err := safetensors.Write(o.out, []safetensors.Tensor{t}, nil); err != nil {
		return nil, err
	}
	return &scored{Out: o.out, Tensor: t.Name, Shape: t.Shape, Seconds: time.Since(start).Seconds()}, nil
}

// logits are the rows of all positions, as a file holds them.
func (o *scoreOptions) logits(ctx context.Context, s *runtime.Session, tokens []int32, vocab int, stderr io.Writer) ([]byte, error) {
	if err := checkMemory("the logits", 4*int64(len(tokens))*int64(vocab)); err != nil {
		return nil, err
	}
	m := newMeter(stderr, "scoring positions", func(n int64) string { return fmt.Sprint(n) })
	defer m.close()
	data := make([]byte, 4*len(tokens)*vocab)
	err := s.Score(ctx, tokens, o.feed, func(pos int, logits []float32) error {
		row := data[4*pos*vocab:]
		for i, v := range logits {
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(v))
		}
		m.update(int64(pos+1), int64(len(tokens)), "")
		return nil
	})
	if err != nil && !strings.HasPrefix(err.Error(), "score: ") {
		err = fmt.Errorf("score: %w", err)
	}
	return data, err
}
