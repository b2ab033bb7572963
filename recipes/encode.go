package recipes

import (
	"bytes"
	"errors"
	"fmt"
)

// errSpelling is data that says something in another way than Encode does.
var errSpelling = errors.New("is not in the canonical form")

// Encode writes the canonical bytes of a recipe.
func (r *Recipe) Encode() []byte { return encode(recipeKind, r.code) }

// Hash is the content hash of a recipe.
func (r *Recipe) Hash() Hash { return Sum(r.Encode()) }

// DecodeRecipe reads the recipe whose content hash is want. Data that is not the
// canonical bytes of that very recipe is an error.
func DecodeRecipe(data []byte, want Hash) (*Recipe, error) {
	if sum := Sum(data); sum != want {
		return nil, fmt.Errorf("is damaged: its content has hash %v", sum)
	}
	r := new(Recipe)
	if err := decodeBytes(data, recipeKind, r.code); err != nil {
		return nil, err
	}
	if !bytes.Equal(r.Encode(), data) {
		return nil, errSpelling
	}
	return r, nil
}

// Encode writes the canonical bytes of a plan.
func (p *Plan) Encode() []byte { return encode(planKind, p.code) }

// DecodePlan reads a plan, like DecodeRecipe.
func DecodePlan(data []byte, want Hash) (*Plan, error) {
	if sum := Sum(data); sum != want {
		return nil, fmt.Errorf("is damaged: its content has hash %v", sum)
	}
	p := new(Plan)
	if err := decodeBytes(data, planKind, p.code); err != nil {
		return nil, err
	}
	if !bytes.Equal(p.Encode(), data) {
		return nil, errSpelling
	}
	return p, nil
}

func (r *Recipe) code(c *coder) {
	c.text(&r.Name)
	list(c, &r.Sections, func(s *Section) {
		c.text(&s.Name)
		word(c, &s.Buffer)
		c.int64(&s.Size)
	})
	list(c, &r.Tensors, func(t *Tensor) {
		c.text(&t.Name)
		c.dtype(&t.DType)
		list(c, &t.Dims, c.int64)
		c.int(&t.Section)
		c.int64(&t.Offset)
	})
	list(c, &r.Nodes, func(n *Node) { n.code(c) })
}

func (n *Node) code(c *coder) {
	c.text(&n.Name)
	c.text(&n.GUID)
	list(c, &n.In, c.int)
	list(c, &n.Out, c.int)
	optional(c, &n.Params, func(p *Params) {
		c.text(&p.Struct)
		list(c, &p.Fields, func(f *Field) {
			c.text(&f.Name)
			word(c, &f.Type)
			list(c, &f.Ints, c.int64)
			c.float(&f.Float)
			c.text(&f.Sym)
		})
	})
	list(c, &n.After, c.int)
	c.text(&n.Origin)
}

func (p *Plan) code(c *coder) {
	p.Bucket.code(c)
	c.text(&p.Family)
	list(c, &p.Inputs, func(io *IO) { io.code(c) })
	list(c, &p.Outputs, func(io *IO) { io.code(c) })
	list(c, &p.Steps, func(s *Step) {
		optional(c, &s.Launch, func(l *Launch) { l.code(c) })
		optional(c, &s.Collective, func(k *Collective) { k.code(c) })
	})
	c.int64(&p.ArenaBytes)
	c.int64(&p.LayerBytes)
	c.int64(&p.WorkspaceBytes)
	c.int64(&p.CarryBytes)
}

func (b *Bucket) code(c *coder) {
	word(c, &b.Phase)
	c.int(&b.Seqs)
	c.int(&b.Query)
	c.int(&b.Blocks)
}

func (io *IO) code(c *coder) {
	c.text(&io.Name)
	c.dtype(&io.DType)
	list(c, &io.Dims, c.int64)
	c.int64(&io.Offset)
}

func (l *Launch) code(c *coder) {
	c.hash(&l.Recipe)
	list(c, &l.Bindings, func(b *Binding) {
		word(c, &b.Buffer)
		c.int64(&b.Offset)
	})
	c.text(&l.Label)
	c.text(&l.Break)
}

// hash codes a hash as a text, since launches of one recipe repeat it.
func (c *coder) hash(h *Hash) {
	text := string(h[:])
	if c.text(&text); !c.reading {
		return
	}
	if c.err == nil && len(text) != len(h) {
		c.fail(fmt.Errorf("a hash of %d bytes", len(text)))
	}
	copy(h[:], text)
}

func (k *Collective) code(c *coder) {
	word(c, &k.Kind)
	c.dtype(&k.DType)
	c.int64(&k.Count)
	c.int64(&k.In)
	c.int64(&k.Out)
	c.text(&k.Label)
}
