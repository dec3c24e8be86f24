//go:build unix

package stack

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSpecialFiles checks that pipes and sockets in the folder of a stack are refused, and that Load does not
// wait for them.
func TestSpecialFiles(t *testing.T) {
	dir := folderWith(t, "p", "compose.yaml", "services:\n  app:\n    image: a\n    volumes: [\"./d:/x\"]\n    env_file: d/pipe\n", "d/a", "1")
	if err := syscall.Mkfifo(filepath.Join(dir, "d", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "d", "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = packHere(t, local(t, dir))
	if want := `compose.yaml:5: services.app.env_file: "d/pipe" is a named pipe, not a regular file`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Pack of a stack whose env_file is a pipe returned error %v, want %s", err, want)
	}
	text := "services:\n  app:\n    image: a\n    volumes: [\"./d:/x\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = packHere(t, local(t, dir))
	for _, want := range []string{`"d/pipe" is a named pipe`, `"d/sock" is a socket, not a regular file; leave it out with .persysignore`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Pack of a stack that mounts a folder with special files returned error %v, want %s", err, want)
		}
	}
}
