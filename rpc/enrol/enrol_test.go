package enrol

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
)

// bundles is a fake scheduler that implements only the call Bundle.
type bundles struct {
	grpc.ClientConnInterface
	mu     sync.Mutex
	asked  int
	answer *clusterv1.BundleResponse
	err    error
}

func (b *bundles) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	if method != clusterv1.Trust_Bundle_FullMethodName {
		return status.Error(codes.Internal, "nobody asked for "+method)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.err != nil {
		return b.err
	}
	proto.Merge(reply.(proto.Message), b.answer)
	return nil
}

func devCerts(t *testing.T) pki.DevSet {
	t.Helper()
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Schedulers: []string{"s0"}, Agents: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func files(t *testing.T, p pki.Paths) *pki.Files {
	t.Helper()
	f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.Mapping{Cluster: "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRevocationsReachProgramsWithFiles: a program has a certificate of another CA (from files or Vault) instead of
// one from the cluster. It too must learn of the cluster's revocations within seconds.
func TestRevocationsReachProgramsWithFiles(t *testing.T) {
	set := devCerts(t)
	own, peer := files(t, set.Leaf["agent/n1"]), files(t, set.Leaf["scheduler/s0"])
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{peer.Leaf()}}
	if _, err := own.Identify(state); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		conn := &bundles{answer: &clusterv1.BundleResponse{Version: "1"}}
		k := Keeper{Files: own, Conn: conn, Log: slog.New(slog.DiscardHandler), RevokedOnly: true}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		synctest.Wait()
		if conn.asked != 1 {
			t.Errorf("the scheduler got %d requests for the trust bundle at the start, want 1", conn.asked)
		}
		conn.mu.Lock()
		conn.answer = &clusterv1.BundleResponse{Version: "2", Revocations: []*clusterv1.Revocation{
			{Role: "scheduler", Name: "s0", At: timestamppb.New(pki.IssuedAt(peer.Leaf()))},
		}}
		conn.mu.Unlock()
		time.Sleep(lookEvery)
		synctest.Wait()
		if _, err := own.Identify(state); !errors.Is(err, pki.ErrRevoked) {
			t.Errorf("%s after the revocation, Identify returned error %v, want a refusal", lookEvery, err)
		}
		cancel()
		<-ended
	})
}

// TestLegacySchedulersRevokeNobody: legacy v1 schedulers have no revocation list. A program that asks them for it
// every five seconds must log the failure only once.
func TestLegacySchedulersRevokeNobody(t *testing.T) {
	own := files(t, devCerts(t).Leaf["agent/n1"])
	conn := &bundles{err: status.Error(codes.Unimplemented, "unknown service")}
	k := Keeper{Files: own, Conn: conn, RevokedOnly: true}
	version := ""
	if err := k.learn(t.Context(), clusterv1.NewTrustClient(conn), &version); err != nil {
		t.Error(err)
	}
	conn.err = status.Error(codes.Unavailable, "away")
	if err := k.learn(t.Context(), clusterv1.NewTrustClient(conn), &version); err == nil {
		t.Error("Once must return an error while the scheduler is unreachable, but returned none")
	}
}

// Scheduler addresses are stored even if roots and revocations stay the same, so that the program finds
// replaced schedulers at its next start.
func TestSchedulerAddressesAreStored(t *testing.T) {
	own := files(t, devCerts(t).Leaf["agent/n1"])
	root, err := pki.NewRoot("c1", pki.IssuedAt(own.Leaf()))
	if err != nil {
		t.Fatal(err)
	}
	identityStore := pki.IdentityStore{Dir: t.TempDir()}
	if err := identityStore.SaveMembership(pki.Membership{Cluster: "c1", Role: pki.RoleGateway, Name: "g"}); err != nil {
		t.Fatal(err)
	}
	conn := &bundles{answer: &clusterv1.BundleResponse{Version: "1", Roots: pki.EncodeCerts(root.Cert.Raw)}}
	k := Keeper{Identity: identityStore, Files: own, Conn: conn}
	version := ""
	for _, c := range []struct{ says, want []string }{
		{[]string{"10.0.0.1:8085"}, []string{"10.0.0.1:8085"}},
		{[]string{"10.0.0.2:8085"}, []string{"10.0.0.2:8085"}},
		{nil, []string{"10.0.0.2:8085"}},
	} {
		conn.answer.Schedulers = c.says
		if err := k.learn(t.Context(), clusterv1.NewTrustClient(conn), &version); err != nil {
			t.Fatal(err)
		}
		m, err := identityStore.Membership()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.Schedulers, c.want) || m.Name != "g" {
			t.Errorf("with the schedulers %v in the bundle, the program %q stored the addresses %v, want %v", c.says, m.Name, m.Schedulers, c.want)
		}
	}
}

