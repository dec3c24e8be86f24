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
		{"in mode normal with a healthy mirror the mode stays", at("normal"), is(mirror.Healthy), required, "", ""},
		{"when etcd becomes unreachable, the mode becomes degraded", at("normal"), is(mirror.Unreachable), required, mirror.Healthy, "degraded because"},
		{"while etcd stays unreachable, the mode stays degraded", at("degraded"), is(mirror.Unreachable), required, mirror.Unreachable, ""},
		{"when etcd becomes reachable but fails writes, mode degraded gets a new reason", at("degraded"), is(mirror.Failing), required, mirror.Unreachable, "degraded because"},
		{"a new leader keeps mode degraded while etcd fails writes", at("degraded"), is(mirror.Failing), required, "", ""},
		{"when etcd is reachable again, the mode becomes normal", at("degraded"), is(mirror.Healthy), required, mirror.Unreachable, "normal "},
		{"when etcd is reachable again but empty, the mode becomes recovery", at("degraded"), is(mirror.Emptied), mirror.Facts{Attached: true}, mirror.Unreachable, "recovery because"},
		{"while the mirror is starting, the mode stays degraded", at("degraded"), is(mirror.Starting), required, "", ""},
		{"while an etcd that is not required is unreachable, the mode stays normal", at("normal"), is(mirror.Unreachable), mirror.Facts{}, "", ""},
		{"when the mirror is turned off while etcd is unreachable, the mode becomes normal", at("degraded"), nil, mirror.Facts{}, "", "normal "},
		{"no mirror: no change", at("normal"), nil, mirror.Facts{}, "", ""},
		{"without a cluster the mode stays", fsm.Info{}, is(mirror.Unreachable), required, "", ""},
		{"the pinned mode degraded stays with a healthy mirror", pinned("degraded"), is(mirror.Healthy), required, "", ""},
		{"the pinned mode recovery stays without a mirror", pinned("recovery"), nil, mirror.Facts{}, "", ""},
		{"the pinned mode normal stays while etcd is unreachable", pinned("normal"), is(mirror.Unreachable), required, mirror.Healthy, ""},
		{"the pinned mode normal is unpinned when the mirror is healthy", pinned("normal"), is(mirror.Healthy), required, "", "normal unpin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if set := nextMode(tt.info, tt.health, tt.facts, tt.said); set != nil {
				if got = set.GetMode() + " " + set.GetReason(); set.GetUnpin() {
					got += "unpin"
				}
				if set.GetPinned() {
					t.Error("the leader's change of mode must not be pinned, but is")
				}
			}
			if got != tt.want {
				t.Errorf("the change of mode is %q, want %q", got, tt.want)
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
		{"without ETCD_ENDPOINTS no etcd is required", Config{}, true, false, ""},
		{"a blank ETCD_ENDPOINTS has the same effect as none", Config{EtcdEndpoints: []string{" ", ""}}, true, false, ""},
		{"none", Config{EtcdEndpoints: []string{"none"}}, false, false, ""},
		{"two endpoints", Config{EtcdEndpoints: []string{"localhost:2379", " https://b:2379"}}, true, true, ""},
		{"an etcd on loopback without TLS is accepted", Config{EtcdEndpoints: []string{"127.0.0.1:2379", "http://[::1]:2379"}}, true, true, ""},
		{"an etcd on another machine without TLS is refused", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}}, true, true, "ETCD_PLAINTEXT"},
		{"an http URL of an etcd on another machine is refused", Config{EtcdEndpoints: []string{"http://etcd:2379"}, EtcdTLSCA: "ca.pem"}, true, true, "ETCD_PLAINTEXT"},
		{"a host name that only begins like localhost is refused without TLS", Config{EtcdEndpoints: []string{"localhost.example.com:2379"}}, true, true, "ETCD_PLAINTEXT"},
		{"an etcd on another machine with a CA is accepted", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}, EtcdTLSCA: "ca.pem"}, true, true, ""},
		{"an etcd on another machine without TLS is accepted with ETCD_PLAINTEXT", Config{EtcdEndpoints: []string{"http://10.0.0.9:2379"}, EtcdPlaintext: true}, true, true, ""},
		{"-insecure", Config{EtcdEndpoints: []string{"10.0.0.9:2379"}, Insecure: true}, true, true, ""},
		{"an ETCD_ENDPOINTS with both none and an endpoint is refused", Config{EtcdEndpoints: []string{"a:2379", "none"}}, true, true, "ETCD_ENDPOINTS"},
		{"another scheme", Config{EtcdEndpoints: []string{"ftp://a"}}, true, true, "ftp://a"},
		{"no port", Config{EtcdEndpoints: []string{"localhost"}}, true, true, "host:port"},
		{"an etcd user without a password is refused", Config{EtcdUsername: "u"}, true, false, "ETCD_PASSWORD"},
		{"an etcd client certificate without a key is refused", Config{EtcdTLSCert: "c"}, true, false, "ETCD_TLS_KEY"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.completeEtcd()
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("the settings of etcd returned error %v, want an error that names %q, or none if it is empty", err, tt.err)
			}
			if on := tt.cfg.mirrorAllowed(); on != tt.allowed || tt.cfg.etcdRequired() != tt.required {
				t.Fatalf("whether the settings allow a mirror is %v and whether they require an etcd is %v, want %v and %v", on, tt.cfg.etcdRequired(), tt.allowed, tt.required)
			}
		})
	}
}
