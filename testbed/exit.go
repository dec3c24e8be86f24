package testbed

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Exit ends a TestMain whose tests, and what it cleaned up after them, ended with code: with 1 where
// all went well and a goroutine is left.
func Exit(code int) {
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
