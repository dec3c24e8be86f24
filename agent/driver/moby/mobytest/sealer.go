package mobytest

import (
	"sync"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/pki"
)

// agentKey makes the key of all agents of a test program.
var agentKey = sync.OnceValues(pki.NewKey)

// Sealer returns the key of an agent. All calls return the same key.
func Sealer(t testing.TB) driver.Sealer {
	t.Helper()
	key, err := agentKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
