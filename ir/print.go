package ir

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"quill/ir/ops"
)

type levelSpelling struct {
	level ops.Level
	name  string
}

// levelNames spells levels; a module has exactly one.
var levelNames = []levelSpelling{{ops.Model, "model"}, {ops.Fused, "fused"}, {ops.Plan, "plan"}}

func levelName(l ops.Level) string {
	for _, n := range levelNames {
		if n.level == l {
			return n.name
		}
	}
	return fmt.Sprintf("level(%d)", l)
}

// String is the module's text.
func (m *Module) String() string {
	var b strings.Builder
	_ = m.Print(&b) // a Builder does not fail
	return b.String()
}

// Print writes the module's text. It is deterministic and complete: parsing it
// gives an equal module, which prints the same text.
func (m *Module) Print(w io.Writer) error { return m.print(w, nil) }

// Numbers are the numbers that stand for op results in a text.
type Numbers map[*Value]int

// Number numbers the results of a module's ops, as Print does when old is nil.
// Otherwise values that old has keep their number, so that the texts before and
// after a rewrite differ only in what was rewritten.
func (m *Module) Number(old Numbers) Numbers {
	next := 0
	for _, n := range old {
		next = max(next, n+1)
	}
	ns := Numbers{}
	for _, f := range m.Funcs {
		free := next
		for _, o := range f.Ops {
			for _, r := range o.Results {
				if n, ok := old[r]; ok {
					ns[r] = n
					continue
				}
				ns[r] = free
				free++
			}
		}
	}
	return ns
}

// Text is the module's text with the given numbers.
func (ns Numbers) Text(m *Module) string {
	var b strings.Builder
	_ = m.print(&b, ns) // a Builder does not fail
	return b.String()
}

func (m *Module) print(w io.Writer, ns Numbers) error {
	p := printer{w: bufio.NewWriter(w), fixed: ns}
	p.text("module @", m.Name, " {level = ", levelName(m.Level), ", tp = ", strconv.Itoa(m.TP), "}\n")
	if len(m.Syms) > 0 {
		p.text("\n")
	}
	for _, s := range m.Syms {
		p.text(s.String(), "\n")
	}
	for _, f := range m.Funcs {
		p.text("\n")
		p.function(f, false)
	}
	return p.w.Flush()
}

// Shape is the text of a function without names, sources and locations:
// functions that compute the same have the same text.
func (f *Func) Shape() string {
	var b strings.Builder
	p := printer{w: bufio.NewWriter(&b)}
	p.function(f, true)
	_ = p.w.Flush()
	return b.String()
}

type printer struct {
	w         *bufio.Writer
	anonymous bool // leave out names, sources and locations
	ids       Numbers
	fixed     Numbers // if not nil, instead of numbers by position
}

// text writes parts, one after the other. Texts of segments are made by the hundred
// thousand: formatting would be a tenth of compiling.
func (p *printer) text(parts ...string) {
	for _, s := range parts {
		_, _ = p.w.WriteString(s) // an error stays with the writer until it is flushed
	}
}

func (p *printer) function(f *Func, anonymous bool) {
	p.anonymous = anonymous
	p.number(f)
	name := f.Name
	if anonymous {
		name = ""
	}
	p.text("func @", name, "(")
	for i, prm := range f.Params {
		if i > 0 {
			p.text(",")
		}
		p.text("\n  ")
		p.param(prm)
	}
	if len(f.Params) > 0 {
		p.text("\n")
	}
	p.text(") -> (")
	for i, r := range f.Results {
		if i > 0 {
			p.text(", ")
		}
		name := r.Name
		if anonymous {
			name = "r" + strconv.Itoa(i)
		}
		p.text(resultKinds[r.Kind], " ", name, ": ", r.Type.String())
	}
	p.text(") {\n")
	for _, o := range f.Ops {
		p.op(o)
	}
	p.text("  return")
	p.values(f.Return)
	p.text("\n}\n")
}

// number gives op results their printed numbers (and, for anonymous text,
// parameters too).
func (p *printer) number(f *Func) {
	if p.fixed != nil {
		p.ids = p.fixed
		return
	}
	p.ids = make(Numbers, len(f.Ops))
	if p.anonymous {
		for _, prm := range f.Params {
			p.ids[prm.Value] = len(p.ids)
		}
	}
	for _, o := range f.Ops {
		for _, r := range o.Results {
			p.ids[r] = len(p.ids)
		}
	}
}