// TestAnExpiredCertificateErrorNamesTheNextCommand: if a machine's certificate expired while the machine was
// off, the error names the command to run next. The machine can join again with a token.
func TestAnExpiredCertificateErrorNamesTheNextCommand(t *testing.T) {
	root, err := pki.NewRoot("c1", time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	a, err := root.NewAuthority("c1", time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	identityStore := pki.IdentityStore{Dir: t.TempDir()}
	keyPEM, csr, err := identityStore.Request([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Sign(csr, pki.Identity{Cluster: "c1", Role: pki.RoleAgent, ID: "n1"}, pki.Hosts{Requested: true}, time.Now().Add(-30*time.Minute), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := identityStore.Save(keyPEM, chain.Chain, pki.EncodeCerts(root.Cert.Raw)); err != nil {
		t.Fatal(err)
	}
	err = Expired(identityStore, pki.RoleAgent, "n1")
	if err == nil || !strings.Contains(err.Error(), "persysctl token create --role agent --name n1") || !strings.Contains(err.Error(), "--join TOKEN") {
		t.Errorf("Expired returned %v, want an error with the command that makes a token, and --join TOKEN", err)
	}
}

// A certificate that lacks the machine's present address is renewed at once. Even if the new certificate cannot be
// stored, only one renewal is requested.
func TestACertificateIsRenewedAtANewAddress(t *testing.T) {
	leaf := files(t, devCerts(t).Leaf["agent/n1"])
	for _, c := range []struct {
		hosts []string
		asked int
	}{{nil, 0}, {[]string{"127.0.0.1", "localhost"}, 0}, {[]string{"127.0.0.1", "10.9.8.7"}, 1}} {
		conn, identityStore := &renewals{}, pki.IdentityStore{Dir: t.TempDir()}
		if err := os.MkdirAll(filepath.Join(identityStore.Paths().Cert, "in-the-way"), 0o700); err != nil {
			t.Fatal(err)
		}
		k := Keeper{Identity: identityStore, Files: leaf, Conn: conn, Hosts: c.hosts, RenewOnly: true}
		for range 3 {
			if err := k.renew(t.Context(), clusterv1.NewTrustClient(conn)); (err == nil) != (c.asked == 0) {
				t.Errorf("renew with the hosts %v returned %v, want an error only if a renewal was requested", c.hosts, err)
			}
		}
		if conn.asked != c.asked {
			t.Errorf("for a program with the hosts %v the scheduler got %d requests for another certificate, want %d", c.hosts, conn.asked, c.asked)
		}
	}
}

// TestMissingHostsAreRequestedOnce: the scheduler has put only some of the requested host names into a certificate.
// The program must not request the others again every few seconds, and not after a restart either.
func TestMissingHostsAreRequestedOnce(t *testing.T) {
	leaf := files(t, devCerts(t).Leaf["agent/n1"])
	identityStore := pki.IdentityStore{Dir: t.TempDir()}
	if err := identityStore.SaveMembership(pki.Membership{Cluster: "c1", Role: pki.RoleAgent, Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	conn := &renewals{real: true}
	for start, hosts := range [][]string{{"10.9.8.7"}, {"10.9.8.7"}, {"10.9.8.8"}} {
		k := Keeper{Identity: identityStore, Files: leaf, Conn: conn, Hosts: hosts, RenewOnly: true, Log: slog.New(slog.DiscardHandler)}
		for range 3 {
			if err := k.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if want := []int{1, 1, 2}[start]; conn.asked != want {
			t.Errorf("after start %d of the program the scheduler got %d requests for a renewal, want %d", start+1, conn.asked, want)
		}
	}
}

// renewals is a fake scheduler that answers requests for a renewal and counts them.
type renewals struct {
	grpc.ClientConnInterface
	asked int
	real  bool // set if the caller presented a certificate
}

func (r *renewals) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	r.asked++
	root, err := pki.NewRoot("dev", time.Now())
	if err != nil {
		return err
	}
	out := reply.(*clusterv1.RenewResponse)
	out.Roots = pki.EncodeCerts(root.Cert.Raw)
	if !r.real {
		return nil
	}
	a, err := root.NewAuthority("dev", time.Now())
	if err != nil {
		return err
	}
	issued, err := a.Sign(args.(*clusterv1.RenewRequest).GetCsr(), pki.Identity{Role: pki.RoleAgent, ID: "n1"}, pki.Hosts{}, time.Now(), time.Hour)
	if err != nil {
		return err
	}
	out.Chain = issued.Chain
	return nil
}

// TestAJoinerNamesTheAddressesThatDoNotAnswer: a program cannot reach any scheduler address in its join token. The
// log, the status line and the error must name each address and why it does not answer.
func TestAJoinerNamesTheAddressesThatDoNotAnswer(t *testing.T) {
	closed := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	one, two := closed(), closed()
	token, err := pki.JoinToken{
		ID: strings.Repeat("a", 16), Secret: bytes.Repeat([]byte{7}, 32), Cluster: "c1", Role: pki.RoleAgent, Root: strings.Repeat("ab", 32),
		Schedulers: []string{one, two}, Expires: time.Now().Add(time.Hour).Truncate(time.Second),
	}.Export()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	var logged strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	err = Join(ctx, Options{
		Token: token, Identity: pki.IdentityStore{Dir: filepath.Join(t.TempDir(), "tls")}, Role: pki.RoleAgent, Name: "n1",
		Status: func(line string) {
			lines = append(lines, line)
			if strings.Contains(line, "lets this program in") {
				cancel()
			}
		},
		Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	why := one + ": connection refused; " + two + ": connection refused"
	if len(lines) != 3 || lines[0] != "joining: asks "+one+", "+two || lines[1] != "joining: no scheduler of the token lets this program in yet: "+why || !strings.HasPrefix(lines[2], "not joined: ") {
		t.Errorf("the status lines are %q, want 3 lines: the addresses, why each does not answer, and that the join failed", lines)
	}
	if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(logged.String(), why) {
		t.Errorf("the error of Join is %v, the log %s; want the text %s in both", err, logged.String(), why)
	}
}
