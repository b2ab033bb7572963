package interp

import (
	"errors"
	"fmt"
	"slices"

	"quill/ir"
)

// Error is a failed evaluation. For an op inside a called function, Err holds
// the Error of that op and Op is the call.
type Error struct {
	Func *ir.Func
	// Op is nil for parameters and results.
	Op *ir.Op
	// Rank is −1 when it is not about a single rank.
	Rank int
	Err  error
}

// Error names function, op, location and rank:
//
//	@main: op 3 gather (layer 2 attn.q_proj, line 14), rank 1: index …
func (e *Error) Error() string {
	s := "@" + e.Func.Name
	if e.Op != nil {
		s += fmt.Sprintf(": op %d", slices.Index(e.Func.Ops, e.Op))
		if e.Op.Def != nil {
			s += " " + e.Op.Name()
		}
		where := e.Op.Loc.String()
		if line := e.Op.Pos.Line; line > 0 {
			if where != "" {
				where += ", "
			}
			where += fmt.Sprintf("line %d", line)
		}
		if where != "" {
			s += " (" + where + ")"
		}
	}
	if e.Rank >= 0 {
		s += fmt.Sprintf(", rank %d", e.Rank)
	}
	return s + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// ErrDiverged is wrapped by errors about ranks that should hold the same value
// and do not.
var ErrDiverged = errors.New("ranks diverge")

// rankError is an error of one rank.
type rankError struct {
	rank int
	err  error
}

func (e *rankError) Error() string { return fmt.Sprintf("rank %d: %s", e.rank, e.err) }

// failure is the Error of an op, nil Op for the function itself.
func failure(f *ir.Func, o *ir.Op, err error) *Error {
	e := &Error{Func: f, Op: o, Rank: -1, Err: err}
	if re, ok := errors.AsType[*rankError](err); ok {
		e.Rank, e.Err = re.rank, re.err
	}
	return e
}
