package lower

import (
	"runtime/debug"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/target"
)

// modelOf is what the runtime must know of a model.
func modelOf(c *inkling.Config, fingerprint string) recipes.Model {
	return recipes.Model{
		Fingerprint: fingerprint, Layers: c.Layers, Hidden: c.Hidden, Vocab: c.Vocab, ValidVocab: c.ValidVocab, EOS: c.EOS,
		Window: window(c), LayerKinds: layerKinds(c),
	}
}

// compiledBy says what this compiler is, and how it is told to work.
func compiledBy(p passes.Pipeline, params passes.Params) (recipes.Compiled, error) {
	tgt, err := target.Load(target.Default)
	if err != nil {
		return recipes.Compiled{}, err
	}
	hash, err := tgt.Hash()
	return recipes.Compiled{
		Build: Build(), Encoding: recipes.EncodingVersion, Profile: tgt.Name, ProfileHash: hash,
		Passes: p.String(), Params: params.Texts(),
	}, err
}

// Build is the revision of the source that this program was built from, with "+changes"
// behind it if there were some; "" if the build did not record it.
func Build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	revision, changes := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changes = "+changes"
		}
	}
	return revision + changes
}
