package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"quill/recipes"
	"quill/recipes/native"
	"quill/recipes/safetensors"
	"quill/recipes/store"
)

func TestMain(m *testing.M) {
	testscript.Main(withCache{m}, map[string]func(){"quill": main})
}

// withCache runs tests with a store of their own.
type withCache struct{ *testing.M }

func (w withCache) Run() int {
	dir, err := os.MkdirTemp("", "quill-cache-")
	if err == nil {
		err = os.Setenv("QUILL_CACHE", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := w.M.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScripts runs testdata/script. Beside the commands of testscript there
// are those below; models/ has the checkpoints of the repository, and format-1.quill is a
// bundle of that format.
func TestScripts(t *testing.T) { testscript.Run(t, scripts(t, "testdata/script")) }

// scripts runs those of a folder.
func scripts(t *testing.T, dir string) testscript.Params {
	models, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("QUILL_CACHE", filepath.Join(e.WorkDir, "cache"))
			return errors.Join(
				os.Symlink(models, filepath.Join(e.WorkDir, "models")),
				os.Symlink(filepath.Join(models, "../recipes/testdata/format-1.quill"), filepath.Join(e.WorkDir, "format-1.quill")),
			)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":        exits,
			"code":         codeOf,
			"json":         checkJSON,
			"greedy":       greedy,
			"chatcase":     chatCase,
			"breakckpt":    breakCheckpoint,
			"tensor":       writeTensor,
			"close":        closeTo,
			"empty":        isEmpty,
			"nativerecipe": nativeRecipe,
			"sameplans":    samePlansOf,
			"fillcache":    fillCache,
			"addnative":    addNative,
		},
	}
}

// exits CODE PROGRAM ARGS… runs a program that must end with that code. A
// failure writes one error, no trace, and nothing to the standard output.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	want := exitCode(ts, args)
	text := ts.ReadFile("stderr")
	if regexp.MustCompile(`panic:|goroutine \d|fatal error:|internal fault`).MatchString(text) {
		ts.Fatalf("a crash is no error message")
	}
	if want == 0 {
		return
	}
	if n := lines(text, `quill: `) - lines(text, `quill: (note|compiling|native recipes|loading weights|packing weights|checking weights|scoring positions|checking the store): `); n != 1 {
		ts.Fatalf("%d errors, want 1", n)
	}
	if ts.ReadFile("stdout") != "" {
		ts.Fatalf("output of a failed command")
	}
}

// exitCode runs args[1:], which must end with the code of args[0].
func exitCode(ts *testscript.TestScript, args []string) int {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	return want
}

// code CODE PROGRAM ARGS… runs a program whose result is its exit code too: there is an
// output, and no error.
func codeOf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code CODE PROGRAM ARGS…")
	}
	exitCode(ts, args)
	if ts.ReadFile("stderr") != "" || ts.ReadFile("stdout") == "" {
		ts.Fatalf("a result is on the standard output alone")
	}
}

// sameplans A B compares two bundles, but for what they say of how they were compiled.
func samePlansOf(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: sameplans BUNDLE BUNDLE")
	}
	var read [2]*recipes.Bundle
	for i, name := range args {
		b, err := recipes.ReadBundle(ts.MkAbs(name))
		ts.Check(err)
		b.Manifest.Compiled = recipes.Compiled{}
		read[i] = b
	}
	if same := reflect.DeepEqual(read[0], read[1]); same == neg {
		ts.Fatalf("%s and %s have the same plans: %v", args[0], args[1], same)
	}
}

// lines counts the lines that begin with a pattern.
func lines(text, pattern string) int {
	return len(regexp.MustCompile("(?m)^"+pattern).FindAllString(text, -1))
}

// json FILE PATH=VALUE… parses a file of one JSON value and compares parts of
// it with JSON values. A path is keys and indices with dots between them; len
// is the length of a list.
func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: json FILE PATH=VALUE…")
	}
	doc := decodeJSON(ts, ts.ReadFile(args[0]))
	for _, arg := range args[1:] {
		path, want, _ := strings.Cut(arg, "=")
		if got := at(ts, doc, path); !reflect.DeepEqual(got, decodeJSON(ts, want)) {
			ts.Fatalf("%s is %v, want %s", path, got, want)
		}
	}
}

