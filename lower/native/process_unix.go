//go:build unix

package native

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup keeps signals of the terminal from the process, and lets it be killed with
// whatever it started.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func kill(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may have ended

// wasKilled reports whether a process ended by a signal that nothing can catch.
func wasKilled(s *os.ProcessState) bool {
	w, ok := s.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && w.Signal() == syscall.SIGKILL
}
