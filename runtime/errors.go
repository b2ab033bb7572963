package runtime

import (
	"errors"
	"fmt"

	"quill/recipes"
)

// What a caller may want to tell apart. Errors wrap one of these and say what
// was needed and what there is.
var (
	// ErrClosed means that the session or the sequence was closed.
	ErrClosed = errors.New("closed")
	// ErrBusy means that another goroutine is in a step of the session.
	ErrBusy = errors.New("session is in use by another goroutine")
	// ErrTooLong means more tokens than max_model_len or than were reserved.
	ErrTooLong = errors.New("too many tokens")
	// ErrNoBlocks means that the pool has too few free blocks at the moment.
	ErrNoBlocks = errors.New("too few free blocks")
	// ErrTooManySequences means that max_num_seqs sequences are open.
	ErrTooManySequences = errors.New("too many open sequences")
	// ErrToken means a token id outside the valid vocabulary.
	ErrToken = errors.New("no such token")
	// ErrNonFinite means that a sequence's logits have a NaN or an infinity.
	ErrNonFinite = errors.New("logits are not finite")
	// ErrNoBucket means that no compiled bucket covers a step. The compiler
	// proves that this cannot happen. See NoBucketError.
	ErrNoBucket = errors.New("no bucket covers the step")
	// ErrDeviceLost means that the device is gone, with the state of all sequences.
	// Session.Restart starts it anew.
	ErrDeviceLost = errors.New("the device is lost")
)

// NoBucketError is ErrNoBucket with the step's phase and sizes. It comes when a sequence
// asks for admission: none is admitted that a bucket is missing for, be it for a step of
// it alone or of all that are open.
type NoBucketError struct{ Need recipes.Bucket }

func (e *NoBucketError) Error() string {
	return fmt.Sprintf("%v: need %v, which the bundle's buckets leave out: compile the deployment again", ErrNoBucket, e.Need)
}

func (e *NoBucketError) Unwrap() error { return ErrNoBucket }
