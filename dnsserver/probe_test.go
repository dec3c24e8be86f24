package dnsserver

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
)

// Probe succeeds if the other server names at least one scheduler of the state; otherwise the error
// gives the reason.
func TestProbe(t *testing.T) {
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
	moved.replica("r3", "s3", "[fd00::3]:8086") // the only replica of the state that the server names
	for _, c := range []struct {
		name   string
		cfg    Config
		server string
		view   fsm.View
		want   string
	}{
		{"names all schedulers", Config{}, r.addr, w.s, ""},
		{"names one of the schedulers", Config{}, r.addr, moved.s, ""},
		{"state without schedulers", Config{}, r.addr, newWorld(t).s, ""},
		{"no answer", Config{}, silent.LocalAddr().String(), w.s, "does not answer"},
		{"another zone", Config{Domain: "elsewhere.local"}, r.addr, w.s, "it answers REFUSED for _persys-scheduler._tcp.elsewhere.local."},
		{"another cluster", Config{}, r.addr, other.s, "names only schedulers of others"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := c.cfg.Probe(ctx, c.server, c.view)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
