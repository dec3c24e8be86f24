package scheduler

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
)

// How CoreDNS is watched: a question to each server every probeCoreDNS, and two in a
// row that went wrong mean that it is away. UDP loses packets.
const (
	probeCoreDNS   = 2 * time.Second
	coreDNSLimit   = time.Second
	coreDNSStrikes = 2
	maxCoreDNS     = 8
)

// completeCoreDNS checks SCHEDULER_COREDNS_ADDR and adds the port where none is given.
func (c *Config) completeCoreDNS() error {
	var out []string
	for _, s := range c.CoreDNS {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), "53"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return fmt.Errorf("SCHEDULER_COREDNS_ADDR %q is not host[:port]", s)
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	if len(out) > maxCoreDNS {
		return fmt.Errorf("SCHEDULER_COREDNS_ADDR names %d servers, at most %d", len(out), maxCoreDNS)
	}
	c.CoreDNS = out
	return nil
}

// coreDNS watches the CoreDNS servers while this replica leads. Nothing depends on
// what it finds: it is told, as a warning, an event and a metric.
type coreDNS struct {
	servers []string
	view    func() fsm.View
	probe   func(ctx context.Context, server string) error
	tell    func(ctx context.Context, kind, server, why string) error // commits the event
	log     func(server string, err error)
	unsaid  func(server string, err error)

	mu sync.Mutex
	up map[string]bool // of the present stint; empty while not leading
}

// newCoreDNS is nil where there is nothing to watch.
func newCoreDNS(r *Replica) *coreDNS {
	if len(r.cfg.CoreDNS) == 0 || r.cfg.Shadow {
		return nil
	}
	zones := dnsserver.Config{Domain: r.cfg.Domain, AgentsDomain: r.cfg.AgentsDomain, Shard: r.cfg.Shard}
	view := func() fsm.View { return r.node.Store().View() }
	return &coreDNS{
		servers: r.cfg.CoreDNS, view: view,
		probe: func(ctx context.Context, server string) error { return zones.Probe(ctx, server, view()) },
		tell: func(ctx context.Context, kind, server, why string) error {
			return r.commit(ctx, &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
				Type: kind, Message: clip(server+": "+why, 1024), Details: []*commandv1.Label{{Key: "server", Value: server}},
			}}})
		},
		log: func(server string, err error) {
			if err != nil {
				r.log.Warn("CoreDNS is away; the schedulers' own DNS answers on", "server", server, "err", err)
			} else {
				r.log.Info("CoreDNS is back", "server", server)
			}
		},
		unsaid: func(server string, err error) {
			r.log.Debug("a change of CoreDNS is not on record yet", "server", server, "err", err)
		},
	}
}

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}

// lastSaid is what the newest event says of a server: a new leader goes on from
// there, so that a change is told once.
func (w *coreDNS) lastSaid(server string) bool {
	up := true
	w.view().EventsBack(func(e *fsm.Event) bool {
		if e.Type != fsm.EventCoreDNSLost && e.Type != fsm.EventCoreDNSBack || !saysOf(e, server) {
			return true
		}
		up = e.Type == fsm.EventCoreDNSBack
		return false
	})
	return up
}

func saysOf(e *fsm.Event, server string) bool {
	for _, d := range e.Details {
		if d.Key == "server" && d.Value == server {
			return true
		}
	}
	return false
}

// run watches for one stint.
func (w *coreDNS) run(ctx context.Context) {
	w.mu.Lock()
	w.up = map[string]bool{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.up = nil
		w.mu.Unlock()
	}()
	var wg sync.WaitGroup
	for _, s := range w.servers {
		wg.Go(func() { w.watch(ctx, s) })
	}
	wg.Wait()
}

func (w *coreDNS) watch(ctx context.Context, server string) {
	said := w.lastSaid(server)
	tick := time.NewTicker(probeCoreDNS)
	defer tick.Stop()
	strikes := 0
	for {
		limited, cancel := context.WithTimeout(ctx, coreDNSLimit)
		err := w.probe(limited, server)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			strikes = 0
		} else {
			strikes++
		}
		up := strikes < coreDNSStrikes
		if err == nil || !up {
			w.mu.Lock()
			w.up[server] = up
			w.mu.Unlock()
		}
		if (err == nil || !up) && up != said {
			kind, why := fsm.EventCoreDNSBack, "it answers again"
			if !up {
				kind, why = fsm.EventCoreDNSLost, err.Error()
			}
			limited, cancel := context.WithTimeout(ctx, modeLimit)
			terr := w.tell(limited, kind, server, why)
			cancel()
			switch {
			case ctx.Err() != nil:
				return
			case terr != nil: // again with the next probe
				w.unsaid(server, terr)
			default:
				w.log(server, err)
				said = up
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// seen is what is known of the servers, nothing where this replica does not lead.
func (w *coreDNS) seen(each func(server string, up bool)) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, up := range w.up {
		each(s, up)
	}
}
