#!/usr/bin/env bash
# Measures the rank-shard configuration: decode of one sequence and of sixteen,
# and a prefill of 2,048 tokens. The checkpoint is made once in the directory.
# Steps are so many that the shares of the read roof are of several windows.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-out/bench}
mkdir -p "$dir"
if [ ! -e "$dir/ckpt/model.safetensors.index.json" ]; then
  bin/quill gen-checkpoint testdata/configs/rank-shard --out "$dir/ckpt" --seed 1
fi
sed 's/^model: .*/model: ckpt/' testdata/configs/rank-shard.yaml >"$dir/shard.yaml"
bin/quill compile "$dir/shard.yaml" -o "$dir/shard.quill"
if [ ! -e "$dir/shard.bf16.weights" ]; then
  bin/quill pack "$dir/shard.quill" --model "$dir/ckpt"
fi
bin/quill bench "$dir/shard.quill" --model "$dir/ckpt" --prefill 2048 --decode 64
bin/quill bench "$dir/shard.quill" --model "$dir/ckpt" --prefill 512 --batch 16 --decode 16
