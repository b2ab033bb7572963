// Package runtime replays a compiled bundle. It cannot compile: what has no
// recipe cannot be admitted, and nothing is built after Open.
//
//	bundle ──────┐
//	checkpoint ──┴→ Open ─→ Session ── NewSequence ─→ Sequence (reserves its blocks)
//	                           │
//	                           ├─ Prefill    chunk by chunk: inputs → plan → carry
//	                           ├─ Decode     one padded batch: inputs → plan → carry
//	                           └─ both then: rows of carry → logits plan → logits
//
// A step chooses the cheapest bucket that covers it, writes the bucket's inputs
// into the arena of every rank and executes the plan's launches and collectives
// in order. Launches are bound when the session opens; a step allocates nothing
// but the logits it returns.
//
// The keys, values and convolution rows of all layers lie in blocks of a fixed
// number of tokens. One pool of blocks serves all sequences, one table per
// sequence serves all layers: position p of a sequence is slot
// table[p/B]·B + p mod B. Two more blocks follow the pool: padding and fresh
// sequences read the zero block, which is never written, and padding writes the
// trash block, which is never read.
//
// A Session is for one goroutine at a time. Use from a second one is detected
// and refused with ErrBusy, except for NewSequence, Sequence.Close and Info,
// which may be called at any time.
package runtime