func decodeJSON(ts *testscript.TestScript, text string) any {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		ts.Fatalf("%q: %v", text, err)
	}
	return v
}

func at(ts *testscript.TestScript, v any, path string) any {
	for _, key := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			part, ok := x[key]
			if !ok {
				ts.Fatalf("%s: no key %q", path, key)
			}
			v = part
		case []any:
			if key == "len" {
				return float64(len(x))
			}
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(x) {
				ts.Fatalf("%s: no element %q of %d", path, key, len(x))
			}
			v = x[i]
		default:
			ts.Fatalf("%s: %v has no %q", path, v, key)
		}
	}
	return v
}

// greedy MODEL sets PROMPT and WANT to the model's reference answer.
func greedy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: greedy MODEL")
	}
	file := ts.MkAbs(filepath.Join("models", args[0], "expected.safetensors"))
	for name, tensor := range map[string]string{"PROMPT": "greedy.prompt", "WANT": "greedy.output"} {
		ids, err := readTokens(file + ":" + tensor)
		ts.Check(err)
		ts.Setenv(name, idList(ids))
	}
}

func idList(ids []int32) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(ids), "[]"), " ", ",")
}

// chatCase N sets PROMPT, PROMPT_TEXT, WANT and WANT_TEXT to a reference
// conversation of nano-chat; WANT_TEXT is without the end token.
func chatCase(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: chatcase N")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	var cases []struct {
		PromptTokens []int32 `json:"prompt_tokens"`
		PromptText   string  `json:"prompt_text"`
		Tokens       []int32 `json:"greedy_tokens"`
		Text         string  `json:"greedy_text"`
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("models/nano-chat/cases.json")), &cases))
	c := cases[n]
	ts.Setenv("PROMPT", idList(c.PromptTokens))
	ts.Setenv("PROMPT_TEXT", c.PromptText)
	ts.Setenv("WANT", idList(c.Tokens))
	ts.Setenv("WANT_TEXT", strings.TrimSuffix(c.Text, "<|content_model_end_sampling|>"))
}

// tensor FILE NAME DTYPE SHAPE VALUES writes a file with one tensor of
// integers; SHAPE is such as 2x3, or scalar.
func writeTensor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 5 {
		ts.Fatalf("usage: tensor FILE NAME DTYPE SHAPE VALUES")
	}
	width := map[string]int{"I32": 4, "I64": 8, "F32": 4}[args[2]]
	t := safetensors.Tensor{Name: args[1], DType: args[2]}
	if args[3] != "scalar" {
		for _, d := range strings.Split(args[3], "x") {
			n, err := strconv.ParseInt(d, 10, 64)
			ts.Check(err)
			t.Shape = append(t.Shape, n)
		}
	}
	for _, field := range strings.Split(args[4], ",") {
		if field == "" {
			continue
		}
		v, err := strconv.ParseInt(field, 10, 64)
		ts.Check(err)
		for i := range width {
			t.Data = append(t.Data, byte(v>>(8*i)))
		}
	}
	ts.Check(safetensors.Write(ts.MkAbs(args[0]), []safetensors.Tensor{t}, nil))
}

// close FILE:TENSOR FILE:TENSOR TOLERANCE compares F32 tensors: with 0 bit by
// bit.
func closeTo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: close FILE:TENSOR FILE:TENSOR TOLERANCE")
	}
	tolerance, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	var shapes [2][]int64
	var values [2][]float32
	for i := range 2 {
		path, name, err := splitTensor("close", args[i])
		ts.Check(err)
		f, err := safetensors.Open(ts.MkAbs(path))
		ts.Check(err)
		t, ok := f.Tensor(name)
		if !ok {
			ts.Fatalf("no tensor %s", args[i])
		}
		shapes[i] = t.Shape
		values[i], err = t.F32()
		ts.Check(err)
	}
	if !reflect.DeepEqual(shapes[0], shapes[1]) {
		ts.Fatalf("shapes %v and %v", shapes[0], shapes[1])
	}
	for i, v := range values[0] {
		if !(math.Abs(float64(v)-float64(values[1][i])) <= tolerance) {
			ts.Fatalf("element %d is %v, want %v", i, v, values[1][i])
		}
	}
}

