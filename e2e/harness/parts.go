package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/testbed"
)

// Part is a server of another project that a test runs beside the cluster: etcd or CoreDNS.
type Part struct {
	*Process
	Addr string // address of the service as host:port
}

// Etcd prepares an etcd with one member and its data below dir.
func Etcd(ctx context.Context, dir string) (*Part, error) {
	bin, err := testbed.Server(ctx, "etcd")
	if err != nil {
		return nil, err
	}
	var p ports
	client, err := p.take()
	if err != nil {
		return nil, err
	}
	peer, err := p.take()
	if err != nil {
		return nil, err
	}
	url := func(port int) string { return "http://" + loopback(port) }
	return &Part{Addr: loopback(client), Process: &Process{
		Name: "etcd", Path: bin, Log: filepath.Join(dir, "etcd.log"), Env: environment(),
		Args: []string{"--name", "m", "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "warn", "--unsafe-no-fsync",
			"--listen-client-urls", url(client), "--advertise-client-urls", url(client),
			"--listen-peer-urls", url(peer), "--initial-advertise-peer-urls", url(peer), "--initial-cluster", "m=" + url(peer)},
	}}, nil
}

// Block is one server block of a Corefile: its zones and the lines of its plugins.
type Block struct {
	Zones  []string
	Config string
}

// CoreDNS prepares a CoreDNS with a Corefile of these blocks below dir.
func CoreDNS(ctx context.Context, dir string, blocks ...Block) (*Part, error) {
	var text strings.Builder
	for _, b := range blocks {
		fmt.Fprintf(&text, "%s {\n\tbind 127.0.0.1\n\terrors\n%s\n}\n", strings.Join(b.Zones, " "), b.Config)
	}
	file := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return nil, err
	}
	return CoreDNSFrom(ctx, dir, file, nil)
}

// CoreDNSFrom prepares a CoreDNS with a Corefile whose zones name no port. env has the
// variables that the Corefile refers to. The log is below dir.
func CoreDNSFrom(ctx context.Context, dir, file string, env map[string]string) (*Part, error) {
	bin, err := testbed.Server(ctx, "coredns")
	if err != nil {
		return nil, err
	}
	var p ports
	port, err := p.take()
	if err != nil {
		return nil, err
	}
	return &Part{Addr: loopback(port), Process: &Process{
		Name: "coredns", Path: bin, Log: filepath.Join(dir, "coredns.log"), Env: environment(env), Dir: dir,
		Args: []string{"-conf", file, "-dns.port", strconv.Itoa(port), "-quiet"},
	}}, nil
}

// WaitEtcd waits until an etcd is healthy.
func WaitEtcd(ctx context.Context, p *Part, limit time.Duration) error {
	return testbed.Poll(ctx, limit, p.Name+" serving", func(ctx context.Context) error {
		if !p.Running() {
			return testbed.Final(fmt.Errorf("the etcd server has ended:\n%s", p.Tail(10)))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr+"/health", nil)
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err = errors.Join(err, resp.Body.Close()); err == nil && !bytes.Contains(body, []byte(`"health":"true"`)) {
			err = fmt.Errorf("the /health of etcd is %s", body)
		}
		return err
	})
}

// WaitListening waits until a server accepts TCP connections.
func WaitListening(ctx context.Context, p *Part, limit time.Duration) error {
	return testbed.Poll(ctx, limit, p.Name+" listening", func(ctx context.Context) error {
		if !p.Running() {
			return testbed.Final(fmt.Errorf("the server has ended:\n%s", p.Tail(10)))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
