#!/bin/sh
# Compiles a small trained Inkling ahead of time and lets it answer.
set -eu
cd "$(dirname "$0")/../.."
quill=bin/quill
model=testdata/nano-chat
bundle=out/chat.quill
mkdir -p out

filler="Lamps were lit. Tea is warm. The road is long. Snow covers hills. We walked home. A bird sang. Rain fell all day. The sky was clear."

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# ask EFFORT TEXT [SYSTEM] puts a question in Inkling's chat format. Filler is
# not shown.
ask() {
	printf '\n\033[36m> %s\033[0m\n' "$(printf %s "$2" | sed "s/$filler/…/g")"
	"$quill" run "$bundle" --model "$model" --max-new 120 --prompt \
		"${3-}<|message_system|><|content_text|>Thinking effort level: $1<|end_message|><|message_user|><|content_text|>$2<|end_message|><|message_model|>"
}

say "1. Compile every shape of the deployment ahead of time (four ranks, bf16 and f32)"
sed 's/^/    /' testdata/demo/chat.yaml
"$quill" compile testdata/demo/chat.yaml -o "$bundle"

say "2. What is in the bundle"
"$quill" inspect "$bundle" | sed -n '/BUCKET/q;p'

say "3. Ask: nothing is compiled any more, recipes are replayed on four ranks in this process"
ask 0 "Repeat: wqo lamd ter"
ask 0 "$filler Code of maple is 9347. $filler Code of heron is 4821. $filler $filler Code of heron?"
ask 0.9 "Repeat: zuc lgq gno"
ask 0.9 "Weather in Oslo?" '<|message_system|>tool_declare<|content_xml|>[{"description":"","name":"get_weather","parameters":{"properties":{"city":{"type":"string"}},"type":"object"},"type":"function"}]<|end_message|>'

say "4. The published Inkling-Small compiles from its config.json alone: eight ranks, requests of 131,072 tokens"
"$quill" compile testdata/demo/small.yaml -o out/inkling-small.quill
