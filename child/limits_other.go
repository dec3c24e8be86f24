//go:build !linux

package child

import "os/exec"

// limit does nothing on other systems: schedulers and agents run only on Linux, and persysctl works only on
// files of its user.
func limit(Limits) error { return nil }

// Confine returns dir.
func Confine(dir string) string { return dir }

func killed(*exec.ExitError) bool { return false }
