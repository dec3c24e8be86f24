package mirror

import (
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/fsm"
)

// Layout says which records the mirror writes for a workload.
type Layout string

// Values of the setting MIRROR_LAYOUT.
const (
	// LayoutWhole writes one record per workload, /workloads/<id>.
	LayoutWhole Layout = "whole"
	// LayoutBoth also writes /workloads-spec/<id> and /workloads-status/<id>, which later versions of legacy
	// v1 schedulers read.
	LayoutBoth Layout = "both"
)

// Prefixes of the mirror below ETCD_PREFIX. The mirror removes keys in them that do
// not belong to the state.
const (
	dirNodes       = "/nodes/"
	dirWorkloads   = "/workloads/"
	dirSpecs       = "/workloads-spec/"
	dirStatuses    = "/workloads-status/"
	dirAssignments = "/assignments/"
	dirRetries     = "/retries/"
	dirEvents      = "/events/"
	dirDrifts      = "/drifts/"
	// Volumes of legacy v1 peers. The mirror reads them for an import and never writes them.
	dirVolumes     = "/volumes/"
	dirAttachments = "/attachments/"
	// Records of namespaces. The contract with legacy v1 peers does not define this prefix, because they have
	// no namespaces.
	dirNamespaces = "/persys/namespaces/"
	// Sealed files of Compose stacks, each under its digest. Legacy v1 peers have no such files.
	dirBundles = "/persys/bundles/"
)

// dataDirs are the prefixes that decide whether etcd holds data: it does if one of them has a key. Events and
// drifts alone are not regarded as data.
var dataDirs = [...]string{dirNodes, dirWorkloads, dirSpecs, dirStatuses, dirAssignments}

// Suffixes of the keys below the key of a node.
const (
	nodeStatusEnd = "/status"
	nodeLeaseEnd  = "/lease"
)

// eventTime is the time format in the keys of events: RFC 3339 in UTC with nine decimals, so that keys sort
// by time.
const eventTime = "2006-01-02T15:04:05.000000000Z"

// keyspace is the setting ETCD_PREFIX: "" or a path with a leading and without a trailing slash.
type keyspace string

// newKeyspace checks and normalises ETCD_PREFIX.
func newKeyspace(prefix string) (keyspace, error) {
	p := strings.Trim(prefix, "/")
	if p == "" {
		return "", nil
	}
	for _, part := range strings.Split(p, "/") {
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return "", fmt.Errorf("ETCD_PREFIX: %q must consist of path segments without blanks", prefix)
		}
	}
	return keyspace("/" + p), nil
}

func (k keyspace) key(dir, id string) string { return string(k) + dir + id }

func (k keyspace) cursor(cluster string) string {
	return string(k) + "/persys/mirror/" + cluster + "/cursor"
}

func (k keyspace) owner() string { return string(k) + "/persys/mirror/owner" }

// event returns the key of an event. Keys sort like the sequence numbers of the events, because the clock of
// the state never goes back.
func (k keyspace) event(e *fsm.Event) string { return k.key(dirEvents, eventID(e)) }

func eventID(e *fsm.Event) string {
	return fmt.Sprintf("%s-%020d", time.Unix(0, e.At).UTC().Format(eventTime), e.Seq)
}

// drift returns the key of the drift record for an event of type DriftDetected or DriftResolved. No part of
// the key contains a slash (contract/state-etcd.md, "Key segments").
func (k keyspace) drift(e *fsm.Event) string {
	workload := segment(e.Workload)
	if workload == "" {
		workload = "_unknown"
	}
	return k.key(dirDrifts, segment(e.Node)+"/"+workload+"/"+segment(e.Reason))
}

func segment(s string) string { return strings.ReplaceAll(s, "/", "_") }
