package dump

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// A decoder of Synapse JSON graphs, to compare with: it has nothing of what writes them.
// It knows the format, what docs/nodes.md says of nodes, and layouts that a C++ compiler
// gave (testdata/abi.json), not those of a target profile.

// abi are layouts of parameter structures.
type abi struct {
	Origin  string      `json:"origin"`
	Enums   []abiEnum   `json:"enums"`
	Structs []abiStruct `json:"structs"`
}

type abiEnum struct {
	Name    string `json:"name"`
	Flags   bool   `json:"flags"`
	Symbols []struct {
		Name   string `json:"name"`
		Number uint64 `json:"number"`
	} `json:"symbols"`
}

type abiStruct struct {
	Name   string     `json:"name"`
	Size   int        `json:"size"`
	Fields []abiField `json:"fields"`
}

type abiField struct {
	Offset int    `json:"offset"`
	Size   int    `json:"size"`
	Name   string `json:"name"`
	Type   string `json:"type"`
}

// strict reads one JSON value without unknown keys.
func strict(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows")
	}
	return nil
}

// readABI joins layout files.
func readABI(t testing.TB, files ...string) *abi {
	t.Helper()
	all := &abi{}
	for _, name := range files {
		text, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		var a abi
		require.NoError(t, strict(text, &a))
		require.NotEmpty(t, a.Origin)
		all.Enums = append(all.Enums, a.Enums...)
		all.Structs = append(all.Structs, a.Structs...)
	}
	return all
}

// The document, with every key that may be there.
type docFile struct {
	Name    *string            `json:"name"`
	Version int                `json:"version"`
	Config  *map[string]string `json:"global_config"`
	Graphs  []docGraph         `json:"graphs"`
}

type docGraph struct {
	Name       string         `json:"name"`
	Group      *int           `json:"group"`
	RecipeID   *int           `json:"recipe_id"`
	Mode       *int           `json:"compilation_mode"`
	Attributes map[string]int `json:"attributes"`
	Nodes      []docNode      `json:"nodes"`
	Tensors    []docTensor    `json:"tensors"`
}

type docNode struct {
	Name     string   `json:"name"`
	GUID     string   `json:"guid"`
	Params   []int    `json:"params"`
	In       []string `json:"input_tensors"`
	Out      []string `json:"output_tensors"`
	InLay    []string `json:"input_layouts"`
	OutLay   []string `json:"output_layouts"`
	Blocking []string `json:"blocking_nodes"`
}

type docTensor struct {
	Name       string  `json:"name"`
	Persistent *bool   `json:"persistent"`
	Const      *bool   `json:"is_const"`
	DType      string  `json:"dtype"`
	Type       string  `json:"type"`
	Max        []int64 `json:"max_shape"`
	Min        []int64 `json:"min_shape"`
	Section    []int   `json:"user_mem_section_index,omitempty"`
	Offset     *int64  `json:"user_mem_offset,omitempty"`
}

// decodeGraphs rebuilds the recipes of a collection. The format has no names or buffers
// of sections and no origins of nodes; sizes of sections are where tensors end.
func decodeGraphs(text []byte, layouts *abi) ([]*recipes.Recipe, error) {
	var f docFile
	if err := strict(text, &f); err != nil {
		return nil, err
	}
	if f.Name == nil || *f.Name == "" || f.Version != 4 || f.Config == nil || len(*f.Config) != 0 {
		return nil, errors.New("head of the collection")
	}
	var all []*recipes.Recipe
	for i := range f.Graphs {
		g := &f.Graphs[i]
		d := graphDecoder{layouts: layouts, g: g, tensors: map[string]int{}, nodes: map[string]int{}}
		if g.RecipeID == nil || *g.RecipeID != i {
			return nil, fmt.Errorf("graph %s: recipe_id", g.Name)
		}
		if err := d.run(); err != nil {
			return nil, fmt.Errorf("graph %s: %w", g.Name, err)
		}
		all = append(all, &d.r)
	}
	return all, nil
}

