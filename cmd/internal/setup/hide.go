package setup

import (
	"strings"
	"unsafe"

	"github.com/persys/compute/pki"
)

// TakeArgs returns what the program was called with, and wipes the join tokens that
// are among it from the list that `ps` shows to every user of the machine. args are
// os.Args: on Linux these strings lie where the kernel reads a process's command
// line. Whoever looks in the first milliseconds sees the token all the same;
// PERSYS_JOIN_FILE and SCHEDULER_JOIN_FILE name a file instead.
func TakeArgs(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.Clone(a)
		_, value, ok := strings.Cut(a, "=")
		if !ok {
			value = a
		}
		if pki.IsJoinToken(value) {
			// Nobody else holds these strings yet, and they are not in read-only memory.
			text := unsafe.Slice(unsafe.StringData(value), len(value)) // #nosec G103 -- see above
			for k := range text {
				text[k] = 'x'
			}
		}
	}
	return out
}
