package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/ir"
	"quill/ir/interp"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// evaluation finds the arguments of a function.
type evaluation struct {
	mod   *ir.Module
	fn    *ir.Func
	files []*safetensors.File // those asked first come first
	env   map[string]int64    // of symbols that are known so far
	zero  bool                // states without a tensor are zeros
}

// input is a parameter and the tensor that it gets.
type input struct {
	param  *ir.Param
	tensor safetensors.Tensor
	raw    bool // the tensor is as the checkpoint has it, and the source says how to view it
	zero   bool // there is no tensor: zeros
}

// args reads all parameters and gives each rank its parts.
func (e *evaluation) args() ([]map[string]*interp.Tensor, error) {
	list, err := e.findAll()
	if err != nil {
		return nil, err
	}
	if err := e.infer(list); err != nil {
		return nil, err
	}
	args := make([]map[string]*interp.Tensor, e.mod.TP)
	for rank := range args {
		args[rank] = map[string]*interp.Tensor{}
	}
	give := func(p *ir.Param, parts []*interp.Tensor) {
		for rank := range args {
			args[rank][p.Name] = parts[rank]
		}
	}
	for _, p := range e.fn.Params {
		if p.Source.PerRank {
			parts, err := interp.Weight(e.mod, p, e.env, nil)
			if err != nil {
				return nil, err
			}
			give(p, parts)
		}
	}
	for i := range list {
		parts, err := e.parts(&list[i])
		if err != nil {
			return nil, err
		}
		give(list[i].param, parts)
	}
	return args, nil
}

// findAll finds the tensors of all parameters that need one.
func (e *evaluation) findAll() ([]input, error) {
	var list []input
	var missing []*ir.Param
	for _, p := range e.fn.Params {
		if p.Source.PerRank {
			continue
		}
		if p.Value.Type.Dist.Kind == ir.Partial {
			return nil, fmt.Errorf("%%%s of @%s is a partial sum, which no tensor of all ranks together is; interpret the function that calls @%s", p.Name, e.fn.Name, e.fn.Name)
		}
		in, ok := e.find(p)
		if !ok {
			missing = append(missing, p)
			continue
		}
		if rank := p.Value.Type.Rank(); !in.raw && !in.zero && len(in.tensor.Shape) != rank {
			return nil, fmt.Errorf("%s: tensor %s has %s, want %d: %s %%%s is %s", in.tensor.File, in.tensor.Name,
				count(len(in.tensor.Shape), "dimension"), rank, p.Kind, p.Name, e.whole(p))
		}
		list = append(list, in)
	}
	return list, e.missingError(missing)
}

// find finds the tensor of a parameter.
func (e *evaluation) find(p *ir.Param) (in input, ok bool) {
	for _, f := range e.files {
		for i, name := range tensorsFor(p) {
			if t, ok := f.Tensor(name); ok {
				return input{param: p, tensor: t, raw: p.Source.Tensor != "" && i == 0}, true
			}
		}
	}
	return input{param: p, zero: true}, e.zero && p.Kind == ir.State
}

// tensorsFor are the names that the tensor of a parameter may have.
func tensorsFor(p *ir.Param) []string {
	if p.Source.Tensor != "" {
		return []string{p.Source.Tensor, p.Name}
	}
	return []string{p.Name}
}

// maxAlike is how many missing weights are listed, and states: a model has hundreds.
const maxAlike = 5

// missingError says which parameters have no tensor.
func (e *evaluation) missingError(missing []*ir.Param) error {
	if len(missing) == 0 {
		return nil
	}
	var lines []string
	kinds := map[ir.Kind]int{}
	for _, p := range missing {
		kinds[p.Kind]++
		if p.Kind != ir.Weight && p.Kind != ir.State || kinds[p.Kind] <= maxAlike {
			lines = append(lines, e.missingText(p))
		}
	}
	for _, kind := range []ir.Kind{ir.Weight, ir.State} {
		if more := kinds[kind] - maxAlike; more > 0 {
			lines = append(lines, count(more, "more "+kind.String()))
		}
	}
	var help []string
	if len(e.files) == 0 {
		help = append(help, "; give a file with --inputs")
	}
	if kinds[ir.State] > 0 {
		help = append(help, "; --zero-states makes states zeros")
	}
	if len(lines) == 1 {
		return fmt.Errorf("there is no tensor for %s%s", lines[0], strings.Join(help, ""))
	}
	return fmt.Errorf("there are no tensors for %d parameters%s\n  %s", len(missing), strings.Join(help, ""), strings.Join(lines, "\n  "))
}

