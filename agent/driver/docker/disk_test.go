package docker_test

import (
	"fmt"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	"github.com/persys/compute/testbed"
)

// If the engine supports disk limits but its disk has no quotas, the container runs without a disk limit, and
// the driver can measure the bytes that it writes.
func TestDiskLimitIsEnforcedOrMeasured(t *testing.T) {
	e := theEngine(t)
	for name, host := range map[string]string{
		"the driver reports no disk limit, but the engine's storage driver may support one": mobytest.NewSmall(t, 96<<20, e.probe, e.image).Host,
		"the machine's engine": "",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *docker.Options) { o.Host = host })
			spec := b.spec("limited", containerBody(e.image, "write", "/data", "3000000"))
			spec.DiskLimit = 1 << 30
			b.ensure(spec)
			var o driver.Observed
			testbed.Within(t, testbed.Patience, "the driver measures the bytes that the container wrote", func() error {
				o = b.observed(spec.ID)
				seen, err := b.d.Occupied(b.ctx, []driver.Observed{o})
				if err != nil {
					return testbed.Final(err)
				}
				if n := seen[spec.ID]; n < 3_000_000 || n >= 4_000_000 {
					return fmt.Errorf("the measured disk use is %d bytes, want about 3000000", n)
				}
				return nil
			})
			if o.State != driver.Running {
				t.Errorf("the container with a disk limit is %s (message %q), want Running", o.State, o.Message)
			}
			t.Logf("the engine enforces the disk limit: %v", o.DiskCapped)
		})
	}
}
