//go:build !amd64

package kern

import "unsafe"

// There are no vectors here: the Go code does every element.

func (s Kernels) each(_ elem, _ int, _, _, _, _ unsafe.Pointer) int { return 0 }
func (s Kernels) addLanes(*[lanes]float32, []float32) int           { return 0 }
func (s Kernels) maxLanes(*[lanes]float32, []float32) int           { return 0 }
