//go:build !linux

package safetensors

import "os"

func reserve(*os.File, int64) error { return nil }

func direct(*os.File)   {}
func buffered(*os.File) {}
