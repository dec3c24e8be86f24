package agentd

import "testing"

// TestClientsWithoutCertificateLeaveConnectionsForSchedulers: clients without a certificate get a small part of the agent's connections, so
// that a few hosts cannot keep schedulers out. Without TLS nobody shows a certificate.
func TestClientsWithoutCertificateLeaveConnectionsForSchedulers(t *testing.T) {
	l := (&Config{TLSEnabled: true, LimitConnections: 1024, LimitPerHost: 256}).limits()
	if l.Strangers <= 0 || 2*l.Strangers > l.Connections || l.StrangersPerNetwork <= 0 || 4*l.StrangersPerNetwork > l.Strangers || l.StrangerLife <= 0 {
		t.Errorf("clients without a certificate may have %d of %d connections, %d from one network, for %s each", l.Strangers, l.Connections, l.StrangersPerNetwork, l.StrangerLife)
	}
	if l = (&Config{LimitConnections: 1024}).limits(); l.Strangers != 0 {
		t.Errorf("without TLS, connections without a certificate are limited to %d", l.Strangers)
	}
}
