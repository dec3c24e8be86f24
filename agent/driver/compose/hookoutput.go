package compose

import (
	"errors"
	"regexp"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

var (
	// composeHook is the start of Compose's error of a hook that failed: pre_start, and also post_start if Compose is a command.
	// The output of the hook follows.
	composeHook  = regexp.MustCompile(`(service "[^"\n]*" pre_start\[\d+\] exited with code -?\d+|[\w.-]+ hook exited with status -?\d+)`)
	retainedHook = regexp.MustCompile(`\(hook container [0-9a-f]{12} retained for inspection\)$`)
)

// hookOf returns err as the error of a hook without its output, if err is Compose's error of a hook. The output may hold
// secrets of the stack, such as variables and files. It is not masked, because Compose cuts it at any byte, which may be inside
// a secret. A text without the output also cannot choose the class of the failure.
func hookOf(err error) error {
	if err == nil || errors.As(err, new(*driver.Error)) {
		return err
	}
	if hook := hookText(err.Error()); hook != "" {
		return driver.Errorf(driver.RuntimeError, "start", "%w", moby.HookError(hook))
	}
	return err
}

// hookText returns the part of a text of Compose that names a failed hook, without the output of the hook. It returns "" if the
// text names none.
func hookText(text string) string {
	hook := composeHook.FindString(text)
	if kept := retainedHook.FindString(text); hook != "" && kept != "" {
		hook += " " + kept
	}
	return hook
}
