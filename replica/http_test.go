package replica

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestHealth: 503 while starting, restoring or halted, and never because of a mode.
func TestHealth(t *testing.T) {
	for _, c := range []struct {
		fact      string
		mode      string
		halted    error
		restoring bool
		cluster   string
		code      int
		status    string
		reason    string
	}{
		{"a healthy replica", "normal", nil, false, "c1", http.StatusOK, "ok", ""},
		{"a frozen mode", "degraded", nil, false, "c1", http.StatusOK, "ok", "etcd is unreachable"},
		{"the recovery mode", "recovery", nil, false, "c1", http.StatusOK, "ok", "etcd is unreachable"},
		{"a replica without a cluster", "normal", nil, false, "", http.StatusServiceUnavailable, "starting", "not joined"},
		{"a restore in progress", "normal", nil, true, "c1", http.StatusServiceUnavailable, "restoring", "replaced"},
		{"a broken disk", "normal", errors.New("raft.db: input/output error"), false, "c1", http.StatusServiceUnavailable, "halted", "raft.db: input/output error"},
		{"a broken disk during a restore", "normal", errors.New("raft.db"), true, "", http.StatusServiceUnavailable, "halted", "raft.db"},
	} {
		h := health{Status: "ok", Mode: c.mode, Leader: "s1", Role: "voter", Term: 3, Index: 9, ModeChangedAt: "2026-01-02T12:00:00Z", Mirror: mirrorHealth{State: "off"}}
		if c.mode != "normal" {
			h.Reason = "etcd is unreachable"
		}
		h, ok := h.judged(c.halted, c.restoring, c.cluster)
		w := httptest.NewRecorder()
		writeHealth(w, h, ok)
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		reason, _ := got["reason"].(string)
		if w.Code != c.code || got["status"] != c.status || got["mode"] != c.mode || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %d %s", c.fact, w.Code, w.Body)
		}
		want := []string{"index", "leader", "mirror", "mode", "modeChangedAt", "reason", "role", "status", "term"}
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			t.Errorf("%s: fields %v, want %v", c.fact, keys, want)
		}
	}
}
