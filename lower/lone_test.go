package lower

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes"
)

// A panic of lowering is an error of the bucket, whose reproducer says where it was.
func TestPanicsOfLoweringAreErrors(t *testing.T) {
	s := &setCompiler{compiler: &compiler{}}
	m, b := &ir.Module{Name: "m"}, recipes.Bucket{Phase: recipes.Logits, Seqs: 1}
	_, err := s.lower(m, b, func() (*layout, error) { panic("no way") })
	require.EqualError(t, err, "lowering panicked: no way")
	dir := t.TempDir()
	err = reproducible(dir, m, b, err)
	require.ErrorContains(t, err, "lowering panicked: no way\nhelp: quill opt --lower=logits/r=1 -o "+os.DevNull+" "+dir)
	files, _ := os.ReadDir(dir)
	require.Len(t, files, 1)
	text, _ := os.ReadFile(dir + "/" + files[0].Name())
	require.Contains(t, string(text), "; bucket logits/r=1: lowering panicked: no way\n; quill opt ")
	require.Contains(t, string(text), "lone_test.go:")
	require.ErrorContains(t, reproducible(dir+"/none", m, b, err), "note: there is no reproducer: ")
}
