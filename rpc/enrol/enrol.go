// Package enrol obtains a program's certificate with a join token, and then keeps it current: it renews the
// certificate before it expires, and fetches the trusted roots and the revocations.
package enrol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

const (
	// joinFor is how long a first start tries to join. It is long because the schedulers may be starting at the same
	// time.
	joinFor  = 2 * time.Minute
	callFor  = 10 * time.Second
	retryGap = time.Second
	// lookEvery is the interval between requests for the trust bundle (roots and revocations), and so the
	// longest time until a revocation takes effect.
	lookEvery = 5 * time.Second
)

// Options are the options of Join.
type Options struct {
	Token    string
	Identity pki.IdentityStore
	Role     pki.Role
	Name     string
	Hosts    []string // names and addresses of this program for its certificate
	// Keep is called to store further fields of the scheduler's answer; with nil, Join stores no further
	// fields. If Keep fails, the join fails.
	Keep func(*clusterv1.EnrolResponse) error
	// Reissues is set if the program can replace an expired certificate by itself, without a scheduler,
	// whose own certificate may have expired too.
	Reissues bool
	// Status is called with a line that says what Join waits for; nil for programs without a supervisor.
	Status func(string)
	Log    *slog.Logger
}

// Join obtains a certificate with a join token. If a valid certificate is stored, it does nothing. Otherwise it calls
// the schedulers in the token until one of them answers, for at most two minutes. Its errors say what is wrong with the
// token.
func Join(ctx context.Context, o Options) error {
	tok, err := pki.ParseJoinToken(o.Token)
	if err != nil {
		return err
	}
	have, err := o.Identity.Membership()
	if err != nil {
		return err
	}
	if leaf, err := o.Identity.Leaf(); err == nil && have.Token == tok.ID && have.Name == o.Name && (o.Reissues || time.Now().Before(leaf.NotAfter)) {
		return nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if tok.Role != o.Role {
		return fmt.Errorf("%s is not for the role %s: make a token with `persysctl token create --role %s`", tok, o.Role, o.Role)
	}
	if tok.Name != "" && tok.Name != o.Name {
		return fmt.Errorf("%s is only for %q, but this is %q", tok, tok.Name, o.Name)
	}
	keyPEM, csr, err := o.Identity.Request(o.Hosts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinFor)
	defer cancel()
	tell := func(line string) {
		if o.Status != nil {
			o.Status(line)
		}
	}
	tell("joining: asks " + strings.Join(tok.Schedulers, ", "))
	resp, err := ask(ctx, tok, &clusterv1.EnrolRequest{TokenId: tok.ID, Secret: tok.Secret, Name: o.Name, Csr: csr}, func(why string) {
		o.Log.Warn("could not join the cluster yet; trying again", "token", tok.ID, "schedulers", tok.Schedulers, "err", why)
		tell("joining: no scheduler of the token lets this program in yet: " + why)
	})
	if err != nil {
		tell("not joined: " + err.Error())
		return err
	}
	if o.Keep != nil {
		if err := o.Keep(resp); err != nil {
			return fmt.Errorf("%s: the data that the scheduler sent with the certificate could not be stored; remove the cause and join again with the same token: %w", tok, err)
		}
	}
	m := pki.Membership{Cluster: resp.GetCluster(), Role: o.Role, Name: o.Name, Token: tok.ID, Schedulers: resp.GetSchedulers(), Gossip: resp.GetGossip(), Hosts: o.Hosts}
	if err := o.Identity.SaveJoined(keyPEM, resp.GetChain(), resp.GetRoots(), m); err != nil {
		return err
	}
	if leaf, err := o.Identity.Leaf(); err == nil && !pki.Covers(leaf, o.Hosts) {
		o.Log.Info("the certificate contains fewer hosts than this machine has: `persysctl token create --dns-name NAME --ip ADDRESS` allows more", "names", leaf.DNSNames, "addresses", leaf.IPAddresses)
	}
	tell("joined the cluster " + m.Cluster)
	o.Log.Info("joined", "cluster", m.Cluster, "role", m.Role, "name", m.Name, "token", tok.ID)
	return nil
}

// ask calls the schedulers in a token, one after another. If one of them refuses, the refusal is final,
// because the others would refuse too. It calls the function failed with the errors of all schedulers
// whenever these errors change.
func ask(ctx context.Context, tok pki.JoinToken, req *clusterv1.EnrolRequest, failed func(string)) (*clusterv1.EnrolResponse, error) {
	said := ""
	for {
		var all []string
		for _, addr := range tok.Schedulers {
			resp, err := askOne(ctx, tok, addr, req)
			if err == nil {
				return resp, nil
			}
			last := fmt.Errorf("%s: %s", addr, cause(addr, err))
			all = append(all, last.Error())
			switch status.Code(err) {
			case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Canceled, codes.FailedPrecondition:
				if strings.Contains(err.Error(), pki.ErrForeign.Error()) {
					return nil, fmt.Errorf("%s: %w", tok, last)
				}
			default:
				return nil, fmt.Errorf("%s: %w", tok, last)
			}
		}
		why := strings.Join(all, "; ")
		if why != said {
			said = why
			failed(why)
		}
		t := time.NewTimer(retryGap)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%s: no scheduler let this program join: %s; is the machine with this address up, and does a firewall let the port through?", tok, why)
		case <-t.C:
		}
	}
}

