package native

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quill/lower/synapse/compiler"
	"quill/recipes"
	"quill/recipes/store"
)

// inputs are what a native recipe depends on, beside the recipe itself.
type inputs struct {
	driver    string       // version
	library   recipes.Hash // of the library and what it loaded from its folder
	variables []string     // of the environment, NAME=value, sorted
	kernels   string       // hashes of the kernel libraries
	profile   recipes.Hash // lays parameters out
}

// key is that of a recipe's native form in the store.
func (in *inputs) key(recipe recipes.Hash) store.Key {
	return store.Key{
		{Name: "what", Text: "native recipe"},
		{Name: "recipe", Text: recipe.String()},
		{Name: "graph", Text: compiler.GraphVersion},
		{Name: "profile", Text: in.profile.String()},
		{Name: "driver", Text: in.driver},
		{Name: "library", Text: in.library.String()},
		{Name: "kernels", Text: in.kernels},
		{Name: "environment", Text: strings.Join(in.variables, "\n")},
	}
}

// prefixes begin the names of variables that the vendor's compiler reads: any of its
// settings can be one.
var prefixes = []string{
	"ENABLE_", "DISABLE_", "GC_", "HABANA_", "SRAM_", "PIPELINE_", "COMMON_DIM", "TPC_", "MME_", "RUN_TPC", "HL_", "SDPA_",
}

const (
	kernelsVariable = "GC_KERNEL_PATH"             // libraries, with colons between them
	configVariable  = "SYNAPSE_CONFIGURATION_FILE" // a file of such settings
	logsVariable    = "HABANA_LOGS"                // where logs go, which changes nothing
)

// environment takes what the compiler obeys of an environment. Files count by their
// content, not by their names.
func (in *inputs) environment(environ []string) error {
	obeyed := map[string]string{} // of a name that is there twice the last one counts, which is what processes get
	for _, text := range environ {
		name, value, _ := strings.Cut(text, "=")
		read := slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		switch {
		case name == configVariable && value != "", name == kernelsVariable:
			hashes, err := hashEach(strings.Split(value, ":"))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if name == kernelsVariable {
				in.kernels = hashes
			}
			obeyed[name] = name + "=" + hashes
		case read && name != logsVariable:
			obeyed[name] = text
		}
	}
	in.variables = slices.AppendSeq([]string{}, maps.Values(obeyed))
	slices.Sort(in.variables)
	return nil
}

// hashEach gives the hashes of files with colons between them, in their order: of two
// kernel libraries with a kernel of one name, the first one's counts.
func hashEach(files []string) (string, error) {
	hashes := make([]string, len(files))
	for i, f := range files {
		h, err := hashFile(f)
		if err != nil {
			return "", err
		}
		hashes[i] = h.String()
	}
	return strings.Join(hashes, ":"), nil
}

// hashFiles is the hash of files with their names, whatever folder and order they are in.
func hashFiles(files []string) (recipes.Hash, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(cmp.Compare(filepath.Base(a), filepath.Base(b)), cmp.Compare(a, b))
	})
	var list strings.Builder
	for _, f := range files {
		h, err := hashFile(f)
		if err != nil {
			return h, err
		}
		fmt.Fprintf(&list, "%s %s\n", h, filepath.Base(f))
	}
	return recipes.Sum([]byte(list.String())), nil
}

func hashFile(path string) (h recipes.Hash, err error) {
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close() // it is only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return h, err
	}
	return recipes.Hash(sum.Sum(nil)), nil
}
