// Package cmd_test holds the rules of who may import whom.
package cmd_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// leaves may be imported by every package.
var leaves = []string{"recipes/safetensors", "recipes/dtype", "recipes/target"}

// rules lists for each package the packages of the module it may import beside
// the leaves; a trailing /... allows everything below. Packages that are not
// listed may not exist: a new one needs a rule.
var rules = map[string][]string{
	"recipes/safetensors": {},
	"recipes/dtype":       {},
	"recipes":             {},

	"recipes/target":        {"recipes"},
	"recipes/target/header": {},
	"recipes/dump":          {"recipes"},
	"recipes/store":         {"recipes"},
	"recipes/dl":            {},
	"recipes/dl/dltest":     {"recipes/dl"},
	"recipes/native":        {},

	"ir/ops":                 {},
	"ir/internal/opgen":      {"ir/ops"},
	"ir":                     {"ir/ops"},
	"ir/filetest":            {},
	"ir/inkling":             {"ir", "ir/ops"},
	"ir/interp":              {"ir", "ir/ops"},
	"passes":                 {"ir", "ir/ops", "ir/interp"}, // folding computes with the one meaning that ops have
	"lower/synapse":          {"ir", "ir/ops", "recipes"},
	"lower/synapse/compiler": {"recipes", "recipes/dl"},
	"lower/buckets":          {"recipes"},
	"lower/native":           {"recipes", "recipes/dl", "recipes/dump", "recipes/store", "lower/synapse/compiler"},
	"lower":                  {"ir", "ir/ops", "ir/inkling", "passes", "recipes", "recipes/store", "lower/buckets", "lower/synapse"},

	// The serving path cannot compile.
	"runtime/tokenizer": {},
	"runtime/host":      {"recipes", "runtime/host/kern"},

	"runtime/hpu":        {"recipes", "recipes/dl", "runtime", "runtime/hpu/launch"},
	"runtime/hpu/launch": {"recipes/dl"},
	"runtime/devicetest": {"recipes", "runtime"},

	"runtime/host/kern":              {},
	"runtime/host/kern/internal/gen": {},
	"runtime":                        {"recipes", "runtime/host"},

	// Test tools, which nothing else imports.
	"lower/native/nativetest":    {"recipes", "recipes/dl", "lower/synapse/compiler"},
	"runtime/hpu/simsynapse":     {"recipes", "recipes/native", "recipes/target/header", "runtime/host"},
	"runtime/hpu/simsynapse/lib": {"runtime/hpu/simsynapse"},

	"cmd/quill":     {"..."},
	"cmd/quill/e2e": {"..."},
}

// external lists the modules that only some packages may import; the serving
// path in particular needs few.
var external = map[string][]string{
	"github.com/alecthomas/participle": {"ir", "recipes/target/header"},
	"github.com/dave/jennifer":         {"ir/internal/opgen"},
	"github.com/ebitengine/purego":     {"recipes/dl"},
	"github.com/goccy/go-yaml":         {"lower"},
	"github.com/gofrs/flock":           {"lower/native", "recipes/store", "runtime/hpu/simsynapse"},
	"github.com/spf13/cobra":           {"cmd/quill"},
	"github.com/spf13/pflag":           {"cmd/quill"},
	"github.com/vbauerster/mpb":        {"cmd/quill"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportRules(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "quill/...").Output()
	require.NoError(t, err)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for dec.More() {
		var p pkg
		require.NoError(t, dec.Decode(&p))
		name := strings.TrimPrefix(p.ImportPath, "quill/")
		if name == "cmd" {
			continue // this test
		}
		allowed, ok := rules[name]
		require.True(t, ok, "package %s has no import rule", name)
		for _, imp := range p.Imports {
			checkImport(t, name, imp, allowed)
		}
	}
}

func checkImport(t *testing.T, name, imp string, allowed []string) {
	t.Helper()
	if own, ok := strings.CutPrefix(imp, "quill/"); ok {
		if !slices.Contains(leaves, own) && !slices.Contains(allowed, own) && !slices.Contains(allowed, "...") {
			t.Errorf("%s imports %s, which it may not", name, own)
		}
		return
	}
	for mod, users := range external {
		if strings.HasPrefix(imp, mod) && !slices.Contains(users, name) {
			t.Errorf("%s imports %s, which only %v may", name, imp, users)
		}
	}
}

// With the tag nohpu nothing needs the dynamic linker.
func TestNoLoader(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "nohpu", "quill/...").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "quill/recipes/dl\n")
	require.NotContains(t, string(out), "purego")
}
