//go:build !unix

package native

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // it may have ended

func wasKilled(*os.ProcessState) bool { return false }
