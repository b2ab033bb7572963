package target

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
)

// EncodeNode checks a node of a recipe against its GUID's entry and gives the bytes of
// its parameters, nil where it takes none. What is wrong is an [IllegalError]; where the
// layout is missing, it is a [MissingError] beside the node's name.
func (p *Profile) EncodeNode(r *recipes.Recipe, n *recipes.Node) ([]byte, error) {
	c := nodeCheck{p: p, r: r, n: n}
	entry, suffix, err := c.lookup()
	if err != nil {
		return nil, err
	}
	c.entry = entry
	return c.encode(suffix)
}

// lookup finds the entry of a node's GUID.
func (c *nodeCheck) lookup() (*Node, dtype.Type, error) {
	guid := c.n.GUID
	if f := find(c.p.Refused, func(f *Refused) bool { return f.GUID == guid }); f != nil {
		return nil, 0, c.illegal("guid-refused", "GUID", f.Instead, guid+", which "+f.Why)
	}
	if most := c.p.Limit("guid"); int64(len(guid)) > most {
		return nil, 0, c.illegal("name-length", "GUID", fmt.Sprintf("at most %d characters", most), fmt.Sprint(len(guid)))
	}
	entry, suffix, err := c.p.Node(guid)
	if err == nil {
		return entry, suffix, nil
	}
	if base := c.p.node(guid[:max(0, strings.LastIndexByte(guid, '_'))]); base != nil && len(base.Suffixes) > 0 {
		return nil, 0, c.illegal("suffix", "GUID", base.GUID+"_ and one of "+strings.Join(base.Suffixes, ", "), guid[len(base.GUID)+1:])
	}
	return nil, 0, c.illegal("guid", "GUID", "one that profile "+c.p.Name+" lists", guid)
}

// encode checks operands and lays parameters out.
func (c *nodeCheck) encode(suffix dtype.Type) ([]byte, error) {
	if err := c.special(); err != nil {
		return nil, err
	}
	if err := c.operands("operand", c.entry.In, c.n.In, suffix); err != nil {
		return nil, err
	}
	if err := c.operands("result", c.entry.Out, c.n.Out, suffix); err != nil {
		return nil, err
	}
	want, have := c.entry.Params, c.n.Params
	switch {
	case want == "" && have == nil:
		return nil, nil
	case want == "":
		return nil, c.illegal("params", "parameters", "none", have.Struct)
	case have == nil:
		return nil, c.illegal("params", "parameters", want, "none")
	case c.p.Struct(have.Struct) != c.p.Struct(want):
		return nil, c.illegal(c.paramsRule(), "parameters", want, have.Struct)
	}
	b, err := c.p.Encode(have)
	if _, missing := errors.AsType[*MissingError](err); missing {
		return nil, fmt.Errorf("recipe %s: %s: %w", c.r.Name, nodeName(c.n), err)
	}
	if err != nil {
		return nil, c.illegal("params", "parameters", "the fields of "+want+", as the profile has them", strings.TrimPrefix(err.Error(), have.Struct+": "))
	}
	return b, nil
}

// paramsRule is the rule that another structure breaks.
func (c *nodeCheck) paramsRule() string {
	if c.entry.GUID == "rms_norm_fwd" {
		return "norm-params"
	}
	return "params"
}

// special refuses operands that the nodes take, in number, and that are not to be used.
func (c *nodeCheck) special() error {
	extra := func(i int) bool {
		return len(c.n.In) > i && slices.ContainsFunc(c.n.In[i:], func(t int) bool { return t != recipes.Absent })
	}
	switch g := c.entry.GUID; {
	case (g == "gemm" || g == "batch_gemm") && extra(2):
		return c.illegal("product-bias", c.inName(2), "two operands", fmt.Sprint(len(c.n.In)))
	case g == "softmax_fwd" && extra(1):
		return c.illegal("softmax-mask", c.inName(1), "one operand", fmt.Sprint(len(c.n.In)))
	case g == "sdpa_recomp_fwd" && extra(4):
		return c.illegal("attention-lengths", c.inName(4), "at most 4 operands, the last one the mask", fmt.Sprint(len(c.n.In)))
	}
	return nil
}

