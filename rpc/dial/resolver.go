package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/resolver"
)

// Scheme of the targets that Resolver serves.
const Scheme = "persys"

// Resolver gives the same addresses as a Conn to a plain gRPC connection, for
// programs that bring their own gRPC client:
//
//	grpc.NewClient("persys:///", grpc.WithResolvers(dial.Resolver(opt)), …)
//	grpc.NewClient("persys:///persys.local?dns=10.0.0.1:8053", grpc.WithResolvers(dial.Resolver(dial.Options{})), …)
//
// "persys:///" stands for what opt names; a path is an SRV name with the options
// of ParseTarget. Of opt only Addrs, Discovery, CacheFile and Log are used: such
// a connection has the addresses, best first, and follows their changes; leader
// hints, safe repetition and the watch over hanging replicas are a Conn's.
//
// It is for grpc.WithResolvers. Nothing is registered for the whole process.
func Resolver(opt Options) resolver.Builder { return builder{opt} }

type builder struct{ opt Options }

func (builder) Scheme() string { return Scheme }

// Build implements resolver.Builder.
func (b builder) Build(t resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	opt := b.opt
	if t.URL.Host != "" {
		return nil, fmt.Errorf("dial: target %q: an authority is not known here; it is persys:///name", t.URL.Redacted())
	}
	if name := t.Endpoint(); name != "" {
		opt.Addrs, opt.Discovery = nil, "srv://"+name
		if t.URL.RawQuery != "" {
			opt.Discovery += "?" + t.URL.RawQuery
		}
	}
	src, err := newSource(opt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &watcher{source: src, cancel: cancel}
	src.publish = func(ends []endpoint) {
		var state resolver.State
		for _, e := range ends {
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: e.Addr, ServerName: e.Names[0]}}})
		}
		// gRPC asks again by itself (ResolveNow) when it takes none of them.
		if err := cc.UpdateState(state); err != nil && !errors.Is(err, context.Canceled) {
			src.log.Debug("scheduler addresses are not taken", "error", err)
		}
	}
	src.failed = cc.ReportError
	src.begin()
	r.running.Go(func() { src.run(ctx) })
	return r, nil
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
