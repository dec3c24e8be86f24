package libvirt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each machine's screen has a password, which stays the same over updates and which only root may read.
func TestScreensHaveAPassword(t *testing.T) {
	w := newDrawer(t)
	w.works("c1:1", "a")
	path := filepath.Join(w.at.keep("web"), screenFile)
	raw, err := os.ReadFile(path)
	if err != nil || len(strings.TrimSpace(string(raw))) != screenChars {
		t.Fatalf("the password file of the machine's screen has %q (error %v), want %d characters", raw, err, screenChars)
	}
	if mode := w.stat(path).Mode(); mode.Perm() != 0o600 {
		t.Errorf("the file with the password has mode %s, want 0600", mode)
	}
	w.works("c1:2", "b")
	if again, err := os.ReadFile(path); err != nil || string(again) != string(raw) {
		t.Errorf("after an update the password of the screen is %q (error %v), want %q as before", again, err, raw)
	}
	if xml := w.hv.all["web"].config; !strings.Contains(xml, "<graphics") || !strings.Contains(xml, `passwd="`+strings.TrimSpace(string(raw))+`"`) {
		t.Errorf("the domain XML has no screen with the password of the file: %s", xml)
	}
}
