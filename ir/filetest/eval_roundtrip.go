package filetest

import "github.com/rogpeppe/go-internal/diff"

// roundTrip parses and prints the case twice. It tells whether to go on: what
// cannot be parsed need not be given to the commands.
func (e *evaluation) roundTrip() bool {
	if e.r.RoundTrip == nil || len(e.c.Errors) > 0 {
		return true
	}
	once, errs := e.r.roundTrip(e.c.Src)
	if len(errs) > 0 {
		for _, err := range errs {
			err.Msg = "unexpected error: " + err.Msg
			e.reported(err, e.c.StartLine)
		}
		return false
	}
	twice, errs := e.r.roundTrip(once)
	for _, err := range errs {
		e.fail(e.c.StartLine, 0, "round trip: the printed text does not parse: %d:%d: %s\n%s", err.Line, err.Col, err.Msg, once)
	}
	if len(errs) == 0 && once != twice {
		changes := diff.Diff("printed once", []byte(once), "printed twice", []byte(twice))
		e.fail(e.c.StartLine, 0, "round trip: parsing and printing again changes the text\n%s", changes)
	}
	return true
}
