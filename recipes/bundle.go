package recipes

// Manifest describes a bundle: what it was compiled from and for, and what a
// runtime must allocate.
type Manifest struct {
	Format     int        `json:"format"` // FormatVersion
	Quill      string     `json:"quill"`  // version of the compiler
	Target     string     `json:"target"`
	Model      Model      `json:"model"`
	Deployment Deployment `json:"deployment"`
	Costs      Costs      `json:"costs"`
	Compiled   Compiled   `json:"compiled"`
	Sets       []SetInfo  `json:"sets"`
}

// FormatVersion is the bundle format this code reads and writes.
const FormatVersion = 5

// Model is what the runtime must know of the architecture.
type Model struct {
	// Fingerprint is the SHA-256 of the canonical architecture keys: a bundle
	// serves every checkpoint with the same fingerprint.
	Fingerprint string `json:"fingerprint"`
	Layers      int    `json:"layers"`
	Hidden      int    `json:"hidden"`
	Vocab       int    `json:"vocab"`          // rows of the matrices
	ValidVocab  int    `json:"unpadded_vocab"` // ids that exist
	EOS         int    `json:"eos_token_id"`
	// Window is how many tokens layers with a window see, 0 when there are none.
	Window int `json:"window,omitempty"`
	// LayerKinds says what each layer has, for reports; a bundle may leave it out.
	LayerKinds []LayerKind `json:"layer_kinds,omitempty"`
}

// Deployment is the part of the deployment the runtime obeys.
type Deployment struct {
	TensorParallel   int    `json:"tensor_parallel"`
	MaxModelLen      int    `json:"max_model_len"`
	MaxNumSeqs       int    `json:"max_num_seqs"`
	BlockSize        int    `json:"block_size"`
	KVBlocks         int    `json:"kv_blocks"` // without the two reserved ones
	MaxBatchedTokens int    `json:"max_batched_tokens"`
	Embedding        string `json:"embedding"`
}

// ZeroBlock and TrashBlock follow the usable blocks of a pool: zero is what
// padding references and fresh sequences read, never written; trash is what
// padding writes, never read.
func (d *Deployment) ZeroBlock() int { return d.KVBlocks }

// TrashBlock is the block padding rows write.
func (d *Deployment) TrashBlock() int { return d.KVBlocks + 1 }

// Compiled says what compiled a bundle and how it was told to work, so that it can do so
// again and that it can be told whether another compiler would do the same.
type Compiled struct {
	// Build is the revision of the compiler's source, with "+changes" behind it if there
	// were some; "" if the build did not record it.
	Build string `json:"build"`
	// Encoding is the version of the encoding of recipes and plans, EncodingVersion.
	Encoding int `json:"encoding"`
	// Profile is the name of the target profile, ProfileHash the SHA-256 of its file.
	Profile     string   `json:"profile"`
	ProfileHash Hash     `json:"profile_hash"`
	Passes      string   `json:"passes"` // the pipeline, as quill compile --passes takes it
	Params      []string `json:"params"` // what passes were told of the deployment, each key=value
}

// SetInfo is one precision's recipe set.
type SetInfo struct {
	Precision string `json:"precision"` // "bf16" or "f32"
	// Bytes is the size of each device buffer of one rank.
	Bytes map[Buffer]int64 `json:"bytes"`
	// WorkspaceBytes is the largest workspace of its plans, which one rank has beside
	// its buffers.
	WorkspaceBytes int64    `json:"workspace_bytes"`
	Plans          []Bucket `json:"plans"`
}

// Set is one precision's plans and weights map.
type Set struct {
	Info    SetInfo
	Weights []Weight
	Plans   []Plan // parallel to Info.Plans
}

// Bundle is a compiled deployment. Recipes are shared by all sets.
type Bundle struct {
	Manifest Manifest
	// Architecture is the canonical JSON of the model's architecture, whose fingerprint
	// the manifest has.
	Architecture []byte
	Checkpoint   []CheckpointTensor
	Sets         []Set
	Recipes      map[Hash]*Recipe
	// Native is what the vendor's compiler made of Recipes, nil if it was not asked.
	Native *Native
}
