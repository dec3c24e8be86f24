package gatewayd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/testbed"
)

// link makes a link to the console at a scheduler, with the certificate of who. It returns the link's one-time code and
// the id of its session.
func (w *world) link(who string) (code, id string) {
	w.t.Helper()
	leaf := w.certs.Leaf[who]
	pair, err := tls.LoadX509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		w.t.Fatal(err)
	}
	cc, err := grpc.NewClient(w.scheduler, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: w.roots, Certificates: []tls.Certificate{pair},
	})))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	r, err := clusterv1.NewClusterClient(cc).LinkConsole(ctx, &clusterv1.LinkConsoleRequest{RequestId: uuid.Must(uuid.NewV7()).String()})
	if err != nil {
		w.t.Fatalf("a link for %s: %v", who, err)
	}
	return r.GetCode(), r.GetSession().GetId()
}

// open opens the session of a one-time code and returns the status and the body of the answer.
func (v *visitor) open(code string) (int, string) {
	v.t.Helper()
	status, body, _ := v.do(v.c, "POST", v.api+"/auth/link", fmt.Sprintf(`{"code":%q}`, code))
	return status, body
}

// may makes three calls in the visitor's session: a read, a change of workloads and a change of the
// cluster. It returns their HTTP statuses.
func (v *visitor) may() [3]int {
	v.t.Helper()
	read, _, _ := v.do(v.c, "GET", v.api+"/v1/nodes", "")
	deploy, _, _ := v.do(v.c, "POST", v.api+"/v1/workloads/none/retry", `{}`)
	mode, _, _ := v.do(v.c, "POST", v.api+"/v1/mode", `{"mode":"normal","reason":"x"}`)
	return [3]int{read, deploy, mode}
}

// TestLinksToTheConsole: a person with a certificate makes a link, and a browser without a certificate opens it once and
// then has the rights of that person until the session ends.
func TestLinksToTheConsole(t *testing.T) {
	w := startWorldOf(t, nil, "", startScheduler)
	code, id := w.link("user/olga")
	v := w.visitor("")
	if got := v.may(); got != [3]int{401, 401, 401} {
		t.Errorf("before the link was opened, the three calls were answered %v, want status 401 for each", got)
	}
	for bad, want := range map[string]int{"": 403, "x": 403, "persys-console~" + id + "~c2VjcmV0": 403, code + "x": 403} {
		if status, body := v.open(bad); status != want || v.user() != "" {
			t.Errorf("the code %q: %d %s, want %d", bad, status, body, want)
		}
	}
	// A browser only opens the link, and a page of another site posts the code. Neither must use up the one-time code.
	if status, _, _ := v.at(v.api + "/ui/"); status != 200 {
		t.Errorf("the console's page was answered %d, want 200", status)
	}
	if status, body, _ := v.do(v.c, "POST", v.api+"/auth/link", fmt.Sprintf(`{"code":%q}`, code), "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("the code, posted by a page of another site, was answered %d %s, want 403", status, body)
	}
	if status, body := v.open(code); status != 200 || !strings.Contains(body, `"olga"`) || v.user() != "olga" {
		t.Fatalf("opening the link was answered %d %s and gave the user %q, want 200 and olga", status, body, v.user())
	}
	if got := v.may(); got != [3]int{200, 200, 403} {
		t.Errorf("in the session of an operator the three calls were answered %v, want 200, 200 and 403", got)
	}
	if status, body := w.visitor("").open(code); status != 403 || !strings.Contains(body, "used already") {
		t.Errorf("a link that was used already, opened again: status %d, body %s; want status 403", status, body)
	}
	// GET /v1/access shows the person, the gateway and the end of the session. The REST API has no
	// route to make another session, because schedulers refuse that from gateways.
	if status, body, _ := v.at(v.api + "/v1/access"); status != 200 || !strings.Contains(body, "/user/olga") || !strings.Contains(body, "/gateway/gateway") || !strings.Contains(body, "session_expires_at") {
		t.Errorf("GET /v1/access was answered %d %s, want the user, the gateway and the end of the session", status, body)
	}
	if status, body, _ := v.do(v.c, "POST", v.api+"/v1/sessions", `{}`); status != 405 && status != 501 {
		t.Errorf("a request for a further session was answered %d %s, want no such route", status, body)
	}

	// Users must be able to list and end only their own sessions, admins the sessions of all users.
	other, otherID := w.link("user/boss")
	if status, body, _ := v.at(v.api + "/v1/sessions"); status != 200 || !strings.Contains(body, id) || strings.Contains(body, otherID) {
		t.Errorf("the list of sessions, requested by olga, was answered %d %s, want only her session", status, body)
	}
	if status, body, _ := v.do(v.c, "DELETE", v.api+"/v1/sessions?id="+otherID, ""); status != 403 || !strings.Contains(body, "own sessions") {
		t.Errorf("olga's request to end a session of boss was answered %d %s, want 403", status, body)
	}
	admin := w.as("user/admin")
	if status, body, _ := w.do(admin, "GET", w.api+"/v1/sessions", ""); status != 200 || !strings.Contains(body, id) || !strings.Contains(body, otherID) {
		t.Errorf("the list of sessions, requested by an admin, was answered %d %s, want the sessions of both users", status, body)
	}
	if status, body, _ := w.do(admin, "DELETE", w.api+"/v1/sessions?id="+id, ""); status != 200 {
		t.Errorf("an admin's request to end a session was answered %d %s, want 200", status, body)
	}
	testbed.Within(t, patience, "the ended session is refused", func() error {
		if got := v.may(); got != [3]int{401, 401, 401} {
			return fmt.Errorf("it may %v", got)
		}
		return nil
	})
	if v.user() != "" || v.cookie(sessionCookie) != nil {
		t.Errorf("the cookie of the ended session stays")
	}

	// If several browsers open the same link at the same time, only one gets the session. Signing out ends
	// this session.
	var mu sync.Mutex
	var got []*visitor
	var all sync.WaitGroup
	for range 5 {
		b := w.visitor("")
		all.Go(func() {
			if status, _ := b.open(other); status == http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, b)
			}
		})
	}
	all.Wait()
	if len(got) != 1 {
		t.Fatalf("%d of 5 browsers got the session", len(got))
	}
	token := got[0].cookie(sessionCookie).Value
	if status, body, _ := got[0].do(got[0].c, "POST", w.api+"/auth/logout", ""); status != 204 {
		t.Errorf("sign out: %d %s", status, body)
	}
	got[0].plant(sessionCookie, token)
	testbed.Within(t, patience, "a copy of the cookie is refused after signing out", func() error {
		if may := got[0].may(); may[0] != 401 {
			return fmt.Errorf("it may %v", may)
		}
		return nil
	})
}
