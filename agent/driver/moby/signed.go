package moby

import (
	"context"
	"crypto"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/moby/moby/api/pkg/authconfig"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/signature"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
)

// signatureTimeout limits the check of one image.
const signatureTimeout = 30 * time.Second

// maxSigned is how many checked images the agent remembers. A remembered image can be started while its
// registry is down.
const maxSigned = 4096

// signedImages remembers which images have a signature by which keys. An entry never becomes outdated, because
// it is for the digest of an image.
type signedImages struct {
	mu    sync.Mutex
	known map[string]bool
}

func (s *signedImages) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[what]
}

func (s *signedImages) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSigned || s.known == nil {
		s.known = map[string]bool{}
	}
	s.known[what] = true
}

// Signed returns an error of class InvalidSpecification if a policy of the workload has image_keys, and an
// image of the workload has no signature by any of these keys. Spec.Judge has checked that each image has a
// digest.
func (e *Engine) Signed(ctx context.Context, spec driver.Spec, asked []policy.Ask) error {
	if spec.Rules == nil {
		return nil
	}
	for _, p := range spec.Rules.Policies {
		if len(p.ImageKeys) == 0 {
			continue
		}
		var keys []crypto.PublicKey
		for _, text := range p.ImageKeys {
			key, err := document.PublicKey(text)
			if err != nil {
				return driver.Errorf(driver.InvalidSpecification, "policy", "policy %q: image_keys: %w", p.Name, err)
			}
			keys = append(keys, key)
		}
		for _, a := range asked {
			if a.Rule != policy.RuleImage {
				continue
			}
			what := a.Value + " " + strings.Join(p.ImageKeys, " ")
			if e.signed.has(what) {
				continue
			}
			if err := e.signedBy(ctx, spec.Body.GetNamespace(), a, p, keys); err != nil {
				return err
			}
			e.signed.add(what)
		}
	}
	return nil
}

func (e *Engine) signedBy(ctx context.Context, namespace string, a policy.Ask, p driver.Rule, keys []crypto.PublicKey) error {
	auth, err := e.login(namespace, a.Value)
	if err != nil {
		return driver.Errorf(driver.ImagePullAuthFailed, "signature", "image %s: %w", a.Value, err)
	}
	ctx, cancel := context.WithTimeout(ctx, signatureTimeout)
	defer cancel()
	err = signature.Check(ctx, a.Value, auth, keys)
	var answer *transport.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, signature.ErrNone):
		return driver.Errorf(driver.InvalidSpecification, "signature", "%s: %q is not allowed by policy %q (rule %s): %w; the keys are %s; %s",
			a.Field, a.Value, p.Name, policy.RuleSigned, err, strings.Join(p.ImageKeys, ", "), p.Next)
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return driver.Errorf(driver.ImagePullAuthFailed, "signature", "image %s: %w", a.Value, err)
	}
	return driver.Errorf(driver.ImagePullTimeout, "signature", "image %s: %w", a.Value, err)
}

// login returns the credentials of an image's registry.
func (e *Engine) login(namespace, ref string) (authn.AuthConfig, error) {
	if e.opt.Credentials == nil {
		return authn.AuthConfig{}, nil
	}
	text, err := e.opt.Credentials(namespace, ref)
	if err != nil || text == "" {
		return authn.AuthConfig{}, err
	}
	auth, err := authconfig.Decode(text)
	if err != nil {
		return authn.AuthConfig{}, err
	}
	return authn.AuthConfig{Username: auth.Username, Password: auth.Password, IdentityToken: auth.IdentityToken, RegistryToken: auth.RegistryToken}, nil
}