type graphDecoder struct {
	layouts *abi
	g       *docGraph
	r       recipes.Recipe
	tensors map[string]int
	nodes   map[string]int
}

var graphName = regexp.MustCompile(`^(.+)-[0-9a-f]{12}$`)

func (d *graphDecoder) run() error {
	m := graphName.FindStringSubmatch(d.g.Name)
	switch {
	case m == nil:
		return errors.New("name")
	case d.g.Group == nil || *d.g.Group != 0 || d.g.Mode == nil || *d.g.Mode != 0:
		return errors.New("group or mode")
	case len(d.g.Attributes) != 1 || d.g.Attributes["GRAPH_ATTRIBUTE_INFERENCE"] != 1:
		return errors.New("attributes")
	}
	d.r.Name = m[1]
	for i := range d.g.Tensors {
		if err := d.tensor(&d.g.Tensors[i]); err != nil {
			return fmt.Errorf("tensor %s: %w", d.g.Tensors[i].Name, err)
		}
	}
	for i := range d.g.Nodes {
		if err := d.node(&d.g.Nodes[i]); err != nil {
			return fmt.Errorf("node %s: %w", d.g.Nodes[i].Name, err)
		}
	}
	return nil
}

var graphDTypes = map[string]dtype.Type{
	"int8": dtype.I8, "uint8": dtype.U8, "int32": dtype.I32, "int64": dtype.I64, "bf16": dtype.BF16, "float32": dtype.F32,
}

func (d *graphDecoder) tensor(t *docTensor) error {
	_, twice := d.tensors[t.Name]
	typ, known := graphDTypes[t.DType]
	switch {
	case t.Name == "" || twice:
		return errors.New("name is empty or there twice")
	case !known || t.Type != "DATA_TENSOR" || t.Const == nil || *t.Const || t.Persistent == nil:
		return errors.New("type or kind")
	case len(t.Max) < 1 || len(t.Max) > 25 || !slices.Equal(t.Max, t.Min):
		return errors.New("shapes")
	case *t.Persistent != (len(t.Section) == 1) || *t.Persistent != (t.Offset != nil):
		return errors.New("section or offset of what is not persistent, or none of what is")
	}
	d.tensors[t.Name] = len(d.r.Tensors)
	made := recipes.Tensor{Name: t.Name, DType: typ, Dims: t.Max, Section: recipes.Workspace}
	if *t.Persistent {
		made.Section, made.Offset = t.Section[0], *t.Offset
		if made.Section < 0 || made.Section > 1<<10 || made.Offset < 0 {
			return errors.New("section or offset is out of range")
		}
		for len(d.r.Sections) <= made.Section {
			d.r.Sections = append(d.r.Sections, recipes.Section{})
		}
		s := &d.r.Sections[made.Section]
		s.Size = max(s.Size, made.Offset+made.Bytes())
	}
	d.r.Tensors = append(d.r.Tensors, made)
	return nil
}

func (d *graphDecoder) node(n *docNode) error {
	if _, twice := d.nodes[n.Name]; n.Name == "" || twice {
		return errors.New("name is empty or there twice")
	}
	made := recipes.Node{Name: n.Name, GUID: n.GUID}
	var err error
	if made.In, err = d.operands(n.In, n.InLay); err != nil {
		return err
	}
	if made.Out, err = d.operands(n.Out, n.OutLay); err != nil {
		return err
	}
	for _, name := range n.Blocking {
		before, ok := d.nodes[name]
		if !ok {
			return fmt.Errorf("blocking node %s does not come before", name)
		}
		made.After = append(made.After, before)
	}
	if made.Params, err = d.params(n); err != nil {
		return err
	}
	d.nodes[n.Name] = len(d.r.Nodes)
	d.r.Nodes = append(d.r.Nodes, made)
	return nil
}

func (d *graphDecoder) operands(names, layouts []string) ([]int, error) {
	if len(names) != len(layouts) || slices.ContainsFunc(layouts, func(s string) bool { return s != "" }) {
		return nil, errors.New("layouts")
	}
	var list []int
	for _, name := range names {
		t, ok := d.tensors[name]
		if name == "" {
			t = recipes.Absent
		} else if !ok {
			return nil, fmt.Errorf("there is no tensor %s", name)
		}
		list = append(list, t)
	}
	return list, nil
}

