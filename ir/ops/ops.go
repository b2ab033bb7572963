// Package ops is the table of IR operations. Builders, accessors and the op
// reference are generated from it; parser, printer and verifier read it.
package ops

// AttrType is the type of an attribute.
type AttrType uint8

// Attribute types and the Go types of their builder arguments.
const (
	Int    AttrType = iota // int64
	Dim                    // ir.Dim, a size polynomial
	Float                  // float64
	String                 // string
	Bool                   // bool
	Ints                   // []int64
	Dims                   // []ir.Dim
	DType                  // dtype.Type
	Func                   // *ir.Func, written @name
)

// Attr is one attribute of an operation.
type Attr struct {
	Name string
	Type AttrType
	Doc  string
	// Lead attributes are written between the op's name and its operands,
	// without name and braces.
	Lead bool
	// Optional attributes may be absent; the builder then leaves them out.
	Optional bool
}

// Elem constrains the element type of an operand.
type Elem uint8

// Operand constraints.
const (
	Any      Elem = iota
	AnyFloat      // bf16 or f32
	Number        // bf16, f32 or i32
	I32
	Pred // i8 holding 0 or 1
	F32
)

// Operand is one operand.
type Operand struct {
	Name string
	Elem Elem
	Doc  string
	// Variadic operands, always last, stand for one or more, Optional ones, always
	// last too, for one or none.
	Variadic, Optional bool
}

// Dist names the rule that derives the distribution of an op's results from
// its operands.
type Dist uint8

// Distribution rules. "Linear" rules keep partial sums partial; the others
// refuse them.
const (
	DistElementwise  Dist = iota // per element, not linear
	DistAdd                      // linear when all operands are partial
	DistMul                      // linear in one operand
	DistUnaryLinear              // keeps what it gets
	DistConst                    // replicated
	DistBroadcast                // keeps what it gets, or shards an axis of equal elements
	DistReshape                  // linear; the sharded axis must survive as a leading axis
	DistTranspose                // linear, permutes the axis
	DistSlice                    // linear, not along the sharded axis
	DistConcat                   // linear when all are partial, not along the sharded axis
	DistReduceLinear             // linear; over the sharded axis the result is partial
	DistReduce                   // not linear, not over the sharded axis
	DistLastAxis                 // works along the last axis, which must be whole
	DistMatmul                   // contraction over a sharded axis gives a partial sum
	DistMatmulJoined             // each result as its weight
	DistGather                   // linear in the table
	DistGatherElements
	DistShortConv
	DistRMSNorm
	DistStateRead
	DistStateWrite
	DistMoE
	DistSDPA
	DistEmbedding
	DistAllReduce
	DistAllGather
	DistNone // no results
	DistCall
)

// Level is a set of IR levels at which an op may appear.
type Level uint8

// IR levels.
const (
	Model Level = 1 << iota // what capture builds
	Fused                   // after fusion passes
	Plan                    // outlined: calls of segments and collectives
)

// Trait is a set of facts about an op.
type Trait uint16

// Traits.
const (
	Pure        Trait = 1 << iota // no effect but its results
	Commutative                   // operands may be swapped
	Elementwise                   // one result element from one element of each operand
	Collective                    // communicates between ranks; ends a segment
	Break                         // ends a segment
	StateWrite                    // takes state versions ([Op.TakesState]); its results are their successors, in order
	StateRead                     // takes state versions
)

// Op is one row of the table.
type Op struct {
	Name     string
	Summary  string
	Operands []Operand
	Attrs    []Attr
	Results  []string
	// PerOperand ops have a result for each of their variadic operands.
	PerOperand bool
	Dist       Dist
	Levels     Level
	Traits     Trait
	// Example is the body of a function; a test parses and verifies it.
	Example string
}

// Has reports whether the op has all of the traits.
func (o *Op) Has(t Trait) bool { return o.Traits&t == t }

// Attr finds an attribute by name.
func (o *Op) Attr(name string) (Attr, bool) {
	for _, a := range o.Attrs {
		if a.Name == name {
			return a, true
		}
	}
	return Attr{}, false
}

// Variadic reports whether the last operand repeats.
func (o *Op) Variadic() bool {
	return len(o.Operands) > 0 && o.Operands[len(o.Operands)-1].Variadic
}

// TakesState reports whether operand i is a state version: the variadic ones of an
// op that works on several states, else the first.
func (o *Op) TakesState(i int) bool {
	return (o.Has(StateRead) || o.Has(StateWrite)) && (i == o.FirstState() || i > o.FirstState() && o.Variadic())
}

// FirstState is the number of the first operand that is a state version, of an op
// that takes any.
func (o *Op) FirstState() int {
	if o.Variadic() {
		return len(o.Operands) - 1
	}
	return 0
}

// Least is the smallest number of operands.
func (o *Op) Least() int {
	n := len(o.Operands)
	if n > 0 && o.Operands[n-1].Optional {
		n--
	}
	return n
}

// ByName finds a row of the table.
func ByName(name string) (*Op, bool) {
	o, ok := byName[name]
	return o, ok
}

var byName = func() map[string]*Op {
	m := make(map[string]*Op, len(Table))
	for i := range Table {
		m[Table[i].Name] = &Table[i]
	}
	return m
}()
