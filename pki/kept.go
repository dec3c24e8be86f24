package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Names of the files of a Kept identity.
const (
	keptIdentity = "identity.pem"
	keptRoots    = "ca.pem"
	keptCluster  = "cluster.json"
	keptPending  = "pending-key.pem"
)

// Kept is the folder in which a program keeps the identity that it was given:
// key and certificates in one file, so that they change together, the roots that
// it believes, and what it knows of its cluster. Folder 0700, key 0600.
type Kept struct{ Dir string }

// Membership is what a program remembers of the cluster that it joined.
type Membership struct {
	Cluster string `json:"cluster"`
	Role    Role   `json:"role"`
	Name    string `json:"name"`
	// Token is the id of the join token that it joined with.
	Token      string   `json:"token,omitempty"`
	Schedulers []string `json:"schedulers,omitempty"`
	// Gossip are the gossip addresses of schedulers; of schedulers only.
	Gossip []string `json:"gossip,omitempty"`
}

// Exists reports whether there is an identity.
func (k Kept) Exists() bool {
	_, err := os.Stat(filepath.Join(k.Dir, keptIdentity))
	return err == nil
}

// Paths are the files for LoadFiles.
func (k Kept) Paths() Paths {
	id := filepath.Join(k.Dir, keptIdentity)
	return Paths{CA: filepath.Join(k.Dir, keptRoots), Cert: id, Key: id}
}

// Request makes a certificate request, and keeps its key until Save: whoever asks
// again after an answer that was lost asks for the same key.
func (k Kept) Request(hosts []string) (keyPEM, csr []byte, err error) {
	path := filepath.Join(k.Dir, keptPending)
	if keyPEM, err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(k.Dir, 0o700); err != nil {
			return nil, nil, err
		}
		if keyPEM, csr, err = NewRequest(hosts); err != nil {
			return nil, nil, err
		}
		return keyPEM, csr, WriteFile(path, keyPEM, 0o600)
	}
	if err != nil {
		return nil, nil, err
	}
	key, err := readKey(path)
	if err != nil {
		return nil, nil, err
	}
	csr, err = requestFor(key, hosts)
	return keyPEM, csr, err
}

// Save replaces the identity.
func (k Kept) Save(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := k.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	return k.dropPending()
}

// SaveJoined is Save for the answer to a join token, and remembers the cluster. The pending
// key goes last: a join that was cut short is one that the token allows again, for that key.
func (k Kept) SaveJoined(keyPEM, chainPEM, rootsPEM []byte, m Membership) error {
	if err := k.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	if err := k.SaveMembership(m); err != nil {
		return err
	}
	return k.dropPending()
}

func (k Kept) saveIdentity(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	if err := k.SaveRoots(rootsPEM); err != nil {
		return err
	}
	return WriteFile(filepath.Join(k.Dir, keptIdentity), append(bytes.Clone(chainPEM), keyPEM...), 0o600)
}

func (k Kept) dropPending() error {
	err := os.Remove(filepath.Join(k.Dir, keptPending))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Leaf is the certificate that is kept.
func (k Kept) Leaf() (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(k.Dir, keptIdentity))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: does not begin with a PEM certificate", filepath.Join(k.Dir, keptIdentity))
	}
	return x509.ParseCertificate(block.Bytes)
}

// SaveRoots replaces the roots, if they differ.
func (k Kept) SaveRoots(rootsPEM []byte) error {
	if _, err := parseRoots(rootsPEM); err != nil {
		return fmt.Errorf("roots: %w", err)
	}
	path := filepath.Join(k.Dir, keptRoots)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, rootsPEM) {
		return nil
	}
	return WriteFile(path, rootsPEM, 0o644)
}

// SaveFile replaces a file that nobody else may read; the folder is made.
func (k Kept) SaveFile(path string, data []byte) error {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	return WriteFile(path, data, 0o600)
}

// SaveMembership remembers the cluster.
func (k Kept) SaveMembership(m Membership) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return k.SaveFile(filepath.Join(k.Dir, keptCluster), append(raw, '\n'))
}

