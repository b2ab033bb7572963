package header

import (
	"regexp"
	"strings"

	"quill/recipes/target"
)

// initialise sets the defaults of a member's fields to a list of values. What cannot be
// computed is no default.
func (b *builder) initialise(rows []target.Field, t *ctype, list []*astValue, args map[string]*number) {
	if t != nil && t.group {
		if len(list) == 0 && !t.ctor {
			for i := range rows {
				if rows[i].Default == nil {
					rows[i].Default = []float64{0}
				}
			}
			return
		}
		if len(list) > 0 { // as computed elsewhere
			for i := range rows {
				rows[i].Default = nil
			}
		}
		return
	}
	f := &rows[0]
	f.Default = nil
	if len(list) > max(f.Count, 1) {
		return
	}
	values := []float64{}
	for _, v := range list {
		if v.Expr == nil {
			return
		}
		n, err := b.r.constants(b.in, args).expr(v.Expr)
		if err != nil {
			return
		}
		values = append(values, n.value())
	}
	if len(values) == 0 {
		values = []float64{0}
	}
	f.Default = values
}

// defaults takes what a constructor without arguments sets.
func (b *builder) defaults(a *astCtor) {
	args := map[string]*number{}
	for _, arg := range a.Args {
		n, err := b.r.constants(b.in, nil).expr(arg.Default)
		if err != nil {
			n = nil
		}
		args[arg.Name] = n
	}
	for _, init := range a.Inits {
		name := init.Name.String()
		rows := b.rows(name)
		if rows == nil { // a base, which sets its own
			continue
		}
		// Parts of an inner structure have longer names.
		t := &ctype{group: rows[0].Name != name, ctor: true}
		b.initialise(rows, t, init.List, args)
	}
	if a.Rest.Body != nil {
		b.assignments(a.Rest.Body, args)
	}
}

// rows are the fields of a member.
func (b *builder) rows(name string) []target.Field {
	first, n := 0, 0
	for i, f := range b.c.fields {
		if f.Name == name || strings.HasPrefix(f.Name, name+".") || strings.HasPrefix(f.Name, name+"[") {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return b.c.fields[first : first+n]
}

// assignment is a statement that sets a field, or an element of it.
var assignment = regexp.MustCompile(`^(?:this -> )?([A-Za-z_]\w*(?: \. [A-Za-z_]\w*)*)(?: \[ (.*) \])? = (.*)$`)

// assignments takes what the body of a constructor sets, up to the first block.
func (b *builder) assignments(body *astBody, args map[string]*number) {
	var words []string
	for _, item := range body.Items {
		if item.Body != nil {
			return
		}
		if item.Token != ";" {
			words = append(words, item.Token)
			continue
		}
		m := assignment.FindStringSubmatch(strings.Join(words, " "))
		words = nil
		if m != nil {
			b.assign(strings.ReplaceAll(m[1], " ", ""), m[2], m[3], args)
		}
	}
}

func (b *builder) assign(name, index, value string, args map[string]*number) {
	for i := range b.c.fields {
		f := &b.c.fields[i]
		if f.Name != name {
			continue
		}
		env := b.r.constants(b.in, args)
		n, err := env.text(value, b.c.at)
		if err != nil {
			f.Default = nil
			return
		}
		at := integer(0)
		if index != "" {
			at, err = env.text(index, b.c.at)
		}
		if err != nil || at.float || at.i < 0 || at.i >= int64(max(f.Count, 1)) {
			f.Default = nil
			return
		}
		for int64(len(f.Default)) <= at.i {
			f.Default = append(f.Default, 0)
		}
		f.Default[at.i] = n.value()
		return
	}
}
