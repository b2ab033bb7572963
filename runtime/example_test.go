package runtime_test

import (
	"context"
	"fmt"
	"log"

	"quill/runtime"
)

// Open a compiled bundle and continue a prompt with the likeliest tokens.
func Example() {
	ctx := context.Background()
	s, err := runtime.Open(ctx, "inkling-small.quill", runtime.Options{Model: "/models/inkling-small"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	const answer = 16
	prompt := []int32{3, 1, 4, 1, 5}
	seq, err := s.NewSequence(len(prompt) + answer)
	if err != nil {
		log.Fatal(err) // ErrNoBlocks: try again when another sequence is closed
	}
	defer seq.Close()

	logits, err := s.Prefill(ctx, seq, prompt)
	if err != nil {
		log.Fatal(err)
	}
	for range answer {
		next := runtime.Argmax(logits)
		fmt.Println(next)
		if int(next) == s.Info().Model.EOS {
			break
		}
		rows, err := s.Decode(ctx, []*runtime.Sequence{seq}, []int32{next})
		if err != nil {
			log.Fatal(err)
		}
		logits = rows[0]
	}
}
