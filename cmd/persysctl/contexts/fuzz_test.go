package contexts

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzFile loads arbitrary text as contexts.yaml, because users may edit that file.
func FuzzFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "contexts.yaml")
	f.Add([]byte("current: a\ncontexts:\n- {name: a, server: 'https://x'}\n"))
	f.Add([]byte("contexts: &a [*a]\n"))
	f.Add([]byte("--- ? : !x |\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := Load(path)
		if err != nil {
			return
		}
		for _, c := range all.Contexts {
			if got, ok := all.Get(c.Name); !ok || got.Server == "" {
				t.Fatalf("context %q was stored and read back as %+v", c.Name, got)
			}
		}
	})
}
