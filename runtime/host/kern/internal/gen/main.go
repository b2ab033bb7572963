// Command gen writes the assembly of package kern and its Go declarations.
//
// It is run by go generate in the directory of kern. The output depends on
// nothing but this program; a test compares it with the files that are checked
// in.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	for name, text := range files() {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
}

// files returns every generated file by its name.
func files() map[string][]byte {
	var stubs stubFile
	out := map[string][]byte{
		"tile_avx512_amd64.s":   file(&stubs, tiles512),
		"direct_avx512_amd64.s": file(&stubs, directs512),
		"few_avx512_amd64.s":    file(&stubs, fews512),
		"short_avx512_amd64.s":  file(&stubs, shorts512),
		"gemv_avx512_amd64.s":   file(&stubs, gemvs512),
		"tile_avx2_amd64.s":     file(&stubs, tiles256),
		"gemv_avx2_amd64.s":     file(&stubs, gemvs256),
		"pack_amd64.s":          file(&stubs, packs),
		"elem_amd64.s":          file(&stubs, elems),
		"mul_amd64.s":           file(&stubs, muls),
		"roof_amd64.s":          file(&stubs, roofs),
	}
	out["stubs_amd64.go"] = stubs.text()
	out["elemnames.go"] = elemNames()
	out["elemcalls_amd64.go"] = elemCalls()
	return out
}
