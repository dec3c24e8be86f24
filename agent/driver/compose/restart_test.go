package compose_test

import (
	"fmt"
	"slices"
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
			t.Errorf("a repeated start must start the service web (started at %s, then at %s), but not the service once (started at %s, then at %s)", web, started("web"), once, started("once"))
		}
		spec.Repeats = false
		b.ensure(spec)
		if started("once") == once {
			t.Error("a start for an order did not start the ended service once")
		}
		if o := b.await(spec.ID, driver.Failed).Under(false); o.State != driver.Running {
			t.Errorf("the service web runs, but the stack that should be stopped is reported as %s (%s)", o.State, o.Message)
		}
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if o := b.observed(spec.ID); o.PartlyRunning || o.Under(false).State != driver.Stopped {
			t.Errorf("after Halt the stack is reported as %+v, want stopped and no part that runs", o)
		}
	})
}

// restarts says which services of a stack an action started.
type restarts struct {
	*bench
	id     driver.ID
	before map[string]string
}

func (b *bench) restarts(id driver.ID, services ...string) restarts {
	b.Helper()
	r := restarts{b, id, map[string]string{}}
	for _, service := range services {
		r.before[service] = b.startedAt(id, service)
	}
	return r
}

// want fails the test unless exactly the services in started were started since the call of restarts.
func (r restarts) want(what string, started ...string) {
	r.Helper()
	for service, before := range r.before {
		if now := r.startedAt(r.id, service); (now != before) != slices.Contains(started, service) {
			r.Errorf("%s: service %s was started at %s, before at %s; want new starts of %v only", what, service, now, before, started)
		}
	}
}

// A restart for health restarts the unhealthy services, or all running services if the engine reports
// none as unhealthy. It does not start services that have ended and whose restart policies keep them
// ended. If the agent is restarted in between, its next process starts the stopped services, although
// their policy on-failure would keep them ended.
func TestARestartForHealthRestartsWhatShouldRun(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		for _, c := range []struct{ name, check, other string }{
			{"one", "healthcheck: {test: [CMD, /probe, exists, /nothing], interval: 200ms, retries: 1}", ""},
			{"all", "healthcheck: {disable: true}", "other"},
		} {
			spec := b.spec("heal-"+c.name+"-"+way, b.yaml(`
services:
  once: {image: IMAGE, command: [exit, "0"], restart: "no"}
  other: {image: IMAGE, command: [serve], restart: on-failure}
  web: {image: IMAGE, command: [serve], restart: on-failure, `+c.check+`}
`))
			b.ensure(spec)
			testbed.Within(t, time.Minute, "the health", func() error {
				if o := b.observed(spec.ID); o.State != driver.Running || o.Metadata["compose.service.once"] != "exited with code 0" || (o.Health == driver.Unhealthy) != (c.other == "") {
					return fmt.Errorf("the stack is %s with health %s: %s", o.State, o.Health, o.Message)
				}
				return nil
			})
			r := b.restarts(spec.ID, "once", "other", "web")
			if err := b.d.HaltUnhealthy(b.ctx, spec.ID, driver.OwnGrace); err != nil {
				t.Fatal(err)
			}
			again := b.driver(t, "node-a", b.dir)
			spec.Repeats = true
			if err := again.Ensure(b.ctx, spec); err != nil {
				t.Fatal(err)
			}
			r.want("restart for health of "+c.name, "web", c.other)
			// The service web now ends. Its policy keeps it ended, so a repeated start does not start it.
			if _, err := b.cli.ContainerStop(b.ctx, b.containerOf(spec.ID, "web"), client.ContainerStopOptions{}); err != nil {
				t.Fatal(err)
			}
			r = b.restarts(spec.ID, "once", "other", "web")
			b.ensure(spec)
			r.want("repeated start of " + c.name)
		}
	})
}

// A restart for health of a stack without an unhealthy service also restarts a service that the engine is about to start
// again: the stop ends the pause before that start.
func TestARestartForHealthRestartsAServiceInItsPause(t *testing.T) {
	b := newBench(t)
	spec := b.spec("pause", b.yaml(`
services:
  flaky: {image: IMAGE, command: [exit, "3"], restart: on-failure}
  web: {image: IMAGE, command: [serve], restart: on-failure}
`))
	b.ensure(spec)
	testbed.Within(t, time.Minute, "a pause of several seconds before the next start", func() error {
		res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, "flaky"), client.ContainerInspectOptions{})
		if err == nil && (!res.Container.State.Restarting || res.Container.RestartCount < 6) {
			return fmt.Errorf("%+v after %d restarts", res.Container.State, res.Container.RestartCount)
		}
		return err
	})
	r := b.restarts(spec.ID, "flaky", "web")
	if err := b.d.HaltUnhealthy(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	spec.Repeats = true
	b.ensure(spec)
	r.want("restart for health", "flaky", "web")
}

// The service web awaits the health of db. The engine gives up db, which has the policy on-failure:1.
// Then the agent starts neither of them again, and reports a failure that is final (KeepEnded).
func TestAServiceThatTheEngineGaveUpIsNotRunAgain(t *testing.T) {
	b := newBench(t)
	spec := b.spec("gaveup", b.yaml(`
services:
  db: {image: IMAGE, command: [exit, "3"], restart: "on-failure:1", healthcheck: {test: [CMD, /probe, exists, /probe], interval: 1s}}
  web: {image: IMAGE, command: [serve], depends_on: {db: {condition: service_healthy}}}
  other: {image: IMAGE, command: [serve]}
`))
	err := b.d.Ensure(b.ctx, spec)
	if !driver.StartedOf(err) {
		t.Fatalf("Ensure returned %v, want an error with Started", err)
	}
	testbed.Within(t, time.Minute, "the end of db", func() error {
		if o := b.observed(spec.ID); o.State != driver.Failed || !o.KeepEnded || !o.PartlyRunning || o.Content != spec.Content {
			return fmt.Errorf("the stack is %+v, want Failed, KeepEnded, PartlyRunning and complete", o)
		}
		return nil
	})
	r := b.restarts(spec.ID, "db", "web", "other")
	spec.Repeats = true
	b.ensure(spec)
	r.want("repeated start")
}

// An optional dependency (required: false) that fails, or that the stack does not have, delays no service for good.
func TestAnOptionalDependencyMayFail(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("optional-"+way, b.yaml(`
services:
  bad: {image: IMAGE, command: [exit, "3"], restart: "no"}
  off: {image: IMAGE, command: [serve], profiles: [never]}
  web:
    image: IMAGE
    command: [serve]
    depends_on:
      bad: {condition: service_completed_successfully, required: false}
      off: {condition: service_healthy, required: false}
`))
		b.ensure(spec)
		running := func() {
			t.Helper()
			testbed.Within(t, time.Minute, "web", func() error {
				if o := b.observed(spec.ID); o.Metadata["compose.service.web"] != "running" || o.Metadata["compose.service.bad"] != "exited with code 3" {
					return fmt.Errorf("%s", o.Message)
				}
				return nil
			})
		}
		running()
		if _, err := b.cli.ContainerKill(b.ctx, b.containerOf(spec.ID, "web"), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
		r := b.restarts(spec.ID, "bad", "web")
		spec.Repeats = true
		b.ensure(spec)
		running()
		r.want("repeated start", "web")
	})
}
