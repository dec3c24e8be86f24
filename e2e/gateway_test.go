package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// gatewayOf starts a gateway in front of a cluster and returns its address.
func gatewayOf(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	if leaf := c.Leaf("gateway/gateway"); leaf.Cert != "" {
		return gatewayWith(t, c, map[string]string{"PERSYS_TLS_CERT": leaf.Cert, "PERSYS_TLS_KEY": leaf.Key, "PERSYS_TLS_CA": leaf.CA})
	}
	return gatewayWith(t, c, map[string]string{"PERSYS_INSECURE": "true"})
}

// gatewayWith starts a gateway with the additional settings in more and the arguments args, and returns its
// address.
func gatewayWith(t *testing.T, c *harness.Cluster, more map[string]string, args ...string) string {
	t.Helper()
	addr := freeAddr(t)
	env := append(os.Environ(), "PERSYS_GATEWAY_HTTP_ADDR="+addr, "PERSYS_GATEWAY_PUBLIC_ADDR=none", "PERSYS_SCHEDULER_ADDR="+strings.Join(c.Addrs(), ","),
		"PERSYS_GATEWAY_PROBE_INTERVAL=500ms", "PERSYS_GATEWAY_CLUSTER_CONFIG="+filepath.Join(c.Dir, "none.yaml"))
	for k, v := range more {
		env = append(env, k+"="+v)
	}
	p := &harness.Process{Name: "gateway", Path: raced(t).Gateway, Args: args, Env: env, Log: filepath.Join(c.Dir, "gateway.log")}
	must(t, p.Start())
	t.Cleanup(func() {
		if err := p.Terminate(endsWithin); err != nil {
			t.Errorf("stopping the gateway: %v", err)
		}
		for _, a := range p.Alarms() {
			t.Errorf("the log of the gateway has a panic or a data race: %s", a)
		}
		if t.Failed() {
			t.Logf("the gateway says:\n%s", p.Tail(20))
		}
	})
	must(t, testbed.Poll(t.Context(), settle, "the gateway to listen", func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("%w; the gateway says:\n%s", err, p.Tail(5))
		}
		return conn.Close()
	}))
	return addr
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// rest is an HTTP client of the gateway with the identity of one user.
type rest struct {
	t    *testing.T
	base string
	http *http.Client
}

func (r rest) do(method, path, body string) (int, map[string]any) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, bytes.NewBufferString(body))
	must(r.t, err)
	resp, err := r.http.Do(req)
	must(r.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(r.t, err)
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		r.t.Fatalf("%s %s answered %d with %q, want JSON", method, path, resp.StatusCode, data)
	}
	return resp.StatusCode, out
}

