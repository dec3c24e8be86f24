package pki

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fixed returns the key that consists of 32 bytes b, so that a failure can be reproduced.
func fixed(t testing.TB, b byte) *Key {
	t.Helper()
	k, err := keyFrom(bytes.Repeat([]byte{b}, keySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// golden is the text "secret" sealed in context "c" under fixed(1). It never changes, because every later
// version must be able to open stored values.
const golden = "sealed:1:ed04a996e9988fcd:FRBzhpvuhMY-JoUFoImEDuJMqOxm9J9PwUXC1c8ZdoopSNYazNBPPk1TmtsPKQ"

func TestSealAndOpen(t *testing.T) {
	k := fixed(t, 1)
	for _, plain := range []string{"", "x", "PASSWORD=hunter2", strings.Repeat("long ", 10_000)} {
		sealed, err := k.Seal([]byte(plain), []byte("web-1/env"))
		if err != nil {
			t.Fatal(err)
		}
		if plain != "" && len(plain) > 4 && strings.Contains(sealed, plain[:5]) {
			t.Errorf("the sealed value must not contain its plaintext, but does")
		}
		if id, ok := SealedUnder(sealed); !ok || id != k.ID() {
			t.Errorf("SealedUnder returned %q, %v, want the id of the key", id, ok)
		}
		got, err := k.Open(sealed, []byte("web-1/env"))
		if err != nil || string(got) != plain {
			t.Errorf("Open returned %.20q, error %v, want the plaintext", got, err)
		}
	}
	if got, err := k.Open(golden, []byte("c")); err != nil || string(got) != "secret" {
		t.Errorf("the golden sealed value opens as %q (error %v), want \"secret\"", got, err)
	}
	a, _ := k.Seal([]byte("x"), nil)
	b, _ := k.Seal([]byte("x"), nil)
	if a == b {
		t.Error("Seal of the same secret must return another text each time, but returned the same text twice")
	}
}

func TestOpenRefusesWrongValues(t *testing.T) {
	k := fixed(t, 1)
	sealed, err := k.Seal([]byte("token"), []byte("web-1"))
	if err != nil {
		t.Fatal(err)
	}
	head := len(SealPrefix) + 17
	flip := func(i int) string {
		b := []byte(sealed)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	for _, tc := range []struct {
		name    string
		key     *Key
		text    string
		context string
		want    error
	}{
		{"a value sealed under another key", fixed(t, 2), sealed, "web-1", ErrWrongKey},
		{"a value sealed for another context", k, sealed, "web-2", ErrTampered},
		{"a value opened without its context", k, sealed, "", ErrTampered},
		{"a value with a changed nonce", k, flip(head), "web-1", ErrTampered},
		{"a value with a changed encrypted text", k, flip(head + 35), "web-1", ErrTampered},
		{"a value without the end of its tag", k, sealed[:len(sealed)-4], "web-1", ErrTampered},
		{"a value that ends after its nonce", k, sealed[:head+32], "web-1", ErrMalformed},
		{"a value that ends after its header", k, sealed[:head], "web-1", ErrMalformed},
		{"nothing", k, "", "web-1", ErrMalformed},
		{"a value that is not sealed", k, "secret", "web-1", ErrMalformed},
		{"the redaction marker", k, Redacted, "web-1", ErrMalformed},
		{"a value of another version", k, "sealed:2:" + sealed[len(SealPrefix):], "web-1", ErrMalformed},
		{"a value with a key id in capitals", k, SealPrefix + strings.ToUpper(k.ID()) + sealed[head-1:], "web-1", ErrMalformed},
		{"a value with a line break", k, sealed[:head+4] + "\n" + sealed[head+4:], "web-1", ErrMalformed},
		{"a value with base64 padding at its end", k, sealed + "=", "web-1", ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.key.Open(tc.text, []byte(tc.context))
			if !errors.Is(err, tc.want) || got != nil {
				t.Errorf("Open of a damaged or foreign value returned %q and error %v, want error %v", got, err, tc.want)
			}
		})
	}
}

func TestDerivedKeysDiffer(t *testing.T) {
	k := fixed(t, 1)
	h := k.ContentHash()
	h.Write([]byte("content"))
	other := fixed(t, 2).ContentHash()
	other.Write([]byte("content"))
	if bytes.Equal(h.Sum(nil), other.Sum(nil)) {
		t.Error("the content hash must depend on the key, but does not")
	}
	g := k.GossipKey()
	if len(g) != 32 || bytes.Equal(g, k.content) || bytes.Equal(g, k.master[:]) {
		t.Error("the gossip key must differ from the other derived keys, but does not")
	}
	g[0]++
	if bytes.Equal(g, k.GossipKey()) {
		t.Error("GossipKey must return a copy, but returned memory that the key uses")
	}
	// Clusters store values that were derived from their key, so the derivations must not change.
	if got, want := k.ID(), "ed04a996e9988fcd"; got != want {
		t.Errorf("the id of the fixed key must stay the same, but is %s and was %s", got, want)
	}
	if s := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(s, "\x01") || strings.Contains(s, "1, 1") || strings.Contains(s, "0x1") {
		t.Errorf("a printed key must show only its id, but shows the key: %s", s)
	}
}

func TestKeyFileIsCreatedAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "cluster.key")
	k, created, err := LoadOrCreateKey(path)
	if err != nil || !created {
		t.Fatalf("LoadOrCreateKey without a file returned created %v and error %v, want true and no error", created, err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %v, error %v, want 0600", st.Mode(), err)
	}
	again, created, err := LoadOrCreateKey(path)
	if err != nil || created || again.ID() != k.ID() {
		t.Errorf("the second LoadOrCreateKey returned created %v, key %v and error %v, want false and the same key", created, again, err)
	}
	if names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(names) > 0 {
		t.Errorf("LoadOrCreateKey left the temporary files %v, want none", names)
	}
}

func TestKeyFileIsCreatedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.key")
	var ids sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			k, _, err := LoadOrCreateKey(path)
			if err != nil {
				t.Error(err)
				return
			}
			ids.Store(k.ID(), true)
		})
	}
	wg.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("concurrent calls returned %d different keys, want one", n)
	}
}

