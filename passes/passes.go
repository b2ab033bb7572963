// Package passes rewrites IR modules. One pass is one file and one folder of
// tests under testdata with the pass's name.
//
//	table ──┐                        ┌ Context: options, parameters, remarks, leave to rewrite
//	        ├→ Pipeline → Manager ─→ Pass.Run(module) ─→ verify, validate, print, dump, time
//	text ───┘                        └ patterns.go: worklist over use lists
//
// A pipeline has two stages. The family stage runs once for each phase family,
// with symbolic sizes, and ends with outline-segments, which cuts the graph into
// segments. The bucket stage runs once for each bucket, on the outlined module
// with concrete sizes.
package passes

import (
	"context"
	"fmt"
	"strings"

	"quill/ir"
)

// Pass is one row of the table of passes.
type Pass struct {
	// Name is what pipelines call the pass; its file and its folder of tests
	// are named after it.
	Name    string
	Summary string
	// Stages are those in which the pass may run.
	Stages Stages
	// Optional passes may be left out: what they make is another form of the
	// same computation, not one that later stages need.
	Optional bool
	// Inexact passes may change the last bits of sums; all others keep every bit of
	// what a host can see.
	Inexact bool
	// After names the passes that must come before this one where a pipeline
	// has them.
	After []Order
	// Options are what a pipeline may set in braces behind the name.
	Options []Option
	// Run rewrites the module in place and says whether it changed anything: the
	// module's text is another one exactly if it did. It counts its rewrites with
	// [Context.Rewrite], and does not do those that are refused.
	Run func(ctx *Context, m *ir.Module) (changed bool, err error)
}

// Order is a pass that another one must follow, and why.
type Order struct{ Pass, Why string }

// Stages is a set of stages of a pipeline.
type Stages uint8

// Stages.
const (
	// Family is once for each phase family, with symbolic sizes.
	Family Stages = 1 << iota
	// Bucket is once for each bucket, outlined and with concrete sizes.
	Bucket
)

func (s Stages) String() string {
	switch s {
	case Family:
		return "family"
	case Bucket:
		return "bucket"
	}
	return "any"
}

// Params are facts about deployment and target that passes rely on. Zero where
// they are not known, as for a file given to quill opt.
type Params struct {
	Target           string // the device
	BlockSize        int    // tokens a cache block
	Blocks           int    // usable blocks of the pool
	MaxModelLen      int    // tokens a request
	MaxNumSeqs       int    // sequences a decode step
	MaxBatchedTokens int    // tokens a prefill chunk

	// Attention is the form of attention: [Plain], [Masked] or [Banded]; when decoding
	// the last two are one. Far is the form of the keys that a band leaves out: [FarMask],
	// [FarExact] or [FarTiled].
	Attention, Far string
	MaskBudget     int // bytes of the masks of a layer that are alive at once
	SubBlockRows   int // rows of a sub-block of attention

	// MoE is the form of experts: [FusedExperts] or [GatheredExperts].
	MoE            string
	ExpertsPerNode int // most experts of one fused op
}

// Forms of attention, as deployments spell them.
const (
	Plain  = "plain"  // products, sums and a softmax
	Masked = "masked" // one op with one mask
	Banded = "banded" // a mask for the keys in reach of the relative bias only

	FarMask  = "mask"  // one op, whose mask hides what holds no token
	FarExact = "exact" // ops of whole blocks without a mask
	FarTiled = "tiled" // products, sums and exponentials
)

// Forms of experts, as deployments spell them.
const (
	FusedExperts    = "fused"  // one op
	GatheredExperts = "gather" // products with matrices that are gathered
)

// Context is what a pass gets beside the module.
type Context struct {
	context.Context
	Params Params

	step     Step
	label    string
	left     *int // rewrites that are still allowed, nil for any number
	rewrites int
	remark   func(Remark)
}

// Rewrite asks for leave to do one rewrite and counts it. Once it is false the
// pass changes nothing more. The limit is how the rewrite that breaks something
// is found by bisection, so passes must ask in an order that is always the same;
// passes that are not optional have no limit.
func (c *Context) Rewrite() bool {
	if c.left != nil && c.step.Pass.Optional {
		if *c.left == 0 {
			return false
		}
		*c.left--
	}
	c.rewrites++
	return true
}

// Remark records what was not done and why, or what was done and how much it
// was, at the place in the model it is about.
func (c *Context) Remark(at ir.Loc, format string, args ...any) {
	if c.remark != nil {
		c.remark(Remark{Pass: c.step.Pass.Name, Label: c.label, Loc: at, Msg: fmt.Sprintf(format, args...)})
	}
}

// Bool is the value of a Bool option of the running pass.
func (c *Context) Bool(name string) bool { return c.option(name, Bool).n != 0 }

// Int is the value of an Int or Bytes option.
func (c *Context) Int(name string) int64 { return c.option(name, Int, Bytes).n }

// Choice is the value of a Choice option.
func (c *Context) Choice(name string) string { return c.option(name, Choice).s }

func (c *Context) option(name string, kinds ...Kind) value {
	for i := range c.step.Pass.Options {
		o := &c.step.Pass.Options[i]
		for _, k := range kinds {
			if o.Name == name && o.Kind == k {
				return c.step.value(o)
			}
		}
	}
	panic(fmt.Sprintf("pass %s asks for an option %s that its row of the table does not have", c.step.Pass.Name, name))
}

// Remark is something a pass has to say.
type Remark struct {
	Pass string
	// Label names the module, as given to [Manager.Run].
	Label string
	Loc   ir.Loc
	Msg   string
}

func (r Remark) String() string {
	var at []string
	for _, s := range []string{r.Label, r.Loc.String()} {
		if s != "" {
			at = append(at, s)
		}
	}
	if len(at) == 0 {
		return r.Pass + ": " + r.Msg
	}
	return fmt.Sprintf("%s: %s (%s)", r.Pass, r.Msg, strings.Join(at, ", "))
}
