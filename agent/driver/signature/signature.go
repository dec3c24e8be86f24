// Package signature checks signatures of images in the format of cosign ("simple signing"): the signature of
// the image NAME@sha256:HEX is the image NAME:sha256-HEX.sig in the same repository. Each layer of this
// signature image is a JSON text that names the digest HEX. An annotation of the layer contains the signature
// of that text.
//
// Only signatures by a given key are checked. Certificates and transparency logs of Sigstore are not
// checked, because a node may have no Internet access. See ADR 49.
package signature

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	annotation  = "dev.cosignproject.cosign/signature"
	mediaType   = "application/vnd.dev.cosign.simplesigning.v1+json"
	payloadType = "cosign container image signature"
	maxPayload  = 64 << 10 // maximum size in bytes of one signed text
	maxLayers   = 64       // maximum number of signatures of one image that are tried
)

// ErrNone means that the registry answered, but that no signature of the image was made with one of the keys.
var ErrNone = errors.New("no signature by one of the keys")

// Check returns nil if an image with a digest has a signature by one of the keys.
func Check(ctx context.Context, ref string, auth authn.AuthConfig, keys []crypto.PublicKey) error {
	image, err := name.NewDigest(ref)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	algorithm, hex, _ := strings.Cut(image.DigestStr(), ":")
	tag := image.Context().Tag(algorithm + "-" + hex + ".sig")
	signed, err := remote.Image(tag, remote.WithContext(ctx), remote.WithAuth(authn.FromConfig(auth)))
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%w: the registry has no %s", ErrNone, tag.Name())
	}
	if err != nil {
		return fmt.Errorf("signature %s: %w", tag.Name(), err)
	}
	manifest, err := signed.Manifest()
	if err != nil {
		return fmt.Errorf("signature %s: %w", tag.Name(), err)
	}
	why := fmt.Errorf("%w: %s has no signature", ErrNone, tag.Name())
	for _, layer := range manifest.Layers[:min(len(manifest.Layers), maxLayers)] {
		if layer.MediaType != mediaType || layer.Size > maxPayload {
			continue
		}
		payload, err := read(signed, layer.Digest)
		if err != nil {
			return fmt.Errorf("signature %s: %w", tag.Name(), err)
		}
		if why = verify(payload, layer.Annotations[annotation], image.DigestStr(), keys); why == nil {
			return nil
		}
	}
	return why
}

func read(image v1.Image, digest v1.Hash) ([]byte, error) {
	layer, err := image.LayerByDigest(digest)
	if err != nil {
		return nil, err
	}
	body, err := layer.Compressed() // the text as the registry sends it: its media type says that it is not compressed
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(body, maxPayload+1))
	return text, errors.Join(err, body.Close())
}

// verify returns nil if signature (in base64) is a signature of payload by one of the keys, and payload names
// the image digest.
func verify(payload []byte, signature, digest string, keys []crypto.PublicKey) error {
	raw, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return fmt.Errorf("%w: the signature is not base64", ErrNone)
	}
	if !byOneOf(keys, payload, raw) {
		return fmt.Errorf("%w: the signature is by another key", ErrNone)
	}
	var text struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &text); err != nil {
		return fmt.Errorf("%w: the signed text is no JSON", ErrNone)
	}
	if text.Critical.Type != payloadType || text.Critical.Image.Digest != digest {
		return fmt.Errorf("%w: the signature is for the digest %q and of type %q", ErrNone, text.Critical.Image.Digest, text.Critical.Type)
	}
	return nil
}

func byOneOf(keys []crypto.PublicKey, payload, signature []byte) bool {
	sum := sha256.Sum256(payload)
	for _, key := range keys {
		switch k := key.(type) {
		case *ecdsa.PublicKey:
			if ecdsa.VerifyASN1(k, sum[:], signature) {
				return true
			}
		case ed25519.PublicKey:
			if ed25519.Verify(k, payload, signature) {
				return true
			}
		}
	}
	return false
}
