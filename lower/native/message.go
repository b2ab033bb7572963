package native

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A message is its length, 32 bits little-endian, and JSON. The first request says which
// library to load; each of those that follow is a recipe. Each has one answer.

type request struct {
	// Of the first one.
	Synapse string `json:"synapse,omitempty"`
	Profile []byte `json:"profile,omitempty"` // its file
	// Of the others.
	Recipe []byte `json:"recipe,omitempty"` // canonical bytes
	Out    string `json:"out,omitempty"`    // file to write
}

type answer struct {
	Error string `json:"error,omitempty"`
	// To the first request.
	Driver string   `json:"driver,omitempty"`
	Files  []string `json:"files,omitempty"` // the library, and what it loaded from its folder
	// To the others.
	WorkspaceBytes int64 `json:"workspace_bytes,omitempty"`
	ProgramBytes   int64 `json:"program_bytes,omitempty"`
}

// maxMessage bounds the bytes of a message.
const maxMessage = 256 << 20

func send(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("a message of %d bytes, at most %d are sent", len(text), maxMessage)
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// errGarbage is an answer that is none.
var errGarbage = errors.New("its answer cannot be read")

// receive reads a message. The error is io.EOF if there is none, [errGarbage] if
// it is no message.
func receive(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return io.EOF
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxMessage {
		return fmt.Errorf("%w: a message of %d bytes", errGarbage, n)
	}
	// The memory comes with the bytes: a length alone is not believed.
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil || len(text) < int(n) {
		return io.EOF
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %w", errGarbage, err)
	}
	return nil
}
