package testbed

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Exit is called at the end of a TestMain with the exit code of the tests. It ends the process with this code. If the
// code is 0 but a goroutine still runs, a test leaks goroutines, and the exit code is 1.
func Exit(code int) {
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
