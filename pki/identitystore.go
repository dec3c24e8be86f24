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
	"slices"
	"strings"
)

// Names of the files of a Identity identity.
const (
	keptIdentity = "identity.pem"
	keptRoots    = "ca.pem"
	keptCluster  = "cluster.json"
	keptPending  = "pending-key.pem"
)

// Identity is the folder in which a program keeps the identity that it was given:
// key and certificates in one file, so that they change together, the roots that
// it believes, and what it knows of its cluster. Folder 0700, key 0600.
type IdentityStore struct{ Dir string }

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
func (k IdentityStore) Exists() bool {
	_, err := os.Stat(filepath.Join(k.Dir, keptIdentity))
	return err == nil
}

// Paths are the files for LoadFiles.
func (k IdentityStore) Paths() Paths {
	id := filepath.Join(k.Dir, keptIdentity)
	return Paths{CA: filepath.Join(k.Dir, keptRoots), Cert: id, Key: id}
}

// Request makes a certificate request, and keeps its key until Save: whoever asks
// again after an answer that was lost asks for the same key.
func (k IdentityStore) Request(hosts []string) (keyPEM, csr []byte, err error) {
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
func (k IdentityStore) Save(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := k.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	return k.dropPending()
}

// SaveJoined is Save for the answer to a join token, and remembers the cluster. The pending
// key goes last: a join that was cut short is one that the token allows again, for that key.
func (k IdentityStore) SaveJoined(keyPEM, chainPEM, rootsPEM []byte, m Membership) error {
	if err := k.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	if err := k.SaveMembership(m); err != nil {
		return err
	}
	return k.dropPending()
}

func (k IdentityStore) saveIdentity(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	if err := k.SaveRoots(rootsPEM); err != nil {
		return err
	}
	return WriteFile(filepath.Join(k.Dir, keptIdentity), append(bytes.Clone(chainPEM), keyPEM...), 0o600)
}

func (k IdentityStore) dropPending() error {
	err := os.Remove(filepath.Join(k.Dir, keptPending))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Leaf is the certificate that is kept.
func (k IdentityStore) Leaf() (*x509.Certificate, error) {
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
func (k IdentityStore) SaveRoots(rootsPEM []byte) error {
	if _, err := parseRoots(rootsPEM); err != nil {
		return fmt.Errorf("roots: %w", err)
	}
	path := filepath.Join(k.Dir, keptRoots)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, rootsPEM) {
		return nil
	}
	return WriteFile(path, rootsPEM, 0o644)
}

// SaveBeside is Save with one root, which is believed beside those that are kept. What is no certificate among them
// is left out.
func (k IdentityStore) SaveBeside(keyPEM, chainPEM, root []byte) error {
	data, err := os.ReadFile(filepath.Join(k.Dir, keptRoots))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ders := [][]byte{root}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			ders = append(ders, block.Bytes)
		}
	}
	return k.Save(keyPEM, chainPEM, EncodeCerts(ders...))
}

// SaveFile replaces a file that nobody else may read; the folder is made.
func (k IdentityStore) SaveFile(path string, data []byte) error {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	return WriteFile(path, data, 0o600)
}

// SaveMembership remembers the cluster.
func (k IdentityStore) SaveMembership(m Membership) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return k.SaveFile(filepath.Join(k.Dir, keptCluster), append(raw, '\n'))
}

// Membership reads what SaveMembership wrote; the zero value when there is none.
func (k IdentityStore) Membership() (Membership, error) {
	var m Membership
	_, err := ReadJSON(filepath.Join(k.Dir, keptCluster), &m)
	return m, err
}

// ReadJSON reads a file into v; false: there is none.
func ReadJSON(path string, v any) (bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
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
	// caUnfinished is there while a CA is being made: what is beside it without a root's certificate was used by
	// nobody.
	caUnfinished = "unfinished"
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
	if err := f.settle(); err != nil {
		return err
	}
	all := []string{caRoot, caRootKey, caIssuing, caIssuingKey}
	if f.has(caUnfinished) {
		all = all[:1]
	}
	if slices.ContainsFunc(all, f.has) {
		return fmt.Errorf("%s holds a CA already: %w", f.Dir, fs.ErrExist)
	}
	unfinished := filepath.Join(f.Dir, caUnfinished)
	if err := WriteFile(unfinished, nil, 0o600); err != nil {
		return err
	}
	if err := f.write(root, a); err != nil { // on a full disk, say: what is there is no CA, and is written over
		return err
	}
	return f.settle()
}

// settle takes the mark of an unfinished CA from one that is whole, lest the mark outlive it and give its keys away.
func (f CAFolder) settle() error {
	if !f.has(caRoot) {
		return nil
	}
	if err := os.Remove(filepath.Join(f.Dir, caUnfinished)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f CAFolder) has(name string) bool {
	_, err := os.Lstat(filepath.Join(f.Dir, name))
	return err == nil
}

// write puts keys before certificates, and the root's last. An interrupted run leaves a CA that is unfinished, or one
// whose keys and certificates do not belong together; what was replaced is beside them.
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

// Cluster is the name in the root.
func (r *Root) Cluster() string { return strings.Join(r.Cert.Subject.Organization, "/") }

// Replace puts a new issuing authority, and with it maybe a new root, in place of
// the present ones, which stay beside them under their fingerprints. The present root's
// key may be kept elsewhere. What the present root signs also takes the place of an
// authority that is lost or damaged; of that, what is there stays beside it, too. A
// change of roots that was cut short can be made again only while the folder's issuing
// authority is still the former one, key and certificate: else its files are to be put
// back from beside first.
func (f CAFolder) Replace(root *Root, a *Authority) error {
	if err := f.settle(); err != nil {
		return err
	}
	names, suffix := []string{caIssuing, caIssuingKey}, "-before-"+a.ID()[:16]
	old, err := f.Authority()
	switch {
	case err != nil:
		if own, _, rerr := readCert(filepath.Join(f.Dir, caRoot)); rerr != nil || !own.Equal(root.Cert) {
			return err
		}
	case !old.Root.Equal(root.Cert):
		names = append(names, caRoot, caRootKey)
		fallthrough
	default:
		suffix = "-" + old.ID()[:16]
	}
	for _, name := range names {
		from, beside := filepath.Join(f.Dir, name), strings.TrimSuffix(name, ".pem")+suffix+".pem"
		if f.has(beside) { // by a run that was cut short: what stands here may be that run's by now
			continue
		}
		data, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := WriteFile(filepath.Join(f.Dir, beside), data, 0o600); err != nil {
			return err
		}
	}
	return f.write(root, a)
}
