package libvirt

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
)

// A line longer than maxConsoleLine is split without losing a byte.
func TestALongLineLosesNoBytes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "console.log")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("0123456789", maxConsoleLine/4)
	over := func(context.Context) (bool, error) { return true, os.WriteFile(file, []byte(line), 0o600) }
	var out bytes.Buffer
	if err := copyConsole(t.Context(), file, driver.LogOptions{Follow: true}, over, &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(out.String(), "\n", ""); got != line {
		t.Errorf("the log has %d bytes, but copyConsole returned %d", len(line), len(got))
	}
}