// structOf are the structures of GUIDs, those with a suffix without it.
var structOf = map[string]string{
	"gemm": "synGEMMParams", "batch_gemm": "synGEMMParams", "concat": "synConcatenateParams", "transpose": "synTransposeParamsNDims",
	"slice_axis": "synSliceAxisParamsV2", "topk": "ns_TopkNodeV2::ParamsV4", "cast": "ns_CastKernel::Params",
	"constant": "ns_ConstantKernel::Params", "range": "ns_RangeKernel::Params", "reduce_sum_fwd": "ns_Reduction::Params",
	"reduce_max_fwd": "ns_Reduction::Params", "softmax_fwd": "ns_Softmax::Params", "gather_fwd": "ns_GatherKernel::Params",
	"gather_elements_fwd": "ns_GatherElementsKernel::Params", "index_copy_fwd": "ns_IndexCopy::Params",
	"rms_norm_fwd": "ns_LayerNormKernel::ParamsRmsNorm", "sdpa_recomp_fwd": "ns_Sdpa::Params", "moe": "ns_MoeKernel::ParamsV2",
}

// plain are the GUIDs that take no parameters.
var plain = strings.Fields(`reshape broadcast identity add_fwd sub_fwd mult_fwd div_fwd max_fwd min_fwd less_fwd less_equal_fwd equal_fwd
	and_fwd neg_fwd exp_fwd log_fwd sigmoid_fwd silu_fwd softplus_fwd where_fwd`)

var castGUID = regexp.MustCompile(`^cast_(f32|bf16|i32|i8)_to_(f32|bf16|i32|i8)$`)

func (d *graphDecoder) params(n *docNode) (*recipes.Params, error) {
	base, suffix := n.GUID, ""
	if m := castGUID.FindStringSubmatch(n.GUID); m != nil {
		base, suffix = "cast", m[2]
	} else if structOf[base] == "" && !slices.Contains(plain, base) {
		at := strings.LastIndexByte(n.GUID, '_')
		base, suffix = n.GUID[:max(0, at)], n.GUID[at+1:]
	}
	if slices.Contains(plain, base) {
		if n.Params == nil || len(n.Params) != 0 {
			return nil, errors.New("parameters of a node that takes none")
		}
		return nil, nil
	}
	at := slices.IndexFunc(d.layouts.Structs, func(s abiStruct) bool { return s.Name == structOf[base] })
	if at < 0 {
		return nil, fmt.Errorf("no layout of %s", n.GUID)
	}
	s := &d.layouts.Structs[at]
	if len(n.Params) != s.Size {
		return nil, fmt.Errorf("%d bytes of %s, want %d", len(n.Params), s.Name, s.Size)
	}
	raw := make([]byte, s.Size)
	for i, v := range n.Params {
		if v < -128 || v > 127 {
			return nil, fmt.Errorf("byte %d is %d", i, v)
		}
		raw[i] = byte(v)
	}
	return d.layouts.fields(s, raw, suffix)
}

// renamed are fields that recipes call otherwise than headers.
var renamed = map[string]string{
	"constant": "value", "experts.activation": "activation", "router.experts_min": "experts_min", "router.experts_max": "experts_max",
}

// fields reads the bytes of a structure; those in no field are zero.
func (a *abi) fields(s *abiStruct, raw []byte, suffix string) (*recipes.Params, error) {
	p := &recipes.Params{Struct: s.Name}
	hole := make([]bool, len(raw))
	for i := range hole {
		hole[i] = true
	}
	for _, f := range s.Fields {
		if strings.HasPrefix(f.Name, "_structPadding") {
			continue // a hole with a name
		}
		for i := range f.Size {
			hole[f.Offset+i] = false
		}
		name := cmp.Or(renamed[f.Name], f.Name)
		v, err := a.field(p, f, name, raw[f.Offset:f.Offset+f.Size], suffix)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", s.Name, f.Name, err)
		}
		p.Fields = append(p.Fields, v)
	}
	for i, h := range hole {
		if h && raw[i] != 0 {
			return nil, fmt.Errorf("%s: byte %d is in no field and %#x", s.Name, i, raw[i])
		}
	}
	return p, nil
}

