package dnsserver

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
)

// Probe succeeds if the other server names at least one scheduler of the state. Otherwise its error gives the
// reason.
func TestProbeFindsSchedulers(t *testing.T) {
	w := newWorld(t)
	three(w)
	r := serve(t, w, Options{})
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	other := newWorld(t)
	other.replica("r9", "s9", "10.9.9.9:8085")
	moved := newWorld(t)
	moved.replica("r3", "s3", "[fd00::3]:8086") // the other server lists one replica of this state
	for _, c := range []struct {
		name   string
		cfg    Config
		server string
		view   fsm.View
		want   string
	}{
		{"the other server names all schedulers", Config{}, r.addr, w.s, ""},
		{"the other server names one of the schedulers", Config{}, r.addr, moved.s, ""},
		{"the state has no schedulers", Config{}, r.addr, newWorld(t).s, ""},
		{"the other server does not answer", Config{}, silent.LocalAddr().String(), w.s, "does not answer"},
		{"the other server has another zone", Config{Domain: "elsewhere.local"}, r.addr, w.s, "it answers REFUSED for _persys-scheduler._tcp.elsewhere.local."},
		{"the other server belongs to another cluster", Config{}, r.addr, other.s, "lists only schedulers of another cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := c.cfg.Probe(ctx, c.server, c.view)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Probe returned %v, want an error that contains %q, or none if it is empty", err, c.want)
			}
		})
	}
}
