package ops

const everywhere = Model | Fused

func operand(name string, e Elem, doc string) Operand { return Operand{Name: name, Elem: e, Doc: doc} }

func binary(name, summary string, e Elem, d Dist, t Trait, example string) Op {
	return Op{
		Name: name, Summary: summary, Dist: d, Levels: everywhere, Traits: Pure | Elementwise | t,
		Operands: []Operand{operand("x", e, ""), operand("y", e, "")},
		Results:  []string{"z"}, Example: example,
	}
}

func unary(name, summary string, e Elem, d Dist, example string) Op {
	return Op{
		Name: name, Summary: summary, Dist: d, Levels: everywhere, Traits: Pure | Elementwise,
		Operands: []Operand{operand("x", e, "")},
		Results:  []string{"y"}, Example: example,
	}
}

var axisAttr = Attr{Name: "axis", Type: Int, Doc: "axis, counted from the slowest"}

var (
	sdpaOperands = []Operand{
		operand("q", AnyFloat, "[kvHeads, group, Sq, D], or with an axis for a batch before it: [batch, kvHeads, group, Sq, D]"),
		operand("k", AnyFloat, "[kvHeads, 1, Sk, D], or [batch, kvHeads, 1, Sk, D]"), operand("v", AnyFloat, "[kvHeads, 1, Sk, Dv], or [batch, kvHeads, 1, Sk, Dv]"),
		{Name: "mask", Elem: AnyFloat, Doc: "[…, Sk], added to the scaled scores; other axes those of the scores or 1; without it all rows see all keys", Optional: true},
	}
	sdpaAttrs = []Attr{
		{Name: "scale", Type: Float, Doc: "multiplies the scores"},
		{Name: "first", Type: Dim, Optional: true, Doc: "a fact: the mask hides keys before i + first from row i, if the row's result counts"},
		{Name: "last", Type: Dim, Optional: true, Doc: "a fact: the mask hides keys after i + last from row i, if its result counts"},
		{Name: "band", Type: Dim, Optional: true, Doc: "a fact: the mask is 0 for keys before i + band, if row i's result counts and the key holds a token"},
	}
)

const sdpaExample = "%q = reshape %x {shape = [1, 1, 4, 8]}\n%s = slice %x {axis = 1, start = 0, stop = 4}\n%m = reshape %s {shape = [1, 1, 4, 4]}\n"

