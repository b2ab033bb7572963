package kern
import ("testing";"fmt";"slices")
func fewRate[T uint16|float32](w []T, gemm func(y []float32, ldy int, x []T, ldx int, w []T, ldw int, m, n, k int, scratch []byte), scratch, m, k, threads int, e int) func() float64 {
	n := len(w)/k
	x, y := slices.Clone(w[:m*k]), make([]float32, m*n)
	bufs := [][]byte{make([]byte,scratch),make([]byte,scratch)}
	part, at := n/16, 0
	bytes := float64(part*k)*float64(len(asBytes(w))/len(w))
	return func() float64 {
		exp = e
		at = (at+1)%16
		p0 := at*part
		t := busy(threads, func(i int) {
			n0, n1 := Split(part, threads, i)
			n0, n1 = p0+n0, p0+n1
			gemm(y[n0:], n, x, k, w[n0*k:n1*k], k, m, n1-n0, k, bufs[i])
		})
		return bytes/t.Seconds()
	}
}
func TestZ(t *testing.T) {
	s := Best()
	w := operands(readBytes/2)
	at := 0
	read := func() float64 { at = (at+1)%16; l := len(w)/16; return readRate(asBytes(w[at*l:(at+1)*l]), 1, readInStreams, busy) }
	for _, k := range []int{1024, 4096} {
		for _, m := range []int{1,2,4,6,8} {
			fmt.Printf("k %d m %d:", k, m)
			for _, f := range []int{512,1024,1536,2048,3072,4096,8192} {
				fetchAhead = f
				fmt.Printf(" %d: %.2f", f, paired(21, read, fewRate(w, s.GemmBF16, s.ScratchBF16(m,k), m, k, 1, 1)))
			}
			a := Kernels{AVX2}
			fmt.Printf(" avx2: %.2f", paired(21, read, fewRate(w, a.GemmBF16, a.ScratchBF16(m,k), m, k, 1, 1)))
			fmt.Println()
		}
	}
}
