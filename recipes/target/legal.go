package target

import (
	"errors"
	"fmt"

	"quill/recipes"
)

// CheckRecipe reports the first thing in a recipe that the target does not take, or
// takes and gets wrong, as an [IllegalError]: operands and parameters of its nodes,
// sizes, names, the order of what shares memory, an estimate of its program. Layouts of
// parameters that the profile does not have are no fault of a recipe.
func (p *Profile) CheckRecipe(r *recipes.Recipe) error {
	if err := r.Check(); err != nil {
		return err
	}
	if err := p.checkTensors(r); err != nil {
		return err
	}
	entries, err := p.checkNodes(r)
	if err != nil {
		return err
	}
	if err := checkOrder(p, r, entries); err != nil {
		return err
	}
	return p.checkProgram(r, entries)
}

// checkTensors checks what tensors are by themselves.
func (p *Profile) checkTensors(r *recipes.Recipe) error {
	fail := func(name, what, want, have string) error {
		return &IllegalError{Rule: name, Recipe: r.Name, Operand: what, Want: want, Have: have, Help: rule(name).Help}
	}
	if most := p.Limit("sections"); int64(len(r.Sections)) > most {
		return fail("sections", "sections", fmt.Sprintf("at most %d", most), fmt.Sprint(len(r.Sections)))
	}
	longest := int(p.Limit("tensor_name"))
	names := make(map[string]bool, len(r.Tensors))
	for i := range r.Tensors {
		t := &r.Tensors[i]
		switch {
		case len(t.Name) == 0 || len(t.Name) > longest:
			return fail("name-length", fmt.Sprintf("tensor %d", i), fmt.Sprintf("a name of 1 to %d characters", longest), fmt.Sprint(len(t.Name)))
		case names[t.Name]:
			return fail("name-unique", "tensor "+t.Name, "a name that no other tensor has", "a second one")
		case t.Section != recipes.Workspace && t.Offset%int64(t.DType.Size()) != 0:
			return fail("offset", "tensor "+t.Name, fmt.Sprintf("an offset that is a multiple of %d, for %s", t.DType.Size(), t.DType), fmt.Sprintf("%d in section %s", t.Offset, r.Sections[t.Section].Name))
		}
		names[t.Name] = true
	}
	return nil
}

// checkNodes checks each node by itself and gives their entries.
func (p *Profile) checkNodes(r *recipes.Recipe) ([]*Node, error) {
	entries := make([]*Node, len(r.Nodes))
	longest := int(p.Limit("node_name"))
	names := make(map[string]bool, len(r.Nodes))
	for i := range r.Nodes {
		c := nodeCheck{p: p, r: r, n: &r.Nodes[i]}
		switch name := c.n.Name; {
		case len(name) == 0 || len(name) > longest:
			return nil, c.illegal("name-length", "name", fmt.Sprintf("1 to %d characters", longest), fmt.Sprint(len(name)))
		case names[name]:
			return nil, c.illegal("name-unique", "name", "one that no other node has", name)
		default:
			names[name] = true
		}
		entry, suffix, err := c.lookup()
		if err != nil {
			return nil, err
		}
		c.entry, entries[i] = entry, entry
		_, err = c.encode(suffix)
		if _, missing := errors.AsType[*MissingError](err); err != nil && !missing {
			return nil, err
		}
		if check := shapeRules[entry.GUID]; check != nil {
			if err := check(&c); err != nil {
				return nil, err
			}
		}
	}
	return entries, nil
}
