// Package passes rewrites IR modules. One pass is one file and one folder of
// tests under testdata with the pass's name; Pipeline lists them in order.
package passes

import (
	"context"
	"fmt"

	"quill/ir"
)

// Pass is one rewrite.
type Pass struct {
	Name    string
	Summary string
	// Run rewrites the module in place and says whether it changed anything.
	Run func(ctx context.Context, m *ir.Module) (changed bool, err error)
}

// Pipeline lists the passes in the order in which they run.
func Pipeline() []Pass {
	return []Pass{
		{"outline-segments", "cuts at breaks and collectives, makes weights and state slots, folds equal segments", outlineSegments},
	}
}

// Run runs passes in order and verifies the module after each.
func Run(ctx context.Context, m *ir.Module, list []Pass) error {
	for _, p := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := p.Run(ctx, m); err != nil {
			return fmt.Errorf("pass %s on @%s: %w", p.Name, m.Name, err)
		}
		if err := ir.Verify(m); err != nil {
			return fmt.Errorf("pass %s on @%s made an invalid module: %w", p.Name, m.Name, err)
		}
	}
	return nil
}
