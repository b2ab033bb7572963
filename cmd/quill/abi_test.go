package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dl/dltest"
	"quill/recipes/native"
)

// TestABIScripts runs testdata/abi, with a library that simulates the vendor's, over its C
// interface. natives and move are commands for them.
func TestABIScripts(t *testing.T) {
	lib := dltest.Simulated(t)
	standin, err := filepath.Abs("../../recipes/dump/testdata/standin.h")
	require.NoError(t, err)
	p := scripts(t, "testdata/abi")
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		kernels := filepath.Join(e.WorkDir, "libkernels.so")
		e.Setenv("QUILL_SYNAPSE", lib)
		e.Setenv("LIB", lib)
		e.Setenv("STANDIN", standin)
		e.Setenv("GC_KERNEL_PATH", kernels)
		if err := os.WriteFile(kernels, []byte("nop"), 0o666); err != nil {
			return err
		}
		return setup(e)
	}
	p.Cmds["natives"], p.Cmds["move"] = natives, move
	testscript.Run(t, p)
}

// natives BUNDLE COUNT checks that every recipe of a bundle is there as the vendor's
// compiler wrote it, and how many are.
func natives(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: natives BUNDLE COUNT")
	}
	b, err := recipes.ReadBundle(ts.MkAbs(args[0]))
	ts.Check(err)
	if b.Native == nil || len(b.Native.Recipes) != len(b.Recipes) || strconv.Itoa(len(b.Recipes)) != args[1] {
		ts.Fatalf("%s has %d recipes, want %s, all of them native", args[0], len(b.Recipes), args[1])
	}
	for h, r := range b.Recipes {
		data, err := b.Native.Recipe(h)
		ts.Check(err)
		n, err := native.Decode(data)
		ts.Check(err)
		again, err := n.Encode()
		ts.Check(err)
		if n.Name != r.Name || !bytes.Equal(again, data) {
			ts.Fatalf("native recipe %v is of %q, want %q", h, n.Name, r.Name)
		}
		if have, want := b.Native.Recipes[h].WorkspaceBytes, int64(n.Workspaces[0]); have != want {
			ts.Fatalf("native recipe %v has a workspace of %d bytes, the bundle says %d", h, want, have)
		}
	}
}

// move PATTERN NAME renames the one file that is called so.
func move(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: move PATTERN NAME")
	}
	found, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(found) != 1 {
		ts.Fatalf("%s are %d files: %v", args[0], len(found), found)
	}
	ts.Check(os.Rename(found[0], ts.MkAbs(args[1])))
}
