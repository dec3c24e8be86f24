package compute_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/testbed"
)

// TestUnitsAreBounded: each systemd unit limits capabilities, memory, tasks and system calls of its program.
func TestUnitsAreBounded(t *testing.T) {
	units, err := filepath.Glob("deploy/systemd/*.service")
	if err != nil || len(units) != 4 {
		t.Fatalf("units %q (%v)", units, err)
	}
	every := []string{"CapabilityBoundingSet", "SystemCallFilter", "SystemCallArchitectures", "MemoryMax", "TasksMax", "LimitNOFILE", "NoNewPrivileges", "LockPersonality", "RestrictRealtime"}
	for _, path := range units {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := every
		if !strings.Contains(string(raw), "persys-agent") { // the other programs need no right of root
			want = slices.Concat(every, []string{"ProtectSystem", "ProtectHome", "PrivateDevices", "RestrictAddressFamilies", "RestrictNamespaces", "MemoryDenyWriteExecute"})
			if !strings.Contains(string(raw), "\nUser=persys\n") || !strings.Contains(string(raw), "\nCapabilityBoundingSet=\n") {
				t.Errorf("%s: the program runs as root or has capabilities", path)
			}
		}
		for _, directive := range want {
			if !regexp.MustCompile(`(?m)^` + directive + `=`).Match(raw) {
				t.Errorf("%s has no %s", path, directive)
			}
		}
	}
}

// TestImagesHaveAUser: only the agent's image runs as root. In every other image, the user may write to /tmp.
func TestImagesHaveAUser(t *testing.T) {
	files, err := filepath.Glob("deploy/docker/*.Dockerfile")
	if err != nil || len(files) != 4 {
		t.Fatalf("files %q (%v)", files, err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if agent := strings.Contains(path, "persys-agent"); strings.Contains(string(raw), "\nUSER 65532:65532\n") == agent {
			t.Errorf("%s: the agent's image runs as root, every other one as user 65532", path)
		} else if want := "\nCOPY --chown=65532:65532 empty /tmp\n"; !agent && !strings.Contains(string(raw), want) {
			t.Errorf("%s: user 65532 cannot write to /tmp; want the line %q", path, strings.TrimSpace(want))
		}
	}
}

// TestReleaseChecksumsAreSigned: hack/sign.sh makes a signature that the public key verifies, and fails without a key
// or with a key of another kind.
func TestReleaseChecksumsAreSigned(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		testbed.Need(t, "openssl", err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, key := filepath.Join(dir, "SHA256SUMS"), filepath.Join(dir, "key.pem")
	content := []byte("0123  persys.deb\n")
	if err := errors.Join(os.WriteFile(sums, content, 0o600), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)); err != nil {
		t.Fatal(err)
	}
	sign := func(key string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "hack/sign.sh", dir)
		cmd.Env = append(os.Environ(), "SIGNING_KEY="+key)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := sign(""); err == nil || !strings.Contains(out, "NOT SIGNED") {
		t.Errorf("hack/sign.sh without a key printed %s (%v), want an error", out, err)
	}
	if out, err := sign(sums); err == nil {
		t.Errorf("hack/sign.sh accepts a file that is no key: %s", out)
	}
	if out, err := sign(key); err != nil {
		t.Fatalf("%s (%v)", out, err)
	}
	signature, err := os.ReadFile(sums + ".sig")
	if err != nil || !ed25519.Verify(public, content, signature) {
		t.Errorf("the signature does not verify (%v)", err)
	}
	release, err := os.ReadFile("hack/release.sh")
	if err != nil || !strings.Contains(string(release), `hack/sign.sh "$DIST"`) {
		t.Errorf("hack/release.sh does not sign (%v)", err)
	}
}
