package lower

import "quill/recipes"

// interval is a place in the arena that lives from one op of the entry to another, both
// inclusive.
type interval struct {
	recipes.Interval
	// root marks the place of a value that a launch computes and of which all that lie
	// there are parts.
	root bool
}

// placeIntervals gives intervals their offsets from base and returns where they end.
func placeIntervals(base int64, list []*interval) int64 {
	all := make([]*recipes.Interval, len(list))
	for i, iv := range list {
		all[i] = &iv.Interval
	}
	return recipes.PlaceIntervals(base, all)
}
