package compose_test

import (
	"strings"
	"testing"

	"github.com/moby/moby/client/pkg/versions"

	"github.com/persys/compute/agent/driver"
)

// TestOptionsThatTheEngineLacksAreRefused: a stack with an option that this engine does not support fails
// with the engine's reason. The error is permanent, except for a missing GPU: another node may have one. The
// option start_interval does not fail. Engines before version 25 do not know this option: the driver leaves
// it out and says so in the status.
func TestOptionsThatTheEngineLacksAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, option, says string
		cause              driver.Cause
	}{
		{"gpus", "gpus: all", "gpu", driver.Passing},
		{"a service that reserves a GPU", "deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: 1}]}}}", "gpu", driver.Passing},
		{"runtime", "runtime: kata", "kata", driver.Final},
		{"platform", "platform: linux/arm64", "platform", driver.Final},
		{"a service that mounts an image as a volume", "volumes: [{type: image, source: IMAGE, target: /x}]", "Docker Engine", driver.Final},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			err := b.d.Ensure(b.ctx, b.spec("lacks", b.yaml("services: {app: {image: IMAGE, "+c.option+"}}")))
			if err == nil {
				return // this engine supports the option
			}
			if driver.ClassOf(err).Cause() != c.cause || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", driver.ClassOf(err), err)
			}
		})
	}
	t.Run("start_interval", func(t *testing.T) {
		b := newBench(t)
		spec := b.spec("interval", b.yaml("services: {app: {image: IMAGE, healthcheck: {test: [CMD, /probe, exists, /probe], interval: 30s, start_period: 20s, start_interval: 1s}}}"))
		b.ensure(spec)
		const left = "start_interval of app is left out: it needs Docker 25"
		lacks := versions.LessThan(b.cli.ClientVersion(), "1.44")
		if o := b.await(spec.ID, driver.Running); strings.Contains(o.Message, left) != lacks {
			t.Errorf("with engine API %s the status message of the stack is %q", b.cli.ClientVersion(), o.Message)
		}
	})
}