// empty DIR checks that a directory holds nothing.
func isEmpty(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: empty DIR")
	}
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(entries) > 0 {
		ts.Fatalf("%s is not empty: %v", args[0], entries)
	}
}

// fillcache DIR N keeps results in a store: of each of N buckets, with a blob of its own
// and one that all share. Those of later buckets were used later, one hour apart.
func fillCache(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fillcache DIR N")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	dir := ts.MkAbs(args[0])
	s, err := store.Open(dir, store.Options{})
	ts.Check(err)
	defer s.Close()
	for i := range n {
		key := store.Key{{Name: "architecture", Text: "{\n  \"layers\": 2\n}"}, {Name: "precision", Text: "bf16"}, {Name: "bucket", Text: fmt.Sprintf("decode/b=%d,n=1", i+1)}}
		r := &store.Result{Data: []byte("plan"), Blobs: map[recipes.Hash][]byte{}}
		for _, blob := range []string{"shared", strings.Repeat("own ", 100+i)} {
			r.Blobs[recipes.Sum([]byte(blob))] = []byte(blob)
		}
		ts.Check(s.Put(context.Background(), key, r))
		used := time.Now().Add(time.Duration(i-n) * time.Hour)
		ts.Check(os.Chtimes(filepath.Join(dir, "v1", "actions", key.Hash().String()), used, used))
		ts.Setenv(fmt.Sprintf("KEY%d", i+1), key.Hash().String())
		ts.Setenv(fmt.Sprintf("BLOB%d", i+1), recipes.Sum([]byte(strings.Repeat("own ", 100+i))).String())
	}
}

// breakCheckpoint KIND MODEL DIR copies a checkpoint and breaks the copy.
func breakCheckpoint(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: breakckpt KIND MODEL DIR")
	}
	dir := ts.MkAbs(args[2])
	ts.Check(os.CopyFS(dir, os.DirFS(ts.MkAbs(filepath.Join("models", args[1])))))
	fault, ok := faults[args[0]]
	if !ok {
		ts.Fatalf("no fault %q", args[0])
	}
	path := filepath.Join(dir, fault.file)
	data, err := os.ReadFile(path)
	ts.Check(err)
	broken := fault.make(bytes.Clone(data))
	if bytes.Equal(broken, data) {
		ts.Fatalf("%s changes nothing", args[0])
	}
	ts.Check(os.WriteFile(path, broken, 0o666))
}

const shard = "model-00001-of-00002.safetensors"

// faults are what can be wrong with a checkpoint.
var faults = map[string]struct {
	file string
	make func([]byte) []byte
}{
	"truncated-shard": {shard, func(b []byte) []byte { return b[:len(b)-1000] }},
	"huge-header":     {shard, func(b []byte) []byte { return append([]byte{0, 0, 0, 0, 0, 0, 0, 0x10}, b[8:]...) }}, // 2^60
	"overlap":         {shard, overlap},
	"empty-shard":     {shard, func([]byte) []byte { return []byte{} }},
	"noise-shard":     {shard, func(b []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(b)) }},
	"negative-shape":  {shard, swap(`"shape":\[\d+`, `"shape":[-1`)},
	"touched":         {shard, lengthenHeader},
	"renamed-tensor":  {"model.safetensors.index.json", swap(`"model\.llm\.norm\.weight"`, `"model.llm.nrom.weight"`)},
	"index-is-list":   {"model.safetensors.index.json", func([]byte) []byte { return []byte("[]") }},
	"config-nan":      {"config.json", swap(`"rms_norm_eps": [^,]+`, `"rms_norm_eps": NaN`)},
	"config-huge":     {"config.json", swap(`"rms_norm_eps": [^,]+`, `"rms_norm_eps": 1e999`)},
	"config-negative": {"config.json", swap(`"hidden_size": \d+`, `"hidden_size": -64`)},
	"config-zero":     {"config.json", swap(`"num_attention_heads": \d+`, `"num_attention_heads": 0`)},
	"config-layers":   {"config.json", swap(`"num_hidden_layers": \d+`, `"num_hidden_layers": 1000000000`)},
	"config-list":     {"config.json", func([]byte) []byte { return []byte("[1, 2, 3]") }},
	"config-cut":      {"config.json", func(b []byte) []byte { return b[:len(b)/2] }},
	"config-empty":    {"config.json", func([]byte) []byte { return []byte{} }},
	"config-deep":     {"config.json", func([]byte) []byte { return bytes.Repeat([]byte("["), 1<<20) }},
	"config-other":    {"config.json", swap(`"route_scale": [\d.]+`, `"route_scale": 4.5`)},
	"config-missing":  {"config.json", swap(`"d_rel": \d+,`, ``)},
	"wider":           {"config.json", swap(`"dense_intermediate_size": \d+`, `"dense_intermediate_size": 192`)},
}

