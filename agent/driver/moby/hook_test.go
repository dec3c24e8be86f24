package moby

import (
	"errors"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// A hook may print the contents of a secret or config, so MaskFiles masks them in the error of a hook. It
// does not mask other errors, because a line of a config may be any word.
func TestMaskFiles(t *testing.T) {
	files := []*agentv1.MemoryFile{{Data: []byte("first\nhunter2\n")}, {Data: []byte("other")}}
	hook := MaskFiles(driver.Errorf(driver.RuntimeError, "start", "post_start[0]: %w", HookError("refused hunter2 of other")), files)
	if text := hook.Error(); !strings.Contains(text, "post_start[0]: refused … of …") || driver.ClassOf(hook) != driver.RuntimeError {
		t.Errorf("MaskFiles turned the error of a hook into %q, want it masked and with the same class", text)
	}
	if err := errors.New("hunter2"); MaskFiles(err, files) != err {
		t.Error("MaskFiles changed an error that is not a HookError")
	}
}
