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

	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime"
)

// logitsName is the tensor that score writes.
const logitsName = "logits"

type scoreOptions struct {
	modelFlags
	deviceFlags
	bundle string
	from   string
	out    string
	ref    string // logits to compare with
	json   bool
	feed   runtime.ScoreOptions
}

func newScore() *cobra.Command {
	var o scoreOptions
	cmd := &cobra.Command{
		Use:   "score BUNDLE.quill --model DIR --tokens-from FILE.safetensors:TENSOR (--out LOGITS.safetensors | --against FILE.safetensors:TENSOR)",
		Short: "Write or compare the logits that follow every token of a known sequence",
		Long: `Feed a known sequence through the serving path and write the logits that follow
every token: tensor "` + logitsName + `", F32 [tokens, valid vocabulary]. --against
compares them with a tensor of the same shape and prints the largest difference.

The first tokens are prefilled in chunks, those from --decode-from on are
decoded one at a time. --noise-seqs random sequences share the session and its
decode batches; whatever they are, they must not change the logits.`,
		Example: examples(
			"quill score chat.quill --model models/chat --tokens-from ref.safetensors:tokens --out logits.safetensors",
			"quill score chat.quill --model models/chat --tokens-from ref.safetensors:tokens --against ref.safetensors:logits --chunk 16 --decode-from 32",
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
	o.deviceFlags.add(cmd)
	f.StringVar(&o.from, "tokens-from", "", "the sequence: a tensor of ids (I32 or I64, one dimension) in a file")
	f.StringVar(&o.out, "out", "", "file to write")
	f.StringVar(&o.ref, "against", "", "logits to compare with: a tensor in a file, F32 [tokens, valid vocabulary]")
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
	if err := o.deviceFlags.check(cmd); err != nil {
		return err
	}
	if err := needFlag(cmd, "tokens-from", "the sequence, as FILE.safetensors:TENSOR"); err != nil {
		return err
	}
	if o.out == "" && o.ref == "" {
		return usagef("--out is missing: the file to write; or give --against, logits to compare with")
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
	if o.ref != "" {
		if _, _, err := splitTensor("--against", o.ref); err != nil {
			return err
		}
	}
	_, _, err := splitTensor("--tokens-from", o.from)
	return err
}

// scored is what a score produced.
type scored struct {
	Out      string    `json:"out,omitempty"`
	Tensor   string    `json:"tensor"`
	Shape    []int64   `json:"shape"`
	Seconds  float64   `json:"seconds"`
	Compared *compared `json:"compared,omitempty"`
	Counters served    `json:"counters"`
}

func (s *scored) String() string {
	out := s.Out
	if out == "" {
		out = "not written"
	}
	text := fmt.Sprintf("%s: %s, F32 [%d, %d], %.1f s", out, s.Tensor, s.Shape[0], s.Shape[1], s.Seconds)
	if s.Compared != nil {
		text += "\n" + s.Compared.String()
	}
	return text
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
	if err := o.checkOut(); err != nil {
		return nil, err
	}
	var ref *reference
	if o.ref != "" {
		if ref, err = readReference(o.ref); err != nil {
			return nil, err
		}
	}
	s, err := o.open(ctx, o.bundle, o.options(), func(b *recipes.Bundle) error { return o.fits(&b.Manifest, tokens, ref) }, stderr)
	if err != nil {
		return nil, err
	}
	defer s.Close() // everything was read from it
	vocab := s.Info().Model.ValidVocab
	data, err := o.logits(ctx, s, tokens, vocab, stderr)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := safetensors.Tensor{Name: logitsName, DType: "F32", Shape: []int64{int64(len(tokens)), int64(vocab)}, Data: data}
	if o.out != "" {
		if err := safetensors.Write(o.out, []safetensors.Tensor{t}, nil); err != nil {
			return nil, err
		}
	}
	done := &scored{Out: o.out, Tensor: t.Name, Shape: t.Shape, Counters: servedBy(s)}
	if ref != nil {
		logits, err := t.F32()
		if err != nil {
			return nil, err
		}
		if done.Compared, err = ref.compare(logits, vocab); err != nil {
			return nil, err
		}
	}
	done.Seconds = time.Since(start).Seconds()
	return done, nil
}

// fits checks the sequence, and what it is compared with, against the bundle.
func (o *scoreOptions) fits(m *recipes.Manifest, tokens []int32, ref *reference) error {
	if err := checkTokens(tokens, m.Model.ValidVocab); err != nil {
		return err
	}
	if ref != nil {
		if err := ref.fits(len(tokens), m.Model.ValidVocab); err != nil {
			return err
		}
	}
	d := &m.Deployment
	switch {
	case len(tokens) > d.MaxModelLen:
		return fmt.Errorf("the sequence has %d tokens, max_model_len is %d: compile the deployment with a larger one", len(tokens), d.MaxModelLen)
	case o.feed.NoiseSeqs >= d.MaxNumSeqs:
		return fmt.Errorf("--noise-seqs %d: want at most %d, since max_num_seqs is %d and the sequence is one", o.feed.NoiseSeqs, d.MaxNumSeqs-1, d.MaxNumSeqs)
	}
	return nil
}

// checkOut checks the file to write, if there is to be one.
func (o *scoreOptions) checkOut() error {
	if o.out == "" {
		return nil
	}
	sources := []string{o.bundle, o.model}
	for _, from := range []string{o.from, o.ref} {
		if path, _, err := splitTensor("", from); err == nil {
			sources = append(sources, path)
		}
	}
	return checkOutput("--out", o.out, sources...)
}

// logits are the rows of all positions, as a file holds them.
func (o *scoreOptions) logits(ctx context.Context, s *runtime.Session, tokens []int32, vocab int, stderr io.Writer) ([]byte, error) {
	if err := checkMemory("the logits", 4*int64(len(tokens))*int64(vocab)); err != nil {
		return nil, err
	}
	m := newMeter(stderr, "scoring positions", func(n int64) string { return fmt.Sprint(n) })
	defer m.close()
	data := make([]byte, 4*len(tokens)*vocab)
	err := o.lasting(ctx, s, stderr, func() error {
		return s.Score(ctx, tokens, o.feed, func(pos int, logits []float32) error {
			row := data[4*pos*vocab:]
			for i, v := range logits {
				binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(v))
			}
			m.update(int64(pos+1), int64(len(tokens)), "")
			return nil
		})
	})
	if err != nil && !strings.HasPrefix(err.Error(), "score: ") {
		err = fmt.Errorf("score: %w", err)
	}
	return data, err
}
