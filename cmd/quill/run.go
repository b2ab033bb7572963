package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/tokenizer"
)

// defaultMaxNew is how many tokens an answer has at most if nothing is said.
const defaultMaxNew = 256

type runOptions struct {
	modelFlags
	deviceFlags
	bundle string
	tokens string
	prompt string
	isText bool // prompt is given, not tokens
	maxNew int
	exact  bool // maxNew was asked for
	json   bool
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run BUNDLE.quill --model DIR (--tokens IDS | --prompt TEXT)",
		Short: "Continue a prompt with the likeliest tokens",
		Long: `Continue a prompt, each time with the likeliest token, until the model ends its
answer, until --max-new tokens, or until max_model_len of the deployment.

TEXT is in the wire format: control tokens spelled out in it, such as
<|message_user|>, are recognised, and nothing is added to it. That needs the
model's tokenizer. IDS are token ids with commas between them.

The answer is written while it is computed, as text if the model has a
tokenizer and as ids otherwise. --json writes {"tokens":[…],"text":"…"} at the
end; text is null without a tokenizer. The token that ends the answer is the
last one of tokens and is not part of text.

With --device hpu each rank is a process with a Gaudi 2 card. The bundle must have native
recipes of the installed software's version, which quill compile --native makes.`,
		Example: examples(
			"quill run chat.quill --model models/chat --prompt '<|message_user|><|content_text|>Hello<|end_message|><|message_model|>'",
			"quill run chat.quill --model models/chat --prompt - --max-new 40 --json <prompt.txt",
			"quill run both.quill --model models/chat --precision f32 --tokens 34,105,288",
			"quill run big.quill --model models/chat --device hpu --ranks 8 --tokens 34,105,288",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			o.isText, o.exact = cmd.Flags().Changed("prompt"), cmd.Flags().Changed("max-new")
			if err := o.check(cmd); err != nil {
				return err
			}
			if err := o.readPrompt(cmd.InOrStdin()); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	o.modelFlags.add(cmd)
	o.deviceFlags.add(cmd)
	f.StringVar(&o.tokens, "tokens", "", "prompt as token ids: 1,2,3")
	f.StringVar(&o.prompt, "prompt", "", "prompt as text in the wire format; - reads the standard input, less a newline at its end")
	f.IntVar(&o.maxNew, "max-new", defaultMaxNew, "most tokens of the answer")
	f.BoolVar(&o.json, "json", false, "print the answer as JSON")
	return cmd
}

func (o *runOptions) check(cmd *cobra.Command) error {
	if err := o.modelFlags.check(cmd); err != nil {
		return err
	}
	if err := o.deviceFlags.check(cmd); err != nil {
		return err
	}
	isTokens := cmd.Flags().Changed("tokens")
	switch {
	case isTokens && o.isText:
		return usagef("--tokens and --prompt are both given: choose one")
	case !isTokens && !o.isText:
		return usagef("the prompt is missing: give --tokens or --prompt")
	case o.maxNew < 1:
		return usagef("--max-new %d: want at least 1", o.maxNew)
	}
	return nil
}

// maxPrompt bounds the text of a prompt.
const maxPrompt = 64 << 20

// readPrompt reads the prompt where it is the standard input. The newline that
// ends a text of lines is not part of it.
func (o *runOptions) readPrompt(stdin io.Reader) error {
	if !o.isText || o.prompt != "-" {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxPrompt+1))
	if err != nil {
		return fmt.Errorf("--prompt: reading the standard input: %w", err)
	}
	if len(text) > maxPrompt {
		return fmt.Errorf("--prompt: the standard input has more than %d bytes", maxPrompt)
	}
	o.prompt = strings.TrimSuffix(string(text), "\n")
	return nil
}

