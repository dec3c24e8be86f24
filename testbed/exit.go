package testbed

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Exit ends the process of a TestMain with code, or with 1 if code is 0 but a goroutine still runs, which
// means a leak.
func Exit(code int) {
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