// cause returns why a call to addr failed. If the connection failed, this is the end of gRPC's error text.
func cause(addr string, err error) string {
	text := status.Convert(err).Message()
	if _, why, ok := strings.Cut(text, "transport: Error while dialing: "); ok {
		text = strings.TrimSuffix(strings.TrimPrefix(why, "dial "), `"`)
		text = strings.TrimPrefix(strings.TrimPrefix(text, "tcp "+addr+": "), "connect: ")
	} else if status.Code(err) == codes.DeadlineExceeded {
		text = fmt.Sprintf("no answer within %s", callFor)
	}
	return text
}

func askOne(ctx context.Context, tok pki.JoinToken, addr string, req *clusterv1.EnrolRequest) (*clusterv1.EnrolResponse, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "scheduler address %q must be host:port", addr)
	}
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(credentials.NewTLS(tok.ClientConfig(host, time.Now))))
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	return clusterv1.NewTrustClient(cc).Enrol(ctx, req, grpc.ForceCodecV2(dial.Codec()))
}

// LoadMembership returns the membership that is stored with the identity. name is the program's name in its settings,
// and setting is the name of that setting. If the stored name differs from name, it returns an error that ends with
// the text in the parameter otherwise, which tells the user what to do.
func LoadMembership(k pki.IdentityStore, setting, name, otherwise string) (pki.Membership, error) {
	m, err := k.Membership()
	if err == nil && m.Name != name {
		err = fmt.Errorf("%s is %q, but the certificate in %s is for %q: %s", setting, name, k.Dir, m.Name, otherwise)
	}
	return m, err
}

// Expired returns an error if the stored certificate has expired. The error names the command to run next.
func Expired(k pki.IdentityStore, role pki.Role, name string) error {
	leaf, err := k.Leaf()
	if err != nil {
		return err
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate in %s expired at %s; to join again: `%s`, then start with --join TOKEN",
			k.Dir, leaf.NotAfter.UTC().Format(time.RFC3339), pki.Identity{Role: role, ID: name}.TokenCommand())
	}
	return nil
}

// Keeper keeps a program's certificate, roots and revocations current while the program runs.
type Keeper struct {
	Identity pki.IdentityStore
	Files    *pki.Files
	Conn     grpc.ClientConnInterface
	Hosts    []string
	Log      *slog.Logger
	// RenewOnly makes the Keeper renew the certificate without fetching roots and revocations. It is for schedulers,
	// whose state contains the roots and revocations.
	RenewOnly bool
	// Eager makes the Keeper renew the certificate after a quarter of its validity and not after two thirds.
	// It is for programs that run only now and then.
	Eager bool
	// RevokedOnly makes the Keeper fetch only revocations. It is for programs with certificates of another
	// CA. The field Identity is then not used.
	RevokedOnly bool

	got  *renewed // renewed certificate that could not be stored yet
	last []string // hosts of the last certificate request; nil before the first request of this process
}

type renewed struct {
	key []byte
	*clusterv1.RenewResponse
}

