package hosts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/persys/compute/hosts"
)

func TestNetworkOfAddresses(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.77": "192.0.2.0/24", "::ffff:192.0.2.77": "192.0.2.0/24", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "pipe": "pipe",
	} {
		if got := hosts.NetworkOf(from); got != want {
			t.Errorf("NetworkOf(%q) = %q, want %q", from, got, want)
		}
	}
}

// TestKnownHostsAreForgotten: a full set takes a new host only after KnownFor, and forgets the old ones then.
func TestKnownHostsAreForgotten(t *testing.T) {
	const most = 100
	k, now := hosts.NewKnown(most), time.Unix(0, 0)
	for i := range most {
		k.Add(fmt.Sprint("host ", i), now)
	}
	k.Add("one more", now)
	if k.Has("one more", now) || !k.Has("host 0", now) || k.Len() != most {
		t.Errorf("a full set of %d hosts took another one, or lost one", k.Len())
	}
	now = now.Add(hosts.KnownFor)
	if k.Has("host 0", now) {
		t.Error("a host is known after KnownFor")
	}
	k.Add("one more", now)
	if !k.Has("one more", now) || k.Len() != 1 {
		t.Errorf("%d hosts are in memory after KnownFor, want one", k.Len())
	}
}