// Membership reads what SaveMembership wrote; the zero value when there is none.
func (k Kept) Membership() (Membership, error) {
	var m Membership
	path := filepath.Join(k.Dir, keptCluster)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// EncodeCerts writes certificates as PEM, each one once.
func EncodeCerts(ders ...[]byte) []byte {
	var out []byte
	seen := map[string]bool{}
	for _, der := range ders {
		if id := Fingerprint(der); !seen[id] {
			seen[id] = true
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
	}
	return out
}

// The files of a CA folder, as `persysctl ca init` makes it. The root's key is
// needed by nobody but `persysctl ca rotate`: keep that file elsewhere.
const (
	caRoot       = "root.pem"
	caRootKey    = "root-key.pem"
	caIssuing    = "issuing.pem"
	caIssuingKey = "issuing-key.pem"
)

// CAFolder is a CA on disk, offline.
type CAFolder struct{ Dir string }

// RootKeyPath is where the root's key is.
func (f CAFolder) RootKeyPath() string { return filepath.Join(f.Dir, caRootKey) }

// Create writes a new root and an issuing authority. A folder that holds a CA is
// left alone: the error wraps fs.ErrExist.
func (f CAFolder) Create(root *Root, a *Authority) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{caRoot, caRootKey, caIssuing, caIssuingKey} {
		if _, err := os.Lstat(filepath.Join(f.Dir, name)); err == nil {
			return fmt.Errorf("%s holds a CA already: %w", f.Dir, fs.ErrExist)
		}
	}
	return f.write(root, a)
}

// write puts keys before certificates: an interrupted run leaves no certificate
// without its key.
func (f CAFolder) write(root *Root, a *Authority) error {
	for _, w := range []struct {
		name string
		key  any
		cert *x509.Certificate
	}{{caRootKey, root.key, nil}, {caIssuingKey, a.key, nil}, {caIssuing, nil, a.Cert}, {caRoot, nil, root.Cert}} {
		var data []byte
		mode := os.FileMode(0o644)
		if w.key != nil {
			der, err := x509.MarshalPKCS8PrivateKey(w.key)
			if err != nil {
				return err
			}
			data, mode = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600
		} else {
			data = EncodeCerts(w.cert.Raw)
		}
		if err := WriteFile(filepath.Join(f.Dir, w.name), data, mode); err != nil {
			return err
		}
	}
	return nil
}

// Authority reads the issuing authority; the root's key need not be there.
func (f CAFolder) Authority() (*Authority, error) {
	root, _, err := readCert(filepath.Join(f.Dir, caRoot))
	if err != nil {
		return nil, err
	}
	cert, _, err := readCert(filepath.Join(f.Dir, caIssuing))
	if err != nil {
		return nil, err
	}
	key, err := readKey(filepath.Join(f.Dir, caIssuingKey))
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	a, err := ParseAuthority(cert.Raw, root.Raw, der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Dir, err)
	}
	return a, nil
}

// Root reads the root with its key.
func (f CAFolder) Root() (*Root, error) {
	cert, _, err := readCert(filepath.Join(f.Dir, caRoot))
	if err != nil {
		return nil, err
	}
	key, err := readKey(f.RootKeyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there: bring the root's key back from where it is kept: %w", f.RootKeyPath(), err)
	}
	if err != nil {
		return nil, err
	}
	if !sameKey(cert, key) {
		return nil, fmt.Errorf("%s does not belong to %s", f.RootKeyPath(), filepath.Join(f.Dir, caRoot))
	}
	return &Root{cert, key}, nil
}

// Replace puts a new issuing authority, and with it maybe a new root, in place of
// the present ones, which stay beside them under their fingerprints.
func (f CAFolder) Replace(root *Root, a *Authority) (*Authority, error) {
	old, err := f.Authority()
	if err != nil {
		return nil, err
	}
	names := []string{caIssuing, caIssuingKey}
	suffix := "-" + old.ID()[:16]
	if !old.Root.Equal(root.Cert) {
		names = append(names, caRoot, caRootKey)
	}
	for _, name := range names {
		from := filepath.Join(f.Dir, name)
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := WriteFile(from[:len(from)-len(".pem")]+suffix+".pem", data, 0o600); err != nil {
			return nil, err
		}
	}
	return old, f.write(root, a)
}
