package rpc

import (
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/persys/compute/hosts"
)

const (
	// refusalEach: the first refusals of a caller are recorded one by one. Further refusals within
	// refusalWindow are counted, and their number is recorded when the window ends.
	refusalEach   = 20
	beatEach      = 5 // as refusalEach, but for refused heartbeats, which agents repeat by themselves
	refusalWindow = time.Minute
	// refusalAgain is the time after which a record with the number of refusals is tried again, if it could not be
	// committed (for instance because there was no leader).
	refusalAgain = 5 * time.Second
	// maxRefused is the maximum number of callers with a certificate or a login that are counted separately. Callers
	// without a certificate are counted by network, for at most maxRefusedNetworks networks. Further callers are
	// counted together. Each count makes one record per refusalWindow, so callers without a certificate cause at most
	// about four such records per second.
	maxRefused, maxRefusedNetworks = 4096, 256
	// Rate per second, and burst, of the recorded refusals of callers without a certificate, from all
	// addresses together. This limit does not apply to people and machines with a certificate.
	strangerRate, strangerBurst = 5, 50
)

// refusals decides which refused calls are recorded in the audit log. A refused call costs its caller
// nothing, but its record costs the cluster a log entry.
type refusals struct {
	mu        sync.Mutex
	callers   map[string]*refusedCaller
	networks  int // callers without a certificate and without a login among the callers
	strangers *rate.Limiter
	closed    bool
}

// refusedCaller counts the refusals of one caller within the present window (refusalWindow).
type refusedCaller struct {
	recorded, counted int
	stranger          bool
	timer             *time.Timer
}

func newRefusals() *refusals {
	return &refusals{callers: map[string]*refusedCaller{}, strangers: rate.NewLimiter(strangerRate, strangerBurst)}
}

// note reports whether the caller of note must record a refusal in the audit log now. If not, note has only counted the
// refusal. At the end of the minute, note calls summary with the number n of refusals that were only counted. The
// argument together is true if n is the sum over all callers without a counter of their own. If summary returns an
// error, note calls summary again later with the same number.
func (r *refusals) note(c caller, beat bool, summary func(n int, together bool) error) bool {
	key, each := refusalKey(c), refusalEach
	stranger := strings.HasPrefix(key, networkKey)
	if beat {
		key, each = key+" heartbeat", beatEach
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	e, together := r.callers[key], false
	if e == nil {
		others, full := othersKey, len(r.callers)-r.networks >= maxRefused
		if stranger {
			others, full = networkKey+"others", r.networks >= maxRefusedNetworks
		}
		if full {
			key, together = others, true
			e = r.callers[key]
		}
	}
	if e == nil {
		e = &refusedCaller{stranger: stranger}
		r.open(key, e, refusalWindow, func(n int) error { return summary(n, together) })
	}
	if e.recorded < each && (!c.id.IsZero() || r.strangers.Allow()) {
		e.recorded++
		return true
	}
	e.counted++
	return false
}

// unrecorded counts a refusal for which note returned true, but whose record could not be committed.
func (r *refusals) unrecorded(c caller, beat bool) {
	key := refusalKey(c)
	if beat {
		key += " heartbeat"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range [...]string{key, othersKey, networkKey + "others"} {
		if e := r.callers[k]; e != nil {
			e.counted++
			return
		}
	}
}

// open begins a window for the refusals of a caller. r.mu must be held.
func (r *refusals) open(key string, e *refusedCaller, window time.Duration, summary func(n int) error) {
	r.callers[key] = e
	if e.stranger {
		r.networks++
	}
	e.timer = time.AfterFunc(window, func() { r.end(key, summary) })
}

// end ends the window of a caller and passes the number of counted refusals to summary. If summary fails, the number is
// added
// to the caller's next window, if one is open; otherwise end opens a window of the length refusalAgain with this
// number.
func (r *refusals) end(key string, summary func(n int) error) {
	r.mu.Lock()
	e := r.callers[key]
	delete(r.callers, key)
	if e != nil && e.stranger {
		r.networks--
	}
	closed := r.closed
	r.mu.Unlock()
	if e == nil || e.counted == 0 || closed || summary(e.counted) == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch next := r.callers[key]; {
	case r.closed:
	case next != nil:
		next.counted += e.counted
	default:
		r.open(key, &refusedCaller{counted: e.counted, stranger: e.stranger}, refusalAgain, summary)
	}
}

func (r *refusals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, e := range r.callers {
		e.timer.Stop()
	}
}

// othersKey is the key of all callers with a certificate or a login that are counted together.
const othersKey = "other callers"

// networkKey is the prefix of refusalKey for callers without a certificate and without a login; their network follows.
const networkKey = "network "

// refusalKey returns the key under which the refusals of a caller are counted: the user of a gateway, an
// identity, or the network of a caller without a certificate.
func refusalKey(c caller) string {
	switch {
	case !c.behalf.IsZero():
		return string(c.behalf.Role) + "/" + c.behalf.ID
	case c.user != "":
		return "oidc " + c.user
	case !c.id.IsZero():
		return string(c.id.Role) + "/" + c.id.ID
	}
	return networkKey + hosts.NetworkOf(c.from)
}
