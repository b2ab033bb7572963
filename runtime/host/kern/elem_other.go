//go:build !amd64

package kern

// There are no vectors here: the Go code does every element.

func (s Kernels) widen([]float32, []uint16) int               { return 0 }
func (s Kernels) narrow([]uint16, []float32) int              { return 0 }
func (s Kernels) axpy([]float32, float32, []float32) int      { return 0 }
func (s Kernels) unary(_ unary, _ []float32, _ []float32) int { return 0 }
