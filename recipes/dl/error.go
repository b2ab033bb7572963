package dl

import (
	"strings"
)

// Code is a [Status] or a [Result].
type Code interface {
	error
	Name() string
	Help() string
}

// Error is a call of the library that failed.
type Error struct {
	Call    string // the C function
	Code    Code   // what it returned; errors.Is finds it
	Context string // what the call was for, "" if that is plain
	Detail  string // the library's own words, or the end of its logs; "" if there are none
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Context != "" {
		b.WriteString(e.Context + ": ")
	}
	b.WriteString(e.Call + ": " + e.Code.Error())
	if e.Detail != "" {
		b.WriteString("; " + e.Detail)
	}
	if h := e.Code.Help(); h != "" {
		b.WriteString("; help: " + h)
	}
	return b.String()
}

// Unwrap is the code.
func (e *Error) Unwrap() error { return e.Code }

// said are the functions that tell of the last error. All are optional: they came with
// software 1.21, but for the brief ones.
type said struct {
	Brief      func(s Status, buf *byte, n uint64) Status `sym:"synStatusGetBriefDescription,optional"`
	Last       func() string                              `sym:"synGetLastErrorMessage,optional"`
	ResultText func(r Result) string                      `sym:"hcclGetErrorString,optional"`
	ResultLast func() string                              `sym:"hcclGetLastErrorMessage,optional"`
}

// briefSize is the most bytes of a brief description, with its NUL
// (STATUS_DESCRIPTION_MAX_SIZE).
const briefSize = 56

// Fail is the error of a call that returned code. Context says what it was for. The
// library keeps the text of an error for each thread, so the goroutine must have been
// locked to its thread (runtime.LockOSThread) since before the call.
func (l *Library) Fail(call string, code Code, context string) *Error {
	return &Error{Call: call, Code: code, Context: context, Detail: l.detail(code)}
}

// detail is what the library says of the last error of this thread, or what its logs
// do.
func (l *Library) detail(code Code) string {
	last, brief := l.words(code)
	if last == "" {
		last = l.logs.tail()
	}
	switch {
	case last != "" && brief != "":
		return "the library says: " + brief + ": " + last
	case last+brief != "":
		return "the library says: " + last + brief
	}
	return ""
}

func (l *Library) words(code Code) (last, brief string) {
	switch c := code.(type) {
	case Status:
		if l.said.Last != nil {
			last = l.said.Last()
		}
		if buf := make([]byte, briefSize); l.said.Brief != nil && l.said.Brief(c, &buf[0], briefSize) == Success {
			brief = CString(buf)
		}
	case Result:
		if l.said.ResultLast != nil {
			last = l.said.ResultLast()
		}
		if l.said.ResultText != nil {
			brief = l.said.ResultText(c)
		}
	}
	return strings.TrimSpace(last), brief
}

// CString is the text of a buffer up to its first NUL.
func CString(buf []byte) string {
	s, _, _ := strings.Cut(string(buf), "\x00")
	return s
}
