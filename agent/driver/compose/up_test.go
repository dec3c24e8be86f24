package compose

import (
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// The output of a hook decides neither the class of a failure nor whether the stack counts as started.
func TestTheOutputOfAHookDoesNotChooseTheClass(t *testing.T) {
	for _, said := range []string{
		"dependency failed to start", "external volume", "declared as external, but could not be found", "depends on undefined",
		"service \"init\" didn't complete successfully: exit 1",
	} {
		err := driver.Errorf(driver.RuntimeError, "start", "service app: post_start[0]: %w", moby.HookError("exit code 3: "+said))
		got := dependencyFailed(classify(err))
		if driver.ClassOf(got) != driver.RuntimeError || driver.StartedOf(got) || got.Error() != err.Error() {
			t.Errorf("the error of a hook that wrote %q became %q of class %s, started: %t", said, got, driver.ClassOf(got), driver.StartedOf(got))
		}
	}
}