// missingText is a parameter without tensor, and what it could be.
func (e *evaluation) missingText(p *ir.Param) string {
	text := fmt.Sprintf("%s %%%s, which is %s", p.Kind, p.Name, e.whole(p))
	names := tensorsFor(p)
	if len(names) > 1 && names[0] != names[1] {
		text += fmt.Sprintf("; it could be %q of the checkpoint or %q", names[0], names[1])
	}
	var have []string
	for _, f := range e.files {
		for _, t := range f.Tensors() {
			have = append(have, t.Name)
		}
	}
	for _, name := range names {
		if near := ir.DidYouMean(name, have); near != "" {
			return text + "; " + near
		}
	}
	return text
}

// whole is the type that a parameter has as all ranks together hold it.
func (e *evaluation) whole(p *ir.Param) ir.Type {
	return ir.Type{DType: p.Value.Type.DType, Shape: wholeShape(p)}
}

func wholeShape(p *ir.Param) []ir.Dim {
	t := p.Value.Type
	shape := slices.Clone(t.Shape)
	if t.Dist.Kind == ir.Sharded {
		shape[t.Dist.Axis] = shape[t.Dist.Axis].Mul(ir.D(int64(t.Dist.Ways)))
	}
	return shape
}

// infer finds the values of symbols: a size that holds one unknown symbol, in the
// first power, tells it.
func (e *evaluation) infer(list []input) error {
	for again := true; again; {
		again = false
		for i := range list {
			in := &list[i]
			shape := wholeShape(in.param)
			if in.raw || in.zero {
				continue
			}
			for axis, d := range shape {
				if name, n, ok := solve(d, in.tensor.Shape[axis], e.env); ok {
					e.env[name] = n
					again = true
				}
			}
		}
	}
	for _, s := range e.mod.Syms {
		if _, ok := e.env[s.Name]; !ok && s.Def == nil {
			return fmt.Errorf("no shape of an input tells the symbol %s; give it with --set %s=N", s.Name, s.Name)
		}
	}
	for name := range e.env { // derived ones are computed
		for _, s := range e.mod.Syms {
			if s.Name == name && s.Def != nil {
				delete(e.env, name)
			}
		}
	}
	env, err := e.mod.Env(e.env)
	if err != nil {
		return err
	}
	e.env = env
	return nil
}

// solve finds the one unknown symbol of a size that has a value.
func solve(d ir.Dim, n int64, env map[string]int64) (name string, v int64, ok bool) {
	for _, s := range d.Symbols(nil) {
		if _, known := env[s]; known {
			continue
		}
		if name != "" { // two, or the square of one
			return "", 0, false
		}
		name = s
	}
	if name == "" {
		return "", 0, false
	}
	at := func(x int64) int64 {
		with := map[string]int64{name: x}
		for k, v := range env {
			with[k] = v
		}
		y, err := d.Eval(with)
		if err != nil {
			return 0
		}
		return y
	}
	slope := at(1) - at(0)
	if slope == 0 || (n-at(0))%slope != 0 {
		return "", 0, false
	}
	return name, (n - at(0)) / slope, true
}

