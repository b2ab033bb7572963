package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// This file reads tokenizer.json, the format of Hugging Face tokenizers. Such
// a file describes a pipeline of components; what is read here is byte-level
// BPE and no more. Every key is accounted for: it is used, it is known to make
// no difference, or it is refused.

// parseHF makes a tokenizer of the contents of a tokenizer.json.
func parseHF(file string, data []byte) (*Tokenizer, error) {
	doc, err := parseDocument(file, data)
	if err != nil {
		return nil, err
	}
	root, err := doc.object("version", "truncation", "padding", "added_tokens", "normalizer",
		"pre_tokenizer", "post_processor", "decoder", "model")
	if err != nil {
		return nil, err
	}
	if err := checkFrame(root); err != nil {
		return nil, err
	}
	split, prefixSpace, err := hfPreTokenizer(root)
	if err != nil {
		return nil, err
	}
	vocab := &vocabulary{}
	added, err := hfAddedTokens(root, vocab)
	if err != nil {
		return nil, err
	}
	model, err := hfModel(root, vocab, added)
	if err != nil {
		return nil, err
	}
	return newTokenizer(file, vocab.pieces, model, split, prefixSpace, aliasInkling(added)), nil
}

// checkFrame checks the parts that must not do anything.
func checkFrame(root object) error {
	if root.fields["version"].exists() {
		if err := root.oneOf("version", "1.0"); err != nil {
			return err
		}
	}
	if err := root.allNull("truncation", "padding", "normalizer"); err != nil {
		return err
	}
	if post := root.fields["post_processor"]; !post.isNull() {
		// A byte-level post-processor moves offsets and leaves ids alone.
		if _, err := byteLevel(post); err != nil {
			return err
		}
	}
	decoder, err := root.get("decoder")
	if err != nil {
		return err
	}
	_, err = byteLevel(decoder)
	return err
}

// byteLevel reads a component of type ByteLevel, which can be a pre-tokenizer,
// a post-processor or a decoder. trim_offsets is about offsets in the text and
// makes no difference to ids.
func byteLevel(v value) (object, error) {
	if _, err := componentType(v, "ByteLevel"); err != nil {
		return object{}, err
	}
	return v.object("type", "add_prefix_space", "trim_offsets", "use_regex")
}

// componentType returns the type of a component, which must be among those
// wanted. It comes before anything else, because complaints about the keys of
// a component of another type would only confuse.
func componentType(v value, want ...string) (string, error) {
	for key, member := range v.members() {
		if key == "type" {
			o := object{v, map[string]value{key: member}}
			if err := o.oneOf(key, want...); err != nil {
				return "", err
			}
			return o.text(key)
		}
	}
	return "", v.errorf("%s is not supported, only an object of type %s is", v.brief(), strings.Join(want, " or "))
}

// hfPreTokenizer reads how text is split, and whether a space is put before
// it.
func hfPreTokenizer(root object) (split splitter, prefixSpace bool, err error) {
	v, err := root.get("pre_tokenizer")
	if err != nil {
		return nil, false, err
	}
	kind, err := componentType(v, "ByteLevel", "Sequence")
	if err != nil {
		return nil, false, err
	}
	if kind == "Sequence" {
		split, err = splitThenBytes(v)
		return split, false, err
	}
	o, err := byteLevel(v)
	if err != nil {
		return nil, false, err
	}
	if prefixSpace, err = o.mustFlag("add_prefix_space"); err != nil {
		return nil, false, err
	}
	useRegex, err := o.flag("use_regex", true)
	if useRegex {
		return gpt2Piece, prefixSpace, err
	}
	return wholePiece, prefixSpace, err
}

// splitThenBytes reads a sequence of a Split and a ByteLevel that does not
// split again. A prefix space would go before every piece here, which no
// vocabulary is made for.
func splitThenBytes(v value) (splitter, error) {
	o, err := v.object("type", "pretokenizers")
	if err != nil {
		return nil, err
	}
	list, err := o.get("pretokenizers")
	if err != nil {
		return nil, err
	}
	if err := list.array(); err != nil {
		return nil, err
	}
	var steps []value
	for _, step := range list.elements() {
		steps = append(steps, step)
	}
	if len(steps) != 2 {
		return nil, list.errorf("%d steps are not supported, only a Split and a ByteLevel are", len(steps))
	}
	split, err := hfSplit(steps[0])
	if err != nil {
		return nil, err
	}
	last, err := byteLevel(steps[1])
	if err != nil {
		return nil, err
	}
	if _, err := last.mustFlag("use_regex"); err != nil {
		return nil, err
	}
	return split, last.allFalse("add_prefix_space", "use_regex")
}

