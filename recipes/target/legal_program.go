package target

import (
	"fmt"
	"hash/maphash"
	"slices"

	"quill/recipes"
)

// Program is an estimate of what a recipe takes of the device's pool of programs.
type Program struct {
	Operations int64 // of the device
	Experts    int64 // of all nodes of experts, of the operations so many each
	Kernels    int64 // that differ
	Bytes      int64
}

// Program estimates the program of a recipe whose nodes the profile has:
//
//	operations · program_node + kernels · program_kernel
//
// A node is one operation, and another one for each sram of bytes that its operands have
// beyond the first; what is only another view of bytes is none. A node of experts is
// program_experts of them for each. A kernel of the vector engines is a GUID with types and
// ranks of its operands. The limits of these names say what is not known.
func (p *Profile) Program(r *recipes.Recipe) Program {
	entries := make([]*Node, len(r.Nodes))
	for i := range r.Nodes {
		entries[i], _, _ = p.Node(r.Nodes[i].GUID)
	}
	return p.program(r, entries)
}

func (p *Profile) program(r *recipes.Recipe, entries []*Node) Program {
	var e Program
	sram := p.Limit("sram")
	kernels := map[uint64]bool{}
	var h maphash.Hash
	for i := range r.Nodes {
		n, entry := &r.Nodes[i], entries[i]
		if entry == nil || entry.Engine == Alias {
			continue
		}
		in := n.In
		if entry.GUID == expertsGUID { // whose weights are its experts'
			e.Experts += int64(len(in)-expertOperands) / 2
			in = in[:expertOperands]
		}
		h.Reset()
		h.WriteString(n.GUID)
		bytes := int64(0)
		for _, t := range slices.Concat(in, n.Out) {
			bytes += kernelOperand(&h, r, t)
		}
		e.Operations += max(1, (bytes+sram-1)/sram)
		if entry.Engine == Vector {
			kernels[h.Sum64()] = true
		}
	}
	e.Operations += e.Experts * p.Limit("program_experts")
	e.Kernels = int64(len(kernels))
	e.Bytes = e.Operations*p.Limit("program_node") + e.Kernels*p.Limit("program_kernel")
	return e
}

// expertsGUID is the node of experts, which has so many operands before their weights.
const (
	expertsGUID    = "moe"
	expertOperands = 3
)

// kernelOperand adds what a kernel is made for to its hash, and gives the operand's bytes.
func kernelOperand(h *maphash.Hash, r *recipes.Recipe, t int) int64 {
	if t == recipes.Absent {
		h.WriteByte(0)
		return 0
	}
	x := &r.Tensors[t]
	h.WriteByte(byte(x.DType))
	h.WriteByte(byte(len(x.Dims)))
	return x.Bytes()
}

func (p *Profile) checkProgram(r *recipes.Recipe, entries []*Node) error {
	e, most := p.program(r, entries), p.Limit("program_data")
	if e.Bytes <= most {
		return nil
	}
	err := &IllegalError{
		Rule: "program-data", Recipe: r.Name, Operand: "program",
		Want: fmt.Sprintf("at most %d bytes", most),
		Have: fmt.Sprintf("an estimate of %d, for %d operations (%d experts among them) and %d kernels", e.Bytes, e.Operations, e.Experts, e.Kernels),
		Help: rule("program-data").Help,
	}
	if e.Experts > 0 {
		unit := p.Limit("program_experts") * p.Limit("program_node")
		err.Help += fmt.Sprintf("; at most %d experts fit a recipe beside its other nodes, and moe: gather needs none of their code (moe_experts_per_node makes more nodes of one recipe, so it does not help)", max(0, (most-e.Bytes+e.Experts*unit)/unit))
	}
	return err
}