// parts is what each rank gets of a parameter's tensor.
func (e *evaluation) parts(in *input) ([]*interp.Tensor, error) {
	p := in.param
	want := e.whole(p)
	shape, err := e.sizes(want)
	if err != nil {
		return nil, err
	}
	if in.zero {
		return interp.Shard(interp.Zeros(want.DType, shape...), p.Value.Type.Dist, e.mod.TP)
	}
	x, err := fromSafetensor(&in.tensor)
	if err != nil {
		return nil, err
	}
	if in.raw {
		return interp.Weight(e.mod, p, e.env, x)
	}
	if x.DType != want.DType || !slices.Equal(x.Shape, shape) {
		help := ""
		if x.DType == dtype.I64 && want.DType == dtype.I32 {
			help = "; write it as I32"
		}
		return nil, fmt.Errorf("%s: tensor %s is %s%s, %s %%%s is %s%s%s", in.tensor.File, in.tensor.Name,
			x.DType, shapeText(x.Shape), p.Kind, p.Name, want, e.valuesText(want, shape), help)
	}
	return interp.Shard(x, p.Value.Type.Dist, e.mod.TP)
}

// sizes are a type's shape in numbers.
func (e *evaluation) sizes(t ir.Type) ([]int64, error) {
	shape := make([]int64, t.Rank())
	for i, d := range t.Shape {
		var err error
		if shape[i], err = d.Eval(e.env); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// valuesText says what a type's symbolic shape is here.
func (e *evaluation) valuesText(t ir.Type, shape []int64) string {
	var syms []string
	for _, d := range t.Shape {
		syms = d.Symbols(syms)
	}
	if len(syms) == 0 {
		return ""
	}
	slices.Sort(syms)
	var values []string
	for _, s := range slices.Compact(syms) {
		values = append(values, fmt.Sprintf("%s = %d", s, e.env[s]))
	}
	return fmt.Sprintf(", that is %s with %s", shapeText(shape), strings.Join(values, ", "))
}

func shapeText(shape []int64) string {
	return "[" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(shape)), ", "), "[]") + "]"
}

// fromSafetensor is a tensor of a file as the interpreter takes it.
func fromSafetensor(t *safetensors.Tensor) (*interp.Tensor, error) {
	dt, ok := t.Type()
	if !ok {
		return nil, fmt.Errorf("%s: tensor %s has elements of %s, which the IR does not have", t.File, t.Name, t.DType)
	}
	return tensorOf(dt, t.Shape, t.Data), nil
}

// tensorOf is a tensor of little-endian elements, as many as the shape has.
func tensorOf(dt dtype.Type, shape []int64, data []byte) *interp.Tensor {
	x := interp.Zeros(dt, shape...)
	le := binary.LittleEndian
	for i := range x.F {
		if dt == dtype.BF16 {
			x.F[i] = dtype.FromBF16(le.Uint16(data[2*i:]))
		} else {
			x.F[i] = math.Float32frombits(le.Uint32(data[4*i:]))
		}
	}
	for i := range x.I {
		switch dt {
		case dtype.I8:
			x.I[i] = int64(int8(data[i]))
		case dtype.U8:
			x.I[i] = int64(data[i])
		case dtype.I32:
			x.I[i] = int64(int32(le.Uint32(data[4*i:])))
		default:
			x.I[i] = int64(le.Uint64(data[8*i:]))
		}
	}
	return x
}

// toSafetensor is the reverse.
func toSafetensor(name string, x *interp.Tensor) (safetensors.Tensor, error) {
	t := safetensors.Tensor{Name: name, DType: strings.ToUpper(x.DType.String()), Shape: x.Shape}
	if got, ok := t.Type(); !ok || got != x.DType {
		return t, fmt.Errorf("files have no tensors of %s", x.DType)
	}
	le := binary.LittleEndian
	for _, f := range x.F {
		if x.DType == dtype.BF16 {
			t.Data = le.AppendUint16(t.Data, dtype.ToBF16(f))
		} else {
			t.Data = le.AppendUint32(t.Data, math.Float32bits(f))
		}
	}
	for _, n := range x.I {
		switch x.DType.Size() {
		case 1:
			t.Data = append(t.Data, byte(n))
		case 4:
			t.Data = le.AppendUint32(t.Data, uint32(n))
		default:
			t.Data = le.AppendUint64(t.Data, uint64(n))
		}
	}
	return t, nil
}
