// Command lib is the shared library of package simsynapse, a test and development tool that
// stands in for Intel's libSynapse.so where there is no card:
//
//	make test-abi    builds out/libsimsynapse.so and runs what is proved with it
//
// It exports every function of the public headers of releases 1.16 to 1.20. Those that are
// not simulated return 18 (synUnsupported), or 2 (hcclUnsupported). Built with the tag
// syn116 it lacks what came later, with syn121 it has what 1.21 added.
//
// Package simsynapse says which variables of the environment it reads. A Go program without
// cgo may load it: the two runtimes do not meet.
package main

import (
	"fmt"
	"os"
)

// main is not called in a shared library.
func main() {
	fmt.Fprintln(os.Stderr, "simsynapse: this is a shared library: build it with -buildmode=c-shared")
	os.Exit(2)
}
