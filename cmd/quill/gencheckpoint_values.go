package main

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strings"

	"quill/ir/inkling"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// law is the distribution of a tensor's elements: normal, cut at some four
// deviations.
type law struct{ mean, dev float64 }

// lawOf chooses a tensor's law so that activations stay of order 1: norms and
// scales are around 1, projections keep the size of what they project, and
// those that end in the residual stream share it among all layers.
func lawOf(c *inkling.Config, name string, shape []int64) law {
	fanIn := 1 / math.Sqrt(float64(shape[len(shape)-1]))
	switch suffix := name[strings.LastIndex(strings.TrimSuffix(name, ".weight"), ".")+1:]; {
	case strings.HasSuffix(suffix, "norm.weight"), suffix == "global_scale":
		return law{1, 0.1}
	case strings.HasSuffix(suffix, "sconv.weight"):
		return law{0, fanIn / 2} // beside the residual that is added to it
	case suffix == "bias":
		return law{0, 0.01} // of the router: it only breaks ties
	case suffix == "embed.weight":
		return law{0, 1} // a norm follows
	case suffix == "unembed.weight":
		return law{0, fanIn * c.MuP} // what the logits are divided by
	case suffix == "proj":
		return law{0, 1 / math.Sqrt(float64(c.DRel))} // [d_rel, extent]
	case suffix == "wo_ud.weight", suffix == "w2_md.weight", suffix == "w2_weight", suffix == "shared_w2_weight":
		return law{0, fanIn / math.Sqrt(float64(2*c.Layers))}
	}
	return law{0, fanIn}
}

// values makes the elements of all tensors of a checkpoint.
//
// Word i, eight bytes, of a tensor's data is made from 64 random bits, the
// output i of SplitMix64 with a seed of the tensor's own: four bf16 or two f32
// elements, each 16 of the bits. These choose one of 65536 equally likely
// values, the quantiles of the tensor's law.
type values struct {
	config *inkling.Config
	seed   uint64
	bf16   map[law]*[1 << 16]uint16
	f32    map[law]*[1 << 16]uint32
}

func newValues(c *inkling.Config, seed uint64) *values {
	v := &values{c, seed, make(map[law]*[1 << 16]uint16), make(map[law]*[1 << 16]uint32)}
	quantiles := normalQuantiles()
	for _, t := range c.Tensors() {
		if t.Part != inkling.Text {
			continue
		}
		l := lawOf(c, t.Name, t.Shape)
		if t.DType == "F32" && v.f32[l] == nil {
			v.f32[l] = new([1 << 16]uint32)
			for i, q := range quantiles {
				v.f32[l][i] = math.Float32bits(l.at(q))
			}
		}
		if t.DType == "BF16" && v.bf16[l] == nil {
			v.bf16[l] = new([1 << 16]uint16)
			for i, q := range quantiles {
				v.bf16[l][i] = dtype.ToBF16(l.at(q))
			}
		}
	}
	return v
}

// at is the element that lies q deviations from the mean.
func (l law) at(q float64) float32 { return float32(l.mean + float64(l.dev*q)) }

// normalQuantiles are the middles of 65536 equally likely parts of the standard
// normal distribution, in ascending order: from -4.3 to 4.3. They are rounded
// to multiples of 2^-20, so that machines whose math functions differ in the
// last bit still agree.
func normalQuantiles() *[1 << 16]float64 {
	q := new([1 << 16]float64)
	for i := range q {
		p := (float64(i) + 0.5) / float64(len(q))
		q[i] = math.Round(math.Sqrt2*math.Erfinv(2*p-1)*(1<<20)) / (1 << 20)
	}
	return q
}

// fill makes bytes [offset, offset+len(chunk)) of a tensor's data.
func (v *values) fill(t *safetensors.Tensor, offset int64, chunk []byte) {
	const word = 8
	l := lawOf(v.config, t.Name, t.Shape)
	put := func(dst []byte, first, state uint64) { fillBF16(dst, first, state, v.bf16[l]) }
	if t.DType == "F32" {
		put = func(dst []byte, first, state uint64) { fillF32(dst, first, state, v.f32[l]) }
	}
	state := tensorSeed(v.seed, t.Name)
	var part [word]byte
	if skip := offset % word; skip > 0 { // it begins within a word
		put(part[:], uint64(offset/word), state)
		n := copy(chunk, part[skip:])
		chunk, offset = chunk[n:], offset+int64(n)
	}
	whole := len(chunk) / word * word
	first := uint64(offset / word)
	put(chunk[:whole], first, state)
	if whole < len(chunk) {
		put(part[:], first+uint64(whole/word), state)
		copy(chunk[whole:], part[:])
	}
}

// tensorSeed makes a tensor's stream independent of those of all others.
func tensorSeed(seed uint64, name string) uint64 {
	sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, seed), name...))
	return binary.LittleEndian.Uint64(sum[:])
}

func fillBF16(dst []byte, first, seed uint64, table *[1 << 16]uint16) {
	for i := first; len(dst) >= 8; i++ {
		z := splitMix(seed, i)
		w := uint64(table[uint16(z)]) | uint64(table[uint16(z>>16)])<<16 |
			uint64(table[uint16(z>>32)])<<32 | uint64(table[uint16(z>>48)])<<48
		binary.LittleEndian.PutUint64(dst, w)
		dst = dst[8:]
	}
}

func fillF32(dst []byte, first, seed uint64, table *[1 << 16]uint32) {
	for i := first; len(dst) >= 8; i++ {
		z := splitMix(seed, i)
		binary.LittleEndian.PutUint64(dst, uint64(table[uint16(z)])|uint64(table[uint16(z>>32)])<<32)
		dst = dst[8:]
	}
}

// splitMix is output i of SplitMix64 (Steele, Lea and Flood, 2014).
func splitMix(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
