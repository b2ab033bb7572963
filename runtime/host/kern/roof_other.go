//go:build !amd64

package kern

func readInLine(buf []byte)    { goRead(buf) }
func readInStreams(buf []byte) { goRead(buf) }

func peakLoop(_ arith, rounds int) { goPeak(rounds) }
func peakOps(arith) float64        { return goPeakOps }
