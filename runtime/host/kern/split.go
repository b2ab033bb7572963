package kern

// splitRows is what ranges of rows of w are multiples of, so that no range but
// the last one ends in an incomplete tile.
const splitRows = 8

// split is range i of n rows for parts threads: n0 … n1−1. It depends on
// nothing else; neither do results depend on it.
func split(n, parts, i int) (n0, n1 int) {
	units := (n + splitRows - 1) / splitRows
	return min(n, i*units/parts*splitRows), min(n, (i+1)*units/parts*splitRows)
}
