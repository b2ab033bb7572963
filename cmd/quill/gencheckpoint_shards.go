package main

import (
	"fmt"

	"quill/ir/inkling"
	"quill/recipes/safetensors"
)

// shardMetadata is what files of published checkpoints say of themselves.
var shardMetadata = map[string]string{"format": "pt"}

// shardPlan is one file of a checkpoint.
type shardPlan struct {
	name    string
	tensors []safetensors.Tensor // without data
	bytes   int64                // of the tensors
}

// planShards distributes the tensors of the text part over files, in the order
// of the model, each at most limit bytes unless a single tensor is larger.
func planShards(c *inkling.Config, limit int64) ([]shardPlan, error) {
	var shards []shardPlan
	for _, t := range c.Tensors() {
		if t.Part != inkling.Text {
			continue
		}
		tensor := safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
		bytes, err := tensor.Size()
		if err != nil {
			return nil, err
		}
		n := len(shards)
		if n == 0 || bytes > limit-shards[n-1].bytes {
			shards = append(shards, shardPlan{})
			n++
		}
		s := &shards[n-1]
		s.tensors = append(s.tensors, tensor)
		s.bytes += bytes
	}
	if len(shards) > maxShards {
		return nil, fmt.Errorf("that makes %d files, at most %d are possible: choose more bytes", len(shards), maxShards)
	}
	for i := range shards {
		shards[i].name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
	}
	return shards, nil
}

// maxShards is what the names of files have digits for.
const maxShards = 99999

func totalBytes(shards []shardPlan) (n int64) {
	for _, s := range shards {
		n += s.bytes
	}
	return n
}

// weightMap says in which file each tensor is.
func weightMap(shards []shardPlan) map[string]string {
	files := make(map[string]string)
	for _, s := range shards {
		for _, t := range s.tensors {
			files[t.Name] = s.name
		}
	}
	return files
}
