package compose_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/testbed"
)

// ending deploys a stack of three services and returns a function that reads their output. Each service
// prints its stop signal a few seconds (the parameter seconds) after it received the signal. The grace period
// of service patient is longer than that, that of service hasty is shorter, and service plain has none.
func (b *bench) ending(id string, seconds int) (spec driver.Spec, words func() string) {
	b.Helper()
	dir := b.TempDir()
	service := func(name, signal, grace string) string {
		return fmt.Sprintf("  %s:\n    image: IMAGE\n    command: [ends, %s, %q, /out/%s]\n    volumes: [\"%s:/out\"]\n    stop_signal: %s\n%s",
			name, signal, fmt.Sprint(seconds), name, dir, signal, grace)
	}
	spec = b.spec(id, b.yaml("services:\n"+
		service("patient", "SIGUSR1", "    stop_grace_period: 1m\n")+
		service("hasty", "SIGUSR2", "    stop_grace_period: 1s\n")+
		service("plain", "SIGUSR1", "")))
	b.ensure(spec)
	testbed.Until(b, "the programs", func() bool {
		rc, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{})
		if err != nil {
			return false
		}
		defer rc.Close()
		text, err := io.ReadAll(rc)
		return err == nil && strings.Count(string(text), "ready") == 3
	})
	return spec, func() string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				b.Fatal(err)
			}
			out = append(out, e.Name()+" "+string(text))
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
}

// TestAStackStopsAsItsFileSays: however a stack is stopped (stop, replacement, delete), each service gets the
// stop_signal and the stop_grace_period of the Compose file. A service without stop_grace_period gets the
// default of the driver, here 10 s.
func TestAStackStopsAsItsFileSays(t *testing.T) {
	for _, way := range []struct {
		name string
		stop func(b *bench, spec driver.Spec) error
		want string
	}{
		{"halt", func(b *bench, spec driver.Spec) error { return b.d.Halt(b.ctx, spec.ID, driver.OwnGrace) }, "patient SIGUSR1, plain SIGUSR1"},
		{"ensure", func(b *bench, spec driver.Spec) error {
			spec.Running = false
			return b.d.Ensure(b.ctx, spec)
		}, "patient SIGUSR1, plain SIGUSR1"},
		{"update", func(b *bench, spec driver.Spec) error {
			spec.Content, spec.Body = "c1:next", b.yaml("services: {patient: {image: IMAGE}, hasty: {image: IMAGE}, plain: {image: IMAGE}}")
			return b.d.Ensure(b.ctx, spec)
		}, "patient SIGUSR1, plain SIGUSR1"},
		{"remove", func(b *bench, spec driver.Spec) error { return b.d.Remove(b.ctx, spec.ID) }, "patient SIGUSR1, plain SIGUSR1"},
		{"drain", func(b *bench, spec driver.Spec) error { return b.d.Leave(b.ctx, spec.ID, true) }, "patient SIGUSR1, plain SIGUSR1"},
		{"Halt with a shorter grace period from the caller", func(b *bench, spec driver.Spec) error { return b.d.Halt(b.ctx, spec.ID, time.Second) }, ""},
	} {
		t.Run(way.name, func(t *testing.T) {
			b := newBench(t, func(o *compose.Options) { o.StopGrace = 10 * time.Second })
			spec, words := b.ending("stop"+fmt.Sprint(len(way.name)), 3)
			if err := way.stop(b, spec); err != nil {
				t.Fatal(err)
			}
			if got := words(); got != way.want {
				t.Errorf("before their end the services printed the stop signals %q; want %q", got, way.want)
			}
		})
	}
}
