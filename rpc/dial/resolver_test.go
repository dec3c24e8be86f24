package dial

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/persys/compute/testbed"
)

func resolved(t *testing.T, target string, opt Options) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(target, grpc.WithResolvers(Resolver(opt)), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func plainCall(t *testing.T, cc *grpc.ClientConn, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return cc.Invoke(ctx, apply, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}, grpc.WaitForReady(true))
}

// TestAResolverFindsTheSchedulers: a plain gRPC connection with the resolver finds the schedulers as a Conn
// does: from a list, from DNS, or from the cache file without DNS. It follows changes of the addresses.
func TestAResolverFindsTheSchedulers(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	z := startZone(t, srvRecords(a)...)
	for _, c := range []struct {
		target string
		opt    Options
	}{
		{"persys:///", Options{Addrs: []string{vacant(t), a.addr}}},
		{"persys:///", Options{Discovery: "srv://persys.x?dns=" + z.addr}},
		{"persys:///persys.x?dns=" + z.addr, Options{}},
		{"persys:///persys.x.?dns=" + z.addr, Options{Addrs: []string{vacant(t)}}},
	} {
		if err := plainCall(t, resolved(t, c.target, c.opt), 10*time.Second); err != nil {
			t.Errorf("the call to target %s with options %+v returned %v", c.target, c.opt, err)
		}
	}
	cc := resolved(t, "persys:///persys.x?dns="+z.addr, Options{})
	if err := plainCall(t, cc, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	z.set(t, srvRecords(b)...)
	a.grpc.Stop()
	// The first call after the change may still use the old connection and fail, because a plain connection
	// does not retry.
	testbed.Until(t, "the connection finds the schedulers at their new addresses", func() bool { return plainCall(t, cc, 10*time.Second) == nil })
	if b.calls.Load() == 0 {
		t.Error("the replica at the new address got no call")
	}
}

// An endpoint may have several names, and its certificate needs to contain only one of them. The address type of gRPC
// has room for only one name, so the test checks that the resolver passes all names to the Conn.
func TestEndpointsKeepTheirNames(t *testing.T) {
	a := start(t, nil)
	z := startZone(t, srvRecords(a)...)
	c := dialTo(t, Options{Discovery: "srv://persys.x?dns=" + z.addr})
	mustCall(t, c, apply)
	want := Endpoint{Addr: a.addr, Names: []string{"h.x", "127.0.0.1"}}
	// If a Conn gets its endpoints from another Conn, it gets their names too.
	for _, c := range []*Conn{c, dialTo(t, Options{Endpoints: c.Endpoints(), Addrs: []string{"192.0.2.1"}})} {
		if got := c.Endpoints(); len(got) != 1 || !got[0].Equal(want) {
			t.Errorf("the Conn has the endpoints %+v, want %+v", got, want)
		}
	}
}

func TestResolverReportsTheFault(t *testing.T) {
	for target, want := range map[string]string{
		"persys:///":                  "no scheduler address",
		"persys://elsewhere/persys.x": "authority",
		"persys:///persys.x?ttl=1":    `unknown option "ttl"`,
		"persys:///a/b":               "not a DNS name",
	} {
		cc, err := grpc.NewClient(target, grpc.WithResolvers(Resolver(Options{})), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err == nil {
			cc.Connect()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
			cancel()
			cc.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the resolver returned %[2]v for target %[1]s, want an error that contains %[3]q", target, err, want)
		}
	}
}