func hfSplit(v value) (splitter, error) {
	if _, err := componentType(v, "Split"); err != nil {
		return nil, err
	}
	o, err := v.object("type", "pattern", "behavior", "invert")
	if err != nil {
		return nil, err
	}
	if err := o.oneOf("behavior", "Isolated"); err != nil {
		return nil, err
	}
	if err := o.allFalse("invert"); err != nil {
		return nil, err
	}
	pattern, err := o.get("pattern")
	if err != nil {
		return nil, err
	}
	p, err := pattern.object("Regex")
	if err != nil {
		return nil, err
	}
	regex, err := p.text("Regex")
	if err != nil {
		return nil, err
	}
	split, ok := splitterFor(regex)
	if !ok {
		return nil, p.fields["Regex"].errorf("the pattern %q is not supported, only those of o200k_base and GPT-2 are", regex)
	}
	return split, nil
}

// hfAddedTokens reads the tokens that are found in text by their spelling, and
// enters them in the vocabulary.
func hfAddedTokens(root object, vocab *vocabulary) ([]addedToken, error) {
	list := root.fields["added_tokens"]
	if list.isNull() {
		return nil, nil
	}
	if err := list.array(); err != nil {
		return nil, err
	}
	var added []addedToken
	seen := map[string]bool{}
	for _, v := range list.elements() {
		token, err := hfAddedToken(v)
		if err != nil {
			return nil, err
		}
		if seen[token.text] {
			return nil, v.errorf("the token %q is added twice", token.text)
		}
		seen[token.text] = true
		if err := vocab.add(int(token.id), token.text); err != nil {
			return nil, v.errorf("%w", err)
		}
		added = append(added, token)
	}
	return added, nil
}

// hfAddedToken reads one of them. A token spelled "<|name|>" controls the
// model whether or not the file calls it special.
func hfAddedToken(v value) (addedToken, error) {
	o, err := v.object("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
	if err != nil {
		return addedToken{}, err
	}
	number, err := o.get("id")
	if err != nil {
		return addedToken{}, err
	}
	id, err := number.integer()
	if err != nil {
		return addedToken{}, err
	}
	if id < 0 || id >= maxTokens {
		return addedToken{}, number.errorf("id %d is not in the range 0 to %d", id, maxTokens-1)
	}
	text, err := o.text("content")
	if err != nil {
		return addedToken{}, err
	}
	if strings.ContainsRune(text, utf8.RuneError) {
		return addedToken{}, o.fields["content"].errorf("%q has characters that are none", text)
	}
	special, err := o.mustFlag("special")
	if err != nil {
		return addedToken{}, err
	}
	// Without a normalizer "normalized" says only who goes first.
	late, err := o.flag("normalized", !special)
	if err != nil {
		return addedToken{}, err
	}
	token := addedToken{id: int32(id), text: text, control: special || isMarker(text), late: late}
	return token, o.allFalse("single_word", "lstrip", "rstrip")
}

// hfModel reads the vocabulary and the merges.
func hfModel(root object, vocab *vocabulary, added []addedToken) (*bpe, error) {
	v, err := root.get("model")
	if err != nil {
		return nil, err
	}
	if _, err := componentType(v, "BPE"); err != nil {
		return nil, err
	}
	o, err := v.object("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
		"fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges")
	if err != nil {
		return nil, err
	}
	// unk_token and fuse_unk are about characters that are not in the
	// vocabulary. All bytes are, so there is no such character.
	if err := checkModel(o); err != nil {
		return nil, err
	}
	ignoreMerges, err := o.flag("ignore_merges", false)
	if err != nil {
		return nil, err
	}
	ids, err := hfVocab(o, vocab, added)
	if err != nil {
		return nil, err
	}
	controls := controlIDs(added)
	merges, err := hfMerges(o, ids, controls)
	if err != nil {
		return nil, err
	}
	model, err := newBPE(textTokens(ids, vocab, controls), ignoreMerges, merges)
	if err != nil {
		return nil, o.fields["vocab"].errorf("%w", err)
	}
	return model, nil
}

// checkModel checks the options that would change what a merge is.
func checkModel(o object) error {
	if v := o.fields["dropout"]; !v.isNull() && v.brief() != "0" && v.brief() != "0.0" {
		return v.errorf("%s is not supported, only null is", v.brief())
	}
	for _, key := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if v := o.fields[key]; !v.isNull() && v.brief() != `""` {
			return v.errorf("%s is not supported, only null is", v.brief())
		}
	}
	return o.allFalse("byte_fallback")
}

