package target

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"quill/recipes"
)

// IllegalError reports what of a recipe or a plan the target does not take, or takes and
// gets wrong.
type IllegalError struct {
	Rule    string // of [Rules]
	Recipe  string // the recipe's name
	Node    string // with its GUID and the model op it comes from; "" for what is of no node
	Operand string // the operand, the tensor, or whatever else is wrong
	Want    string
	Have    string
	Help    string // how to mend it
	Types   string // of the node's operands and results, with dims fastest first; not in the text
}

func (e *IllegalError) Error() string {
	var b strings.Builder
	if e.Recipe != "" {
		fmt.Fprintf(&b, "recipe %s: ", e.Recipe)
	}
	for _, s := range []string{e.Node, e.Operand} {
		if s != "" {
			b.WriteString(s + ": ")
		}
	}
	fmt.Fprintf(&b, "want %s, have %s; help: %s [%s]", e.Want, e.Have, e.Help, e.Rule)
	return b.String()
}

// Rule is one kind of combination that is illegal.
type Rule struct {
	Name string
	// Why it is illegal, and the profile's source that says so.
	Why    string
	Source string
	// Help is how to mend it.
	Help string
}

// rule is a rule by name; the name is a constant of this package.
func rule(name string) *Rule { return find(Rules, func(r *Rule) bool { return r.Name == name }) }

// nodeCheck checks one node.
type nodeCheck struct {
	p     *Profile
	r     *recipes.Recipe
	n     *recipes.Node
	entry *Node
}

// illegal breaks a rule at an operand.
func (c *nodeCheck) illegal(name, operand, want, have string) error {
	return &IllegalError{
		Rule: name, Recipe: c.r.Name, Node: nodeName(c.n), Operand: operand, Want: want, Have: have, Help: rule(name).Help,
		Types: typesText(c.r, c.n),
	}
}

// typesText is types and dims of a node's operands, and of its results.
func typesText(r *recipes.Recipe, n *recipes.Node) string {
	list := func(tensors []int) string {
		parts := make([]string, len(tensors))
		for i, t := range tensors {
			if parts[i] = "nothing"; t != recipes.Absent {
				parts[i] = r.Tensors[t].DType.String() + " " + dimsText(r.Tensors[t].Dims)
			}
		}
		const most = 8 // of experts there are thousands
		if n := len(parts); n > most {
			parts = append(parts[:most], fmt.Sprintf("%d more", n-most))
		}
		return strings.Join(parts, ", ")
	}
	return list(n.In) + " and makes " + list(n.Out)
}

// nodeName says which node, of which GUID, and from where in the model.
func nodeName(n *recipes.Node) string {
	if n.Origin == "" {
		return fmt.Sprintf("node %s (%s)", n.Name, n.GUID)
	}
	return fmt.Sprintf("node %s (%s) of %s", n.Name, n.GUID, n.Origin)
}

// in is an operand's tensor, nil if it is absent or left out.
func (c *nodeCheck) in(i int) *recipes.Tensor {
	if i >= len(c.n.In) || c.n.In[i] == recipes.Absent {
		return nil
	}
	return &c.r.Tensors[c.n.In[i]]
}

func (c *nodeCheck) out(i int) *recipes.Tensor { return &c.r.Tensors[c.n.Out[i]] }

// inName and outName say which operand or result, and which tensor it is.
func (c *nodeCheck) inName(i int) string {
	return operandName("operand", i, c.entry.In, len(c.n.In), c.in(i))
}

func (c *nodeCheck) outName(i int) string {
	return operandName("result", i, c.entry.Out, len(c.n.Out), c.out(i))
}

// operandName names an operand by the entry: repeated ones share what is behind the
// others.
func operandName(kind string, i int, entry []Operand, n int, t *recipes.Tensor) string {
	s := fmt.Sprintf("%s %d", kind, i)
	if k := operandEntry(entry, i, n); k < len(entry) {
		s += ", " + entry[k].Name
	}
	if t != nil {
		s += ", tensor " + t.Name
	}
	return s
}

// operandEntry is the number of the entry's operand that operand i of n is.
func operandEntry(entry []Operand, i, n int) int {
	fixed := slices.IndexFunc(entry, func(o Operand) bool { return o.Repeated })
	if fixed < 0 || i < fixed {
		return i
	}
	return fixed + (i-fixed)/max(1, (n-fixed)/(len(entry)-fixed))
}

// inDims and outDims check the dims of an operand or a result.
func (c *nodeCheck) inDims(name string, i int, want []int64) error {
	if t := c.in(i); !slices.Equal(t.Dims, want) {
		return c.illegal(name, c.inName(i), "dims "+dimsText(want), dimsText(t.Dims))
	}
	return nil
}

func (c *nodeCheck) outDims(name string, i int, want []int64) error {
	if t := c.out(i); !slices.Equal(t.Dims, want) {
		return c.illegal(name, c.outName(i), "dims "+dimsText(want), dimsText(t.Dims))
	}
	return nil
}

// dimsText is dims as errors and docs/nodes.md show them, fastest first: {4, 16}.
func dimsText(dims []int64) string {
	parts := make([]string, len(dims))
	for i, d := range dims {
		parts[i] = strconv.FormatInt(d, 10)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// withDim is dims with another size of one.
func withDim(dims []int64, axis, size int64) []int64 {
	out := slices.Clone(dims)
	out[axis] = size
	return out
}

// axis is a parameter that counts dims of a tensor from the fastest.
func (c *nodeCheck) axis(field string, t *recipes.Tensor) (int64, error) {
	a, ok := c.n.Params.Int(field)
	if !ok || a < 0 || a >= int64(len(t.Dims)) {
		return 0, c.illegal("axis", "parameter "+field, fmt.Sprintf("0 to %d, a dim of tensor %s", len(t.Dims)-1, t.Name), strconv.FormatInt(a, 10))
	}
	return a, nil
}
