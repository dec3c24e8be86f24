package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// payloadOf returns the text that cosign signs for an image digest, as cosign's document SIGNATURE_SPEC defines
// it.
func payloadOf(digest, kind string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, digest, kind)
}

func signWith(t *testing.T, key crypto.Signer, payload string) string {
	t.Helper()
	message, hash := []byte(payload), crypto.Hash(0) // with Ed25519, the text itself is signed and not its hash
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		sum := sha256.Sum256(message)
		message, hash = sum[:], crypto.SHA256
	}
	raw, err := key.Sign(rand.Reader, message, hash)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

type signed struct{ payload, signature string }

// pushed pushes a new image to the registry at host, with the signatures that the function sign returns for the
// image's digest. It returns the image's reference.
func pushed(t *testing.T, host string, sign func(digest string) []signed) string {
	t.Helper()
	image, err := random.Image(256, 1)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	repo, err := name.NewRepository(host + "/shop/web")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(repo.Tag("1"), image); err != nil {
		t.Fatal(err)
	}
	if all := sign(digest.String()); all != nil {
		manifest := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
		for _, s := range all {
			if manifest, err = mutate.Append(manifest, mutate.Addendum{
				Layer: static.NewLayer([]byte(s.payload), mediaType), Annotations: map[string]string{annotation: s.signature},
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := remote.Write(repo.Tag(strings.ReplaceAll(digest.String(), ":", "-")+".sig"), manifest); err != nil {
			t.Fatal(err)
		}
	}
	return repo.Digest(digest.String()).Name()
}

// TestSignaturesOfImages: an image is accepted only with a signature of its digest by a given key.
func TestSignaturesOfImages(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	by := func(key crypto.Signer, payload string) signed { return signed{payload, signWith(t, key, payload)} }
	other := "sha256:" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		name string
		sign func(digest string) []signed
		want string // part of the expected error; "" if the image must be accepted
	}{
		{"an image that is signed with the ECDSA key is accepted", func(d string) []signed { return []signed{by(ec, payloadOf(d, payloadType))} }, ""},
		{"an image that is signed with the Ed25519 key is accepted", func(d string) []signed { return []signed{by(ed, payloadOf(d, payloadType))} }, ""},
		{"an image of which only the second signature is by a given key is accepted", func(d string) []signed {
			return []signed{by(stranger, payloadOf(d, payloadType)), by(ec, payloadOf(d, payloadType))}
		}, ""},
		{"an image that is not signed is refused", func(string) []signed { return nil }, "the registry has no"},
		{"an image whose signature image has no signatures is refused", func(string) []signed { return []signed{} }, "has no signature"},
		{"an image that is signed only with another key is refused", func(d string) []signed { return []signed{by(stranger, payloadOf(d, payloadType))} }, "by another key"},
		{"an image with the signature of another image is refused", func(string) []signed { return []signed{by(ec, payloadOf(other, payloadType))} }, "the signature is for the digest " + `"` + other},
		{"an image with a signed text of another kind is refused", func(d string) []signed { return []signed{by(ec, payloadOf(d, "attestation"))} }, "attestation"},
		{"a changed text", func(d string) []signed {
			s := by(ec, payloadOf(other, payloadType))
			s.payload = payloadOf(d, payloadType)
			return []signed{s}
		}, "by another key"},
		{"an image with a signature that is not base64 is refused", func(d string) []signed { return []signed{{payloadOf(d, payloadType), "%"}} }, "not base64"},
		{"an image with a signed text that is not JSON is refused", func(string) []signed { return []signed{by(ec, "x")} }, "no JSON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ref := pushed(t, host, tt.sign)
			err := Check(t.Context(), ref, authn.AuthConfig{}, []crypto.PublicKey{ec.Public(), ed.Public()})
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Check of the image returned the error %v, want ErrNone with the text %q, or no error if that is empty", err, tt.want)
			}
		})
	}
	server.Close()
	if err := Check(t.Context(), host+"/shop/web@"+other, authn.AuthConfig{}, []crypto.PublicKey{ec.Public()}); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("for a registry that does not answer Check returned %v; want an error other than ErrNone", err)
	}
}

// FuzzVerify: whatever text and signature a registry sends, verify accepts only a signature that was made
// with the key.
func FuzzVerify(f *testing.F) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("1", 64)
	good := payloadOf("sha256:"+strings.Repeat("2", 64), payloadType)
	f.Add([]byte(good), base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(good))))
	f.Add([]byte(payloadOf(digest, payloadType)), "")
	f.Fuzz(func(t *testing.T, payload []byte, signature string) {
		if verify(payload, signature, digest, []crypto.PublicKey{public}) == nil {
			t.Errorf("verify accepted the text %q with the signature %q, which was not made with the key", payload, signature)
		}
	})
}
