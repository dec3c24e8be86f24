package replica

import (
	"strings"
	"testing"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
)

func TestNextMode(t *testing.T) {
	is := func(s mirror.State) *mirror.Health { return &mirror.Health{State: s, Reason: "because"} }
	at := func(m fsm.Mode) fsm.Info { return fsm.Info{ClusterID: "c1", Mode: m} }
	pinned := func(m fsm.Mode) fsm.Info { i := at(m); i.ModePinned = true; return i }
	required := mirror.Facts{Required: true}
	for _, tt := range []struct {
		name   string
		info   fsm.Info
		health *mirror.Health
		facts  mirror.Facts
		said   mirror.State
		want   string // "mode reason" or "mode unpin"; "" = no change
	}{
		{"normal and a healthy mirror: nothing", at("normal"), is(mirror.Healthy), required, "", ""},
		{"etcd went away: degraded", at("normal"), is(mirror.Unreachable), required, mirror.Healthy, "degraded because"},
		{"it still is: nothing", at("degraded"), is(mirror.Unreachable), required, mirror.Unreachable, ""},
		{"it is back but takes no writes: another reason", at("degraded"), is(mirror.Failing), required, mirror.Unreachable, "degraded because"},
		{"a new leader finds the mode right: nothing", at("degraded"), is(mirror.Failing), required, "", ""},
		{"etcd is back: normal", at("degraded"), is(mirror.Healthy), required, mirror.Unreachable, "normal "},
		{"etcd is back but empty: recovery", at("degraded"), is(mirror.Emptied), mirror.Facts{Attached: true}, mirror.Unreachable, "recovery because"},
		{"nothing is known yet: nothing", at("degraded"), is(mirror.Starting), required, "", ""},
		{"an etcd that nobody asked for is away: nothing", at("normal"), is(mirror.Unreachable), mirror.Facts{}, "", ""},
		{"the mirror was turned off while etcd was away: normal", at("degraded"), nil, mirror.Facts{}, "", "normal "},
		{"no mirror: nothing", at("normal"), nil, mirror.Facts{}, "", ""},
		{"no cluster yet: nothing", fsm.Info{}, is(mirror.Unreachable), required, "", ""},
		{"a person's freeze outlives a healthy mirror", pinned("degraded"), is(mirror.Healthy), required, "", ""},
		{"a person's freeze outlives the mirror", pinned("recovery"), nil, mirror.Facts{}, "", ""},
		{"a person's normal outlives an outage", pinned("normal"), is(mirror.Unreachable), required, mirror.Healthy, ""},
		{"a person's normal ends being pinned when the mirror is healthy", pinned("normal"), is(mirror.Healthy), required, "", "normal unpin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if set := nextMode(tt.info, tt.health, tt.facts, tt.said); set != nil {
				if got = set.GetMode() + " " + set.GetReason(); set.GetUnpin() {
					got += "unpin"
				}
				if set.GetPinned() {
					t.Error("the leader pins a mode")
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestEtcdSettings(t *testing.T) {
	for _, tt := range []struct {
		name      string
		cfg       Config
		addresses string // "" = no mirror
		required  bool
		err       string
	}{
		{"unset: the local etcd is tried", Config{}, "localhost:2379", false, ""},
		{"blank is unset", Config{EtcdEndpoints: []string{" ", ""}}, "localhost:2379", false, ""},
		{"none", Config{EtcdEndpoints: []string{"none"}}, "", false, ""},
		{"set", Config{EtcdEndpoints: []string{"a:2379", " https://b:2379"}}, "a:2379 https://b:2379", true, ""},
		{"none among others", Config{EtcdEndpoints: []string{"a:2379", "none"}}, "", false, "ETCD_ENDPOINTS"},
		{"another scheme", Config{EtcdEndpoints: []string{"ftp://a"}}, "", false, "ftp://a"},
		{"a user without a password", Config{EtcdUsername: "u"}, "", false, "ETCD_PASSWORD"},
		{"a certificate without a key", Config{EtcdTLSCert: "c"}, "", false, "ETCD_TLS_KEY"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.completeEtcd()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one that names %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if on := tt.cfg.mirrored(); on != (tt.addresses != "") || tt.cfg.etcdRequired() != tt.required {
				t.Fatalf("mirrored %v, required %v", on, tt.cfg.etcdRequired())
			}
			if tt.addresses != "" && strings.Join(tt.cfg.etcdAddresses(), " ") != tt.addresses {
				t.Errorf("addresses %q, want %s", tt.cfg.etcdAddresses(), tt.addresses)
			}
		})
	}
}
