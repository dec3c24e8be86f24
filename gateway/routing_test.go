package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/rpc/limits"
)

// place returns the index, among three replicas, of the replica to which a routing key leads: FNV-1a-32 of the key, mod
// 3. The test has its own copy of the hash, because a change of the hash would move the sessions of running gateways.
func place(key string) int {
	h := uint32(2166136261)
	for _, b := range []byte(key) {
		h = (h ^ uint32(b)) * 16777619
	}
	return int(h % 3)
}

// keyAt returns a routing key, made by name from a number, for which the gateway chooses the replica with index at.
func keyAt(t *testing.T, at int, name func(int) string) string {
	t.Helper()
	for i := range 1000 {
		if k := name(i); place(k) == at {
			return k
		}
	}
	t.Fatalf("none of 1000 keys leads to replica %d", at)
	return ""
}

// TestRoutingKeysChooseTheReplica checks which key selects the replica, and that replicas are ordered by id, independent
// of their order in the configuration (contract/gateway-rest.md).
func TestRoutingKeysChooseTheReplica(t *testing.T) {
	a, b, c := startReplica(t, "s1", nil), startReplica(t, "s2", nil), startReplica(t, "s3", nil)
	all := []*replicaServer{a, b, c}
	g := newGateway(t, nil, clusterOf("default", Sticky, c, a, b), clusterOf("shard", Shard, b, c, a))
	if want := int(uint32(0xe40c292c) % 3); place("a") != want { // an example hash published by the authors of FNV
		t.Fatalf("key a goes to replica %d, want %d", place("a"), want)
	}
	numbered := func(prefix string) func(int) string {
		return func(i int) string { return fmt.Sprint(prefix, i) }
	}
	digest := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return hex.EncodeToString(sum[:])
	}
	bearer := func(at int) (token string) {
		keyAt(t, at, func(i int) string { token = fmt.Sprint("Bearer token-", i); return digest(token) })
		return token
	}
	host := place("192.0.2.1") // httptest makes requests from this address
	for at := range 3 {
		other := (at + 1) % 3
		s, os := keyAt(t, at, numbered("session-")), keyAt(t, other, numbered("session-"))
		w, ow := keyAt(t, at, numbered("w-")), keyAt(t, other, numbered("w-"))
		for _, x := range []struct {
			fact, method, path, body string
			header                   []string
			want                     int
		}{
			{"sticky: the session header", "GET", "/nodes", "", []string{"X-Persys-Session", s, "Cookie", "persys_session=" + os, "Authorization", bearer(other)}, at},
			{"sticky: the session cookie", "GET", "/v1/nodes", "", []string{"Cookie", "a=b; persys_session=" + s, "Authorization", bearer(other)}, at},
			{"sticky: the token", "GET", "/nodes", "", []string{"Authorization", bearer(at)}, at},
			{"sticky: the caller's address", "GET", "/nodes", "", nil, host},
			{"sticky: the workload's id does not choose the replica", "GET", "/workloads/" + ow, "", []string{"X-Persys-Session", s}, at},
			{"shard: the workload header", "GET", "/clusters/shard/workloads/" + ow, "", []string{"X-Persys-Workload-Key", w}, at},
			{"shard: the id in the path", "GET", "/clusters/shard/workloads/" + w + "?workload_id=" + ow, "", nil, at},
			{"shard: the id in a path of /v1", "GET", "/clusters/shard/v1/workloads/" + w, "", nil, at},
			{"shard: the id in a longer path of /v1", "POST", "/clusters/shard/v1/workloads/" + w + "/retry", "{}", nil, at},
			{"shard: the query", "GET", "/clusters/shard/nodes?workload_id=" + w, "", nil, at},
			{"shard: the path", "GET", "/clusters/shard/nodes/" + keyAt(t, at, func(i int) string { return fmt.Sprint("/clusters/shard/nodes/n-", i) })[len("/clusters/shard/nodes/"):], "", nil, at},
			{"shard: the body of an apply", "POST", "/clusters/shard/workloads/schedule", `{"workload_id":"` + w + `"}`, nil, at},
			{"shard: the session does not choose the replica", "GET", "/clusters/shard/workloads/" + w, "", []string{"X-Persys-Session", os}, at},
		} {
			before := []int{a.count(), b.count(), c.count()}
			if r := ask(g.Handler(), x.method, x.path, x.body, x.header...); r.Code != 200 {
				t.Errorf("%s: the answer is %d %s, want status 200", x.fact, r.Code, r.Body)
			}
			for i, replica := range all {
				want := before[i]
				if i == x.want {
					want++
				}
				if replica.count() != want {
					t.Errorf("%s: %s %s was not sent to replica %s only", x.fact, x.method, x.path, all[x.want].id)
				}
			}
		}
	}
}

