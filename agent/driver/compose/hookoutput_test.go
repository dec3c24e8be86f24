package compose

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
)

// hookErrors are Compose's errors of hooks that failed, and the driver's texts of them.
var hookErrors = map[string]string{
	"service \"app\" pre_start[1] exited with code 3: hunter2\nno space left on device (hook container 0123456789ab retained for inspection)": "service \"app\" pre_start[1] exited with code 3 (hook container 0123456789ab retained for inspection)",
	"service \"app\" pre_start[1] exited with code 3 (hook container 0123456789ab retained for inspection)":                                   "service \"app\" pre_start[1] exited with code 3 (hook container 0123456789ab retained for inspection)",
	"app hook exited with status 3: hunter2 is already in use by container":                                                                   "app hook exited with status 3",
}

func TestErrorsOfHooksHaveNoOutput(t *testing.T) {
	for said, want := range hookErrors {
		err := hookOf(errors.New(said))
		if driver.ClassOf(err) != driver.RuntimeError || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("hookOf(%q) is %v, want a RuntimeError with %q", said, err, want)
		}
	}
	if err := errors.New("no space left on device"); hookOf(err) != err || hookOf(nil) != nil {
		t.Error("hookOf changed the error of something else than a hook")
	}
}

// The Compose command writes the error of a hook after other texts. Its output is longer than the agent's errors may be.
func TestErrorsOfTheComposeCommandHaveNoOutputOfHooks(t *testing.T) {
	for said, want := range hookErrors {
		dir := t.TempDir()
		file := filepath.Join(dir, "said")
		if err := os.WriteFile(file, []byte(strings.Repeat(" Container app Starting\n", 400)+said+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &program{words: []string{"sh", "-c", "cat " + file + "; exit 1"}, dir: dir}
		err := c.exec(t.Context(), "p", dir, nil, "up")
		if driver.ClassOf(err) != driver.RuntimeError || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("after %q, exec returned %v, want a RuntimeError with %q", said, err, want)
		}
	}
}
