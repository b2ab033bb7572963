//go:build !amd64

package kern

import "unsafe"

// best is the highest tier of this processor.
const best = Scalar

func (f *format) packed(*tile)    { panic("kern: no tiles") }
func (f *format) direct(*tile)    { panic("kern: no tiles") }
func (f *format) row(*tile)       { panic("kern: no tiles") }
func (f *format) fewTile(*tile)   { panic("kern: no tiles") }
func (p *ordered) call(*mulTile)  { panic("kern: no tiles") }
func (f *format) shortTile(*tile) { panic("kern: no tiles") }

func transpose(dst, src unsafe.Pointer, ld, size int)                    { panic("kern: no tiles") }
func (f *format) pack(dst, src unsafe.Pointer, have, rows, ld, size int) { panic("kern: no tiles") }
