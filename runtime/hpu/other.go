//go:build !linux

package hpu

import (
	"context"
	"errors"

	"quill/recipes"
	"quill/runtime"
)

var errSystem = errors.New("hpu: cards need Linux")

// New is an error: there are no cards on this system.
func New(context.Context, Options, *recipes.Bundle, *recipes.Set) (runtime.Device, error) {
	return nil, errSystem
}

// Serve is an error: there are no cards on this system.
func Serve(context.Context) error { return errSystem }