func (p *printer) param(prm *Param) {
	p.text(prm.Kind.String(), " ", p.ref(prm.Value), ": ", prm.Value.Type.String())
	if p.anonymous || prm.Source.IsZero() {
		return
	}
	s := &prm.Source
	if s.PerRank {
		p.text(" = fill(", formatFloat(s.Fill), ", ", formatFloat(s.Step), ")")
		return
	}
	p.text(" = ", strconv.Quote(s.Tensor))
	var attrs []string
	if len(s.Perm) > 0 {
		attrs = append(attrs, "perm = "+intsString(s.Perm))
	}
	if len(s.Reshape) > 0 {
		attrs = append(attrs, "reshape = "+intsString(s.Reshape))
	}
	if len(s.Rows) > 0 {
		attrs = append(attrs, "rows = "+intsString(s.Rows))
	}
	if s.Times != 0 {
		attrs = append(attrs, "times = "+formatFloat(s.Times))
	}
	if s.Plus != 0 {
		attrs = append(attrs, "plus = "+formatFloat(s.Plus))
	}
	if len(attrs) > 0 {
		p.text(" {", strings.Join(attrs, ", "), "}")
	}
}

func intsString(ns []int64) string {
	parts := make([]string, len(ns))
	for i, n := range ns {
		parts[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (p *printer) ref(v *Value) string {
	if v.Param != nil && !p.anonymous {
		return "%" + v.Param.Name
	}
	return "%" + strconv.Itoa(p.ids[v])
}

func (p *printer) values(vs []*Value) {
	for i, v := range vs {
		if i > 0 {
			p.text(",")
		}
		p.text(" ", p.ref(v))
	}
}

func (p *printer) op(o *Op) {
	p.text("  ")
	if len(o.Results) > 0 {
		for i, r := range o.Results {
			if i > 0 {
				p.text(", ")
			}
			p.text(p.ref(r))
		}
		p.text(" = ")
	}
	p.text(o.Name())
	attrs := slices.Clone(o.Attrs)
	slices.SortFunc(attrs, func(a, b Attr) int { return cmp.Compare(a.Name, b.Name) })
	for _, a := range attrs {
		if d, _ := o.Def.Attr(a.Name); d.Lead {
			p.text(" ", attrString(d.Type, &a))
		}
	}
	p.values(o.Args)
	p.attrs(o, attrs)
	for i, r := range o.Results {
		if i == 0 {
			p.text(" : ")
		} else {
			p.text(", ")
		}
		p.text(r.Type.String())
	}
	if !p.anonymous {
		p.loc(o.Loc)
	}
	p.text("\n")
}

func (p *printer) attrs(o *Op, attrs []Attr) {
	open := false
	for _, a := range attrs {
		d, _ := o.Def.Attr(a.Name)
		if d.Lead {
			continue
		}
		if open {
			p.text(", ")
		} else {
			p.text(" {")
			open = true
		}
		p.text(a.Name, " = ", attrString(d.Type, &a))
	}
	if open {
		p.text("}")
	}
}

func (p *printer) loc(l Loc) {
	var parts []string
	if l.Layer >= 0 {
		parts = append(parts, strconv.Itoa(l.Layer))
	}
	if l.Op != "" || l.Tensor != "" {
		parts = append(parts, strconv.Quote(l.Op))
	}
	if l.Tensor != "" {
		parts = append(parts, strconv.Quote(l.Tensor))
	}
	if len(parts) > 0 {
		p.text(" loc(", strings.Join(parts, ", "), ")")
	}
}

// AttrText spells an attribute of an op as a text does, name included.
func AttrText(o *Op, a *Attr) string {
	d, _ := o.Def.Attr(a.Name)
	return a.Name + " = " + attrString(d.Type, a)
}

func attrString(t ops.AttrType, a *Attr) string {
	switch t {
	case ops.Int, ops.Dim:
		return a.Dim.String()
	case ops.Float:
		return formatFloat(a.Float)
	case ops.String:
		return strconv.Quote(a.Str)
	case ops.Bool:
		return strconv.FormatBool(a.Bool)
	case ops.DType:
		return a.DType.String()
	case ops.Func:
		if a.Func == nil {
			return "@"
		}
		return "@" + a.Func.Name
	}
	return shapeString(a.Dims)
}

// formatFloat is the shortest text that reads back the same number.
func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
