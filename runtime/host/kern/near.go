package kern

// Read brings memory into a near cache, at the speed of one thread. It is for what
// is then read in another order than that of addresses.
func Read(m []byte) {
	if best != Scalar && len(m) >= 512 {
		readInLine(m)
	}
}