func controlIDs(added []addedToken) map[int32]bool {
	controls := map[int32]bool{}
	for _, a := range added {
		if a.control {
			controls[a.id] = true
		}
	}
	return controls
}

// textTokens returns the tokens that text may become, by their bytes. Files
// list control tokens in the vocabulary too; there they must not be found.
func textTokens(ids map[string]int32, vocab *vocabulary, controls map[int32]bool) map[string]int32 {
	tokens := make(map[string]int32, len(ids))
	for _, id := range ids {
		if !controls[id] {
			tokens[vocab.pieces[id]] = id
		}
	}
	return tokens
}

// hfVocab reads the vocabulary. The ids it returns are under the spellings of
// the file, which the merges use too.
func hfVocab(o object, vocab *vocabulary, added []addedToken) (map[string]int32, error) {
	list, err := o.get("vocab")
	if err != nil {
		return nil, err
	}
	if list.first() != '{' {
		return nil, list.errorf("%s is not an object", list.brief())
	}
	addedIDs := make(map[string]int32, len(added))
	for _, a := range added {
		addedIDs[a.text] = a.id
	}
	ids := map[string]int32{}
	for token, v := range list.members() {
		id, err := v.integer()
		if err != nil {
			return nil, err
		}
		if _, twice := ids[token]; twice {
			return nil, v.errorf("the key is given twice")
		}
		if err := enterToken(v, vocab, addedIDs, token, id); err != nil {
			return nil, err
		}
		ids[token] = int32(id)
	}
	return ids, nil
}

// enterToken enters a token of the vocabulary, unless it has been added
// already, which must then have been with the same id and the same meaning.
func enterToken(v value, vocab *vocabulary, added map[string]int32, token string, id int) error {
	raw, foreign, ok := unmapBytes(token)
	if was, both := added[token]; both {
		if int(was) != id {
			return v.errorf("the id is %d, but in added_tokens it is %d", id, was)
		}
		if raw != token {
			return v.errorf("an added token must be spelled in printable ASCII to be in the vocabulary too")
		}
		return nil
	}
	if !ok {
		return v.errorf("%q stands for no byte, so this is no byte-level vocabulary", foreign)
	}
	if err := vocab.add(id, raw); err != nil {
		return v.errorf("%w", err)
	}
	return nil
}

// hfMerges reads the merges, whose order is their rank. Merges that would make
// a control token are left out: text must not turn into one.
func hfMerges(o object, ids map[string]int32, controls map[int32]bool) (pairMerges, error) {
	list, err := o.get("merges")
	if err != nil {
		return nil, err
	}
	if err := list.array(); err != nil {
		return nil, err
	}
	merges := pairMerges{}
	for rank, v := range list.elements() {
		left, right, err := mergePair(v)
		if err != nil {
			return nil, err
		}
		pair, id, err := mergeIDs(v, ids, left, right)
		if err != nil {
			return nil, err
		}
		if _, twice := merges[pair]; twice {
			return nil, v.errorf("%q and %q are merged twice", left, right)
		}
		if !controls[id] {
			merges[pair] = merge{rank: int32(rank), id: id}
		}
	}
	return merges, nil
}

// mergePair reads a merge in either spelling: "a b" or ["a", "b"].
func mergePair(v value) (left, right string, err error) {
	var parts []string
	if v.first() == '[' {
		for _, part := range v.elements() {
			s, err := part.text()
			if err != nil {
				return "", "", err
			}
			parts = append(parts, s)
		}
	} else {
		line, err := v.text()
		if err != nil {
			return "", "", err
		}
		parts = strings.Split(line, " ")
	}
	if len(parts) != 2 {
		return "", "", v.errorf("%s does not have two tokens", v.brief())
	}
	return parts[0], parts[1], nil
}

// mergeIDs looks up the two tokens of a merge and the one they make.
func mergeIDs(v value, ids map[string]int32, left, right string) (pair [2]int32, id int32, err error) {
	var found [3]int32
	for i, token := range [...]string{left, right, left + right} {
		id, ok := ids[token]
		if !ok {
			return pair, 0, v.errorf("%q is not in the vocabulary", token)
		}
		found[i] = id
	}
	return [2]int32{found[0], found[1]}, found[2], nil
}
