package docker_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// ending starts a container that prints the name of its stop signal some time after it received the signal.
// It returns when the container can handle the signal. The returned function word returns the name that the
// container printed, or "killed" if it printed none.
func (b *bench) ending(id, signal string, seconds, grace int) (spec driver.Spec, word func() string) {
	b.Helper()
	dir := b.TempDir()
	body := containerBody(b.image, "ends", signal, strconv.Itoa(seconds), "/out/word")
	body.Volumes = []*agentv1.VolumeMount{{HostPath: dir, ContainerPath: "/out"}}
	body.StopGracePeriodSeconds = int32(grace)
	body.StopSignal = signal
	spec = b.spec(id, body)
	b.ensure(spec)
	b.await(spec.ID, "ready", func(driver.Observed) bool {
		rc, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{})
		if err != nil {
			return false
		}
		defer rc.Close()
		text, err := io.ReadAll(rc)
		return err == nil && strings.Contains(string(text), "ready")
	})
	return spec, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "word"))
		if errors.Is(err, fs.ErrNotExist) {
			return "killed"
		}
		return string(text)
	}
}

// TestAContainerStopsAsItsSpecificationSays: however a container is stopped (stop, replacement, delete), it
// gets the stop signal and the grace period of its specification, not the driver's default.
func TestAContainerStopsAsItsSpecificationSays(t *testing.T) {
	short := func(o *docker.Options) { o.StopGrace = time.Second }
	for _, way := range []struct {
		name string
		stop func(b *bench, spec driver.Spec) error
	}{
		{"halt", func(b *bench, spec driver.Spec) error { return b.d.Halt(b.ctx, spec.ID, driver.OwnGrace) }},
		{"ensure", func(b *bench, spec driver.Spec) error {
			spec.Running = false
			return b.d.Ensure(b.ctx, spec)
		}},
		{"update", func(b *bench, spec driver.Spec) error {
			spec.Content, spec.Body = "c1:next", wrap(containerBody(b.image, "serve"))
			return b.d.Ensure(b.ctx, spec)
		}},
		{"remove", func(b *bench, spec driver.Spec) error { return b.d.Remove(b.ctx, spec.ID) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			b := newBench(t, short)
			spec, word := b.ending(way.name, "SIGUSR1", 3, 60)
			if err := way.stop(b, spec); err != nil {
				t.Fatal(err)
			}
			if got := word(); got != "SIGUSR1" {
				t.Errorf("the container printed %s before its end, want the name of the stop signal in its specification", got)
			}
		})
	}
	t.Run("a container without a grace period gets the default", func(t *testing.T) {
		b := newBench(t, short)
		spec, word := b.ending("default", "SIGUSR1", 5, 0)
		if err := b.d.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil || word() != "killed" {
			t.Errorf("Halt of a container without a grace period returned %v, and the container printed %s", err, word())
		}
	})
	t.Run("the caller's time limit ends a longer grace period", func(t *testing.T) {
		b := newBench(t)
		spec, word := b.ending("bounded", "SIGUSR1", 5, 60)
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil || word() != "killed" {
			t.Errorf("Halt with a shorter time limit than the grace period returned %v, and the container printed %s", err, word())
		}
	})
	t.Run("a grace period that is longer than any cluster allows is shortened", func(t *testing.T) {
		b := newBench(t)
		body := containerBody(b.image, "serve")
		body.StopGracePeriodSeconds = 3600
		spec := b.spec("cut", body)
		b.ensure(spec)
		if got := b.inspect(b.awaitState(spec.ID, driver.Running).RuntimeID).Config.StopTimeout; got == nil || *got != 600 {
			t.Errorf("the container's grace period in the engine is %v, want 600 s, the maximum", got)
		}
	})
}