func TestLoadKeyRefusesWrongFiles(t *testing.T) {
	good := fixed(t, 1).Export()
	for _, tc := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"a key file that the group may read", good, 0o640, "mode 0640"},
		{"a key file that everybody may read", good, 0o604, "mode 0604"},
		{"empty", "", 0o600, "want one line"},
		{"cut", good[:len(good)-1], 0o600, "checksum"},
		{"mistyped", strings.Replace(good, "AQ", "AR", 1), 0o600, "checksum"},
		{"a key file above the size limit", good + strings.Repeat(" ", keyFileMax), 0o600, "limit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "k")
			if err := os.WriteFile(path, []byte(tc.text), tc.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			_, _, err := LoadOrCreateKey(path)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("LoadKey returned %v, want an error with the path and %q", err, tc.want)
			}
			if b, _ := os.ReadFile(path); string(b) != tc.text {
				t.Error("a refused file must not be changed, but was")
			}
		})
	}
	if _, err := LoadKey(t.TempDir()); err == nil {
		t.Error("LoadKey must refuse a folder, but accepted it")
	}
}

func TestExportedKeyCanBeImported(t *testing.T) {
	k := fixed(t, 7)
	path := filepath.Join(t.TempDir(), "d", "k")
	if _, err := ImportKey(path, "\n "+k.Export()+" \n"); err != nil {
		t.Fatal(err)
	}
	if _, err := ImportKey(path, k.Export()); err != nil {
		t.Errorf("ImportKey of the same key again must succeed, but returned %v", err)
	}
	if _, err := ImportKey(path, fixed(t, 8).Export()); err == nil || !strings.Contains(err.Error(), k.ID()) {
		t.Errorf("ImportKey of another key returned %v, want an error that names the present key", err)
	}
	sealed, _ := k.Seal([]byte("x"), nil)
	got, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := got.Open(sealed, nil); err != nil || string(plain) != "x" {
		t.Errorf("with the imported key Open returned %q and error %v, want \"x\"", plain, err)
	}
}

func TestIsRedacted(t *testing.T) {
	for s, want := range map[string]bool{Redacted: true, " *** ": true, "": false, "****": false, "a***": false} {
		if IsRedacted(s) != want {
			t.Errorf("IsRedacted of %q returned %v, want the opposite", s, !want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := fixed(f, 1)
	f.Add(golden, []byte("c"))
	f.Add(SealPrefix+k.ID()+":", []byte(nil))
	f.Fuzz(func(t *testing.T, s string, context []byte) {
		plain, err := k.Open(s, context)
		if err == nil && (s != golden || string(context) != "c" || string(plain) != "secret") {
			t.Fatalf("the random text %q, which nobody sealed, must not open, but opens as %q in context %q", s, plain, context)
		}
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrWrongKey) && !errors.Is(err, ErrTampered) {
			t.Fatalf("Open of %q must return one of the documented errors, but returned: %v", s, err)
		}
	})
}

// Equal plaintexts in one context have the same sealed text, so that a changed plaintext can be recognised.
func TestSealSame(t *testing.T) {
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed := k.SealSame([]byte("hooks"), []byte("web"))
	if again := k.SealSame([]byte("hooks"), []byte("web")); again != sealed {
		t.Errorf("SealSame of equal values must return equal texts, but returned %s and %s", again, sealed)
	}
	for _, other := range []string{k.SealSame([]byte("hook"), []byte("web")), k.SealSame([]byte("hooks"), []byte("we")), k.SealSame([]byte("bhooks"), []byte("we"))} {
		if other[len(SealPrefix)+17:][:32] == sealed[len(SealPrefix)+17:][:32] {
			t.Errorf("SealSame of different values or contexts must use different nonces, but %s has the nonce of %s", other, sealed)
		}
	}
	if got, err := k.Open(sealed, []byte("web")); err != nil || string(got) != "hooks" {
		t.Errorf("Open of a value of SealSame returned %q and error %v, want \"hooks\"", got, err)
	}
	if _, err := k.Open(sealed, []byte("db")); !errors.Is(err, ErrTampered) {
		t.Errorf("Open of a value of SealSame in another context returned %v, want ErrTampered", err)
	}
}
