package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

// FuzzEnvironment reads arbitrary .env files of repositories. Each is parsed or refused, and no error repeats
// a value.
func FuzzEnvironment(f *testing.F) {
	dir := f.TempDir()
	f.Add("A=b\nC=\"${A}-x\"\nexport D='e'\n# no\n")
	f.Add("A=${A:-${B:?correct-horse}}\n")
	f.Add("A='correct-horse\nB=\"")
	f.Add("=\n:\n\x00=${")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(filepath.Join(dir, ".env"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env := types.Mapping{"B": "given"}
		_ = ownEnvironment(dir, env)
		if len(env) > 1+strings.Count(text, "\n")+strings.Count(text, "\r")+strings.Count(text, "=")+strings.Count(text, ":")+len(strings.Fields(text)) {
			t.Fatalf("%d variables out of %q", len(env), text)
		}
	})
}

// FuzzPlain: a Compose file arrives as text or as base64.
func FuzzPlain(f *testing.F) {
	f.Add("services:\n  a:\n    image: b\n")
	f.Add("c2VydmljZXM6Cg==")
	f.Add(" \n")
	f.Add("/w==")
	f.Fuzz(func(t *testing.T, text string) {
		out, err := plain(text)
		if err == nil && strings.ContainsRune(text, ':') && out != text {
			t.Fatalf("%q became %q", text, out)
		}
	})
}
