package inkling

import "fmt"

// Tensor is a tensor of a checkpoint.
type Tensor struct {
	Name  string
	DType string // as safetensors spells it: BF16, F32
	Shape []int64
	Part  string
}

// Parts of a checkpoint.
const (
	Text       = "text"
	VisionPart = "vision"
	AudioPart  = "audio"
	MTPPart    = "mtp"
)

// Tensors lists every tensor of a checkpoint in the published layout: names,
// shapes ([out, in], row-major) and element types.
func (c *Config) Tensors() []Tensor {
	t := tensorList{part: Text}
	t.bf16("model.llm.embed.weight", c.Vocab, c.Hidden)
	t.bf16("model.llm.embed_norm.weight", c.Hidden)
	t.bf16("model.llm.norm.weight", c.Hidden)
	t.bf16("model.llm.unembed.weight", c.Vocab, c.Hidden)
	for l := range c.Layers {
		p := fmt.Sprintf("model.llm.layers.%d.", l)
		c.block(&t, p, c.Attention(l))
		if c.IsDense(l) {
			c.denseMLP(&t, p)
		} else {
			c.moeMLP(&t, p)
		}
	}
	if c.Audio != nil {
		t.part = AudioPart
		t.bf16("model.audio.encoder.weight", c.Audio.Mels*c.Audio.MelVocab, c.Audio.Hidden)
		t.bf16("model.audio.final_norm.weight", c.Audio.Hidden)
	}
	if c.Vision != nil {
		t.part = VisionPart
		c.Vision.tensors(&t)
	}
	if c.MTP != nil {
		t.part = MTPPart
		c.mtp(&t)
	}
	return t.list
}

type tensorList struct {
	part string
	list []Tensor
}

func (t *tensorList) add(dtype, name string, dims ...int) {
	shape := make([]int64, len(dims))
	for i, d := range dims {
		shape[i] = int64(d)
	}
	t.list = append(t.list, Tensor{Name: name, DType: dtype, Shape: shape, Part: t.part})
}

func (t *tensorList) bf16(name string, dims ...int) { t.add("BF16", name, dims...) }

// block lists attention, norms and short convolutions of a layer.
func (c *Config) block(t *tensorList, p string, a Attention) {
	q, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	t.bf16(p+"attn_norm.weight", c.Hidden)
	t.bf16(p+"mlp_norm.weight", c.Hidden)
	t.bf16(p+"attn.wq_du.weight", q, c.Hidden)
	t.bf16(p+"attn.wk_dv.weight", kv, c.Hidden)
	t.bf16(p+"attn.wv_dv.weight", kv, c.Hidden)
	t.bf16(p+"attn.wr_du.weight", a.Heads*c.DRel, c.Hidden)
	t.bf16(p+"attn.wo_ud.weight", c.Hidden, q)
	t.bf16(p+"attn.q_norm.weight", a.HeadDim)
	t.bf16(p+"attn.k_norm.weight", a.HeadDim)
	t.bf16(p+"attn.rel_logits_proj.proj", c.DRel, a.Extent)
	t.bf16(p+"attn.k_sconv.weight", kv, 1, convTaps)
	t.bf16(p+"attn.v_sconv.weight", kv, 1, convTaps)
	t.bf16(p+"attn_sconv.weight", c.Hidden, 1, convTaps)
	t.bf16(p+"mlp_sconv.weight", c.Hidden, 1, convTaps)
}

func (c *Config) denseMLP(t *tensorList, p string) {
	t.bf16(p+"mlp.w13_dn.weight", 2*c.DenseWidth, c.Hidden)
	t.bf16(p+"mlp.w2_md.weight", c.Hidden, c.DenseWidth)
	t.bf16(p+"mlp.global_scale", 1)
}

func (c *Config) moeMLP(t *tensorList, p string) {
	t.bf16(p+"mlp.gate.weight", c.Experts+c.Shared, c.Hidden)
	t.add("F32", p+"mlp.gate.bias", c.Experts)
	t.add("F32", p+"mlp.gate.global_scale", 1)
	t.bf16(p+"mlp.experts.w13_weight", c.Experts, 2*c.ExpertWidth, c.Hidden)
	t.bf16(p+"mlp.experts.w2_weight", c.Experts, c.Hidden, c.ExpertWidth)
	if c.Shared > 0 {
		t.bf16(p+"mlp.shared_experts.shared_w13_weight", c.Shared, 2*c.ExpertWidth, c.Hidden)
		t.bf16(p+"mlp.shared_experts.shared_w2_weight", c.Shared, c.Hidden, c.ExpertWidth)
	}
}

func (c *Config) mtp(t *tensorList) {
	for d := range c.MTP.Depths {
		p := fmt.Sprintf("model.mtp.layers.%d.", d)
		t.bf16(p+"hidden_norm.weight", c.Hidden)
		t.bf16(p+"embed_norm.weight", c.Hidden)
		t.bf16(p+"input_proj.weight", c.Hidden, 2*c.Hidden)
		a := c.Global
		if c.MTP.IsLocal[d] {
			a = c.Local
		}
		c.block(t, p+"transformer_block.", a)
		c.denseMLP(t, p+"transformer_block.")
	}
}

// tensors lists the image tower. Each of its layers folds time, height and
// width blocks of the grid into channels; the folds are the released
// configuration's (patch 40×40, two frames), widths follow from them.
func (v *Vision) tensors(t *tensorList) {
	folds := []int{5 * 5, 2 * 2, 4 * 4}
	outs := []int{128, 320, 4800}
	width := v.Channels
	for i, f := range folds {
		t.bf16(fmt.Sprintf("model.visual.layers.linear_%d.weight", i), outs[i], width*f)
		width = outs[i]
	}
	t.bf16("model.visual.layers.linear_3.weight", v.Hidden, width*v.TemporalPatch)
	for i, n := range outs {
		t.bf16(fmt.Sprintf("model.visual.layers.norm_%d.weight", i), n)
	}
	t.bf16("model.visual.final_norm.weight", v.Hidden)
}

// convTaps is sconv_kernel_size: a short convolution sees its token and the
// three before it.
const convTaps = 4
