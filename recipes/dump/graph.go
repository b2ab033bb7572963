package dump

import (
	"bytes"
	"encoding/json"
	"fmt"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

// The Synapse JSON graph format: a collection of graphs, each of nodes and tensors that
// refer to each other by name. Shapes are fastest first, as in recipes; parameters are
// the bytes of the structure; an operand "" is an empty slot. Tensors that have a section
// number share the section with others of that number. The vendor's tools write it
// (graph dumps before compiling, recordings) and compile it again (json_tests).
//
// All tensors of a recipe are written, those that no node touches too.

// graphVersion is the version of the format that recordings have.
const graphVersion = 4

// graphHead is a graph but for its nodes and tensors.
type graphHead struct {
	Name            string `json:"name"`
	Group           int    `json:"group"`     // the rank; all execute the same
	RecipeID        int    `json:"recipe_id"` // number in the collection
	CompilationMode int    `json:"compilation_mode"`
	// Attributes say that the graph is for inference: there is no backward pass, so
	// operands of products may have different types and constants may be folded. Nothing
	// is quantised by it; that is an attribute of its own, and not set.
	Attributes map[string]int `json:"attributes"`
}

type graphNode struct {
	Name          string   `json:"name"`
	GUID          string   `json:"guid"`
	Params        []int8   `json:"params"` // bytes, signed as the vendor's tools write them; none is NULL
	Inputs        []string `json:"input_tensors"`
	Outputs       []string `json:"output_tensors"`
	InputLayouts  []string `json:"input_layouts"` // "" is any
	OutputLayouts []string `json:"output_layouts"`
	Blocking      []string `json:"blocking_nodes"` // nodes that finish first
}

type graphTensor struct {
	Name       string  `json:"name"`
	Persistent bool    `json:"persistent"`
	Const      bool    `json:"is_const"` // never: weights are bound at launch
	DType      string  `json:"dtype"`
	Type       string  `json:"type"`
	MaxShape   []int64 `json:"max_shape"`
	MinShape   []int64 `json:"min_shape"`
	// Of persistent ones only.
	Section []int  `json:"user_mem_section_index,omitempty"`
	Offset  *int64 `json:"user_mem_offset,omitempty"` // bytes from the section's start
}

// graphTypes are the names that the format has for element types.
var graphTypes = map[dtype.Type]string{
	dtype.I8: "int8", dtype.U8: "uint8", dtype.I32: "int32", dtype.I64: "int64", dtype.BF16: "bf16", dtype.F32: "float32",
}

// JSON writes the recipes as a collection of Synapse JSON graphs, a line a node and a
// tensor. The profile checks nodes and lays out their parameters. The error names
// recipe, node and what is wrong with it; where a layout is missing it is a
// [target.MissingError]. Then there is no output.
func (l *Listing) JSON(p *target.Profile) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n\"name\": %s,\n\"version\": %d,\n\"global_config\": {},\n\"graphs\": [", line(l.Name), graphVersion)
	for i := range l.Entries {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := l.Entries[i].graph(&b, i, p); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Entries[i].ID(), err)
		}
	}
	b.WriteString("\n]\n}\n")
	return b.Bytes(), nil
}

