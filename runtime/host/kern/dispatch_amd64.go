package kern

import (
	"math/bits"
	"unsafe"
)

// packed runs the tile function for panels of both operands.
func (f *format) packed(t *tile) {
	if f.arith == fma256 {
		tileF32x256(t)
	} else {
		tileF32x512(t)
	}
}

// direct runs the tile function for a panel of x and rows of w.
func (f *format) direct(t *tile) {
	if f.arith == dot512 {
		directBF16x512(t)
	} else {
		directF32x512(t)
	}
}

// fewTile runs the tile function for streams.
func (f *format) fewTile(t *tile) {
	if f.arith == dot512 {
		fewBF16x512(t)
	} else {
		fewF32x512(t)
	}
}

// shortTile runs the tile function for a transposed panel of w.
func (f *format) shortTile(t *tile) {
	if f.arith == dot512 {
		shortBF16x512(t)
	} else {
		shortF32x512(t)
	}
}

// transpose transposes 16 rows of size bytes.
func transpose(dst, src unsafe.Pointer, ld, size int) {
	transposex512(dst, src, ld, size/vector, 1<<(size%vector/2)-1)
}

// row runs the function for one row of x.
func (f *format) row(t *tile) {
	switch {
	case f.arith == fma256:
		f.row256(t)
	case f.arith == dot512:
		gemvBF16x512(t)
	case f.wide():
		gemvWidex512(t)
	default:
		gemvF32x512(t)
	}
}

// row256 pads the vectors after the full ones: AVX2 has no masks for them.
func (f *format) row256(t *tile) {
	if t.tail != 0 {
		size := 2 * bits.OnesCount32(t.tail)
		at := t.vecs * vector
		t.pad = [len(t.pad)][vector]byte{}
		copy(t.pad[0][:], unsafe.Slice((*byte)(unsafe.Add(t.a, at)), size))
		for i := range tileCols {
			copy(t.pad[1+i][:], unsafe.Slice((*byte)(unsafe.Add(t.b, i*t.ldb+at)), size))
		}
	}
	if f.wide() {
		gemvWidex256(t)
	} else {
		gemvF32x256(t)
	}
}

// pack copies size bytes of each of have rows, ld bytes apart, into a panel of
// rows rows; what it adds is zero.
func (f *format) pack(dst, src unsafe.Pointer, have, rows, ld, size int) {
	step := rows * vector
	vecs, rest := size/vector, size%vector
	for i := range rows {
		to := unsafe.Add(dst, i*vector)
		switch {
		case i >= have:
			packZero(to, step, (vecs+(rest+vector-1)/vector)*f.grow)
		case f.arith == fma256:
			f.pack256(to, unsafe.Add(src, i*ld), step, vecs, rest)
		case f.wide():
			packWidex512(to, unsafe.Add(src, i*ld), step, vecs, 1<<(rest/2)-1)
		default:
			packRowx512(to, unsafe.Add(src, i*ld), step, vecs, 1<<(rest/2)-1)
		}
	}
}

func (f *format) pack256(dst, src unsafe.Pointer, step, vecs, rest int) {
	f.copy256(dst, src, step, vecs)
	if rest == 0 {
		return
	}
	var tail [vector]byte
	copy(tail[:], unsafe.Slice((*byte)(unsafe.Add(src, vecs*vector)), rest))
	f.copy256(unsafe.Add(dst, vecs*step*f.grow), unsafe.Pointer(&tail), step, 1)
}

func (f *format) copy256(dst, src unsafe.Pointer, step, vecs int) {
	if f.wide() {
		packWidex256(dst, src, step, vecs)
	} else {
		packRowx256(dst, src, step, vecs)
	}
}

func packZero(dst unsafe.Pointer, step, vecs int) {
	for v := range vecs {
		*(*[vector]byte)(unsafe.Add(dst, v*step)) = [vector]byte{}
	}
}

// call runs the tile function.
func (p *ordered) call(t *mulTile) {
	switch {
	case p.tier == AVX2 && p.size == 2:
		mulBF16x256(t)
	case p.tier == AVX2:
		mulF32x256(t)
	case p.size == 2:
		mulBF16x512(t)
	default:
		mulF32x512(t)
	}
}
