// Package coredns probes the CoreDNS servers of SCHEDULER_COREDNS_ADDR while its replica leads. If a server
// does not answer, or answers for another cluster, the package writes a log line, an event and a metric.
// Nothing else depends on the result.
package coredns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/fsm"
)

const (
	probeInterval = 2 * time.Second
	probeTimeout  = time.Second
	recordTimeout = 5 * time.Second
	// maxFailures is the number of successive probes that must fail before a server is reported as lost. One
	// failure is not enough, because UDP loses packets.
	maxFailures = 2
	maxServers  = 8
)

// ParseServers checks the addresses in SCHEDULER_COREDNS_ADDR, each of the form host[:port], and adds port 53 where the
// port is missing. Empty entries are dropped.
func ParseServers(list []string) ([]string, error) {
	var out []string
	for _, s := range list {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), "53"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return nil, fmt.Errorf("SCHEDULER_COREDNS_ADDR %q is not host[:port]", s)
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	if len(out) > maxServers {
		return nil, fmt.Errorf("SCHEDULER_COREDNS_ADDR names %d servers, at most %d", len(out), maxServers)
	}
	return out, nil
}

// Watch probes a list of CoreDNS servers. Its fields must be set before Run.
type Watch struct {
	Servers []string
	View    func() fsm.View
	// Probe returns nil if a server answers with the records of this cluster.
	Probe func(ctx context.Context, server string) error
	// Record commits an event that a server was lost or is back.
	Record func(ctx context.Context, eventType, server, reason string) error
	Log    *slog.Logger

	mu sync.Mutex
	up map[string]bool // for each server probed in the present leadership term: whether it answers; nil while this replica does not lead
}

// Run probes the servers during one leadership term and returns when ctx ends.
func (w *Watch) Run(ctx context.Context) {
	w.setUp(map[string]bool{})
	defer w.setUp(nil)
	var wg sync.WaitGroup
	for _, s := range w.Servers {
		wg.Go(func() { w.watch(ctx, s) })
	}
	wg.Wait()
}

func (w *Watch) setUp(up map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = up
}

// Each calls fn for every server that was probed in this leadership term; up says whether the server answers. While
// this replica does not lead, or if w is nil, Each does nothing.
func (w *Watch) Each(fn func(server string, up bool)) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, up := range w.up {
		fn(s, up)
	}
}

func (w *Watch) watch(ctx context.Context, server string) {
	recorded := w.lastRecorded(server)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	failures := 0
	for {
		err := w.probe(ctx, server)
		if ctx.Err() != nil {
			return
		}
		failures++
		if err == nil {
			failures = 0
		}
		if up := err == nil; up || failures >= maxFailures {
			w.mu.Lock()
			w.up[server] = up
			w.mu.Unlock()
			// If the change of a server's state cannot be committed, try again after the next probe.
			if up != recorded && w.record(ctx, server, err) {
				recorded = up
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Watch) probe(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return w.Probe(ctx, server)
}

// record commits the event that one server was lost or is back, and then writes a log line. lost is the
// error of the last probe, or nil if the server answers again. record returns false if the change was not
// committed.
func (w *Watch) record(ctx context.Context, server string, lost error) bool {
	eventType, reason := fsm.EventCoreDNSBack, "it answers again"
	if lost != nil {
		eventType, reason = fsm.EventCoreDNSLost, lost.Error()
	}
	limited, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	err := w.Record(limited, eventType, server, reason)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		w.Log.Debug("could not record a change of CoreDNS yet", "server", server, "err", err)
		return false
	case lost != nil:
		w.Log.Warn("CoreDNS does not answer correctly; the DNS servers of the schedulers are not affected", "server", server, "err", lost)
	default:
		w.Log.Info("CoreDNS is back", "server", server)
	}
	return true
}

// lastRecorded reports whether a server was up according to the newest event about it, so that a new leader does not
// record a change twice. If there is no event about the server, it returns true.
func (w *Watch) lastRecorded(server string) bool {
	up := true
	w.View().EventsBack(func(e *fsm.Event) bool {
		if e.Type != fsm.EventCoreDNSLost && e.Type != fsm.EventCoreDNSBack || !isAbout(e, server) {
			return true
		}
		up = e.Type == fsm.EventCoreDNSBack
		return false
	})
	return up
}

func isAbout(e *fsm.Event, server string) bool {
	return slices.ContainsFunc(e.Details, func(d fsm.Label) bool { return d.Key == "server" && d.Value == server })
}
