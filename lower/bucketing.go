package lower

import (
	"errors"
	"path/filepath"

	"quill/ir/inkling"
	"quill/lower/buckets"
	"quill/recipes"
)

// maxBucketList bounds the bytes of a list of buckets.
const maxBucketList = 1 << 20

// PlanBuckets makes the buckets of a deployment, with what they cover and pad. They
// may leave holes, which Compile refuses.
func PlanBuckets(d *Deployment) (*buckets.Set, error) {
	_, cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	return d.planBuckets(d.costs(cfg))
}

func (d *Deployment) planBuckets(k recipes.Costs) (*buckets.Set, error) {
	b := &d.Buckets
	s := buckets.Spec{Strategy: b.Strategy, Most: b.Most, Padding: b.Padding, Sharing: b.Sharing}
	var err error
	if s.List, err = d.text("buckets.path", b.Path, maxBucketList); err != nil {
		return nil, err
	}
	if s.Trace, err = d.text("buckets.trace", b.Trace, buckets.MaxTrace); err != nil {
		return nil, err
	}
	set, err := buckets.Make(s, d.manifest(), k)
	if e, ok := errors.AsType[*buckets.Error](err); ok {
		return nil, d.at(e.Key, "%s", e.Msg)
	}
	return set, err
}

// text reads a file that a key names, nil if it names none.
func (d *Deployment) text(key, path string, limit int64) (*buckets.Text, error) {
	if path == "" {
		return nil, nil
	}
	path = d.relative(path)
	src, err := recipes.ReadSmall(path, limit)
	if err != nil {
		return nil, d.at(key, "%v", err)
	}
	return &buckets.Text{Path: path, Src: src}, nil
}

// relative is a path as the deployment's file means it.
func (d *Deployment) relative(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.path), path)
}

// Reads lists what compiling reads beside the deployment's file: the model's
// directory and files that choose buckets.
func (d *Deployment) Reads() []string {
	paths := []string{d.ModelDir()}
	for _, p := range []string{d.Buckets.Path, d.Buckets.Trace} {
		if p != "" {
			paths = append(paths, d.relative(p))
		}
	}
	return paths
}

// covering are the buckets of a deployment, which cover every step that it admits.
func (d *Deployment) covering(cfg *inkling.Config) ([]recipes.Bucket, error) {
	set, err := d.planBuckets(d.costs(cfg))
	if err != nil {
		return nil, err
	}
	if err := set.Covered(); err != nil {
		return nil, d.at("buckets", "%v", err)
	}
	return set.Buckets, nil
}
