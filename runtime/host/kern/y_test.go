package kern
import ("testing";"fmt";"slices";"os")
func fewRatio[T uint16 | float32](w []T, gemm func(y []float32, ldy int, x []T, ldx int, w []T, ldw int, m, n, k int, scratch []byte), scratch, m, k, threads, runs int) float64 {
	n := len(w)/k
	x, y := slices.Clone(w[:m*k]), make([]float32, m*n)
	bufs := [][]byte{make([]byte,scratch),make([]byte,scratch)}
	part, at := n/16, 0
	next := func() (int, int) { at = (at+1)%16; return at*part, (at+1)*part }
	bytes := float64(part*k)*float64(len(asBytes(w))/len(w))
	best := 0.0
	rate := func() float64 {
		p0, _ := next()
		t := busy(threads, func(i int) {
			n0, n1 := Split(part, threads, i)
			n0, n1 = p0+n0, p0+n1
			gemm(y[n0:], n, x, k, w[n0*k:n1*k], k, m, n1-n0, k, bufs[i])
		})
		return bytes/t.Seconds()
	}
	for _, read := range []func([]byte){readInLine, readInStreams} {
		r := paired(runs, func() float64 { p0,p1 := next(); return readRate(asBytes(w[p0*k:p1*k]), threads, read, busy) }, rate)
		if best == 0 || r < best { best = r }
	}
	return best
}
func TestF(t *testing.T) {
	s := Best()
	w := operands(readBytes/2)
	f := floats(readBytes/4)
	for threads := 1; threads <= 2; threads++ {
		for _, k := range []int{1024, 4096, 11008} {
			fmt.Printf("threads %d k %d:", threads, k)
			for _, m := range []int{1,2,4,8,12,16,24,32} {
				fmt.Printf(" m%d %.2f", m, fewRatio(w, s.GemmBF16, s.ScratchBF16(m,k), m, k, threads, 15))
			}
			if os.Getenv("F32") != "" {
			fmt.Printf("\n   f32:")
			for _, m := range []int{1,2,4,8,16} {
				fmt.Printf(" m%d %.2f", m, fewRatio(f, s.GemmF32, s.ScratchF32(m,k), m, k, threads, 15))
			}}
			fmt.Println()
		}
	}
}
func TestS(t *testing.T) {
	s := Best()
	const size = 4096 * (4096 + 2048)
	h := operands(size)
	for threads := 1; threads <= 2; threads++ {
		for _, sh := range [][3]int{{960,1024,128},{960,1024,256},{64,1024,128},{64,1024,256},{960,1024,512},{960,1024,1024},{16,1024,1024},{8,1024,1024},{512,512,128}} {
			m,n,k := sh[0],sh[1],sh[2]
			fmt.Printf("threads %d %v %.3f\n", threads, sh, gemmRatio(h[n*k:], h[:n*k], s.GemmBF16, s.ScratchBF16(m, k), s.bf16().arith, m, n, k, threads, 25))
		}
	}
}
