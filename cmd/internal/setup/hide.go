package setup

import (
	"strings"
	"unsafe"

	"github.com/persys/compute/pki"
)

// TakeArgs returns a copy of args and overwrites the join tokens in args in place, so that `ps` does not show
// them to other users. args must be os.Args: on Linux the kernel reads a process's command line from the
// memory of these strings. A token on the command line is still visible during the first milliseconds. PERSYS_JOIN_FILE
// and SCHEDULER_JOIN_FILE avoid that, because they name a file with the token.
func TakeArgs(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.Clone(a)
		_, value, ok := strings.Cut(a, "=")
		if !ok {
			value = a
		}
		if pki.IsJoinToken(value) {
			// Overwriting is safe: no other goroutine uses these strings yet, and they are not in read-only
			// memory.
			text := unsafe.Slice(unsafe.StringData(value), len(value)) // #nosec G103 -- see the comment of the function
			for k := range text {
				text[k] = 'x'
			}
		}
	}
	return out
}
