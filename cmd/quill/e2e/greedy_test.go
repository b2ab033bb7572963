package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/runtime"
)

// conversation is a prompt and its greedy continuation.
type conversation struct {
	prompt, want []int32
	stop         int32 // ends an answer; −1 does not occur

	seq *runtime.Sequence
	got []int32
}

// over reports whether the answer is complete: the stop token came, or as many
// tokens as expected.
func (c *conversation) over() bool {
	n := len(c.got)
	return n > 0 && c.got[n-1] == c.stop || n == len(c.want)
}

// converse continues all prompts, as many at once as the deployment takes: a
// new one begins as soon as another one ends.
func (s *served) converse(t testing.TB, waiting []*conversation) {
	t.Helper()
	ctx := t.Context()
	var running []*conversation
	for len(waiting)+len(running) > 0 {
		for len(waiting) > 0 && len(running) < s.Info().Deployment.MaxNumSeqs {
			c := waiting[0]
			waiting = waiting[1:]
			var err error
			c.seq, err = s.NewSequence(len(c.prompt) + len(c.want))
			require.NoError(t, err)
			logits, err := s.Prefill(ctx, c.seq, c.prompt)
			require.NoError(t, err)
			c.got = append(c.got, runtime.Argmax(logits))
			running = append(running, c)
		}
		var batch []*conversation
		for _, c := range running {
			if c.over() {
				c.seq.Close()
				continue
			}
			batch = append(batch, c)
		}
		if running = batch; len(batch) == 0 {
			continue
		}
		var seqs []*runtime.Sequence
		var tokens []int32
		for _, c := range batch {
			seqs, tokens = append(seqs, c.seq), append(tokens, c.got[len(c.got)-1])
		}
		rows, err := s.Decode(ctx, seqs, tokens)
		require.NoError(t, err)
		for i, c := range batch {
			c.got = append(c.got, runtime.Argmax(rows[i]))
		}
	}
}

// Greedy continuations are the independent implementation's, token by token.
func TestGreedyContinuationsMatch(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		for _, tp := range m.tps {
			d := nano(m.name, tp, 16, "f32")
			t.Run(d.String(), func(t *testing.T) {
				prompt, want := expectedI32(t, m.name, "greedy.prompt"), expectedI32(t, m.name, "greedy.output")
				c := &conversation{prompt: prompt, want: want, stop: -1}
				d.open(t).converse(t, []*conversation{c})
				require.Equal(t, want, c.got)
				record(t, "greedy continuations", 0, 0)
			})
		}
	}
}

// chatCase is an entry of cases.json.
type chatCase struct {
	Prompt []int32 `json:"prompt_tokens"`
	Greedy []int32 `json:"greedy_tokens"`
	// Margin is the smallest gap between the best and the second logit.
	Margin float64 `json:"min_margin"`
}

func chatCases(t testing.TB) []chatCase {
	src, err := os.ReadFile(filepath.Join(modelDir("nano-chat"), "cases.json"))
	require.NoError(t, err)
	var cases []chatCase
	require.NoError(t, json.Unmarshal(src, &cases))
	require.Len(t, cases, 36)
	return cases
}

// chat is a deployment of the trained checkpoint with room for its longest
// conversation.
func chat(tp int, precision string) deployment {
	return deployment{model: modelDir("nano-chat"), tp: tp, block: 64, precision: precision, maxLen: 1024, maxSeqs: 4, maxBatched: 256}
}

// answers continues the prompts of all cases.
func answers(t testing.TB, d deployment, cases []chatCase) []*conversation {
	s := d.open(t)
	stop := int32(s.Info().Model.EOS)
	var cs []*conversation
	for _, c := range cases {
		cs = append(cs, &conversation{prompt: c.Prompt, want: c.Greedy, stop: stop})
	}
	s.converse(t, cs)
	return cs
}

// The trained model answers in F32 what the independent implementation answers.
func TestChatAnswersMatch(t *testing.T) {
	t.Parallel()
	cases := chatCases(t)
	tps := []int{1}
	if soak() {
		tps = []int{1, 2, 4, 8}
	}
	for _, tp := range tps {
		d := chat(tp, "f32")
		t.Run(d.String(), func(t *testing.T) {
			for i, c := range answers(t, d, cases) {
				require.Equal(t, c.want, c.got, "case %d", i)
				record(t, "chat answers", 0, 0)
			}
		})
	}
}

// comfortable is a gap between the best and the second logit that BF16 does not
// close: of the gaps that it does, the largest here is 0.37.
const comfortable = 1.0

// In BF16 it answers the same wherever the choice of no token was close.
func TestChatAnswersMatchInBF16(t *testing.T) {
	t.Parallel()
	d := chat(2, "bf16")
	cases := chatCases(t)
	var clear []chatCase
	for _, c := range cases {
		if c.Margin >= comfortable {
			clear = append(clear, c)
		}
	}
	require.Greater(t, len(clear), 30)
	for i, c := range answers(t, d, clear) {
		require.Equal(t, c.want, c.got, "case of %d tokens, margin %v", len(c.prompt), clear[i].Margin)
		record(t, "chat answers, bf16", 0, 0)
	}
}