// line is a value in one line of JSON.
func line(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings, numbers and lists of them
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func (e *Entry) graph(b *bytes.Buffer, id int, p *target.Profile) error {
	r := e.Recipe
	head := line(graphHead{Name: e.ID(), RecipeID: id, Attributes: map[string]int{"GRAPH_ATTRIBUTE_INFERENCE": 1}})
	fmt.Fprintf(b, "\n%s,\n\"nodes\": [", bytes.TrimSuffix(head, []byte("}")))
	if err := checkNames(r); err != nil {
		return err
	}
	if err := checkProducers(r); err != nil {
		return err
	}
	list := func(n int, of func(i int) (any, error)) error {
		for i := range n {
			v, err := of(i)
			if err != nil {
				return err
			}
			sep := ",\n"
			if i == 0 {
				sep = "\n"
			}
			b.WriteString(sep)
			b.Write(line(v))
		}
		return nil
	}
	if err := list(len(r.Nodes), func(i int) (any, error) { return newGraphNode(r, &r.Nodes[i], p) }); err != nil {
		return err
	}
	b.WriteString("\n],\n\"tensors\": [")
	if err := list(len(r.Tensors), func(i int) (any, error) { return newGraphTensor(r, &r.Tensors[i], p) }); err != nil {
		return err
	}
	b.WriteString("\n]\n}")
	return nil
}

// checkNames checks what tools go by: the target refuses a name that is there twice, and
// "" is an operand that is absent.
func checkNames(r *recipes.Recipe) error {
	once := func(what string, n int, name func(i int) string) error {
		seen := make(map[string]int, n)
		for i := range n {
			if name(i) == "" {
				return fmt.Errorf("recipe %s: %s %d has no name", r.Name, what, i)
			}
			if first, ok := seen[name(i)]; ok {
				return fmt.Errorf("recipe %s: %ss %d and %d are both called %s", r.Name, what, first, i, name(i))
			}
			seen[name(i)] = i
		}
		return nil
	}
	if err := once("tensor", len(r.Tensors), func(i int) string { return r.Tensors[i].Name }); err != nil {
		return err
	}
	return once("node", len(r.Nodes), func(i int) string { return r.Nodes[i].Name })
}

// checkProducers checks that no tensor is the result of two nodes, which the target
// refuses.
func checkProducers(r *recipes.Recipe) error {
	by := map[int]string{}
	for i := range r.Nodes {
		for _, t := range r.Nodes[i].Out {
			if first, ok := by[t]; ok {
				return fmt.Errorf("recipe %s: tensor %s has two producers, %s and %s", r.Name, r.Tensors[t].Name, first, r.Nodes[i].Name)
			}
			by[t] = r.Nodes[i].Name
		}
	}
	return nil
}

func newGraphNode(r *recipes.Recipe, n *recipes.Node, p *target.Profile) (*graphNode, error) {
	params, err := p.EncodeNode(r, n)
	if err != nil {
		return nil, err
	}
	g := &graphNode{
		Name: n.Name, GUID: n.GUID, Params: make([]int8, len(params)), Inputs: tensorNames(r, n.In), Outputs: tensorNames(r, n.Out),
		InputLayouts: make([]string, len(n.In)), OutputLayouts: make([]string, len(n.Out)), Blocking: make([]string, len(n.After)),
	}
	for i, c := range params {
		g.Params[i] = int8(c)
	}
	for i, a := range n.After {
		g.Blocking[i] = r.Nodes[a].Name
	}
	return g, nil
}

func tensorNames(r *recipes.Recipe, list []int) []string {
	names := make([]string, len(list))
	for i, t := range list {
		if t != recipes.Absent {
			names[i] = r.Tensors[t].Name
		}
	}
	return names
}

func newGraphTensor(r *recipes.Recipe, t *recipes.Tensor, p *target.Profile) (*graphTensor, error) {
	// A shape without dims is read as one that is not set.
	if n, most := int64(len(t.Dims)), p.Limit("rank_moved"); n < 1 || n > most {
		return nil, fmt.Errorf("recipe %s: tensor %s has rank %d, want 1 to %d", r.Name, t.Name, n, most)
	}
	name, ok := graphTypes[t.DType]
	if !ok {
		return nil, fmt.Errorf("recipe %s: tensor %s: the format has no name for type %s", r.Name, t.Name, t.DType)
	}
	g := &graphTensor{Name: t.Name, DType: name, Type: "DATA_TENSOR", MaxShape: t.Dims, MinShape: t.Dims}
	if t.Section != recipes.Workspace {
		g.Persistent, g.Section, g.Offset = true, []int{t.Section}, &t.Offset
	}
	return g, nil
}
