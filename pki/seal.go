package pki

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
)

// Redacted replaces secrets in specifications that are shown to users. An apply with this text as a value
// keeps the stored value.
const Redacted = "***"

// IsRedacted reports whether a value is the text Redacted.
func IsRedacted(s string) bool { return strings.TrimSpace(s) == Redacted }

// Errors of Key.Open; compare with errors.Is.
var (
	// ErrMalformed is returned for text that is not a sealed value.
	ErrMalformed = errors.New("not a sealed value")
	// ErrWrongKey is returned for a value that was sealed under another key.
	ErrWrongKey = errors.New("sealed under another key")
	// ErrTampered is returned if the sealed text was changed after sealing, or if the context is another
	// one.
	ErrTampered = errors.New("sealed value or its context was changed")
)

const (
	keySize   = 32
	keyPrefix = "persys-key-1"
)

// SealPrefix is the prefix of every sealed value.
const SealPrefix = "sealed:1:"

// Key is a master secret of 32 bytes: the cluster key on schedulers, or an agent's own key on its machine
// (pki/DESIGN.md). It is not used itself: for each purpose (sealing, content hashes, gossip, tokens) another key is
// derived from it, and a derived key reveals nothing about the others. Key is safe for concurrent use. When it is
// printed, only its id is shown.
type Key struct {
	id      string
	master  [keySize]byte
	seal    cipher.AEAD
	content []byte
	gossip  []byte
	nonce   []byte // key of the HMAC that gives SealSame its nonces
	others  []*Key // more keys that Open uses (WithOthers)
}

// NewKey makes a key with random bytes from the operating system.
func NewKey() (*Key, error) {
	var b [keySize]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	return keyFrom(b[:])
}

