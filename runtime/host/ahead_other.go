//go:build !linux

package host

// readAhead does nothing: there is no such advice here.
func readAhead([]byte) {}
