package interp

// allReduce adds the ranks' parts in rank order in float64 and rounds once.
func allReduce(s *step) ([]value, error) { return s.everywhere(sumRanks(s.in[0])), nil }

func sumRanks(parts value) *Tensor {
	y := Zeros(parts[0].DType, parts[0].Shape...)
	for i := range y.F {
		sum := 0.0
		for _, part := range parts {
			sum += float64(part.F[i])
		}
		y.F[i] = round(y.DType, sum)
	}
	return y
}

// allGather joins the ranks' parts in rank order.
func allGather(s *step) ([]value, error) { return s.everywhere(join(s.in[0], s.axis())), nil }

// everywhere gives all ranks the same result.
func (s *step) everywhere(t *Tensor) []value {
	v := make(value, s.run.mod.TP)
	for r := range v {
		v[r] = t
	}
	return []value{v}
}
