package compose_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

// A service with the restart policy "no" ends with an error. The driver reports that this failure is final. When the
// agent starts another service of the stack again, the failed service stays ended: only a newer order starts it again.
func TestAFailedServiceWithThePolicyNoIsNotRunAgain(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("never-"+way, b.yaml(`
services:
  once: {image: IMAGE, command: [exit, "3"], restart: "no"}
  web: {image: IMAGE, command: [serve]}
`))
		b.ensure(spec)
		if o := b.await(spec.ID, driver.Failed); !o.KeepEnded || !o.PartlyRunning || o.ExitCode != 3 {
			t.Errorf("the stack is reported as %+v, want KeepEnded and PartlyRunning with exit code 3", o)
		}
		started := func(service string) string { return b.startedAt(spec.ID, service) }
		once, web := started("once"), started("web")
		if _, err := b.cli.ContainerKill(b.ctx, b.containerOf(spec.ID, "web"), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
		testbed.Within(t, time.Minute, "the end of web", func() error {
			if o := b.observed(spec.ID); o.PartlyRunning || o.KeepEnded {
				return fmt.Errorf("the stack is %+v, want no part that runs, and KeepEnded false because web has no policy", o)
			}
			return nil
		})
		spec.Repeats = true
		b.ensure(spec)
		if started("once") != once || started("web") == web {
			t.Errorf("a repeated start must start web (%s, then %s) and not once (%s, then %s)", web, started("web"), once, started("once"))
		}
		spec.Repeats = false
		b.ensure(spec)
		if started("once") == once {
			t.Error("a start for an order did not start the ended service once")
		}
	})
}
