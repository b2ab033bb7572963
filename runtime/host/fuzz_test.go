package host

import (
	"context"
	"strings"
	"testing"

	"quill/recipes"
)

// FuzzLoad loads whatever decodes as a recipe. Load must answer without a
// panic and within the device's limit; what loads and binds must run without a
// panic in a kernel.
func FuzzLoad(f *testing.F) {
	for name, spec := range table {
		g := newGen(9)
		for range 2 {
			c := oracles[name](g)
			if spec.types != nil {
				c.guid = name + "_" + c.guid
			} else {
				c.guid = name
			}
			r, _ := c.recipe()
			f.Add(r.Encode())
		}
	}
	for seed := range 4 {
		f.Add(randomProgram(newGen(uint64(seed))).Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := recipes.DecodeRecipe(b, recipes.Sum(b))
		if err != nil {
			return
		}
		d, err := newDevice(1, map[recipes.Buffer]int64{recipes.Arena: 1 << 14, recipes.KV: 1 << 12, recipes.Weights: 1 << 12}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.limit = 1 << 16
		p, err := d.Load(r)
		if err != nil {
			return
		}
		if p.workspace > d.limit || int64(len(d.ranks[0].workspace)) > d.limit {
			t.Fatalf("workspace of %d bytes", p.workspace)
		}
		l, err := d.Bind(p, bindings(r))
		if err != nil {
			return
		}
		err = l.Run(context.Background())
		if err != nil && strings.Contains(err.Error(), "panic") && !strings.Contains(err.Error(), "integer divide by zero") {
			t.Fatal(err)
		}
	})
}
