package compose

import (
	"strings"
	"testing"
)

// FuzzPlain checks the function plain, which decodes a Compose file that was sent either as text or as base64.
func FuzzPlain(f *testing.F) {
	f.Add("services:\n  a:\n    image: b\n")
	f.Add("c2VydmljZXM6Cg==")
	f.Add(" \n")
	f.Add("/w==")
	f.Fuzz(func(t *testing.T, text string) {
		out, err := plain(text)
		if err == nil && strings.ContainsRune(text, ':') && out != text {
			t.Fatalf("the text %q was decoded to %q, want the same text", text, out)
		}
	})
}
