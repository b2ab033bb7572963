package recipes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"quill/recipes/dtype"
)

// Memory is where in a step most of the arena and the workspace holds values that are
// still to be read. Placing them takes no less than that, and seldom much more.
type Memory struct {
	// Peak is the number of bytes, ArenaBytes and WorkspaceBytes its parts. Inputs
	// count throughout, since nothing else is placed where they are.
	Peak, ArenaBytes, WorkspaceBytes int64
	// Step is the step of the plan, −1 in a plan without steps, and Node the node of
	// the launch's recipe, −1 in a collective.
	Step, Node int
	// Tensors are those alive then, the largest first, with what is carried from plan
	// to plan, which the peak leaves out.
	Tensors []Alive
}

// Alive is a tensor that holds its value at the peak.
type Alive struct {
	Name string `json:"name"`
	// Where is "arena", "workspace", "inputs" or "carry".
	Where string     `json:"where"`
	DType dtype.Type `json:"dtype"`
	Dims  []int64    `json:"dims"`
	// Bytes are those alive: of a value that is overwritten in part, the rest.
	Bytes int64 `json:"bytes"`
	// Origin names the model op that made it, its layer counted from the model's first.
	Origin string `json:"origin,omitempty"`
}

// Where the host's inputs and a recipe's own tensors lie, as Alive says it; other
// places are the names of buffers.
const (
	inInputs    = "inputs"
	inWorkspace = "workspace"
)

// Memory finds the peak of a plan. Values that cross launches are found by the bytes
// that are written and read: one lives from its write to the last read of any byte of it.
func (b *Bundle) Memory(p *Plan) *Memory {
	w := memoryWalk{placed: map[Hash]*Placement{}, buffers: map[Buffer]*tenancy{}}
	for _, buffer := range []Buffer{Arena, Carry} {
		w.buffers[buffer] = &tenancy{walk: &w, where: string(buffer)}
	}
	for i := range p.Steps {
		if c := p.Steps[i].Collective; c != nil {
			w.collective(c, i, b.Manifest.Deployment.TensorParallel)
		} else if l := p.Steps[i].Launch; l != nil {
			w.launch(l, i, b.Recipes[l.Recipe])
		}
	}
	w.finish(p)
	return w.peak()
}

// memoryWalk follows a plan. Its moments are nodes and collectives.
type memoryWalk struct {
	moments []moment
	values  []*living
	buffers map[Buffer]*tenancy
	placed  map[Hash]*Placement
}

type moment struct{ step, node int }

// living is a value, or a part of one, and how long it lives.
type living struct {
	Interval
	value *value
}

// value is a tensor whose origin counts from the layer that the label of its launch
// begins with.
type value struct {
	Alive
	label string
}

func (w *memoryWalk) now() int { return len(w.moments) - 1 }

func (w *memoryWalk) collective(c *Collective, step, ranks int) {
	w.moments = append(w.moments, moment{step, -1})
	count := c.Count
	if c.Kind == AllGather {
		count *= int64(ranks)
	}
	size := int64(c.DType.Size())
	arena := w.buffers[Arena]
	arena.read(c.In, c.Count*size)
	arena.write(c.Out, &value{Alive: Alive{
		Name: string(c.Kind), Where: string(Arena), DType: c.DType, Dims: []int64{count}, Bytes: count * size, Origin: c.Label,
	}})
}

func (w *memoryWalk) launch(l *Launch, step int, r *Recipe) {
	p := w.placed[l.Recipe]
	if p == nil {
		p = r.PlaceWorkspace()
		w.placed[l.Recipe] = p
	}
	begin := len(w.moments)
	made := make([]string, len(r.Tensors)) // the origin of its node
	of := func(t int, where string) *value {
		x := &r.Tensors[t]
		return &value{Alive{Name: x.Name, Where: where, DType: x.DType, Dims: x.Dims, Bytes: x.Bytes(), Origin: made[t]}, l.Label}
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		w.moments = append(w.moments, moment{step, i})
		for _, t := range n.In {
			if t == Absent {
				continue
			}
			owner, bytes := p.Owner[t], r.Tensors[t].Bytes()
			if to, offset := w.bound(l, &r.Tensors[owner]); to != nil {
				if to.where == string(Carry) && !to.holds(offset, r.Tensors[owner].Bytes()) {
					to.found(offset, of(owner, to.where)) // by the plan before
				}
				to.read(offset+p.At[t], bytes)
			}
		}
		for _, t := range n.Out {
			made[t] = n.Origin
			if to, offset := w.bound(l, &r.Tensors[t]); to != nil {
				to.write(offset, of(t, to.where))
			}
		}
	}
	owners, _ := p.owners(r)
	for t, iv := range owners {
		if iv != nil {
			life := Lifetime{begin + iv.Life.First, begin + iv.Life.Last}
			w.values = append(w.values, &living{Interval{Life: life, Bytes: iv.Bytes}, of(t, inWorkspace)})
		}
	}
}

// bound is the buffer in which a launch has a tensor, if it is one of those that are
// followed, and where.
func (w *memoryWalk) bound(l *Launch, t *Tensor) (to *tenancy, offset int64) {
	if t.Section == Workspace {
		return nil, 0
	}
	b := l.Bindings[t.Section]
	return w.buffers[b.Buffer], b.Offset + t.Offset
}

