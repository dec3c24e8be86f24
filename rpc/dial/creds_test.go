package dial

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/persys/compute/pki"
)

// TestNoProxyIntoTheCluster: the environment names an HTTP proxy, and connections to the cluster must not use it. A
// process reads these settings only once, so the test runs in a child process.
func TestNoProxyIntoTheCluster(t *testing.T) {
	if os.Getenv("BEHIND_A_PROXY") == "" {
		proxy, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		asked := make(chan struct{})
		go func() {
			if c, err := proxy.Accept(); err == nil {
				close(asked)
				_ = c.Close()
			}
		}()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "BEHIND_A_PROXY=yes", "HTTPS_PROXY=http://"+proxy.Addr().String(), "NO_PROXY=", "no_proxy=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("the child process with the proxy settings failed: %v\n%s", err, out)
		}
		select {
		case <-asked:
			t.Error("a connection to the cluster went through the HTTP proxy of the environment")
		default:
		}
		return
	}
	// An address that no machine has (RFC 5737), so dialling it gets no answer.
	cc, err := To(nil, "192.0.2.1:8085", pki.Peer{Role: pki.RoleScheduler})
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	cc.Connect()
	for s := cc.GetState(); s != connectivity.TransientFailure && cc.WaitForStateChange(ctx, s); s = cc.GetState() {
	}
}
