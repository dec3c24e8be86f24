package setup

import (
	"strings"
	"unsafe"

	"github.com/persys/compute/pki"
)

// TakeArgs returns a copy of args and overwrites the join tokens in args, so that `ps` does not show them
// to other users. args must be os.Args: on Linux these strings are the memory from which the kernel reads a
// process's command line. In the first milliseconds a token is visible all the same; PERSYS_JOIN_FILE and
// SCHEDULER_JOIN_FILE name a file instead.
func TakeArgs(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.Clone(a)
		_, value, ok := strings.Cut(a, "=")
		if !ok {
			value = a
		}
		if pki.IsJoinToken(value) {
			// No other goroutine has these strings yet, and they are not in read-only memory.
			text := unsafe.Slice(unsafe.StringData(value), len(value)) // #nosec G103 -- see above
			for k := range text {
				text[k] = 'x'
			}
		}
	}
	return out
}
