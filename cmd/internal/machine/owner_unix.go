//go:build unix

package machine

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives f the owner and the group in of, the attributes of the file that f replaces.
func keepOwner(f *os.File, of fs.FileInfo) error {
	if st, ok := of.Sys().(*syscall.Stat_t); ok {
		return f.Chown(int(st.Uid), int(st.Gid))
	}
	return nil
}
