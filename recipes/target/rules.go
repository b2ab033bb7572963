package target

// Rules are the kinds of combinations that [Profile.CheckRecipe] and [Profile.CheckPlan]
// refuse, in the order of docs/target.md, which lists each with its messages.
var Rules = []Rule{
	// The node and its entry.
	{"guid", "the compiler and its kernel libraries refuse a node whose GUID none of them has", "abi", "use a node of the profile; quill target show lists them"},
	{"guid-refused", "the node exists and is wrong on cards, in ways that the profile says", "engine", "use what is wanted instead"},
	{"suffix", "kernels exist for some types only; which these are is in the profile", "bridge", "cast the operands to a type that the node has, in steps if there is no cast between two types"},
	{"operands", "operands are told apart by their position", "bridge", "give the operands that the profile lists, in its order"},
	{"type", "where a GUID's suffix and a tensor's type differ, casts of whole tensors are planted in silence, or the node is refused", "abi", "cast the operand, or choose the GUID of its type"},
	{"rank", "the compute engines address five dims", "abi", "merge dims by a reshape"},
	{"params", "parameters are bytes: those of another structure are taken for what they are not", "abi", "give the structure that the profile names, with all its fields"},
	{"axis", "an axis counts from the fastest dim, from 0", "abi", "count the axis from the fastest dim (index_copy_fwd: from the slowest)"},

	// Products.
	{"product-inner", "the node is taken, and compiling the graph fails", "abi", "the fastest dim of a must be that of b with transpose_b, the second of b without"},
	{"product-batch", "batch dims are broadcast from 1 only", "abi", "make the batch dims equal, or 1 on one side"},
	{"product-types", "a graph that is not set up for quantisation wants both operands of one type; bf16 by fp8 is refused", "engine", "cast one operand to the type of the other; the result is of that type or f32"},
	{"product-bias", "the compiler makes it an addition of its own behind the rounding of the product, which no fusion takes up", "engine", "add it with add_fwd"},
	{"product-result", "the result's geometry must be that of the product", "abi", "the result is {N, M} with the larger of each batch dim"},

	// Element by element, and moves.
	{"elementwise-dims", "kernels broadcast dims of 1, of operands of one rank", "bridge", "reshape the operand to the rank of the other, with 1 where it is broadcast; the result has the larger dims"},
	{"move-type", "what moves elements does not convert them", "abi", "cast before or after"},
	{"reshape", "the compiler refuses another number of elements", "abi", "keep the number of elements"},
	{"transpose", "dim i of the result is dim permutation[i] of the operand", "abi", "give each dim once, and the result the dims in that order"},
	{"broadcast", "dims are broadcast from 1 only, and ranks are equal", "abi", "reshape the operand to the rank of the result, with 1 where it is broadcast"},
	{"slice", "elements from begin to before end of one axis are taken", "abi", "0 ≤ begin < end ≤ the axis, and end − begin elements in the result"},
	{"concat", "the compiler refuses sizes that do not add up", "abi", "operands have the result's dims but for the axis, where they add up to it"},
	{"constant-finite", "bf16 and f32 arithmetic makes NaN of infinities, and fused attention of masks that hold them", "engine", "use a finite number, such as −30000 or −1e30 for what is hidden"},
	{"constant-range", "the value is stored in 32 bits and converted to the type", "bridge", "use a number that the type holds"},
	{"range", "the result has as many elements as there are steps from start to before limit", "bridge", "limit − start must be a multiple of delta that is as many as the result has elements"},

	// Along an axis.
	{"reduce", "kernels keep the reduced dim, with size 1", "bridge", "give the result size 1 there, and reshape behind"},
	{"softmax-mask", "with a mask as second operand compiling fails", "engine", "add the mask with add_fwd first"},
	{"topk", "k is at most the axis, and both results have k there", "bridge", "lower k, and give both results k elements of the axis"},
	{"gather", "the index's dims stand where the axis was", "bridge", "give the result the operand's dims, with the index's in place of the axis"},
	{"gather-elements", "the result has the index's dims, which are the operand's but for the axis", "bridge", "broadcast the index to the result's dims"},
	{"index-copy", "slices of values replace those of the operand, whose dims the result keeps", "bridge", "values have the operand's dims but for the slowest, which has one for each index"},

	// Norm.
	{"norm", "the norm is over the fastest dim, which gamma has; the second result is there even if nothing reads it", "engine", "gamma is {D}, y has x's dims, inv_rms too with 1 in dim 0"},
	{"norm-params", "the structure of the backward kernel compiles, and eps is then 1e-5 whatever it says; so it is where epsValid is not set", "engine", "use ns_LayerNormKernel::ParamsRmsNorm with epsValid 1, eps > 0 and the masks of dim 0"},

	// Attention.
	{"attention-dims", "keys, values and result must fit the queries", "engine", "q {D,Sq,group,heads}, k {D,Sk,1,heads}, v {Dv,Sk,1,heads} → o {Dv,Sq,group,heads}, a batch behind the heads of all"},
	{"attention-heads", "keys of fewer heads in the dim of the queries' heads are no grouping; only a dim of 1 is broadcast over the group", "engine", "split the queries' heads into {group, heads}, and give keys and values 1 for the group"},
	{"attention-mask", "a mask is broadcast from dims of 1, but for its keys", "engine", "the mask is {Sk,Sq,group,heads}, or 1 in any dim but the first"},
	{"attention-causal", "serving code sets neither the causal flag nor valid lengths beside a mask, where cards gave wrong results", "bridge", "put what is hidden into the mask, and set is_causal to 0"},
	{"attention-lengths", "valid lengths go with the causal flag and without a mask only", "bridge", "put the lengths into the mask"},
	{"attention-statistics", "the inference form has one result, the training form statistics too", "abi", "set is_inference to 0 where m and linv are results, and to 1 where they are not"},
	{"attention-params", "there is no seed operand, and a scale that is no number makes every result none", "bridge", "set dropout.ratio to 0 and scale to a finite number"},

	// Experts.
	{"experts-count", "the router's numbers are compared with experts_min and experts_max; each between them has its weights", "bridge", "experts_min from 0, and as many experts to experts_max as there are w12 and w3"},
	{"experts-dims", "each expert is {H, 2F} and {F, H}, all of one size", "bridge", "hidden and y {H,T}, routing_table and router_weights {k,T}, w12 {H,2F}, w3 {F,H}"},
	{"experts-form", "the flags say how weights lie; others than these were not laid out so", "bridge", "set activation silu and flags MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM"},

	// Limits.
	{"size", "engines step through a tensor with 32 bits; larger ones are cut into several nodes, which has no public test in place", "abi", "cut the tensor: fewer kv_blocks or max_batched_tokens, or more ranks (tensor_parallel)"},
	{"program-data", "a recipe's commands and kernels lie in a pool of the compute queue, and a recipe that does not fit is refused", "issues", "use more ranks (tensor_parallel): on one rank the model is one recipe; or fewer nodes, by a lower max_batched_tokens"},
	{"name-length", "the interfaces have fixed buffers", "abi", "give a name of that length"},
	{"name-unique", "a tensor's name is taken once in a graph: the second one gets the first one's tensor; edges name nodes", "abi", "give each tensor and each node a name of its own"},
	{"sections", "section numbers have 16 bits, of which 0 to 3 are the compiler's own", "abi", "bind values that lie together as one section"},
	{"offset", "engines address whole elements", "abi", "begin a tensor at a multiple of its element's bytes"},

	// Order.
	{"producer", "a graph refuses a second node that writes a tensor", "abi", "write another tensor at the same place, and order the nodes by After"},
	{"read-early", "nodes of a graph wait for what writes their operands, wherever in the list it stands", "abi", "read another tensor at the same place, and order the nodes by After"},
	{"order", "between tensors of one section only the order of creation speaks, and for what is read after it was written not even that", "abi", "add an After edge"},
	{"in-place", "only a kernel that updates its operand, given a result of the same place, dims and type, writes what changed; anything else costs a copy of the whole tensor, or reads what is half written", "abi", "let index_copy_fwd write the very tensor, or let the result lie elsewhere"},

	// Launches.
	{"launch-address", "device addresses are bound in multiples of 128 bytes", "abi", "place the section at a multiple of 128"},
	{"launch-overlap", "a launch is refused if a tensor is bound inside another one's buffer", "engine", "make both one section, with tensors at offsets"},
	{"attention-loop", "recipes of one attention node that were launched one after the other hung a card, and made another one reset", "engine", "let the node share a recipe with others: raise sub_block_rows, or set attention: plain"},
}
