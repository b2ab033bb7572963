package dl

import "reflect"

// For tests of the C interface.
var Tables = []reflect.Type{reflect.TypeFor[said](), reflect.TypeFor[base]()}

const BriefSize = briefSize

// Symbol is the address of an exported symbol, 0 if there is none.
func (l *Library) Symbol(name string) uintptr { return l.lookup(name) }

// NewLibrary is a library of made-up symbols, which cannot be called.
func NewLibrary(name, logs string, symbols ...string) *Library {
	return &Library{name: name, logs: markLogs(logs), lookup: func(s string) uintptr {
		for i, have := range symbols {
			if s == have {
				return uintptr(i + 1)
			}
		}
		return 0
	}}
}
