// Package e2e holds tests of the whole of quill: a checkpoint goes in at one
// end, logits come out at the other, and both are compared with what others
// computed.
//
//	checkpoint ─→ lower.Compile ─→ bundle ─→ runtime.Session ─→ logits ─┐
//	     └──────→ inkling.Capture ─→ ir/interp (reference) ─→ logits ───┼─→ equal
//	expected.safetensors (an independent implementation) ───────────────┘
//
// Checkpoints and expected outputs lie in testdata of the module.
//
// The tests of go test are a sample. QUILL_SOAK=1 runs every combination, and
// QUILL_SEED=n chooses another sample; tests that draw print their seed.
package e2e
