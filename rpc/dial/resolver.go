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

// Scheme is the scheme of the gRPC targets that Resolver resolves.
const Scheme = "persys"

// Resolver returns a gRPC resolver that finds the schedulers. A Conn takes its addresses from it. A plain
// gRPC connection of another program can use it too:
//
// grpc.NewClient("persys:///", grpc.WithResolvers(dial.Resolver(opt)), …)
// grpc.NewClient("persys:///persys.local?dns=10.0.0.1:8053", grpc.WithResolvers(dial.Resolver(dial.Options{})), …)
//
// "persys:///" stands for the target in opt. With a path, the path is an SRV name with the options of
// ParseTarget. Only Endpoints, Addrs, Discovery, CacheFile and Log of opt are used. A plain gRPC connection
// gets the addresses, best first, and later changes. Leader hints, safe retries and the detection of hanging
// replicas exist only in a Conn.
//
// Pass the result to grpc.WithResolvers; it is not registered for the whole process.
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

// watch reports the scheduler addresses of a target to cc until ctx ends or the watcher is closed.
func (b builder) watch(ctx context.Context, t resolver.Target, cc resolver.ClientConn) (*watcher, error) {
	opt := b.opt
	if t.URL.Host != "" {
		return nil, fmt.Errorf("dial: target %q: an authority is not supported; the form is persys:///name", t.URL.Redacted())
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
		// The error can be ignored: if gRPC accepts none of the addresses, it calls ResolveNow.
		if err := cc.UpdateState(state); err != nil && !errors.Is(err, context.Canceled) {
			src.log.Debug("scheduler addresses were not accepted", "error", err)
		}
	}
	src.failed = cc.ReportError
	src.begin()
	w.running.Go(func() { src.run(ctx) })
	return w, nil
}

// configured returns the target "persys:///", which stands for the addresses in the options.
func configured() resolver.Target {
	return resolver.Target{URL: url.URL{Scheme: Scheme, Path: "/"}}
}

// certNames are the DNS names of a scheduler's endpoint; the scheduler's certificate must contain one of them. gRPC
// itself supports only one name.
type certNames []string

// Equal compares two values, as package attributes requires.
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

// watcher watches the addresses of one target for changes.
type watcher struct {
	source  *source
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// ResolveNow implements resolver.Resolver: it requests another lookup.
func (w *watcher) ResolveNow(resolver.ResolveNowOptions) { w.source.refresh() }

// Close implements resolver.Resolver.
func (w *watcher) Close() {
	w.cancel()
	w.running.Wait()
}

// taker passes the addresses from the resolver to a Conn. Of gRPC's interface resolver.ClientConn it implements only
// the two methods that the resolver calls.
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
