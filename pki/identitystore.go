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

// Names of the files of an IdentityStore.
const (
	identityFile   = "identity.pem"
	rootsFile      = "ca.pem"
	membershipFile = "cluster.json"
	pendingKeyFile = "pending-key.pem"
)

// IdentityStore is the folder in which a program stores its identity. The key and the certificates are in one
// file, so that they change together. Other files hold the trusted roots and the Membership. The folder has
// mode 0700, the key 0600.
type IdentityStore struct{ Dir string }

// Membership describes the cluster that a program joined.
type Membership struct {
	Cluster string `json:"cluster"`
	Role    Role   `json:"role"`
	Name    string `json:"name"`
	// Token is the id of the join token with which the program joined.
	Token      string   `json:"token,omitempty"`
	Schedulers []string `json:"schedulers,omitempty"`
	// Gossip holds the gossip addresses of schedulers. Only schedulers store this field.
	Gossip []string `json:"gossip,omitempty"`
	// Hosts are the hosts in the program's last certificate request. The certificate may contain fewer.
	Hosts []string `json:"hosts,omitempty"`
}

// Exists reports whether an identity is stored.
func (s IdentityStore) Exists() bool {
	_, err := os.Stat(filepath.Join(s.Dir, identityFile))
	return err == nil
}

// Paths returns the paths of the stored files, for LoadFiles.
func (s IdentityStore) Paths() Paths {
	id := filepath.Join(s.Dir, identityFile)
	return Paths{CA: filepath.Join(s.Dir, rootsFile), Cert: id, Key: id}
}

// Request makes a certificate request. It stores the key in a file, which stays until Save is called. If the answer to
// a request is lost, the repeated request is for the same key.
func (s IdentityStore) Request(hosts []string) (keyPEM, csr []byte, err error) {
	path := filepath.Join(s.Dir, pendingKeyFile)
	if keyPEM, err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
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

// Save replaces the stored key, certificates and trusted roots.
func (s IdentityStore) Save(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := s.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	return s.dropPending()
}

// SaveJoined stores the answer to a join token, and the membership. It removes the key of the request last:
// until then an interrupted join can be repeated with the same token and key.
func (s IdentityStore) SaveJoined(keyPEM, chainPEM, rootsPEM []byte, m Membership) error {
	if err := s.saveIdentity(keyPEM, chainPEM, rootsPEM); err != nil {
		return err
	}
	if err := s.SaveMembership(m); err != nil {
		return err
	}
	return s.dropPending()
}

func (s IdentityStore) saveIdentity(keyPEM, chainPEM, rootsPEM []byte) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if err := s.SaveRoots(rootsPEM); err != nil {
		return err
	}
	return WriteFile(filepath.Join(s.Dir, identityFile), append(bytes.Clone(chainPEM), keyPEM...), 0o600)
}

func (s IdentityStore) dropPending() error {
	err := os.Remove(filepath.Join(s.Dir, pendingKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Leaf returns the program's own certificate from the folder.
func (s IdentityStore) Leaf() (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(s.Dir, identityFile))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: does not begin with a PEM certificate", filepath.Join(s.Dir, identityFile))
	}
	return x509.ParseCertificate(block.Bytes)
}

// SaveRoots replaces the stored roots if they differ from rootsPEM.
func (s IdentityStore) SaveRoots(rootsPEM []byte) error {
	if _, err := parseRoots(rootsPEM); err != nil {
		return fmt.Errorf("roots: %w", err)
	}
	path := filepath.Join(s.Dir, rootsFile)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, rootsPEM) {
		return nil
	}
	return WriteFile(path, rootsPEM, 0o644)
}

// SaveBeside replaces the key and the certificate chain, and adds one root to the stored roots. PEM blocks in
// the roots file that are not certificates are dropped.
func (s IdentityStore) SaveBeside(keyPEM, chainPEM, root []byte) error {
	data, err := os.ReadFile(filepath.Join(s.Dir, rootsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ders := [][]byte{root}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			ders = append(ders, block.Bytes)
		}
	}
	return s.Save(keyPEM, chainPEM, EncodeCerts(ders...))
}

