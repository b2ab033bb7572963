//go:build cgo && syn121

package main

import "C"

//export synGetLastErrorMessage
func synGetLastErrorMessage() *C.char { return messages.text(library().LastError()) }

//export hcclGetLastErrorMessage
func hcclGetLastErrorMessage() *C.char { return messages.text(library().LastError()) }
