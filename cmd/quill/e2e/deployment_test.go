package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"quill/lower"
	"quill/passes"
	"quill/recipes"
)

// deployment says what to compile. It is comparable: tests that want the same
// share what was compiled and opened.
type deployment struct {
	model      string // directory of the checkpoint
	tp, block  int
	precision  string
	sharded    bool // the embedding
	maxLen     int
	maxSeqs    int
	maxBatched int
	buckets    string // lines of a bucket list; "" is the default strategy
	without    string // a pass that is left out
	pipeline   string // "" is the default
	more       string // further lines of the file
}

// nano is the usual deployment of a small checkpoint: room for the longest
// expected sequence and some company.
func nano(name string, tp, block int, precision string) deployment {
	return deployment{model: modelDir(name), tp: tp, block: block, precision: precision, maxLen: 256, maxSeqs: 4, maxBatched: 64}
}

func (d deployment) String() string {
	s := fmt.Sprintf("%s/%s/tp%d/b%d", filepath.Base(d.model), d.precision, d.tp, d.block)
	if d.sharded {
		s += "/sharded"
	}
	if d.without != "" {
		s += "/without-" + d.without
	}
	return s
}

// yaml is the deployment file.
func (d deployment) yaml(bucketFile string) string {
	var b strings.Builder
	embedding := "replicated"
	if d.sharded {
		embedding = "sharded"
	}
	fmt.Fprintf(&b, "model: %q\nprecision: %s\nembedding: %s\ntensor_parallel: %d\nblock_size: %d\n", d.model, d.precision, embedding, d.tp, d.block)
	fmt.Fprintf(&b, "max_model_len: %d\nmax_num_seqs: %d\nmax_batched_tokens: %d\n", d.maxLen, d.maxSeqs, d.maxBatched)
	b.WriteString(d.more)
	if d.buckets != "" {
		fmt.Fprintf(&b, "buckets:\n  strategy: file\n  path: %q\n", bucketFile)
	}
	return b.String()
}

// read writes the deployment's files and reads them back as a user's.
func (d deployment) read() (*lower.Deployment, error) {
	dir, err := os.MkdirTemp(scratch, "deployment-")
	if err != nil {
		return nil, err
	}
	list, path := filepath.Join(dir, "buckets.txt"), filepath.Join(dir, "deployment.yaml")
	err = errors.Join(os.WriteFile(list, []byte(d.buckets), 0o666), os.WriteFile(path, []byte(d.yaml(list)), 0o666))
	if err != nil {
		return nil, err
	}
	return lower.ReadDeployment(path)
}

// compile compiles a deployment anew.
func (d deployment) compile(ctx context.Context) (*recipes.Bundle, error) {
	return d.compileTold(ctx, nil)
}

// compileTold is compile, which tells what each plan was made of.
func (d deployment) compileTold(ctx context.Context, planned func(string, *lower.Planned)) (*recipes.Bundle, error) {
	read, err := d.read()
	if err != nil {
		return nil, err
	}
	pipeline := passes.Default()
	if d.pipeline != "" {
		if pipeline, err = passes.Parse(d.pipeline); err != nil {
			return nil, err
		}
	}
	if d.without != "" {
		if pipeline, err = pipeline.Without(passes.Passes(), d.without); err != nil {
			return nil, err
		}
	}
	b, _, err := lower.CompileWith(ctx, read, lower.Options{Planned: planned, Passes: func(p passes.Params) *passes.Manager {
		return passes.NewManager(passes.Config{Pipeline: pipeline, Params: p})
	}})
	return b, err
}

// file compiles a deployment anew and writes the bundle.
func (d deployment) file(ctx context.Context) (path string, err error) {
	b, err := d.compile(ctx)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(scratch, "*.quill")
	if err != nil {
		return "", err
	}
	return f.Name(), errors.Join(f.Close(), recipes.WriteBundle(ctx, f.Name(), b))
}
