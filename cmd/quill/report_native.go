package main

import (
	"fmt"

	"quill/recipes"
)

// nativeReport is what the vendor's compiler made.
type nativeReport struct {
	Driver      string       `json:"driver"`
	Library     recipes.Hash `json:"library"`
	Environment []string     `json:"environment"`
	Recipes     int          `json:"recipes"`
	Bytes       int64        `json:"bytes"`
	// ProgramBytes is what programs of all recipes take on a device, MostProgramBytes and
	// MostWorkspaceBytes what the largest recipe takes.
	ProgramBytes       int64 `json:"program_bytes"`
	MostProgramBytes   int64 `json:"most_program_bytes"`
	MostWorkspaceBytes int64 `json:"most_workspace_bytes"`
}

func newNativeReport(n *recipes.Native) *nativeReport {
	if n == nil {
		return nil
	}
	r := &nativeReport{Driver: n.Driver, Library: n.Library, Environment: n.Environment, Recipes: len(n.Recipes)}
	for _, x := range n.Recipes {
		r.Bytes += x.Bytes
		r.ProgramBytes += x.ProgramBytes
		r.MostProgramBytes = max(r.MostProgramBytes, x.ProgramBytes)
		r.MostWorkspaceBytes = max(r.MostWorkspaceBytes, x.WorkspaceBytes)
	}
	return r
}

func (n *nativeReport) String() string {
	if n == nil {
		return "none"
	}
	return fmt.Sprintf("%s by driver %s (library %.12s), %s; programs of %s, at most %s each; workspace of at most %s", count(n.Recipes, "recipe"), printable(n.Driver), n.Library,
		size(n.Bytes), size(n.ProgramBytes), size(n.MostProgramBytes), size(n.MostWorkspaceBytes))
}