func (a *abi) field(p *recipes.Params, f abiField, name string, b []byte, suffix string) (recipes.Field, error) {
	number := func(t recipes.FieldType, v int64) (recipes.Field, error) {
		return recipes.Field{Name: name, Type: t, Ints: []int64{v}}, nil
	}
	real := func() (recipes.Field, error) {
		return recipes.Field{Name: name, Type: recipes.F32, Float: math.Float32frombits(binary.LittleEndian.Uint32(b))}, nil
	}
	switch f.Type {
	case "bool":
		if b[0] > 1 {
			return recipes.Field{}, fmt.Errorf("a bool is %d", b[0])
		}
		return number(recipes.U8, int64(b[0]))
	case "int", "CastF32RoundMode_t", "KTensorType_t":
		return number(recipes.I32, int64(int32(binary.LittleEndian.Uint32(b))))
	case "unsigned int":
		return number(recipes.U32, int64(binary.LittleEndian.Uint32(b)))
	case "uint64_t":
		return number(recipes.U64, int64(binary.LittleEndian.Uint64(b)))
	case "float":
		return real()
	case "fint_t":
		if suffix == "bf16" || suffix == "f32" {
			return real()
		}
		return number(recipes.I32, int64(int32(binary.LittleEndian.Uint32(b))))
	case "uint32_t[25]":
		// A permutation: as many as there are dims, then each its own place.
		n, ok := p.Int("tensorDim")
		v := recipes.Field{Name: name, Type: recipes.U32}
		for i := range int64(25) {
			x := int64(binary.LittleEndian.Uint32(b[4*i:]))
			if i < n {
				v.Ints = append(v.Ints, x)
			} else if x != i {
				return v, fmt.Errorf("element %d of %d is %d", i, n, x)
			}
		}
		if !ok || n > 25 {
			return v, fmt.Errorf("%d dims", n)
		}
		return v, nil
	}
	return a.symbol(f, name, b)
}

// symbol reads an enumeration or a set of flags.
func (a *abi) symbol(f abiField, name string, b []byte) (recipes.Field, error) {
	v := recipes.Field{Name: name, Type: recipes.Enum}
	at := slices.IndexFunc(a.Enums, func(e abiEnum) bool { return e.Name == f.Type })
	if at < 0 {
		return v, fmt.Errorf("type %s is not known", f.Type)
	}
	var wide [8]byte
	copy(wide[:], b)
	left := binary.LittleEndian.Uint64(wide[:])
	var names []string
	for _, s := range a.Enums[at].Symbols {
		if a.Enums[at].Flags && left&s.Number != 0 {
			left &^= s.Number
			names = append(names, s.Name)
		} else if !a.Enums[at].Flags && left == s.Number {
			v.Sym = s.Name
			return v, nil
		}
	}
	if !a.Enums[at].Flags || left != 0 {
		return v, fmt.Errorf("%#x is none of %s", left, f.Type)
	}
	v.Sym = strings.Join(names, "|")
	return v, nil
}

// inFormat is a recipe without what the format has no place for, with the fields of
// parameters by name, so that what is read can be compared by its canonical bytes.
func inFormat(r *recipes.Recipe) []byte {
	c := *r
	c.Sections = slices.Clone(r.Sections)
	for i := range c.Sections {
		c.Sections[i].Name, c.Sections[i].Buffer = "", ""
	}
	c.Nodes = slices.Clone(r.Nodes)
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Origin = ""
		if n.Params != nil {
			p := recipes.Params{Struct: n.Params.Struct, Fields: slices.Clone(n.Params.Fields)}
			slices.SortFunc(p.Fields, func(a, b recipes.Field) int { return cmp.Compare(a.Name, b.Name) })
			n.Params = &p
		}
	}
	return c.Encode()
}
