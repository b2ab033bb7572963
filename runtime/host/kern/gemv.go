package kern

import "unsafe"

// DotF32 is Σ_k x[k]·w[k] of rows of the same length: a product of one element.
func (s Kernels) DotF32(x, w []float32) float32 {
	check("w", len(w), len(x))
	f := s.f32()
	if f.arith == law {
		return DotF32(x, w[:len(x)])
	}
	var y [1]float32
	f.gemv(y[:], ptr(x), f.matrix(ptr(w), len(x)), f.size*len(x))
	return y[0]
}

// streamBytes is how much of w each stream of a GEMV is, at least: a stream
// that ends early is one the processor has to find again.
const streamBytes = 16 << 10

// gemv multiplies one row of size bytes by len(y) rows of w. It reads several
// streams, each of them some rows one after another.
func (f *format) gemv(y []float32, x unsafe.Pointer, w matrix, size int) {
	if size == 0 {
		clear(y)
		return
	}
	var sum [maxStreams]float32
	t := tile{y: unsafe.Pointer(&sum), csr: f.csr}
	at := 0 // the first row that is not done
	for len(y)-at >= f.streams {
		n := min((len(y)-at)/f.streams, ceil(streamBytes, size))
		f.gemvStreams(&t, y[at:], x, w.from(at), n, size)
		at += n * f.streams
	}
	if at > 0 && at < len(y) {
		at = len(y) - f.streams // some rows for a second time
		f.gemvStreams(&t, y[at:], x, w.from(at), 1, size)
		return
	}
	// A row of its own is in every stream.
	t.ldb = 0
	for i := at; i < len(y); i++ {
		f.rowSums(&t, x, w.at(i, 0), size)
		y[i] = sum[0]
	}
}

// gemvStreams multiplies streams of n rows, which begin at the first one of w.
func (f *format) gemvStreams(t *tile, y []float32, x unsafe.Pointer, w matrix, n, size int) {
	sum := (*[maxStreams]float32)(t.y)
	t.ldb = n * w.step
	for i := range n {
		f.rowSums(t, x, w.at(i, 0), size)
		for j := range f.streams {
			y[i+j*n] = sum[j]
		}
	}
}

// rowSums multiplies x by a row of each stream, a chunk at a time.
func (f *format) rowSums(t *tile, x, w unsafe.Pointer, size int) {
	for c := 0; c < size; c += chunk {
		t.a, t.b = unsafe.Add(x, c), unsafe.Add(w, c)
		t.span(min(chunk, size-c))
		t.start(c == 0)
		f.row(t)
	}
}

func ptr[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
