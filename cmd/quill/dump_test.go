package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"quill/recipes"
)

// The IR is of what this compiler makes. A recipe of the bundle that is another one is
// noted, and so are plans that are.
func TestDumpNotesOtherRecipes(t *testing.T) {
	t.Parallel()
	b := divergeBundle(t, "nano-dense", 2, "")
	set := &b.Sets[0]
	at := len(set.Plans) - 1
	for set.Plans[at].Bucket.Phase != recipes.Decode {
		at--
	}
	p := &set.Plans[at]
	was := p.Steps[0].Launch.Recipe
	r := cloneRecipe(t, b.Recipes[was])
	r.Nodes[0].Origin += " changed"
	now := r.Hash()
	b.Recipes[now] = r
	p.Steps[0].Launch.Recipe = now
	dropUnused(b)
	bundle := writeTestBundle(t, b)

	var stdout, stderr bytes.Buffer
	dump := []string{"dump", bundle, "--bucket", p.Bucket.String(), "--form", "qir"}
	if code := execute(t.Context(), dump, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	note := fmt.Sprintf("note: recipe seg0-%.12s is not what this compiler makes of its segment, which has hash %s", now, was)
	if strings.Count(stderr.String(), "quill: note") != 1 || !strings.Contains(stderr.String(), note) {
		t.Errorf("stderr %q, want %q", &stderr, note)
	}
	head := fmt.Sprintf("; @seg0: recipe seg0-%.12s, hash %s; made now: %s\n", now, now, was)
	if !strings.Contains(stdout.String(), head) || strings.Count(stdout.String(), "made now") != 1 {
		t.Errorf("IR without %q", head)
	}

	// Where the compiler makes no launch there is no segment.
	last := len(p.Steps)
	p.Steps = append(p.Steps, recipes.Step{Launch: p.Steps[0].Launch})
	p.Steps[0].Launch = p.Steps[2].Launch // so that the first launch of the recipe is the last step
	dump[1] = writeTestBundle(t, b)
	stderr.Reset()
	if code := execute(t.Context(), dump, &stdout, &stderr); code != exitError {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	want := fmt.Sprintf("step %d of bucket %s is no launch when it is compiled again", last, p.Bucket)
	if !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr %q, want %q", &stderr, want)
	}
}
