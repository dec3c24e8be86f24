package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/cluster"
)

// TestHealthAnswers503OnlyForFaults: /health answers 503 while the replica is starting, waiting, restoring or
// stalled, and if it has halted or runs on a copy. It never answers 503 because of a mode.
func TestHealthAnswers503OnlyForFaults(t *testing.T) {
	for _, c := range []struct {
		fact      string
		mode      string
		halted    error
		waiting   string
		stalled   string
		restoring bool
		cluster   string
		code      int
		status    string
		reason    string
	}{
		{"a healthy replica", "normal", nil, "", "", false, "c1", http.StatusOK, "ok", ""},
		{"a replica in a cluster in mode degraded", "degraded", nil, "", "", false, "c1", http.StatusOK, "ok", "etcd is unreachable"},
		{"a replica in a cluster in mode recovery", "recovery", nil, "", "", false, "c1", http.StatusOK, "ok", "etcd is unreachable"},
		{"a replica that has no cluster yet", "normal", nil, "", "", false, "", http.StatusServiceUnavailable, "starting", "not joined"},
		{"a replica during a restore", "normal", nil, "", "", true, "c1", http.StatusServiceUnavailable, "restoring", "replaced"},
		{"a replica whose data directory may be a copy", "degraded", nil, "last used at a:1", "", false, "c1", http.StatusServiceUnavailable, "waiting", "last used at a:1"},
		{"a replica on a copied data directory", "degraded", fmt.Errorf("%w: of a:1", cluster.ErrCopied), "", "", false, "c1", http.StatusServiceUnavailable, "copied", "of a:1"},
		{"a replica whose log disk hangs", "degraded", nil, "", "log.db hangs", false, "c1", http.StatusServiceUnavailable, "stalled", "log.db hangs"},
		{"a replica that has halted because its disk is broken", "normal", errors.New("raft.db: input/output error"), "", "", false, "c1", http.StatusServiceUnavailable, "halted", "raft.db: input/output error"},
		{"a replica that has halted during a restore", "normal", errors.New("raft.db"), "", "", true, "", http.StatusServiceUnavailable, "halted", "raft.db"},
	} {
		h := health{Status: "ok", Mode: c.mode, Leader: "s1", Role: "voter", Term: 3, Index: 9, ModeChangedAt: "2026-01-02T12:00:00Z", Mirror: mirrorHealth{State: "off"}}
		if c.mode != "normal" {
			h.Reason = "etcd is unreachable"
		}
		h, ok := h.judged(c.halted, c.waiting, c.stalled, c.restoring, c.cluster)
		w := httptest.NewRecorder()
		writeHealth(w, h, ok)
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		reason, _ := got["reason"].(string)
		if w.Code != c.code || got["status"] != c.status || got["mode"] != c.mode || !strings.Contains(reason, c.reason) {
			t.Errorf("case %s: /health answered %d %s, want %d, status %s, mode %s", c.fact, w.Code, w.Body, c.code, c.status, c.mode)
		}
		want := []string{"index", "leader", "mirror", "mode", "modeChangedAt", "reason", "role", "status", "term"}
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			t.Errorf("case %s: the answer of /health has the fields %v, want %v", c.fact, keys, want)
		}
	}
}