// as returns an HTTP client of the gateway at addr that uses the certificate of the user who, or no
// certificate if who is empty.
func as(t *testing.T, c *harness.Cluster, addr, who string) rest {
	t.Helper()
	ca, err := os.ReadFile(c.Leaf("user/admin").CA)
	must(t, err)
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AppendCertsFromPEM(ca)
	if who != "" {
		leaf := c.Leaf("user/" + who)
		pair, err := tls.LoadX509KeyPair(leaf.Cert, leaf.Key)
		must(t, err)
		cfg.Certificates = []tls.Certificate{pair}
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return rest{t, "https://" + addr, &http.Client{Transport: tr, Timeout: settle}}
}

// TestGateway calls a real cluster through a real gateway, with certificates. It covers the routes of
// legacy CLIs, /v1, an event stream, roles, and calls after the death of the leader.
func TestGateway(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), Dir: t.TempDir(), TLS: true, SchedulerEnv: fast(nil)})
	_, err := c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true})
	must(t, err)
	addr := gatewayOf(t, c)
	admin := as(t, c, addr, "admin")

	code, out := admin.do("POST", "/workloads/schedule", `{"workload_id":"web","spec":{"type":"container","container":{"image":"nginx:1.27"},"resources":{"cpu_millicores":100,"memory_mb":64}}}`)
	if code != 200 || out["success"] != true {
		t.Fatalf("scheduling a workload was answered %d %v", code, out)
	}
	must(t, testbed.Poll(t.Context(), settle, "the workload to run", func(context.Context) error {
		if code, out := admin.do("GET", "/workloads/web", ""); code != 200 || !strings.Contains(fmt.Sprint(out), "status:Running") {
			return fmt.Errorf("the workload does not run yet: %d %v", code, out)
		}
		return nil
	}))

	sessionThroughGateway(t, c, addr)

	// The event stream ends when the leader dies. A browser would connect again; here the next call must
	// succeed.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin.base+"/v1/events?follow=true", nil)
	must(t, err)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := admin.http.Do(req)
	must(t, err)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "WorkloadCreated") {
	}
	if !strings.Contains(lines.Text(), `"workload_id":"web"`) {
		t.Errorf("the event WorkloadCreated in the stream is %q, want workload web", lines.Text())
	}
	must(t, resp.Body.Close())

	lead, err := c.WaitLeader(t.Context(), settle)
	must(t, err)
	must(t, c.Schedulers[lead].Kill())
	code, out = admin.do("POST", "/v1/apply", `{"file":"id: second\ncontainer: {image: \"nginx:1.27\"}\n"}`)
	if code != 200 || !strings.Contains(fmt.Sprint(out), "success:true") {
		t.Errorf("an apply just after the death of the leader was answered %d %v, want success", code, out)
	}

	for _, x := range []struct {
		who, method, path, body string
		code                    int
		says                    string
	}{
		{"", "GET", "/workloads", "", 401, "no client certificate"},
		{"admin", "GET", "/workloads/none", "", 404, "not found"},
		{"admin", "POST", "/v1/apply", `{"file":"id: x\ncontaner: {}\n"}`, 400, "did you mean"},
		{"admin", "POST", "/workloads/schedule", `{`, 400, "not valid"},
		{"admin", "GET", "/v1/workloads?staus=Running", "", 400, "staus"},
		{"admin", "GET", "/federation/x", "", 501, "not served"},
		{"admin", "GET", "/clusters", "", 200, "healthy_schedulers:"},
		{"admin", "GET", "/cluster/metrics", "", 200, "total_workloads:2"},
	} {
		code, out := as(t, c, addr, x.who).do(x.method, x.path, x.body)
		if code != x.code || !strings.Contains(fmt.Sprint(out), x.says) {
			t.Errorf("%s %s as %q returned %d %v, want %d with %q", x.method, x.path, x.who, code, out, x.code, x.says)
		}
	}
}

// sessionThroughGateway opens a shell on a terminal that is resized, and runs commands without a
// terminal.
func sessionThroughGateway(t *testing.T, c *harness.Cluster, addr string) {
	t.Helper()
	env := c.CtlEnv("https://" + addr)
	x := openScreen(t)
	cmd := exec.CommandContext(t.Context(), shipped(t).Ctl, "exec", "-it", "web", "--", "sh")
	cmd.Env = append(env, "TERM=xterm")
	must(t, x.Run(cmd))
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	x.keys(t, "size\r")
	must(t, x.Shows(t.Context(), settle, "30 120"))
	must(t, x.Resize(40, 100))
	must(t, testbed.Poll(t.Context(), settle, "the new size to arrive", func(context.Context) error {
		x.keys(t, "size\r")
		if s := x.Screen(); !strings.Contains(s, "40 100") {
			return fmt.Errorf("the terminal shows %q", s)
		}
		return nil
	}))
	x.keys(t, "exit 7\r")
	if code, err := x.End(settle); err != nil || code != 7 {
		t.Errorf("the shell ended with %d, %v, want its exit code 7; the terminal shows %q", code, err, x.Screen())
	}
	for _, y := range []struct {
		args        []string
		code        int
		out, errors string
	}{
		{[]string{"exec", "web", "--", "echo", "a  b", "c"}, 0, "a  b c\n", ""},
		{[]string{"exec", "web", "--", "err", "bad"}, 0, "", "bad\n"},
		{[]string{"exec", "none", "--", "true"}, 3, "", "not found"},
	} {
		var out, errs bytes.Buffer
		code, err := c.RunCtl(t.Context(), env, &out, &errs, y.args...)
		if err != nil || code != y.code || out.String() != y.out || !strings.Contains(errs.String(), y.errors) {
			t.Errorf("persysctl %s through a gateway ended with exit %d, %v; its output differs from the expected one\n%s%s", strings.Join(y.args, " "), code, err, out.String(), errs.String())
		}
	}
	if told := ctl(t, c, "events", "--workload", "web", "-o", "json"); !strings.Contains(told, "user/admin") {
		t.Errorf("the event does not name the user: %s", told)
	}
}
