package ir

// Use is a place where a value is read: operand Index of Op or, where Op is
// nil, value Index of the function's Return.
type Use struct {
	Op    *Op
	Index int
}

// Uses knows who uses each value of one function. Rewrites that go through its
// methods keep it up to date at a cost that depends on the uses they change,
// not on the size of the function.
type Uses struct {
	fn *Func
	of map[*Value]*useList
}

// useList may hold places that do not use the value any more: removing them is
// left to whoever walks the list next, so that a value with very many uses does
// not make each change slow.
type useList struct {
	places []Use
	live   int
}

// NewUses collects the uses of all values of a function.
func NewUses(f *Func) *Uses {
	u := &Uses{fn: f, of: make(map[*Value]*useList, len(f.Ops))}
	for _, o := range f.Ops {
		u.Add(o)
	}
	for i, v := range f.Return {
		u.add(v, Use{nil, i})
	}
	return u
}

func (u *Uses) list(v *Value) *useList {
	l := u.of[v]
	if l == nil {
		l = &useList{}
		u.of[v] = l
	}
	return l
}

func (u *Uses) add(v *Value, at Use) {
	l := u.list(v)
	l.places = append(l.places, at)
	l.live++
}

// Add notes the operands of an op that joins the function.
func (u *Uses) Add(o *Op) {
	for i, a := range o.Args {
		u.add(a, Use{o, i})
	}
}

// Remove takes an op out: it has no operands afterwards.
func (u *Uses) Remove(o *Op) {
	for _, a := range o.Args {
		u.list(a).live--
	}
	o.Args = nil
}

// Count is the number of uses, returns included.
func (u *Uses) Count(v *Value) int { return u.list(v).live }

// Of lists the uses of a value, in no order that means anything but always the
// same.
func (u *Uses) Of(v *Value) []Use {
	l := u.list(v)
	if len(l.places) != l.live {
		kept := l.places[:0]
		for _, p := range l.places {
			if u.reads(p) == v {
				kept = append(kept, p)
			}
		}
		l.places = kept
	}
	return l.places
}

// reads is the value that is used at a place, nil when the op is gone.
func (u *Uses) reads(p Use) *Value {
	switch {
	case p.Op == nil:
		return u.fn.Return[p.Index]
	case p.Index < len(p.Op.Args):
		return p.Op.Args[p.Index]
	}
	return nil
}

// Returned reports whether the function returns a value.
func (u *Uses) Returned(v *Value) bool {
	for _, p := range u.Of(v) {
		if p.Op == nil {
			return true
		}
	}
	return false
}

// ReplaceAll makes every use of old a use of v.
func (u *Uses) ReplaceAll(old, v *Value) {
	if old == v {
		return
	}
	for _, p := range u.Of(old) {
		if p.Op == nil {
			u.fn.Return[p.Index] = v
		} else {
			p.Op.Args[p.Index] = v
		}
		u.add(v, p)
	}
	u.of[old] = &useList{}
}
