package gateway

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// FuzzWebhook: the public port accepts only deliveries that are signed with the secret
// of their repository.
func FuzzWebhook(f *testing.F) {
	const secret = "hush"
	rc := newReceiver(Webhook{Forward: "http://127.0.0.1:1", Secrets: map[string]string{"a/b": secret, "a/none": ""}}, slog.New(slog.DiscardHandler))
	sign := func(body []byte) string {
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = mac.Write(body)
		return "sha256=" + hex.EncodeToString(mac.Sum(nil))
	}
	good := []byte(`{"repository":{"full_name":"a/b"}}`)
	f.Add(good, sign(good), "application/json", "d1", "push")
	f.Add(good, "sha256=", "application/json; charset=utf-8", "d1", "push")
	f.Add([]byte(`{"repository":{"name":"none","owner":{"login":"a"}}}`), "", "application/json", "d1", "push")
	f.Add([]byte(`{"repository":[]}`), "x", "text/plain", "", "")
	f.Fuzz(func(t *testing.T, body []byte, signature, kind, id, event string) {
		r := httptest.NewRequest(http.MethodPost, "/webhooks/github", bytes.NewReader(body))
		r.Header = http.Header{"Content-Type": {kind}, "X-Github-Delivery": {id}, "X-Github-Event": {event}, "X-Hub-Signature-256": {signature}}
		d, code, err := rc.check(r)
		switch {
		case err == nil && (signature != sign(body) || !bytes.Equal(d.body, body) || id == "" || event == ""):
			t.Fatalf("the receiver accepted the delivery %q with the signature %q", body, signature)
		case err != nil && (code < 400 || code > 499):
			t.Fatalf("a refused delivery was answered with status %d, want 4xx: %v", code, err)
		}
	})
}

// FuzzBody feeds the decoders of request bodies and of websocket messages.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"workload_id":"web","spec":{"type":"container","container":{"image":"x"}}}`))
	f.Add([]byte(`{"spec":{"vm":{"vcpus":-1}},"unknown":[{}]}`))
	f.Add([]byte(`{"open":{"workloadId":"web","command":["sh"],"size":{"rows":-1}}}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = decode(body, &clusterv1.ExecRequest{}, false)
		in := &controlv1.ApplyWorkloadRequest{}
		if decode(body, in, true) != nil {
			return
		}
		if _, err := protoOut.Marshal(in); err != nil {
			t.Fatalf("the message was decoded but cannot be encoded: %v", err)
		}
	})
}
