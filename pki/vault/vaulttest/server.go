// Package vaulttest provides a fake Vault server for tests. It implements the API calls that Persys makes, in
// the documented formats. It signs certificates with a CA of its own and encrypts keys. It has no policies and
// no leases, and stores nothing on disk.
package vaulttest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Credentials that the fake server accepts.
const (
	Token    = "hvs.test-token"
	RoleID   = "test-role-id"
	SecretID = "test-secret-id"
)

// Server is a fake Vault with a PKI engine at pki/ and a transit engine at transit/.
type Server struct {
	*httptest.Server
	root, inter *x509.Certificate
	key         *ecdsa.PrivateKey
	transit     cipher.AEAD

	mu      sync.Mutex
	sealed  bool
	refused int // number of calls that failed while the server was sealed
	tokens  map[string]bool
	issued  []map[string]any // granted certificate requests, oldest first
}

// New starts a fake server. The caller must close it.
func New() (*Server, error) {
	s := &Server{tokens: map[string]bool{Token: true}}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	ca := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
	}
	if s.root, err = sign(ca("test root"), ca("test root"), rootKey, rootKey); err != nil {
		return nil, err
	}
	if s.inter, err = sign(ca("test intermediate"), s.root, s.key, rootKey); err != nil {
		return nil, err
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	if s.transit, err = cipher.NewGCM(block); err != nil {
		return nil, err
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	return s, nil
}

func sign(tmpl, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Seal makes every call fail, as on a sealed Vault, until Seal(false) is called.
func (s *Server) Seal(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = on
}

// Refused returns the number of calls that failed while the server was sealed.
func (s *Server) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// Issued returns the certificate requests that the server has granted, oldest first.
func (s *Server) Issued() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any(nil), s.issued...)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		s.refused++
		fail(w, http.StatusServiceUnavailable, "Vault is sealed")
		return
	}
	var in map[string]any
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
			fail(w, http.StatusBadRequest, "failed to parse JSON input: "+err.Error())
			return
		}
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	if path == "auth/approle/login" {
		if in["role_id"] != RoleID || in["secret_id"] != SecretID {
			fail(w, http.StatusBadRequest, "invalid role or secret ID")
			return
		}
		token := fmt.Sprintf("hvs.test-%d", len(s.tokens))
		s.tokens[token] = true
		answer(w, nil, map[string]any{
			"client_token": token, "accessor": "test", "policies": []string{"default"}, "token_policies": []string{"default"},
			"metadata": map[string]string{"role_name": "test"}, "lease_duration": 3600, "renewable": true, "entity_id": "test",
			"token_type": "service", "orphan": true, "mfa_requirement": nil, "num_uses": 0,
		})
		return
	}
	if !s.tokens[r.Header.Get("X-Vault-Token")] {
		fail(w, http.StatusForbidden, "permission denied")
		return
	}
	engine, rest, _ := strings.Cut(path, "/")
	call, name, _ := strings.Cut(rest, "/")
	switch {
	case path == "auth/token/lookup-self" && r.Method == http.MethodGet:
		answer(w, map[string]any{"accessor": "test", "id": r.Header.Get("X-Vault-Token"), "policies": []string{"default"}, "ttl": 3600, "type": "service"}, nil)
	case engine == "pki" && call == "issue" && name != "":
		s.issue(w, in)
	case engine == "transit" && (call == "encrypt" || call == "decrypt") && name != "":
		s.crypt(w, call, name, in)
	default:
		fail(w, http.StatusNotFound, `no handler for route "`+path+`". route entry not found.`)
	}
}

// issue implements the call "generate certificate and key" of the PKI engine.
func (s *Server) issue(w http.ResponseWriter, in map[string]any) {
	word := func(k string) string { v, _ := in[k].(string); return v }
	ttl, err := time.ParseDuration(word("ttl"))
	if err != nil || word("common_name") == "" {
		fail(w, http.StatusBadRequest, fmt.Sprintf("common_name %q, ttl %q", word("common_name"), word("ttl")))
		return
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: word("common_name")},
		NotBefore: time.Now().Add(-30 * time.Second), NotAfter: time.Now().Add(ttl), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range append([]string{word("common_name")}, strings.Split(word("alt_names"), ",")...) {
		if n != "" {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	for _, a := range strings.Split(word("ip_sans"), ",") {
		if ip := net.ParseIP(a); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else if a != "" {
			fail(w, http.StatusBadRequest, "the value "+a+" is not a valid IP address")
			return
		}
	}
	cert, err := sign(tmpl, s.inter, key, s.key)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.issued = append(s.issued, in)
	answer(w, map[string]any{
		"ca_chain":         []string{text("CERTIFICATE", s.inter.Raw), text("CERTIFICATE", s.root.Raw)},
		"certificate":      text("CERTIFICATE", cert.Raw),
		"expiration":       cert.NotAfter.Unix(),
		"issuing_ca":       text("CERTIFICATE", s.inter.Raw),
		"private_key":      text("EC PRIVATE KEY", der),
		"private_key_type": "ec",
		"serial_number":    cert.SerialNumber.Text(16),
	}, nil)
}

// text returns PEM as Vault writes it: without the last line break.
func text(kind string, der []byte) string {
	return strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// crypt implements the calls encrypt and decrypt of the transit engine.
func (s *Server) crypt(w http.ResponseWriter, call, name string, in map[string]any) {
	if call == "encrypt" {
		b64, _ := in["plaintext"].(string)
		plain, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			fail(w, http.StatusBadRequest, "failed to base64-decode plaintext")
			return
		}
		nonce := make([]byte, s.transit.NonceSize())
		if _, err := rand.Read(nonce); err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		box := s.transit.Seal(nonce, nonce, plain, []byte(name))
		answer(w, map[string]any{"ciphertext": "vault:v1:" + base64.StdEncoding.EncodeToString(box), "key_version": 1}, nil)
		return
	}
	text, _ := in["ciphertext"].(string)
	box, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "vault:v1:"))
	if err != nil || len(box) < s.transit.NonceSize() {
		fail(w, http.StatusBadRequest, "invalid ciphertext: no prefix")
		return
	}
	plain, err := s.transit.Open(nil, box[:s.transit.NonceSize()], box[s.transit.NonceSize():], []byte(name))
	if err != nil {
		fail(w, http.StatusBadRequest, "cipher: message authentication failed")
		return
	}
	answer(w, map[string]any{"plaintext": base64.StdEncoding.EncodeToString(plain)}, nil)
}

func answer(w http.ResponseWriter, data, auth any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // if encoding fails, the client reports an incomplete answer
		"request_id": "test", "lease_id": "", "renewable": false, "lease_duration": 0, "data": data, "wrap_info": nil, "warnings": nil, "auth": auth,
	})
}

func fail(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []string{why}})
}