// finish ends the lives of what the plan leaves, and adds its inputs.
func (w *memoryWalk) finish(p *Plan) {
	arena, carry := w.buffers[Arena], w.buffers[Carry]
	for i := range p.Outputs {
		arena.read(p.Outputs[i].Offset, p.Outputs[i].Bytes())
	}
	for _, s := range carry.list {
		if s.Life.First >= 0 { // the plan has written it
			s.Life.Last = w.now()
		}
	}
	for _, t := range []*tenancy{arena, carry} {
		for _, s := range t.list {
			w.values = append(w.values, &s.living)
		}
	}
	for i := range p.Inputs {
		io := &p.Inputs[i]
		w.values = append(w.values, &living{
			Interval{Life: Lifetime{0, w.now()}, Bytes: io.Bytes()},
			&value{Alive: Alive{Name: io.Name, Where: inInputs, DType: io.DType, Dims: io.Dims, Bytes: io.Bytes()}},
		})
	}
}

func (w *memoryWalk) peak() *Memory {
	var list []*Interval
	for _, v := range w.values {
		if v.value.Where != string(Carry) {
			list = append(list, &v.Interval)
		}
	}
	m := &Memory{Step: -1, Node: -1}
	var at int
	m.Peak, at = PeakOf(list)
	if at >= 0 && at < len(w.moments) {
		m.Step, m.Node = w.moments[at].step, w.moments[at].node
	}
	index := map[*value]int{} // parts of a value together
	for _, v := range w.values {
		if v.Bytes == 0 || !v.Life.Meets(Lifetime{at, at}) {
			continue
		}
		i, ok := index[v.value]
		if !ok {
			i = len(m.Tensors)
			index[v.value] = i
			m.Tensors = append(m.Tensors, v.value.Alive)
			m.Tensors[i].Origin, m.Tensors[i].Bytes = Origin(v.value.label, v.value.Origin), 0
		}
		m.Tensors[i].Bytes += v.Bytes
		switch v.value.Where {
		case inWorkspace:
			m.WorkspaceBytes += v.Bytes
		case string(Carry):
		default:
			m.ArenaBytes += v.Bytes
		}
	}
	slices.SortStableFunc(m.Tensors, func(a, b Alive) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return m
}

// tenancy says which values the bytes of a buffer hold.
type tenancy struct {
	walk  *memoryWalk
	where string
	list  []*tenant // sorted, without overlap
}

// tenant is a value or a part of one in its place.
type tenant struct {
	lo, hi int64
	living
}

// from is the number of the first tenant that ends behind an offset.
func (t *tenancy) from(lo int64) int {
	i, _ := slices.BinarySearchFunc(t.list, lo, func(s *tenant, lo int64) int { return cmp.Compare(s.hi, lo+1) })
	return i
}

// holds reports whether a value lies in some bytes.
func (t *tenancy) holds(lo, bytes int64) bool {
	i := t.from(lo)
	return i < len(t.list) && t.list[i].lo < lo+bytes
}

// found puts a value where none is, which was there before the plan.
func (t *tenancy) found(lo int64, v *value) {
	iv := Interval{Life: Lifetime{-1, t.walk.now()}, Bytes: v.Bytes}
	t.list = slices.Insert(t.list, t.from(lo), &tenant{lo, lo + v.Bytes, living{iv, v}})
}

// read lengthens the lives of what lies in some bytes.
func (t *tenancy) read(lo, bytes int64) {
	for _, s := range t.list[t.from(lo):] {
		if s.lo >= lo+bytes {
			break
		}
		s.Life.Last = t.walk.now()
	}
}

// write ends the lives of what lies where a value is written. What is read and
// overwritten at one moment is counted once.
func (t *tenancy) write(lo int64, v *value) {
	now := t.walk.now()
	hi, at := lo+v.Bytes, t.from(lo)
	if v.Bytes == 0 {
		return
	}
	end := at
	fresh := []*tenant{{lo, hi, living{Interval{Life: Lifetime{now, now}, Bytes: v.Bytes}, v}}}
	for ; end < len(t.list) && t.list[end].lo < hi; end++ {
		s := t.list[end]
		gone := s.living
		gone.Bytes = min(s.hi, hi) - max(s.lo, lo)
		if gone.Life.Last = min(gone.Life.Last, now-1); gone.Life.Last >= gone.Life.First {
			t.walk.values = append(t.walk.values, &gone)
		}
		if s.lo < lo {
			fresh = slices.Insert(fresh, 0, s.part(s.lo, lo))
		}
		if s.hi > hi {
			fresh = append(fresh, s.part(hi, s.hi))
		}
	}
	t.list = slices.Replace(t.list, at, end, fresh...)
}

// part is the tenant in fewer bytes.
func (s *tenant) part(lo, hi int64) *tenant {
	p := *s
	p.lo, p.hi, p.Bytes = lo, hi, hi-lo
	return &p
}

// Origin is the origin of a node counted from the model's first layer rather than from
// that of its launch, which the launch's label begins with.
func Origin(label, origin string) string {
	base, by := layerOf(label), layerOf(origin)
	if base < 0 || by < 0 {
		return origin
	}
	rest := strings.TrimPrefix(origin, fmt.Sprintf("layer %d", by))
	rest = strings.Replace(rest, fmt.Sprintf(".layers.+%d.", by), fmt.Sprintf(".layers.%d.", base+by), 1)
	return fmt.Sprintf("layer %d", base+by) + rest
}