// Table lists every operation of the IR.
var Table = []Op{
	// Constants.
	{
		Name: "const", Summary: "A scalar constant, shape [1].", Dist: DistConst, Levels: everywhere, Traits: Pure,
		Attrs:   []Attr{{Name: "value", Type: Float, Lead: true, Doc: "the value, exactly representable in dtype after one rounding"}, {Name: "dtype", Type: DType, Doc: "element type"}},
		Results: []string{"c"}, Example: "%c = const 0.125 {dtype = f32}",
	},
	{
		Name: "iota", Summary: "0, 1, … size−1 as i32 [size].", Dist: DistConst, Levels: everywhere, Traits: Pure,
		Attrs: []Attr{{Name: "size", Type: Dim, Doc: "number of elements"}}, Results: []string{"i"},
		Example: "%i = iota {size = 16}",
	},

	// Element by element, with broadcasting of size-1 axes between operands of equal rank.
	binary("add", "x + y.", Number, DistAdd, Commutative, "%z = add %x, %y"),
	binary("sub", "x − y.", Number, DistAdd, 0, "%z = sub %x, %y"),
	binary("mul", "x · y.", Number, DistMul, Commutative, "%z = mul %x, %y"),
	binary("div", "x / y.", AnyFloat, DistElementwise, 0, "%z = div %x, %y"),
	binary("max", "The larger of x and y.", Number, DistElementwise, Commutative, "%z = max %x, %y"),
	binary("min", "The smaller of x and y.", Number, DistElementwise, Commutative, "%z = min %x, %y"),
	binary("lt", "x < y as a predicate.", Number, DistElementwise, 0, "%z = lt %x, %y"),
	binary("le", "x ≤ y as a predicate.", Number, DistElementwise, 0, "%z = le %x, %y"),
	binary("eq", "x = y as a predicate.", Number, DistElementwise, Commutative, "%z = eq %x, %y"),
	binary("and", "Both predicates hold.", Pred, DistElementwise, Commutative, "%p = lt %x, %y\n%q = le %x, %y\n%z = and %p, %q"),
	{
		Name: "select", Summary: "a where the predicate holds, else b. The operand that is not chosen has no influence, not even as NaN.",
		Dist: DistElementwise, Levels: everywhere, Traits: Pure | Elementwise,
		Operands: []Operand{operand("cond", Pred, ""), operand("a", Number, ""), operand("b", Number, "")},
		Results:  []string{"z"}, Example: "%p = lt %x, %y\n%z = select %p, %x, %y",
	},
	unary("neg", "−x.", Number, DistUnaryLinear, "%z = neg %x"),
	unary("exp", "e to the power x.", AnyFloat, DistElementwise, "%z = exp %x"),
	unary("log", "The natural logarithm of x.", AnyFloat, DistElementwise, "%z = log %x"),
	unary("sigmoid", "1/(1 + exp(−x)).", AnyFloat, DistElementwise, "%z = sigmoid %x"),
	unary("logsigmoid", "log(sigmoid(x)) without cancellation: −softplus(−x).", AnyFloat, DistElementwise, "%z = logsigmoid %x"),
	unary("silu", "x · sigmoid(x).", AnyFloat, DistElementwise, "%z = silu %x"),
	{
		Name: "cast", Summary: "Conversion to another element type; floats round to nearest even, f32 to i32 towards zero.",
		Dist: DistUnaryLinear, Levels: everywhere, Traits: Pure | Elementwise,
		Operands: []Operand{operand("x", Any, "")},
		Attrs:    []Attr{{Name: "dtype", Type: DType, Doc: "element type of the result"}},
		Results:  []string{"y"}, Example: "%y = cast %x {dtype = bf16}",
	},

	// Layout.
	{
		Name: "reshape", Summary: "The same elements in the same (row-major) order in another shape.", Dist: DistReshape, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, "")},
		Attrs: []Attr{
			{Name: "shape", Type: Dims, Doc: "shape of the result"},
			{Name: "shard", Type: Int, Optional: true, Doc: "axis of the result that is sharded, where axes of size 1 leave a choice"},
		},
		Results: []string{"y"}, Example: "%y = reshape %x {shape = [2, 2, 8]}",
	},
	{
		Name: "transpose", Summary: "Axis i of the result is axis perm[i] of x.", Dist: DistTranspose, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, "")},
		Attrs:    []Attr{{Name: "perm", Type: Ints, Doc: "a permutation of the axes"}},
		Results:  []string{"y"}, Example: "%y = transpose %x {perm = [1, 0]}",
	},
	{
		Name: "broadcast", Summary: "Repeats size-1 axes to the given shape of the same rank. What is replicated may become sharded along one: its parts are all alike.", Dist: DistBroadcast, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, "")},
		Attrs: []Attr{
			{Name: "shape", Type: Dims, Doc: "shape of the result"},
			{Name: "shard", Type: Int, Optional: true, Doc: "axis of the result that is sharded, of size 1 in x"},
			{Name: "ways", Type: Int, Optional: true, Doc: "number of its shards"},
		},
		Results: []string{"y"}, Example: "%r = reshape %x {shape = [1, 4, 8]}\n%y = broadcast %r {shape = [3, 4, 8]}",
	},
	{
		Name: "slice", Summary: "Elements start … stop−1 of one axis.", Dist: DistSlice, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, "")},
		Attrs:    []Attr{axisAttr, {Name: "start", Type: Dim, Doc: "first element"}, {Name: "stop", Type: Dim, Doc: "one past the last element"}},
		Results:  []string{"y"}, Example: "%y = slice %x {axis = 1, start = 2, stop = 6}",
	},
	{
		Name: "concat", Summary: "Joins operands along one axis.", Dist: DistConcat, Levels: everywhere, Traits: Pure,
		Operands: []Operand{{Name: "x", Elem: Any, Variadic: true}},
		Attrs:    []Attr{axisAttr},
		Results:  []string{"y"}, Example: "%z = concat %x, %y {axis = 0}",
	},

	// Reductions and selection along an axis.
	{
		Name: "reduce_sum", Summary: "Sum along an axis, which becomes 1.", Dist: DistReduceLinear, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "")}, Attrs: []Attr{axisAttr},
		Results: []string{"y"}, Example: "%z = reduce_sum %x {axis = 1}",
	},
	{
		Name: "reduce_max", Summary: "Largest element along an axis, which becomes 1.", Dist: DistReduce, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "")}, Attrs: []Attr{axisAttr},
		Results: []string{"y"}, Example: "%z = reduce_max %x {axis = 1}",
	},
	{
		Name: "softmax", Summary: "exp(x − max)/Σ exp(x − max) along the last axis.", Dist: DistLastAxis, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "")},
		Results:  []string{"y"}, Example: "%z = softmax %x",
	},
	{
		Name: "topk", Summary: "The k largest elements along the last axis in descending order, equal ones by ascending index.", Dist: DistLastAxis, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", F32, "")},
		Attrs:    []Attr{{Name: "k", Type: Int, Doc: "number of elements"}},
		Results:  []string{"values", "indices"}, Example: "%f = cast %x {dtype = f32}\n%v, %i = topk %f {k = 2}",
	},
	{
		Name: "gather", Summary: "Picks along an axis; the index's axes replace it. Indices must lie in the axis.", Dist: DistGather, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, "[…, N, …]"), operand("index", I32, "any rank ≥ 1")}, Attrs: []Attr{axisAttr},
		Results: []string{"y"}, Example: "%y2 = gather %x, %i {axis = 0}",
	},
	{
		Name: "gather_elements", Summary: "y[…, i, …] = x[…, index[…, i, …], …] along an axis; the other axes of the index equal those of x or are 1.", Dist: DistGatherElements, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", Any, ""), operand("index", I32, "same rank as x")}, Attrs: []Attr{axisAttr},
		Results: []string{"y"}, Example: "%j = reshape %i {shape = [1, 2]}\n%y2 = gather_elements %x, %j {axis = 1}",
	},

	// Linear algebra.
	{
		Name: "matmul", Summary: "x · y over the last two axes, y transposed if trans_b; leading axes equal or 1. Exact sums, one rounding to dtype.", Dist: DistMatmul, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "[…, M, K]"), operand("y", AnyFloat, "[…, K, N], or [N, K] if trans_b")},
		Attrs:    []Attr{{Name: "trans_b", Type: Bool, Doc: "y is [N, K]"}, {Name: "dtype", Type: DType, Doc: "element type of the result: that of x, or f32"}},
		Results:  []string{"z"}, Example: "%z = matmul %x, %y {dtype = f32, trans_b = true}",
	},

	{
		Name: "matmul_joined", Summary: "Products of one x with several weights, which lie behind each other in memory: x · wᵢᵀ. Exact sums, one rounding to dtype.", Dist: DistMatmulJoined, Levels: Fused, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "[M, K], replicated"), {Name: "weight", Elem: AnyFloat, Doc: "[N, K], or [P, N, K] for the result [M, P, N]", Variadic: true}},
		Attrs:    []Attr{{Name: "dtype", Type: DType, Doc: "element type of the results: that of x, or f32"}},
		Results:  []string{"z"}, PerOperand: true, Example: "%z, %z2 = matmul_joined %x, %x, %x {dtype = f32}",
	},

	// Model pieces.
	{
		Name: "rms_norm", Summary: "Root-mean-square norm over the last axis: t = round(x / sqrt(mean(x²) + eps)), y = round(t · weight).", Dist: DistRMSNorm, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("x", AnyFloat, "[…, D]"), operand("weight", AnyFloat, "[D]")},
		Attrs:    []Attr{{Name: "eps", Type: Float, Doc: "added to the mean square"}},
		Results:  []string{"y"}, Example: "%y2 = rms_norm %x, %w {eps = 1e-06}",
	},
	{
		Name: "short_conv", Summary: "Causal depthwise convolution over time plus its own residual: y_t = x_t + Σ_j taps[j] · x_{t−K+1+j}, in f32, one rounding. The first K−1 rows of the window are history.", Dist: DistShortConv, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("window", AnyFloat, "[…, T+K−1, C]"), operand("taps", F32, "[K, C], oldest first")},
		Results:  []string{"y"}, Example: "%y2 = short_conv %x, %taps",
	},
	{
		Name: "moe", Summary: "y_t = Σ_j weights[t,j] · w2[e] · (silu(g) ∘ u) with [g, u] = w13[e] · x_t, e = experts[t,j]. Experts are numbered through all banks, each of which is a w13 [E, 2, I, H], gate then up, and a w2 [E, H, I]. They are all there are, unless first says which the first of them is: choices of others then add nothing.", Dist: DistMoE, Levels: everywhere, Traits: Pure,
		Operands: []Operand{
			operand("x", AnyFloat, "[T, H]"), operand("experts", I32, "[T, k]"), operand("weights", AnyFloat, "[T, k]"),
			{Name: "bank", Elem: AnyFloat, Doc: "w13, w2, w13, w2, …", Variadic: true},
		},
		Attrs: []Attr{
			{Name: "first", Type: Int, Optional: true, Doc: "number of the first expert of the banks"},
			{Name: "shared", Type: Int, Optional: true, Doc: "a fact: as many experts, the last ones in order, are the first choices of each token whose result counts"},
		},
		Results: []string{"y"}, Example: "%y2 = moe %h, %e, %p, %w13, %w2",
	},
	{
		Name: "sdpa", Summary: "Scaled dot-product attention, with an additive mask or without: o = softmax(scale·q·kᵀ + mask)·v along the keys. One rounding. Masks are finite: a hidden key has so large a negative number that its exponential is 0 beside any other; a row whose keys are all hidden by the same number that absorbs their scores gives the mean of v. There are no valid lengths and no causal flag: what hides a key is the mask.",
		Dist: DistSDPA, Levels: Fused, Traits: Pure,
		Operands: sdpaOperands, Attrs: sdpaAttrs,
		Results: []string{"o"}, Example: sdpaExample + "%o = sdpa %q, %q, %q, %m {scale = 0.125}",
	},
	{
		Name: "sdpa_stats", Summary: "sdpa with the statistics of its softmax, so that parts of the keys can be joined: m is the largest score of a row rounded to q's type, linv = 1/Σ exp(score − m). For parts i, o = Σ wᵢoᵢ/Σ wᵢ with wᵢ = exp(mᵢ − max m)/linvᵢ.",
		Dist: DistSDPA, Levels: Fused, Traits: Pure,
		Operands: sdpaOperands, Attrs: sdpaAttrs,
		Results: []string{"o", "m", "linv"}, Example: sdpaExample + "%o, %t, %l = sdpa_stats %q, %q, %q, %m {scale = 0.125}",
	},
	{
		Name: "embedding", Summary: "Rows of a vocabulary-sharded table: row ids − offset where the rank has it, else zeros; the sum over ranks is the embedding.", Dist: DistEmbedding, Levels: everywhere, Traits: Pure,
		Operands: []Operand{operand("table", AnyFloat, "[V/ways, H]"), operand("ids", I32, "[T]"), operand("offset", I32, "[1], first id of the rank")},
		Results:  []string{"y"}, Example: "%y2 = embedding %table, %i, %offset",
	},

	// State. A version has one successor and no use after it.
	{
		Name: "kv_read", Summary: "Whole blocks of a cache.", Dist: DistStateRead, Levels: everywhere, Traits: Pure | StateRead,
		Operands: []Operand{operand("cache", AnyFloat, "[slots, heads, D]"), operand("blocks", I32, "[N]")},
		Attrs:    []Attr{{Name: "block_size", Type: Int, Doc: "slots a block"}},
		Results:  []string{"y"}, Example: "%y2 = kv_read %cache, %i {block_size = 4}",
	},
	{
		Name: "kv_write", Summary: "The cache with rows written at slots.", Dist: DistStateWrite, Levels: everywhere, Traits: StateWrite,
		Operands: []Operand{operand("cache", AnyFloat, "[slots, heads, D]"), operand("slots", I32, "[T]"), operand("rows", AnyFloat, "[T, heads, D]")},
		Results:  []string{"next"}, Example: "%y2 = kv_write %cache, %i, %rows",
	},
	{
		Name: "conv_read", Summary: "Rows of a convolution state.", Dist: DistStateRead, Levels: everywhere, Traits: Pure | StateRead,
		Operands: []Operand{operand("state", AnyFloat, "[blocks, K−1, C]"), operand("rows", I32, "[R]")},
		Results:  []string{"y"}, Example: "%y2 = conv_read %cache, %i",
	},
	{
		Name: "conv_write", Summary: "The convolution state with rows replaced.", Dist: DistStateWrite, Levels: everywhere, Traits: StateWrite,
		Operands: []Operand{operand("state", AnyFloat, "[blocks, K−1, C]"), operand("rows", I32, "[R]"), operand("values", AnyFloat, "[R, K−1, C]")},
		Results:  []string{"next"}, Example: "%y2 = conv_write %cache, %i, %rows",
	},
	{
		Name: "conv_reads", Summary: "Rows of several convolution states.", Dist: DistStateRead, Levels: Fused, Traits: Pure | StateRead,
		Operands: []Operand{operand("rows", I32, "[R]"), {Name: "state", Elem: AnyFloat, Doc: "[blocks, K−1, C], all alike", Variadic: true}},
		Results:  []string{"y"}, Example: "%y2 = conv_reads %i, %cache",
	},
	{
		Name: "conv_writes", Summary: "Several convolution states, each with rows replaced.", Dist: DistStateWrite, Levels: Fused, Traits: StateWrite,
		Operands: []Operand{operand("rows", I32, "[R]"), operand("values", AnyFloat, "[states, R, K−1, C]"), {Name: "state", Elem: AnyFloat, Doc: "[blocks, K−1, C], all alike", Variadic: true}},
		Results:  []string{"next"}, PerOperand: true, Example: "%r = conv_reads %i, %cache\n%y2 = conv_writes %i, %r, %cache",
	},

	// Between ranks.
	{
		Name: "all_reduce", Summary: "The sum of a partial value over all ranks.", Dist: DistAllReduce, Levels: everywhere | Plan, Traits: Pure | Collective,
		Operands: []Operand{operand("x", AnyFloat, "partial")},
		Results:  []string{"y"}, Example: "%y2 = all_reduce %part",
	},
	{
		Name: "all_gather", Summary: "The shards of all ranks joined along their axis.", Dist: DistAllGather, Levels: everywhere | Plan, Traits: Pure | Collective,
		Operands: []Operand{operand("x", Any, "sharded over all ranks")}, Attrs: []Attr{axisAttr},
		Results: []string{"y"}, Example: "%y2 = all_gather %shards {axis = 1}",
	},

	// Structure.
	{
		Name: "graph_break", Summary: "Ends a segment. Between calls it says why two segments are not one.", Dist: DistNone, Levels: everywhere | Plan, Traits: Break,
		Attrs:   []Attr{{Name: "reason", Type: String, Lead: true, Doc: "why"}},
		Example: "graph_break \"memory budget\"",
	},
	{
		Name: "call", Summary: "Runs a segment function.", Dist: DistCall, Levels: Plan, Traits: 0,
		Operands: []Operand{{Name: "arg", Elem: Any, Variadic: true}},
		Attrs:    []Attr{{Name: "callee", Type: Func, Lead: true, Doc: "the function"}},
		Results:  nil, Example: "%y2 = call @segment %x",
	},
}