// operands checks a node's operands, or its results.
func (c *nodeCheck) operands(kind string, want []Operand, have []int, suffix dtype.Type) error {
	at := fmt.Sprintf("%ss", kind)
	fixed := slices.IndexFunc(want, func(o Operand) bool { return o.Repeated })
	if fixed >= 0 {
		groups := len(want) - fixed
		if n := len(have) - fixed; n < groups || n%groups != 0 {
			return c.illegal("operands", at, fmt.Sprintf("%d and a multiple of %d", fixed, groups), fmt.Sprint(len(have)))
		}
	} else if fixed = len(want); len(have) > fixed {
		return c.illegal("operands", at, fmt.Sprintf("at most %d", fixed), fmt.Sprint(len(have)))
	}
	for i, t := range have {
		o := &want[operandEntry(want, i, len(have))]
		switch {
		case t != recipes.Absent:
			if err := c.operand(o, operandPlace{kind, i, want, len(have)}, &c.r.Tensors[t], suffix); err != nil {
				return err
			}
		case !o.Optional:
			return c.illegal("operands", operandName(kind, i, want, len(have), nil), "a tensor", "none")
		}
	}
	if len(have) < fixed && !want[len(have)].Optional {
		return c.illegal("operands", operandName(kind, len(have), want, len(have), nil), "a tensor", "none")
	}
	return nil
}

// operandPlace names an operand once that is needed.
type operandPlace struct {
	kind  string
	i     int
	entry []Operand
	n     int
}

func (o operandPlace) name(t *recipes.Tensor) string {
	return operandName(o.kind, o.i, o.entry, o.n, t)
}

func (c *nodeCheck) operand(o *Operand, at operandPlace, t *recipes.Tensor, suffix dtype.Type) error {
	if !c.p.takes(o, t.DType, suffix) {
		return c.illegal("type", at.name(t), strings.Join(c.p.typeNames(o, suffix), " or "), t.DType.String())
	}
	low, high := max(o.MinRank, 1), int64(o.MaxRank)
	if high == 0 {
		high = c.p.Limit("rank")
	}
	if n := len(t.Dims); n < low || int64(n) > high {
		return c.illegal("rank", at.name(t), rankText(low, high), fmt.Sprint(n))
	}
	unit, size := c.entry.limit(t.DType)
	most, stride := c.p.Limit(size)/unit, int64(1)
	for _, d := range t.Dims {
		if steps := (d - 1) * stride; steps > most {
			return c.illegal("size", at.name(t), fmt.Sprintf("at most %d elements from the first to the last index of a dim", most), fmt.Sprintf("%d in %s", steps, dimsText(t.Dims)))
		}
		stride *= d
	}
	return nil
}

func rankText(low int, high int64) string {
	if int64(low) == high {
		return fmt.Sprintf("rank %d", low)
	}
	return fmt.Sprintf("rank %d to %d", low, high)
}

// limit is the limit of sizes of what the node runs on, and how much an element counts.
// What only makes another view has none.
func (n *Node) limit(t dtype.Type) (unit int64, limit string) {
	switch {
	case n.Engine == Alias:
		return 1, ""
	case n.Engine == Move:
		return int64(t.Size()), "dma"
	case n.Engine == Matrix && t.Size() <= 2:
		return 1, "size_short"
	}
	return 1, "size"
}

// takes reports whether an operand may have a type, in a node with a suffix.
func (p *Profile) takes(o *Operand, t, suffix dtype.Type) bool {
	for _, name := range o.Types {
		if name == "dt" && t == suffix || name == t.String() {
			return true
		}
	}
	return o.Types == nil && p.hasType(t.String())
}
