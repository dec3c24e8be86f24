package moby_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
)

// TestPoliciesWithKeysNeedSignedImages: the refusal of an image without a signature is a permanent error
// that names policy, image and key. If the registry is down, the error is temporary. An image that was
// checked before is accepted without the registry.
func TestPoliciesWithKeysNeedSignedImages(t *testing.T) {
	var down atomic.Bool
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "shop" || password != "word" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if down.Load() {
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString(der)
	repo, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/shop/web")
	if err != nil {
		t.Fatal(err)
	}
	login := remote.WithAuth(&authn.Basic{Username: "shop", Password: "word"})
	image := func(sign bool) string {
		img, err := random.Image(64, 1)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(repo.Tag("1"), img, login); err != nil {
			t.Fatal(err)
		}
		if sign {
			payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
			signature, err := mutate.Append(empty.Image, mutate.Addendum{
				Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
				Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(ed25519.Sign(private, payload))},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Write(repo.Tag("sha256-"+digest.Hex+".sig"), signature, login); err != nil {
				t.Fatal(err)
			}
		}
		return repo.Digest(digest.String()).Name()
	}
	engine := func(namespace string) *moby.Engine {
		e, err := moby.Open(moby.Options{Credentials: func(of, _ string) (string, error) {
			if of != namespace {
				return "", nil
			}
			return moby.EncodeAuth("shop", "word", repo.RegistryStr())
		}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	spec := driver.Spec{ID: "web", Body: &agentv1.WorkloadSpec{Namespace: "shop"},
		Rules: &driver.Rules{Policies: []driver.Rule{{Policy: &policy.Policy{Name: "free"}}, {Policy: &policy.Policy{Name: "signed", ImageKeys: []string{key}}, Next: "sign it"}}}}
	ask := func(ref string) []policy.Ask {
		return []policy.Ask{{Rule: policy.RuleImage, Value: ref, Field: "container.image"}, {Rule: policy.RulePort, Value: "80", Field: "container.ports[0]"}}
	}
	good, bad := image(true), image(false)
	e := engine("shop")
	if err := e.Signed(t.Context(), spec, ask(good)); err != nil {
		t.Errorf("Signed of a signed image returned %v, want no error", err)
	}
	err = e.Signed(t.Context(), spec, ask(bad))
	for _, word := range []string{"container.image", bad, `policy "signed"`, "rule image_keys", key, "sign it"} {
		if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), word) {
			t.Errorf("Signed of an image without signature returned class %s, want INVALID_SPECIFICATION and a text that contains %q: %v", driver.ClassOf(err), word, err)
		}
	}
	if err := engine("bank").Signed(t.Context(), spec, ask(good)); driver.ClassOf(err) != driver.ImagePullAuthFailed {
		t.Errorf("Signed without credentials returned %v, want class IMAGE_PULL_AUTH_FAILED", err)
	}
	down.Store(true)
	if err := e.Signed(t.Context(), spec, ask(good)); err != nil {
		t.Errorf("the registry is down: Signed of an image that was checked before returned %v, want no error", err)
	}
	if err := engine("shop").Signed(t.Context(), spec, ask(good)); driver.ClassOf(err) != driver.ImagePullTimeout {
		t.Errorf("the registry is down: Signed of an image that was not checked before returned %v, want a temporary error", err)
	}
}