// swap replaces the first match of a pattern.
func swap(pattern, by string) func([]byte) []byte {
	return func(b []byte) []byte {
		at := regexp.MustCompile(pattern).FindIndex(b)
		if at == nil {
			return b
		}
		return append(append(bytes.Clone(b[:at[0]]), by...), b[at[1]:]...)
	}
}

// lengthenHeader changes a file but not what it means.
func lengthenHeader(b []byte) []byte {
	n := binary.LittleEndian.Uint64(b)
	longer := binary.LittleEndian.AppendUint64(nil, n+8)
	return append(append(append(longer, b[8:8+n]...), "        "...), b[8+n:]...)
}

// overlap moves the second tensor of a header over the first, keeping the
// header's length.
func overlap(b []byte) []byte {
	offsets := regexp.MustCompile(`"data_offsets":\[(\d+),(\d+)\]`)
	for _, m := range offsets.FindAllSubmatchIndex(b[:min(len(b), 1<<20)], -1) {
		from, _ := strconv.Atoi(string(b[m[2]:m[3]]))
		to, _ := strconv.Atoi(string(b[m[4]:m[5]]))
		moved := fmt.Sprintf(`"data_offsets":[%d,%d]`, from-2, to-2)
		if from > 2 && len(moved) == m[1]-m[0] {
			copy(b[m[0]:], moved)
			break
		}
	}
	return b
}

// nativeRecipe writes a recipe as Synapse does. With a number, it writes that many bytes
// of it only, or changes the byte so far from the end if it is negative.
func nativeRecipe(ts *testscript.TestScript, _ bool, args []string) {
	r := &native.Recipe{
		Major: 1, Minor: 26, Name: "layer", Execution: make([]byte, 32), Patching: make([]byte, 16), ProgramData: []byte("kernels"),
		Blobs:    []native.Blob{{Kind: native.ExecutionBlob, Size: 16}, {Kind: native.ExecutionBlob, Size: 16, Offset: 16}, {Kind: native.PatchingBlob, Size: 16}},
		Programs: [][]uint64{{0, 2}, {1}},
		ArcJobs:  []native.ArcJob{{Engine: 1, Static: native.Commands{Bytes: []byte("abc")}}, {Engine: 1, Dynamic: native.Commands{Bytes: []byte("de")}}},
		Tensors: []native.Tensor{
			{Name: "x", Section: 4, Size: 1024, DType: 2, Rank: 2, Sizes: [12]uint64{64, 8}, IsInput: 1},
			{Name: "y", Section: 5, Offset: 128, Size: 2048, DType: 4, Rank: 2, Sizes: [12]uint64{64, 8}},
			{Name: "odd", Section: 5, Size: 8, DType: 7, Rank: 13, Sizes: [12]uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		},
		ConstSections: []native.ConstSection{{Size: 3, Section: 6, HasData: true, Data: []byte("abc")}},
		PatchPoints:   []native.PatchPoint{{Type: native.DoubleWord, Section: 4}, {Type: native.SyncObject}, {Type: native.DoubleWord, Section: 4}},
		Nodes:         []native.NodeProgram{{Blobs: []uint32{1, 0}}, {Blobs: []uint32{2, 1}}},
		Sections:      6, Workspaces: []uint64{256, 7, 128},
		Conf: []native.Conf{{ID: native.ConfDeviceType, Value: 4}, {ID: native.ConfCompileTime, Value: 1700000000}},
	}
	data, err := r.Encode()
	ts.Check(err)
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		if n < 0 {
			data[len(data)+n]++
		} else {
			data = data[:n]
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o666))
}
