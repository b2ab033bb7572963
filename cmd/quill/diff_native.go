package main

import (
	"strconv"
	"strings"

	"quill/recipes"
)

// nativeDiff compares what compiled native recipes, and counts those that differ of
// recipes that both bundles have.
func nativeDiff(a, b *recipes.Native) []fieldChange {
	texts := [2]map[string]string{{}, {}}
	for i, n := range []*recipes.Native{a, b} {
		if n == nil {
			continue
		}
		texts[i]["driver"], texts[i]["library"] = n.Driver, n.Library.String()
		texts[i]["recipes"] = strconv.Itoa(len(n.Recipes))
		for _, v := range n.Environment {
			name, value, _ := strings.Cut(v, "=")
			texts[i]["environment."+name] = value
		}
	}
	list := mapDiff(texts[0], texts[1])
	if a == nil || b == nil {
		return list
	}
	differ, both := 0, 0
	for h, r := range a.Recipes {
		if s, ok := b.Recipes[h]; ok {
			both++
			if r.Content != s.Content {
				differ++
			}
		}
	}
	if differ > 0 {
		list = append(list, fieldChange{"contents of recipes that both have", "", strconv.Itoa(differ) + " of " + strconv.Itoa(both) + " are others"})
	}
	return list
}