// Run calls Once at intervals until ctx ends. After a failure it tries again at the next interval.
func (k *Keeper) Run(ctx context.Context) {
	version, said := "", ""
	trust := clusterv1.NewTrustClient(k.Conn)
	for {
		var err error
		if !k.RevokedOnly {
			err = k.renew(ctx, trust)
		}
		if !k.RenewOnly {
			err = errors.Join(err, k.learn(ctx, trust, &version))
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			k.Log.Warn("the certificate or the revocations of this program could not be updated; trying again", "err", err, "good_until", k.Files.Leaf().NotAfter)
		}
		// The interval is random, so that the requests of all programs are spread over time.
		t := time.NewTimer(lookEvery - time.Duration(rand.Int64N(int64(lookEvery/4))))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// Once renews the certificate if that is due, and fetches the trust bundle (roots and revocations).
func (k *Keeper) Once(ctx context.Context) error {
	version := ""
	trust := clusterv1.NewTrustClient(k.Conn)
	if k.RenewOnly {
		return k.renew(ctx, trust)
	}
	return errors.Join(k.renew(ctx, trust), k.learn(ctx, trust, &version))
}

func (k *Keeper) renew(ctx context.Context, trust clusterv1.TrustClient) error {
	// Renew early if the certificate lacks one of the program's hosts, for example because the program's address has
	// changed.
	leaf := k.Files.Leaf()
	due := pki.RenewAt(leaf)
	if k.Eager {
		due = pki.IssuedAt(leaf).Add(pki.Life(leaf) / 4)
	}
	if time.Now().Before(due) && (pki.Covers(leaf, k.Hosts) || k.asked()) {
		return nil
	}
	// If the renewed certificate cannot be stored, for instance on a full disk, keep it in memory, because
	// each renewal costs a log entry and an event.
	if k.got == nil {
		keyPEM, csr, err := k.Identity.Request(k.Hosts)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, callFor)
		defer cancel()
		resp, err := trust.Renew(ctx, &clusterv1.RenewRequest{Csr: csr})
		if err != nil {
			return err
		}
		k.got = &renewed{keyPEM, resp}
	}
	if err := k.Identity.Save(k.got.key, k.got.GetChain(), k.got.GetRoots()); err != nil {
		return err
	}
	k.got, k.last = nil, k.Hosts
	leaf, err := k.Identity.Leaf()
	if err != nil {
		return err
	}
	k.Log.Info("certificate renewed", "not_after", leaf.NotAfter)
	m, err := k.Identity.Membership()
	if err != nil {
		return err
	}
	m.Hosts = k.Hosts
	return k.Identity.SaveMembership(m)
}

// asked reports whether the last certificate request named the hosts that the program has now. The scheduler puts into
// the certificate only the hosts that the token or the connection proves, so another request for the same hosts would
// change nothing.
func (k *Keeper) asked() bool {
	last := k.last
	if last == nil {
		m, err := k.Identity.Membership()
		if err != nil {
			return false
		}
		last = m.Hosts
	}
	return slices.Equal(last, k.Hosts)
}

func (k *Keeper) learn(ctx context.Context, trust clusterv1.TrustClient, version *string) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	b, err := trust.Bundle(ctx, &clusterv1.BundleRequest{Version: *version})
	if k.RevokedOnly && status.Code(err) == codes.Unimplemented {
		return nil // a legacy v1 scheduler, which does not have the call
	}
	if err != nil {
		return err
	}
	if b.GetVersion() != *version {
		if err := k.believe(b); err != nil {
			return err
		}
		*version = b.GetVersion()
	}
	// The version of the bundle does not change with the scheduler addresses, so compare these separately.
	if k.RevokedOnly || len(b.GetSchedulers()) == 0 {
		return nil
	}
	m, err := k.Identity.Membership()
	if err != nil || slices.Equal(m.Schedulers, b.GetSchedulers()) {
		return err
	}
	m.Schedulers = b.GetSchedulers()
	return k.Identity.SaveMembership(m)
}

// believe replaces the program's trusted roots and revocations by those in a trust bundle from a scheduler.
func (k *Keeper) believe(b *clusterv1.BundleResponse) error {
	if !k.RevokedOnly {
		if err := k.Identity.SaveRoots(b.GetRoots()); err != nil {
			return err
		}
	}
	r := &pki.Revoked{Identities: map[string]time.Time{}, Certificates: map[string]bool{}}
	for _, e := range b.GetRevocations() {
		if e.GetFingerprint() != "" {
			r.Certificates[e.GetFingerprint()] = true
		} else {
			r.Identities[e.GetRole()+"/"+e.GetName()] = e.GetAt().AsTime()
		}
	}
	k.Files.Revoke(r)
	return nil
}

// Hosts returns the names and addresses of this machine, followed by the names and addresses in more.
func Hosts(more ...string) []string {
	const most = 48
	var out []string
	add := func(h string) {
		if h != "" && h != "0.0.0.0" && h != "::" && len(out) < most {
			out = append(out, h)
		}
	}
	for _, h := range more {
		add(h)
	}
	if name, err := os.Hostname(); err == nil && !strings.Contains(name, "_") {
		add(name)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return out
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			add(n.IP.String())
		}
	}
	return out
}
