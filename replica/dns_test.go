package replica

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/dnsserver"
)

func TestDNSHintsFollowTheReplicasHealth(t *testing.T) {
	peer := func(id, health string, role cluster.Role) cluster.PeerStatus {
		return cluster.PeerStatus{ID: id, Health: health, Role: role, Self: id == "me"}
	}
	me := peer("me", "alive", cluster.RoleVoter)
	for _, c := range []struct {
		name   string
		leader string
		peers  []cluster.PeerStatus
		want   dnsserver.Hints
	}{
		{"all replicas are alive", "b", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleLeader), peer("c", "alive", cluster.RoleVoter)},
			dnsserver.Hints{Leader: "b"}},
		{"a suspect and a dead replica are named in the hints", "me", []cluster.PeerStatus{me, peer("b", "suspect", cluster.RoleVoter), peer("c", "dead", cluster.RoleVoter)},
			dnsserver.Hints{Leader: "me", Suspect: []string{"b"}, Dead: []string{"c"}}},
		{"a replica that gossip never met is suspect", "b", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleLeader), peer("c", "unknown", cluster.RoleVoter)},
			dnsserver.Hints{Leader: "b", Suspect: []string{"c"}}},
		{"a replica that is not a member is suspect", "b", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleLeader), peer("c", "alive", cluster.RoleAbsent)},
			dnsserver.Hints{Leader: "b", Suspect: []string{"c"}}},
		{"there is no leader, but this replica hears a majority", "", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleVoter), peer("c", "dead", cluster.RoleVoter)},
			dnsserver.Hints{Partitioned: true, Dead: []string{"c"}}},
		{"this replica has no leader and hears no other replica", "", []cluster.PeerStatus{me, peer("b", "dead", cluster.RoleVoter), peer("c", "suspect", cluster.RoleVoter)},
			dnsserver.Hints{Partitioned: true, Suspect: []string{"me"}}},
		{"this replica has no leader and hears only half of the voters", "", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleVoter), peer("c", "dead", cluster.RoleVoter), peer("d", "dead", cluster.RoleVoter)},
			dnsserver.Hints{Partitioned: true, Suspect: []string{"me", "b"}}},
		{"this replica has no leader and hears, besides itself, only a non-voter", "", []cluster.PeerStatus{me, peer("b", "alive", cluster.RoleNonvoter), peer("c", "dead", cluster.RoleVoter)},
			dnsserver.Hints{Partitioned: true, Suspect: []string{"me", "b"}}},
		{"this replica has no cluster yet", "", []cluster.PeerStatus{me}, dnsserver.Hints{Partitioned: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := hintsFrom(cluster.Status{Leader: cluster.LeaderInfo{ID: c.leader}, Peers: c.peers})
			if !got.Equal(c.want) || !slices.Equal(got.Suspect, c.want.Suspect) {
				t.Errorf("the hints for the DNS server are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestShadowPublishesNoDNS(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		r := &Replica{cfg: Config{Shadow: shadow, DNSAddr: "127.0.0.1:0", Domain: "persys.local", AgentsDomain: "agents.persys.cloud", Shard: "default"},
			log: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry()}
		if err := r.openDNS(); err != nil {
			t.Fatal(err)
		}
		records, err := r.cfg.published()
		if err != nil {
			t.Fatal(err)
		}
		if on := r.dns != nil; on == shadow || (r.dnsAdvertise() != "") == shadow || (records != nil) == shadow {
			t.Errorf("with shadow %t: DNS server %t at %q, DNS records in etcd %t; want the server and the records only without shadow", shadow, on, r.dnsAdvertise(), records != nil)
		}
		if r.dns != nil {
			if err := r.dns.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