// SaveFile replaces a file, with mode 0600. It creates the folder if that is missing.
func (s IdentityStore) SaveFile(path string, data []byte) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	return WriteFile(path, data, 0o600)
}

// SaveMembership stores the membership.
func (s IdentityStore) SaveMembership(m Membership) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return s.SaveFile(filepath.Join(s.Dir, membershipFile), append(raw, '\n'))
}

// Membership reads the stored membership. It returns the zero value if none is stored.
func (s IdentityStore) Membership() (Membership, error) {
	var m Membership
	_, err := ReadJSON(filepath.Join(s.Dir, membershipFile), &m)
	return m, err
}

// ReadJSON decodes a JSON file into v. It returns false if the file does not exist.
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

// EncodeCerts encodes certificates (DER) as PEM and leaves out duplicates.
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

// Names of the files in a CA folder, which `persysctl ca init` creates. Only `persysctl ca rotate` needs the
// root's key, so it should be stored offline.
const (
	caRoot       = "root.pem"
	caRootKey    = "root-key.pem"
	caIssuing    = "issuing.pem"
	caIssuingKey = "issuing-key.pem"
	// caUnfinished is the file that marks a CA whose creation has not finished. If such a folder has no root
	// certificate, its other files were never used.
	caUnfinished = "unfinished"
)

// CAFolder is a folder with the CA of a cluster on a machine outside the cluster.
type CAFolder struct{ Dir string }

// RootKeyPath returns the path of the root's key.
func (f CAFolder) RootKeyPath() string { return filepath.Join(f.Dir, caRootKey) }

// Create writes a new root and a new issuing authority to the folder. If the folder already has a CA, it
// changes nothing and returns an error that wraps fs.ErrExist.
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
	// A failed write leaves unfinished files, which the next Create overwrites.
	if err := f.write(root, a); err != nil {
		return err
	}
	return f.settle()
}

// settle removes the file caUnfinished, which marks an unfinished CA, if the CA is complete. Otherwise a later Create
// could overwrite the CA's keys.
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

// write writes the keys before the certificates, and the root certificate last. If it is interrupted, it leaves an
// unfinished CA, or a CA whose keys and certificates do not match. Keys and certificates can fail to match only after
// an interrupted Replace, which has stored copies of the old files before it calls write.
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

// Authority reads the issuing authority from the folder. It does not need the root's key.
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

// Root reads the root certificate and the root's key from the folder.
func (f CAFolder) Root() (*Root, error) {
	cert, _, err := readCert(filepath.Join(f.Dir, caRoot))
	if err != nil {
		return nil, err
	}
	key, err := readKey(f.RootKeyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: bring the root's key back from its offline storage: %w", f.RootKeyPath(), err)
	}
	if err != nil {
		return nil, err
	}
	if !sameKey(cert, key) {
		return nil, fmt.Errorf("%s does not belong to %s", f.RootKeyPath(), filepath.Join(f.Dir, caRoot))
	}
	return &Root{cert, key}, nil
}

// Cluster returns the name of the cluster that the root certificate names as its organization.
func (r *Root) Cluster() string { return strings.Join(r.Cert.Subject.Organization, "/") }

// Replace replaces the issuing authority, and the root if root differs from the present one. It keeps the old files
// beside the new ones, with their fingerprint in the name. The key of the present root need not be in the folder. If
// the issuing authority is damaged or missing, it can be replaced only by one that the present root has signed.
//
// An interrupted change of roots can be repeated only while the folder still holds the old issuing key and
// certificate. Otherwise restore the old files first.
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
		if f.has(beside) { // do not overwrite the kept file: an interrupted run has kept the old file already, and the present file may be the new one
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