func keyFrom(master []byte) (*Key, error) {
	if len(master) != keySize {
		return nil, fmt.Errorf("key: %d bytes, want %d", len(master), keySize)
	}
	k := &Key{}
	copy(k.master[:], master)
	sub := func(use string, n int) ([]byte, error) {
		return hkdf.Key(sha256.New, master, nil, "persys/1/"+use, n)
	}
	id, err := sub("id", 8)
	if err != nil {
		return nil, err
	}
	k.id = hex.EncodeToString(id)
	sealKey, err := sub("seal", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	// XChaCha20 has nonces of 24 bytes, so two random nonces are never equal in practice.
	if k.seal, err = chacha20poly1305.NewX(sealKey); err != nil {
		return nil, err
	}
	if k.content, err = sub("content", 32); err != nil {
		return nil, err
	}
	if k.gossip, err = sub("gossip", 32); err != nil {
		return nil, err
	}
	if k.nonce, err = sub("nonce", 32); err != nil {
		return nil, err
	}
	return k, nil
}

// ID returns the id of the key: 16 hex digits that are derived from the key. The id does not reveal the key,
// and may be logged.
func (k *Key) ID() string { return k.id }

// String returns the id of the key, so that the key itself cannot be printed by mistake.
func (k *Key) String() string { return "key " + k.id }

// GoString returns only the id of the key, so that %#v does not print the key.
func (k *Key) GoString() string { return k.String() }

// GossipKey returns a copy of the initial gossip key (32 bytes), which is derived from k.
func (k *Key) GossipKey() []byte { return bytes.Clone(k.gossip) }

// ContentHash returns an HMAC-SHA-256 for content with secrets. Without the key nobody can find a short
// secret by hashing guesses.
func (k *Key) ContentHash() hash.Hash { return hmac.New(sha256.New, k.content) }

// TokenSecret derives the id and the secret of a join token from a request id. So a repeated request gets the
// same token from every replica.
func (k *Key) TokenSecret(request string) (id string, secret []byte, err error) {
	out, err := hkdf.Key(sha256.New, k.master[:], nil, "persys/1/join-token/"+request, 8+secretBytes)
	if err != nil {
		return "", nil, err
	}
	return hex.EncodeToString(out[:8]), out[8:], nil
}

// Seal encrypts plaintext and binds it to a context, for instance workload id and field name. Open needs the
// same context. The result is printable ASCII, about 4/3 as long as the plaintext plus 80 bytes. It differs
// with every call.
func (k *Key) Seal(plaintext, context []byte) (string, error) {
	nonce := make([]byte, chacha20poly1305.NonceSizeX)
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	return k.sealWith(nonce, plaintext, context), nil
}

// SealSame is Seal with the same result for the same plaintext and context, so that equal plaintexts can be recognised.
// The nonce is an HMAC of both (RFC 5297 has the same idea), so different plaintexts do not share a nonce.
func (k *Key) SealSame(plaintext, context []byte) string {
	mac := hmac.New(sha256.New, k.nonce)
	_ = binary.Write(mac, binary.BigEndian, uint64(len(context))) // a hash accepts every write
	mac.Write(context)
	mac.Write(plaintext)
	return k.sealWith(mac.Sum(nil)[:chacha20poly1305.NonceSizeX], plaintext, context)
}

func (k *Key) sealWith(nonce, plaintext, context []byte) string {
	head := SealPrefix + k.id + ":"
	box := k.seal.Seal(bytes.Clone(nonce), nonce, plaintext, aad(head, context))
	return head + base64.RawURLEncoding.EncodeToString(box)
}

// Open decrypts what Seal has encrypted. Its errors wrap ErrMalformed, ErrWrongKey or ErrTampered, and never
// contain the secret.
func (k *Key) Open(sealed string, context []byte) ([]byte, error) {
	id, ok := SealedUnder(sealed)
	if !ok {
		return nil, fmt.Errorf("%w: want %s<key id>:<base64>", ErrMalformed, SealPrefix)
	}
	if id != k.id {
		for _, o := range k.others {
			if o.id == id {
				return o.Open(sealed, context)
			}
		}
		return nil, fmt.Errorf("%w: %s, this is %s", ErrWrongKey, id, k.id)
	}
	head := SealPrefix + id + ":"
	box, err := base64.RawURLEncoding.Strict().DecodeString(sealed[len(head):])
	if err != nil || strings.ContainsAny(sealed, "\r\n") {
		return nil, fmt.Errorf("%w: bad base64", ErrMalformed)
	}
	if len(box) < chacha20poly1305.NonceSizeX+chacha20poly1305.Overhead {
		return nil, fmt.Errorf("%w: cut short at %d bytes", ErrMalformed, len(box))
	}
	nonce, text := box[:chacha20poly1305.NonceSizeX], box[chacha20poly1305.NonceSizeX:]
	plain, err := k.seal.Open(nil, nonce, text, aad(head, context))
	if err != nil {
		return nil, ErrTampered
	}
	return plain, nil
}

// aad returns the additional authenticated data of a sealed value. It includes the header, so that nobody can
// change the version in it.
func aad(head string, context []byte) []byte {
	return append([]byte(head), context...)
}

// SealedUnder returns the id of the key under which s was sealed. ok is false if s does not have the form of
// a sealed value.
func SealedUnder(s string) (keyID string, ok bool) {
	rest, ok := strings.CutPrefix(s, SealPrefix)
	if !ok {
		return "", false
	}
	id, _, ok := strings.Cut(rest, ":")
	if !ok || len(id) != 16 || !isLowerHex(id) {
		return "", false
	}
	return id, true
}

func isLowerHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Export returns the key as one line of text with its id and a checksum, for ImportKey on another machine. A person who
// has this text can decrypt every secret.
func (k *Key) Export() string {
	body := keyPrefix + "." + k.id + "." + base64.RawURLEncoding.EncodeToString(k.master[:])
	return body + "." + checksum(body)
}

func checksum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:4])
}

// ParseKey reads the text of Export. It ignores surrounding space; the checksum detects mistyped
// characters. Errors never contain the key.
func ParseKey(text string) (*Key, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(parts) != 4 || parts[0] != keyPrefix {
		return nil, fmt.Errorf("key: want one line %s.<id>.<key>.<checksum>", keyPrefix)
	}
	if body := strings.TrimSuffix(text, "."+parts[3]); checksum(body) != parts[3] {
		return nil, errors.New("key: checksum does not match: the text was cut or mistyped")
	}
	master, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return nil, errors.New("key: bad base64")
	}
	k, err := keyFrom(master)
	if err != nil {
		return nil, err
	}
	if k.id != parts[1] {
		return nil, fmt.Errorf("key: id %q does not belong to this key (%s)", parts[1], k.id)
	}
	return k, nil
}
