package dnsserver

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
)

// DefaultSkyDNSPrefix and DefaultSkyDNSTTL are the defaults of the contract
// (docs/contract/state-etcd.md, "DNS records").
const (
	DefaultSkyDNSPrefix = "/skydns"
	DefaultSkyDNSTTL    = 300 // seconds
)

// SkyDNS computes the records that CoreDNS reads from etcd. Create one with NewSkyDNS.
//
// There is one key per replica and name, and one key per node:
//
//	<prefix>/<D reversed>/persys-scheduler/<replica>         A, AAAA
//	<prefix>/<D reversed>/_persys-scheduler/<replica>        SRV
//	<prefix>/<D reversed>/_tcp/_persys-scheduler/<replica>   SRV
//	<prefix>/<AD reversed>/<S>/<node>                        A, AAAA
//
// Replicas and nodes have the same labels as in the zones of this package, so both servers answer the same
// names. Hints are not used, because records in etcd may stay longer than the hints are valid.
type SkyDNS struct {
	prefix string
	ttl    uint32
	plan   *plan
}

// SkyRecord is a key and its value. A nil value removes the key.
type SkyRecord struct {
	Key   string
	Value []byte
}

// skyValue is the JSON value of a record. The order of its fields is part of the contract.
type skyValue struct {
	Host string `json:"host"`
	Port uint16 `json:"port,omitempty"`
	TTL  uint32 `json:"ttl"`
}

// NewSkyDNS returns a SkyDNS for a key prefix in etcd ("" selects /skydns) and a TTL in seconds (0 selects
// 300). Errors name the invalid fields of cfg, or the prefix.
func NewSkyDNS(cfg Config, prefix string, ttl uint32) (*SkyDNS, error) {
	p, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	if prefix == "" {
		prefix = DefaultSkyDNSPrefix
	}
	if !strings.HasPrefix(prefix, "/") {
		return nil, fmt.Errorf("SkyDNS prefix: %q does not begin with /", prefix)
	}
	if ttl == 0 {
		ttl = DefaultSkyDNSTTL
	}
	return &SkyDNS{prefix: path.Clean(prefix), ttl: ttl, plan: p}, nil
}

// Dirs returns the directories in etcd that contain only records of SkyDNS. Their parents may also contain
// keys of others.
func (s *SkyDNS) Dirs() []string {
	var out []string
	for _, n := range [...]name{s.plan.schedulers, s.plan.service, s.plan.serviceTCP, s.plan.agents} {
		out = append(out, s.key(n)+"/")
	}
	return out
}

// Records returns all records for the state v, sorted by key.
func (s *SkyDNS) Records(v fsm.View) []SkyRecord {
	var out []SkyRecord
	v.Replicas(func(r *fsm.Replica) bool {
		out = append(out, s.replica(v, replicaLabel(r))...)
		return true
	})
	v.Nodes("", func(n *fsm.Node) bool {
		out = append(out, s.node(v, n.ID))
		return true
	})
	out = slices.DeleteFunc(out, func(r SkyRecord) bool { return r.Value == nil })
	slices.SortFunc(out, func(a, b SkyRecord) int { return strings.Compare(a.Key, b.Key) })
	return slices.CompactFunc(out, func(a, b SkyRecord) bool { return a.Key == b.Key })
}

// Change returns the records that change with c, a change of the state. v is the state after it. A record
// with a nil value is to be removed. Changes of tables other than replicas and nodes affect no records.
func (s *SkyDNS) Change(v fsm.View, c *fsm.Change) []SkyRecord {
	switch c.Table {
	case fsm.TableReplica:
		var labels []string
		for _, r := range [...]*fsm.Replica{c.OldReplica(), c.NewReplica()} {
			if r != nil && !slices.Contains(labels, replicaLabel(r)) {
				labels = append(labels, replicaLabel(r))
			}
		}
		var out []SkyRecord
		for _, l := range labels {
			out = append(out, s.replica(v, l)...)
		}
		return out
	case fsm.TableNode:
		if was, now := c.OldNode(), c.NewNode(); was != nil && now != nil && was.Facts.Endpoint == now.Facts.Endpoint {
			return nil
		}
		return []SkyRecord{s.node(v, c.Key)}
	}
	return nil
}

// replica returns the records of the replica with a DNS label. While a replica replaces another one under the same
// name, both have the label. In this case the records are those of the replica that v.Replicas lists last.
func (s *SkyDNS) replica(v fsm.View, label string) []SkyRecord {
	var at endpoint
	v.Replicas(func(r *fsm.Replica) bool {
		if e := parseEndpoint(r.GRPCAddr); replicaLabel(r) == label && e != (endpoint{}) {
			at = e
		}
		return true
	})
	out := make([]SkyRecord, 0, 3)
	for _, n := range [...]name{s.plan.schedulers, s.plan.service, s.plan.serviceTCP} {
		port := at.port
		if n == s.plan.schedulers {
			port = 0
		}
		out = append(out, s.record(under(n, label), at, port))
	}
	// For a host name CoreDNS would answer with a CNAME record, so a replica that announced a host name
	// instead of an IP address gets no address record.
	if at.host != "" {
		out[0].Value = nil
	}
	return out
}

func (s *SkyDNS) node(v fsm.View, id string) SkyRecord {
	var at endpoint
	if n, ok := v.Node(id); ok {
		at = parseEndpoint(n.Facts.Endpoint)
	}
	if at.host != "" {
		at = endpoint{}
	}
	return s.record(s.plan.nodeName(Label(id)), at, 0)
}

func (s *SkyDNS) record(n name, at endpoint, port uint16) SkyRecord {
	r := SkyRecord{Key: s.key(n)}
	if at.addr == (netip.Addr{}) && at.host == "" {
		return r
	}
	v := skyValue{Host: at.addr.String(), Port: port, TTL: s.ttl}
	if at.host != "" {
		v.Host = strings.TrimSuffix(at.host.String(), ".")
	}
	r.Value, _ = json.Marshal(v) // Marshal cannot fail, because the value contains only strings and numbers
	return r
}

// key returns the etcd key for a name: the prefix and the labels of the name in reverse order.
func (s *SkyDNS) key(n name) string {
	labels := strings.Split(strings.TrimSuffix(n.String(), "."), ".")
	slices.Reverse(labels)
	return s.prefix + "/" + strings.Join(labels, "/")
}
