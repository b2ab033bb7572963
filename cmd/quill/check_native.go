package main

import (
	"context"
	"fmt"

	"quill/lower"
	"quill/lower/native"
	"quill/recipes"
	"quill/recipes/target"
)

// installedDriver is a side that native recipes are compared with.
const installedDriver = "the installed driver"

// judgeNative verifies the native recipes of a bundle, and compares them with the vendor's
// software, if it is installed.
func (v *verdict) judgeNative(ctx context.Context, o *checkOptions, b *recipes.Bundle) error {
	n := b.Native
	if n == nil {
		v.Notes = append(v.Notes, "it has no native recipes, which cards need: quill compile --native makes them")
		return nil
	}
	if err := n.Verify(); err != nil {
		return fmt.Errorf("bundle %s: %w", o.bundle, err)
	}
	p, err := target.Load(target.Default)
	if err != nil {
		return err
	}
	driver, err := native.Driver(ctx, native.Options{Profile: p, Synapse: o.synapse})
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil && o.synapse != "":
		return fmt.Errorf("--synapse: %w", err)
	case err != nil:
		v.Notes = append(v.Notes, fmt.Sprintf("its native recipes need driver %s; what is installed here cannot be told, since the vendor's library does not load", printable(n.Driver)))
	case driver != n.Driver:
		v.add(o, []lower.Finding{{
			State: lower.Rebuild, What: "native.driver", Bundle: n.Driver, Against: installedDriver, Other: driver,
			Why: "native recipes are for the version of the vendor's software that compiled them",
		}})
	}
	return nil
}
