package replica

import (
	"strings"
	"testing"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
)

func TestTheModeFollowsTheMirror(t *testing.T) {
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
		want   string // expected change of mode, as "mode reason" or "mode unpin"; "" = no change
	}{
		{"normal with a healthy mirror: no change", at("normal"), is(mirror.Healthy), required, "", ""},
		{"etcd became unreachable: degraded", at("normal"), is(mirror.Unreachable), required, mirror.Healthy, "degraded because"},
		{"etcd is still unreachable: no change", at("degraded"), is(mirror.Unreachable), required, mirror.Unreachable, ""},
		{"etcd is reachable and fails writes: new reason", at("degraded"), is(mirror.Failing), required, mirror.Unreachable, "degraded because"},
		{"a new leader in the right mode: no change", at("degraded"), is(mirror.Failing), required, "", ""},
		{"etcd is reachable again: normal", at("degraded"), is(mirror.Healthy), required, mirror.Unreachable, "normal "},
		{"etcd is reachable again and empty: recovery", at("degraded"), is(mirror.Emptied), mirror.Facts{Attached: true}, mirror.Unreachable, "recovery because"},
		{"the mirror is starting: no change", at("degraded"), is(mirror.Starting), required, "", ""},
		{"an etcd that is not required is unreachable: no change", at("normal"), is(mirror.Unreachable), mirror.Facts{}, "", ""},
		{"the mirror was turned off while etcd was unreachable: normal", at("degraded"), nil, mirror.Facts{}, "", "normal "},
		{"no mirror: no change", at("normal"), nil, mirror.Facts{}, "", ""},
		{"no cluster yet: no change", fsm.Info{}, is(mirror.Unreachable), required, "", ""},
		{"a pinned frozen mode stays with a healthy mirror", pinned("degraded"), is(mirror.Healthy), required, "", ""},
		{"a pinned frozen mode stays without a mirror", pinned("recovery"), nil, mirror.Facts{}, "", ""},
		{"a pinned normal mode stays in an outage", pinned("normal"), is(mirror.Unreachable), required, mirror.Healthy, ""},
		{"a pinned normal mode is unpinned when the mirror is healthy", pinned("normal"), is(mirror.Healthy), required, "", "normal unpin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if set := nextMode(tt.info, tt.health, tt.facts, tt.said); set != nil {
				if got = set.GetMode() + " " + set.GetReason(); set.GetUnpin() {
					got += "unpin"
				}
				if set.GetPinned() {
					t.Error("the leader must not pin a mode, but did")
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestEtcdSettingsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name              string
		cfg               Config
		allowed, required bool
		err               string
	}{
		{"unset: no etcd is contacted", Config{}, true, false, ""},
		{"blank is unset", Config{EtcdEndpoints: []string{" ", ""}}, true, false, ""},
		{"none", Config{EtcdEndpoints: []string{"none"}}, false, false, ""},
		{"two endpoints", Config{EtcdEndpoints: []string{"localhost:2379", " https://b:2379"}}, true, true, ""},
		{"loopback without TLS", Config{EtcdEndpoints: []string{"127.0.0.1:2379", "http://[::1]:2379"}}, true, true, ""},
		{"another machine without TLS", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}}, true, true, "ETCD_PLAINTEXT"},
		{"http on another machine", Config{EtcdEndpoints: []string{"http://etcd:2379"}, EtcdTLSCA: "ca.pem"}, true, true, "ETCD_PLAINTEXT"},
		{"a name that only begins like localhost", Config{EtcdEndpoints: []string{"localhost.example.com:2379"}}, true, true, "ETCD_PLAINTEXT"},
		{"another machine with a CA", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}, EtcdTLSCA: "ca.pem"}, true, true, ""},
		{"another machine without TLS, allowed", Config{EtcdEndpoints: []string{"http://10.0.0.9:2379"}, EtcdPlaintext: true}, true, true, ""},
		{"-insecure", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}, Insecure: true}, true, true, ""},
		{"ETCD_ENDPOINTS mixes none with an endpoint", Config{EtcdEndpoints: []string{"a:2379", "none"}}, true, true, "ETCD_ENDPOINTS"},
		{"another scheme", Config{EtcdEndpoints: []string{"ftp://a"}}, true, true, "ftp://a"},
		{"no port", Config{EtcdEndpoints: []string{"localhost"}}, true, true, "host:port"},
		{"a user without a password", Config{EtcdUsername: "u"}, true, false, "ETCD_PASSWORD"},
		{"a certificate without a key", Config{EtcdTLSCert: "c"}, true, false, "ETCD_TLS_KEY"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.completeEtcd()
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want an error that names %q", err, tt.err)
			}
			if on := tt.cfg.mirrorAllowed(); on != tt.allowed || tt.cfg.etcdRequired() != tt.required {
				t.Fatalf("mirror allowed %v, etcd required %v, want %v and %v", on, tt.cfg.etcdRequired(), tt.allowed, tt.required)
			}
		})
	}
}
