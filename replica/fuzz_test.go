package replica

import (
	"os"
	"testing"

	"github.com/persys/compute/pki"
)

// FuzzRemembered reads random bytes as the file in which a scheduler stores the issuing certificate authority for its
// next start.
func FuzzRemembered(f *testing.F) {
	tr := &trust{identityStore: pki.IdentityStore{Dir: f.TempDir()}}
	key, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"Cert":"AAAA","Root":"AAAA","SealedKey":"x","ActiveAt":1}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(tr.rememberedPath(), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := tr.recall()
		if err != nil {
			return
		}
		if a, err := r.open(key); err == nil {
			t.Fatalf("recall read authority %v from random data, want none", a.ID())
		}
	})
}
