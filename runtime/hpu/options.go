package hpu

import (
	"io"
	"os/exec"
	"time"
)

// DefaultDeadline bounds a step if Options do not.
const DefaultDeadline = 30 * time.Second

// Options say how a group of ranks is started.
type Options struct {
	// Bundle and Model are the paths that the ranks open: the bundle, and the
	// directory of the checkpoint.
	Bundle, Model string
	// Library is the path of libSynapse.so; "" is that of $QUILL_SYNAPSE, or what the
	// dynamic linker finds.
	Library string
	// Modules are the cards of the ranks by module id; nil is 0, 1, 2, ….
	Modules []uint32
	// Command makes the process of a rank, which has to call Serve with descriptors 3
	// and 4.
	Command func() *exec.Cmd
	// Log is where ranks write what they have to say; nil is nowhere.
	Log io.Writer
	// Deadline bounds one step; 0 is DefaultDeadline. Patience bounds each thing that ranks do
	// before and after: opening, joining, binding, loading for as long as it makes no progress,
	// closing; 0 is 5 min.
	Deadline, Patience time.Duration
}