// TestTheConfiguredLeaderIsTriedFirst: the configuration marks one scheduler as the leader. The gateway must send its
// first call there, until an answer has named the real leader.
func TestTheConfiguredLeaderIsTriedFirst(t *testing.T) {
	a, b, c := startReplica(t, "s1", nil), startReplica(t, "s2", nil), startReplica(t, "s3", nil)
	all := clusterOf("main", LeaderOnly, c, a, b)
	all.Schedulers[2].Leader = true // the configuration says that s2 leads
	g := newGateway(t, nil, all)
	for range 3 {
		ask(g.Handler(), "GET", "/nodes", "")
	}
	if a.count() != 0 || b.count() != 3 || c.count() != 0 {
		t.Errorf("the replicas got %d, %d and %d calls, want calls only at the second", a.count(), b.count(), c.count())
	}
	b.grpc.Stop()
	if w := ask(g.Handler(), "GET", "/nodes", ""); w.Code != 200 || a.count() != 1 {
		t.Errorf("with the configured leader down the gateway answered %d %s and called s1 %d times, want 200 and once", w.Code, w.Body, a.count())
	}
}

// TestEveryCallHasADeadline: a call that no replica answers ends at the gateway's deadline or when its caller leaves,
// and ends at the replica too. A stream has no deadline.
//
// The connection to the replicas has a deadline of its own, between the deadlines of the two gateways of this test. The
// deadline that the replica sees shows which of them applied, even on a slow machine.
func TestEveryCallHasADeadline(t *testing.T) {
	s := startReplica(t, "s1", nil)
	const timeout = 300 * time.Millisecond
	g := newGateway(t, func(o *Options) { o.CallTimeout = timeout }, clusterOf("main", "", s))
	paths := []string{"/workloads/hang", "/v1/workloads/hang"}
	for _, path := range paths {
		began := time.Now()
		w := ask(g.Handler(), "GET", path, "")
		if took := time.Since(began); w.Code != 504 || !strings.Contains(w.Body.String(), "DEADLINE_EXCEEDED") || took < timeout {
			t.Errorf("path %s was answered %d %s after %s, want 504 at the deadline of the gateway", path, w.Code, w.Body, took)
		}
		<-s.gaveUp
		// gRPC rounds the remaining time up.
		if given := <-s.given; given == 0 || given > timeout+10*time.Millisecond {
			t.Errorf("for %s the call to the replica had a deadline in %s, want at most the gateway's limit %s", path, given, timeout)
		}
	}
	// A garbage collection waits until instances have stopped, for up to their grace period. So its calls must have a
	// longer deadline.
	for _, path := range []string{"/v1/nodes/n/gc", "/clusters/main/v1/nodes/n/gc"} {
		if w := ask(g.Handler(), "POST", path, "{}"); w.Code != 200 {
			t.Errorf("%s: the answer is %d %s, want status 200", path, w.Code, w.Body)
		} else if given := <-s.given; given < slowLimit-time.Minute {
			t.Errorf("%s: the call to the replica had a deadline in %s, want at least %s", path, given, slowLimit-time.Minute)
		}
	}
	for path, want := range map[string]bool{"/v1/nodes/gc/gc": true, "/v1/nodes/gc": false, "/v1/nodes": false, "/v1/recovery/restore": true} {
		if got := slow(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("slow(%s) = %v, want %v", path, got, want)
		}
	}
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(srv.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	get := func(ctx context.Context, path string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	// The stream is silent for longer than the deadline of a call. It must stay open.
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	if err := get(ctx, "/v1/events?follow=true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the event stream ended with %v, want that it goes on until its caller leaves", err)
	}

	patient := newGateway(t, func(o *Options) { o.CallTimeout = time.Hour }, clusterOf("main", "", s))
	gone := httptest.NewServer(patient.Handler())
	t.Cleanup(gone.Close)
	srv = gone
	for _, path := range paths {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- get(ctx, path) }()
		if given := <-s.given; given < 30*time.Minute {
			t.Errorf("for %s the call to the replica had a deadline in %s, want the call timeout of this gateway, one hour", path, given)
		}
		leave()
		<-left
		if err := <-s.gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the caller left and the replica's call ended with %v", path, err)
		}
	}
}

// TestConcurrentRequestsPerHostAreLimited: a host with too many concurrent requests gets 429 until one of them has ended.
// Other hosts are not affected.
func TestConcurrentRequestsPerHostAreLimited(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, func(o *Options) { o.Limits = limits.Limits{Concurrent: 1} }, clusterOf("main", "", s))
	from := func(ctx context.Context, addr, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
		r.RemoteAddr = addr
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		return w
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan struct{})
	go func() { from(ctx, "192.0.2.1:1", "/workloads/hang"); close(ended) }()
	<-s.given
	w := from(t.Context(), "192.0.2.1:2", "/nodes")
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "too many concurrent calls") {
		t.Errorf("the second concurrent request of a host was answered %d, Retry-After %q, %s; want 429", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
	if w := from(t.Context(), "192.0.2.2:1", "/nodes"); w.Code != http.StatusOK {
		t.Errorf("a concurrent request of another host was answered %d %s, want 200", w.Code, w.Body)
	}
	leave()
	<-ended
	if w := from(t.Context(), "192.0.2.1:3", "/nodes"); w.Code != http.StatusOK {
		t.Errorf("after the first call of a host has ended, its next one was answered %d %s, want 200", w.Code, w.Body)
	}
}
