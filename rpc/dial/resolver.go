package dial

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"
)

// Scheme of the targets that Resolver serves.
const Scheme = "persys"

// Resolver finds the schedulers. It is the only thing in the project that does:
// a Conn, and with it every program of ours, takes its addresses from here, and so
// does a plain gRPC connection of a program that brings its own gRPC client:
//
//	grpc.NewClient("persys:///", grpc.WithResolvers(dial.Resolver(opt)), …)
//	grpc.NewClient("persys:///persys.local?dns=10.0.0.1:8053", grpc.WithResolvers(dial.Resolver(dial.Options{})), …)
//
// "persys:///" stands for what opt names; a path is an SRV name with the options
// of ParseTarget. Of opt only Endpoints, Addrs, Discovery, CacheFile and Log are used. A
// plain connection has the addresses, best first, and follows their changes;
// leader hints, safe repetition and the watch over hanging replicas are a Conn's.
//
// It is for grpc.WithResolvers. Nothing is registered for the whole process.
func Resolver(opt Options) resolver.Builder { return builder{opt} }

type builder struct{ opt Options }

func (builder) Scheme() string { return Scheme }

// Build implements resolver.Builder.
func (b builder) Build(t resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	w, err := b.watch(context.Background(), t, cc)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// watch tells cc of the addresses of a target, until ctx ends or it is closed.
func (b builder) watch(ctx context.Context, t resolver.Target, cc resolver.ClientConn) (*watcher, error) {
	opt := b.opt
	if t.URL.Host != "" {
		return nil, fmt.Errorf("dial: target %q: an authority is not known here; it is persys:///name", t.URL.Redacted())
	}
	if name := t.Endpoint(); name != "" {
		opt.Endpoints, opt.Addrs, opt.Discovery = nil, nil, Scheme+":///"+name
		if t.URL.RawQuery != "" {
			opt.Discovery += "?" + t.URL.RawQuery
		}
	}
	src, err := newSource(opt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{source: src, cancel: cancel}
	src.publish = func(ends []Endpoint) {
		var state resolver.State
		for _, e := range ends {
			state.Endpoints = append(state.Endpoints, e.resolved())
		}
		// gRPC asks again by itself (ResolveNow) when it takes none of them.
		if err := cc.UpdateState(state); err != nil && !errors.Is(err, context.Canceled) {
			src.log.Debug("scheduler addresses are not taken", "error", err)
		}
	}
	src.failed = cc.ReportError
	src.begin()
	w.running.Go(func() { src.run(ctx) })
	return w, nil
}

// configured is the target "persys:///": what the options name.
func configured() resolver.Target {
	return resolver.Target{URL: url.URL{Scheme: Scheme, Path: "/"}}
}

// certNames are the names that an endpoint's certificate may hold, where gRPC
// itself takes only one.
type certNames []string

// Equal is for attributes.Attributes.
func (n certNames) Equal(o any) bool {
	other, ok := o.(certNames)
	return ok && slices.Equal(n, other)
}

type certNamesKey struct{}

func (e Endpoint) resolved() resolver.Endpoint {
	return resolver.Endpoint{
		Addresses:  []resolver.Address{{Addr: e.Addr, ServerName: e.Names[0]}},
		Attributes: attributes.New(certNamesKey{}, certNames(e.Names)),
	}
}

func unresolved(r resolver.Endpoint) Endpoint {
	names, _ := r.Attributes.Value(certNamesKey{}).(certNames)
	return Endpoint{Addr: r.Addresses[0].Addr, Names: names}
}

// watcher is one target under watch.
type watcher struct {
	source  *source
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// ResolveNow implements resolver.Resolver.
func (w *watcher) ResolveNow(resolver.ResolveNowOptions) { w.source.again() }

// Close implements resolver.Resolver.
func (w *watcher) Close() {
	w.cancel()
	w.running.Wait()
}

// taker is a Conn as its resolver sees it. Of gRPC's interface ours calls no more
// than these two.
type taker struct {
	resolver.ClientConn
	conn *Conn
}

// UpdateState implements resolver.ClientConn.
func (t taker) UpdateState(s resolver.State) error {
	ends := make([]Endpoint, len(s.Endpoints))
	for i, e := range s.Endpoints {
		ends[i] = unresolved(e)
	}
	t.conn.adopt(ends)
	return nil
}

// ReportError implements resolver.ClientConn.
func (t taker) ReportError(err error) { t.conn.lookupFailed(err) }
