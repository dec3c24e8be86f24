package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzFile checks that every file content is either parsed or refused with an error, and that no such error
// contains a secret.
func FuzzFile(f *testing.F) {
	file := filepath.Join(f.TempDir(), "credentials.yaml")
	f.Add("registries:\n  r.example:\n    username: u\n    password: correct-horse\n", "r.example/app:1")
	f.Add("git:\n  forge: {username: u, password: correct-horse, hosts: [h]}\n", "app")
	f.Add("git: {a: {hosts: }}\n<<: *x\n", "")
	f.Add("registries: &a [*a]\n", "UPPER/x")
	f.Add("? - : !!binary |\n\t", "x@sha256:")
	f.Fuzz(func(t *testing.T, text, image string) {
		const secret = "correct-horse"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &Store{File: file}
		_, err := s.Registry("", image)
		for _, err := range []error{s.Check(), err} {
			if err != nil && strings.Contains(err.Error(), secret) && !strings.Contains(image, secret) {
				t.Fatalf("the error contains a password: %v", err)
			}
		}
	})
}