func (o *runOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	var prompt []int32
	var err error
	if !o.isText {
		if prompt, err = parseTokens(o.tokens); err != nil {
			return err
		}
	}
	tok, err := o.tokenizer(stderr)
	if err != nil {
		return err
	}
	if o.isText {
		noteMarkers(stderr, tok, o.prompt)
		if prompt = tok.EncodeWithSpecials(o.prompt); len(prompt) == 0 {
			return errors.New("--prompt is empty")
		}
	}
	limit := 0
	s, err := o.open(ctx, o.bundle, o.options(), func(b *recipes.Bundle) (err error) {
		limit, err = o.limit(&b.Manifest, prompt, stderr)
		return err
	}, stderr)
	if err != nil {
		return err
	}
	defer s.Close() // everything was read from it
	a := newAnswer(stdout, tok, s.Info().Model.EOS, !o.json)
	clock := stopwatch{start: time.Now()}
	text := slices.Clone(prompt) // with what was answered, from which to go on
	if err := o.lasting(ctx, s, stderr, func() error {
		return generate(ctx, s, text, limit-(len(text)-len(prompt)), func(token int32) (bool, error) {
			text = append(text, token)
			clock.token(time.Now())
			return a.push(token)
		})
	}); err != nil {
		_ = a.end() // what can go wrong with it is less than err
		return err
	}
	if err := a.end(); err != nil {
		return err
	}
	if o.json {
		return writeJSON(stdout, a.json(servedBy(s)))
	}
	fmt.Fprintln(stderr, dim(stderr, clock.statistics(s.Info().Counters, len(prompt))))
	return nil
}

// tokenizer loads the model's tokenizer. Only a text needs one.
func (o *runOptions) tokenizer(stderr io.Writer) (*tokenizer.Tokenizer, error) {
	if info, err := os.Stat(o.model); err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--model: %s is no directory", o.model)
	}
	tok, err := tokenizer.Load(o.model)
	switch {
	case err == nil:
		return tok, nil
	case o.isText:
		return nil, fmt.Errorf("--prompt: %w", err)
	case !errors.Is(err, tokenizer.ErrNone):
		note(stderr, "there will be no text: %v", err)
	}
	return nil, nil
}

// limit checks the prompt and says how many tokens an answer can have.
func (o *runOptions) limit(m *recipes.Manifest, prompt []int32, stderr io.Writer) (int, error) {
	if err := checkTokens(prompt, m.Model.ValidVocab); err != nil {
		return 0, err
	}
	longest := m.Deployment.MaxModelLen
	room := longest - len(prompt)
	if room < 1 {
		return 0, fmt.Errorf("the prompt has %s; with max_model_len %d it can have %d and an answer of 1: compile the deployment with a larger max_model_len",
			count(len(prompt), "token"), longest, longest-1)
	}
	if o.exact && o.maxNew > room {
		note(stderr, "--max-new %d is more than max_model_len %d leaves after %s, at most %d will follow",
			o.maxNew, longest, count(len(prompt), "token"), room)
	}
	return min(o.maxNew, room), nil
}

// generate continues the prompt greedily. each gets every token and says
// whether to go on.
func generate(ctx context.Context, s *runtime.Session, prompt []int32, limit int, each func(int32) (bool, error)) error {
	q, err := s.NewSequence(len(prompt) + limit)
	if err != nil {
		return err
	}
	defer q.Close()
	logits, err := s.Prefill(ctx, q, prompt)
	if err != nil {
		return err
	}
	batch, rows := []*runtime.Sequence{q}, [][]float32{logits}
	for n := 1; ; n++ {
		token := runtime.Argmax(rows[0])
		more, err := each(token)
		if err != nil || !more || n == limit {
			return err
		}
		if err := s.DecodeInto(ctx, batch, []int32{token}, rows); err != nil {
			return err
		}
	}
}

// stopwatch times the tokens of a run: the first ends the prefill, each of the
// others a decode step.
type stopwatch struct {
	start, first, last time.Time
	tokens             int
}

func (w *stopwatch) token(now time.Time) {
	if w.tokens == 0 {
		w.first = now
	}
	w.last = now
	w.tokens++
}

// statistics is the line that ends a run.
func (w *stopwatch) statistics(c runtime.Counters, prompt int) string {
	text := fmt.Sprintf("%s in %.2f s, %d out", count(prompt, "token"), w.first.Sub(w.start).Seconds(), w.tokens)
	if steps := w.tokens - 1; steps > 0 {
		text += fmt.Sprintf(" at %.1f tok/s", float64(steps)/max(w.last.Sub(w.first).Seconds(), 1e-9))
	}
	return fmt.Sprintf("%s; %s, %d launches, %s", text, count(int(c.Steps), "step"), c.Launches, count(int(c.Collectives), "collective"))
}
