package mirror

import (
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/fsm"
)

// Layout says how workloads are laid out.
type Layout string

// The layouts (MIRROR_LAYOUT).
const (
	// LayoutWhole writes one record per workload, /workloads/<id>.
	LayoutWhole Layout = "whole"
	// LayoutBoth adds /workloads-spec/<id> and /workloads-status/<id>, which
	// Legacy v1 schedulers of later versions read.
	LayoutBoth Layout = "both"
)

// The prefixes that the mirror owns, below ETCD_PREFIX. Whatever the state does
// not explain is removed from them.
const (
	dirNodes       = "/nodes/"
	dirWorkloads   = "/workloads/"
	dirSpecs       = "/workloads-spec/"
	dirStatuses    = "/workloads-status/"
	dirAssignments = "/assignments/"
	dirRetries     = "/retries/"
	dirEvents      = "/events/"
	dirDrifts      = "/drifts/"
	// Legacy v1 peers know no namespaces: a directory of our own.
	dirNamespaces = "/persys/namespaces/"
)

// dataDirs are the prefixes of which a single key means that etcd holds data.
// History alone is no data.
var dataDirs = [...]string{dirNodes, dirWorkloads, dirSpecs, dirStatuses, dirAssignments}

// Ends of the keys below a node.
const (
	nodeStatusEnd = "/status"
	nodeLeaseEnd  = "/lease"
)

// eventTime is RFC 3339 in UTC with nine decimals, so that keys sort by time.
const eventTime = "2006-01-02T15:04:05.000000000Z"

// keyspace is ETCD_PREFIX, "" or "/…" without a slash at its end.
type keyspace string

// newKeyspace checks and normalises ETCD_PREFIX.
func newKeyspace(prefix string) (keyspace, error) {
	p := strings.Trim(prefix, "/")
	if p == "" {
		return "", nil
	}
	for _, part := range strings.Split(p, "/") {
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return "", fmt.Errorf("ETCD_PREFIX: %q must be path segments without blanks", prefix)
		}
	}
	return keyspace("/" + p), nil
}

func (k keyspace) key(dir, id string) string { return string(k) + dir + id }

func (k keyspace) cursor(cluster string) string {
	return string(k) + "/persys/mirror/" + cluster + "/cursor"
}

func (k keyspace) owner() string { return string(k) + "/persys/mirror/owner" }

// event is the key of an event; keys sort as sequences do, because the state's
// clock never goes back.
func (k keyspace) event(e *fsm.Event) string { return k.key(dirEvents, eventID(e)) }

func eventID(e *fsm.Event) string {
	return fmt.Sprintf("%s-%020d", time.Unix(0, e.At).UTC().Format(eventTime), e.Seq)
}

// drift is the key of the drift record that an event of type DriftDetected
// speaks of. Segments hold no slash (contract/state-etcd.md, "Key segments").
func (k keyspace) drift(e *fsm.Event) string {
	workload := segment(e.Workload)
	if workload == "" {
		workload = "_unknown"
	}
	return k.key(dirDrifts, segment(e.Node)+"/"+workload+"/"+segment(e.Reason))
}

func segment(s string) string { return strings.ReplaceAll(s, "/", "_") }
