package persysctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/pki"
)

func TestCACommandsMakeAndRotateCAs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	folder := pki.CAFolder{Dir: dir}
	do := func(code int, want string, args ...string) {
		t.Helper()
		s := newSession(t)
		if got := s.run(nil, args...); got != code || !strings.Contains(s.stdout.String()+s.stderr.String(), want) {
			t.Fatalf("%v: code %d, want %d and %q:\n%s%s", args, got, code, want, s.stdout.String(), s.stderr.String())
		}
	}
	id := func() (issuing, root string) {
		t.Helper()
		a, err := folder.Authority()
		if err != nil {
			t.Fatal(err)
		}
		return a.ID(), pki.Fingerprint(a.Root.Raw)
	}
	do(exitUsage, "DIR is missing", "ca", "init")
	do(exitUsage, `cluster "a/b"`, "ca", "init", dir, "--cluster", "a/b")
	do(exitFailed, "no such file", "ca", "show", dir)
	do(0, "root-key.pem", "ca", "init", dir, "--cluster", "home")
	first, root := id()
	do(0, first, "ca", "show", dir)
	do(exitFailed, "holds a CA already", "ca", "init", dir)
	do(0, root, "ca", "rotate", dir)
	second, again := id()
	if second == first || again != root {
		t.Errorf("after ca rotate the issuing CA was %s and is %s, want another one; the root CA was %s and is %s, want the same", first, second, root, again)
	}
	for _, lost := range []string{"issuing.pem", "issuing-key.pem"} { // the test deletes only these files, because the key of the root CA is stored in another folder
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	do(exitFailed, "hint: persysctl ca rotate "+dir+" ", "ca", "rotate", dir, "--root")
	do(0, root, "ca", "rotate", dir)
	if err := os.Rename(folder.RootKeyPath(), folder.RootKeyPath()+".away"); err != nil {
		t.Fatal(err)
	}
	do(exitFailed, "bring the root's key back", "ca", "rotate", dir)
	do(0, "home", "ca", "show", dir)
	do(0, "Issuing", "ca", "rotate", dir, "--root")
	if third, other := id(); third == second || other == root {
		t.Error("ca rotate --root did not replace both the root CA and the issuing CA")
	}
}
