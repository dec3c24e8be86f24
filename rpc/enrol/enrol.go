// Package enrol obtains a program's identity with a join token and keeps it current: it renews the
// certificate before it expires and fetches roots and revocations.
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
	// joinFor bounds a first start; the schedulers may be starting too.
	joinFor  = 2 * time.Minute
	callFor  = 10 * time.Second
	retryGap = time.Second
	// lookEvery is the interval between requests for the trust bundle, and so the longest time
	// until a revocation takes effect.
	lookEvery = 5 * time.Second
)

// Options of Join.
type Options struct {
	Token    string
	Identity pki.IdentityStore
	Role     pki.Role
	Name     string
	Hosts    []string // that this program answers at
	// Keep stores further fields of the answer; nil stores none. If it fails, the join fails.
	Keep func(*clusterv1.EnrolResponse) error
	// Reissues is set if the program replaces an expired certificate itself, without asking
	// schedulers whose certificates may have expired too.
	Reissues bool
	Log      *slog.Logger
}

// Join obtains an identity with a token, unless a valid one is stored. It asks the schedulers in
// the token until one answers, for two minutes at most. Errors say what is wrong with the token.
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
		return fmt.Errorf("%s does not make a %s: `persysctl token create --role %s` makes one that does", tok, o.Role, o.Role)
	}
	if tok.Name != "" && tok.Name != o.Name {
		return fmt.Errorf("%s is for %q only, this is %q", tok, tok.Name, o.Name)
	}
	keyPEM, csr, err := o.Identity.Request(o.Hosts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinFor)
	defer cancel()
	resp, err := ask(ctx, tok, &clusterv1.EnrolRequest{TokenId: tok.ID, Secret: tok.Secret, Name: o.Name, Csr: csr}, o.Log)
	if err != nil {
		return err
	}
	if o.Keep != nil {
		if err := o.Keep(resp); err != nil {
			return fmt.Errorf("%s: what came with the certificate could not be kept; put that right and join again with the same token: %w", tok, err)
		}
	}
	m := pki.Membership{Cluster: resp.GetCluster(), Role: o.Role, Name: o.Name, Token: tok.ID, Schedulers: resp.GetSchedulers(), Gossip: resp.GetGossip()}
	if err := o.Identity.SaveJoined(keyPEM, resp.GetChain(), resp.GetRoots(), m); err != nil {
		return err
	}
	o.Log.Info("joined", "cluster", m.Cluster, "role", m.Role, "name", m.Name, "token", tok.ID)
	return nil
}

// ask asks the schedulers of a token in turn. A refusal by one of them is final, because the others
// would refuse too.
func ask(ctx context.Context, tok pki.JoinToken, req *clusterv1.EnrolRequest, log *slog.Logger) (*clusterv1.EnrolResponse, error) {
	said := ""
	for {
		var last error
		for _, addr := range tok.Schedulers {
			resp, err := askOne(ctx, tok, addr, req)
			if err == nil {
				return resp, nil
			}
			last = fmt.Errorf("%s: %s", addr, status.Convert(err).Message())
			switch status.Code(err) {
			case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Canceled, codes.FailedPrecondition:
				if strings.Contains(err.Error(), pki.ErrForeign.Error()) {
					return nil, fmt.Errorf("%s: %w", tok, last)
				}
			default:
				return nil, fmt.Errorf("%s: %w", tok, last)
			}
		}
		if last.Error() != said {
			said = last.Error()
			log.Warn("cannot join yet; trying on", "token", tok.ID, "err", last)
		}
		t := time.NewTimer(retryGap)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%s: no scheduler let this program join: %w", tok, last)
		case <-t.C:
		}
	}
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

// LoadMembership returns the membership of the stored identity. If its name differs from name, the
// value of setting, it returns an error that ends with otherwise, the advice to the user.
func LoadMembership(k pki.IdentityStore, setting, name, otherwise string) (pki.Membership, error) {
	m, err := k.Membership()
	if err == nil && m.Name != name {
		err = fmt.Errorf("%s is %q, but the certificate in %s is for %q: %s", setting, name, k.Dir, m.Name, otherwise)
	}
	return m, err
}

// Expired returns an error with the next command if the stored certificate has expired.
func Expired(k pki.IdentityStore, role pki.Role, name string) error {
	leaf, err := k.Leaf()
	if err != nil {
		return err
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate in %s expired at %s; to join again: `persysctl token create --role %s --name %s`, then start with --join TOKEN",
			k.Dir, leaf.NotAfter.UTC().Format(time.RFC3339), role, name)
	}
	return nil
}

// Keeper keeps an identity current while its program runs.
type Keeper struct {
	Identity pki.IdentityStore
	Files    *pki.Files
	Conn     grpc.ClientConnInterface
	Hosts    []string
	Log      *slog.Logger
	// RenewOnly renews the certificate and does not fetch roots and revocations, which a scheduler
	// has in its own state.
	RenewOnly bool
	// RevokedOnly fetches revocations only, for programs with certificates of another CA. Identity
	// is not used.
	RevokedOnly bool

	got *renewed // an answer that could not be kept yet
}

type renewed struct {
	key []byte
	*clusterv1.RenewResponse
}

// Run calls Once regularly until ctx ends. Failures are retried.
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
			k.Log.Warn("the identity of this program could not be kept up to date; trying on", "err", err, "good_until", k.Files.Leaf().NotAfter)
		}
		// Not all at once.
		t := time.NewTimer(lookEvery - time.Duration(rand.Int64N(int64(lookEvery/4))))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// Once renews the certificate if it is due and fetches the trust bundle.
func (k *Keeper) Once(ctx context.Context) error {
	version := ""
	trust := clusterv1.NewTrustClient(k.Conn)
	return errors.Join(k.renew(ctx, trust), k.learn(ctx, trust, &version))
}

func (k *Keeper) renew(ctx context.Context, trust clusterv1.TrustClient) error {
	// A program that moved needs a certificate with its new address.
	if leaf := k.Files.Leaf(); time.Now().Before(pki.RenewAt(leaf)) && pki.Covers(leaf, k.Hosts) {
		return nil
	}
	// Keep the answer if it cannot be stored, for instance on a full disk: each renewal is a log
	// entry and an event.
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
	k.got = nil
	leaf, err := k.Identity.Leaf()
	if err != nil {
		return err
	}
	k.Log.Info("certificate renewed", "not_after", leaf.NotAfter)
	return nil
}

func (k *Keeper) learn(ctx context.Context, trust clusterv1.TrustClient, version *string) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	b, err := trust.Bundle(ctx, &clusterv1.BundleRequest{Version: *version})
	if k.RevokedOnly && status.Code(err) == codes.Unimplemented {
		return nil // Legacy v1 schedulers revoke nobody
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
	// The version does not cover the scheduler addresses.
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

// believe stores the current roots and revocations.
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

// Hosts returns the names and addresses of this machine, followed by more.
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
