package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

// outageTests test an engine that becomes unreachable and comes back.
var outageTests = []namedTest{
	{"List returns an error while the engine is unreachable", testAway},
	{"the engine becomes unreachable during a creation", func(t *testing.T, s *suite) { s.cutDuring(t, "cutnew", nil, 1) }},
	{"the engine becomes unreachable during a replacement", func(t *testing.T, s *suite) {
		s.cutDuring(t, "cutrepl", func(d driver.Driver, spec driver.Spec) error { return d.Ensure(s.ctx, spec) }, 2)
	}},
	{"the engine becomes unreachable during a stop, and during a start", testCutHalt},
	{"the engine becomes unreachable during a removal", testCutRemove},
}

// moments are the delays after which the engine becomes unreachable during an operation.
var moments = []time.Duration{0, 15 * time.Millisecond, 120 * time.Millisecond}

// during starts call, makes the engine unreachable when the time after has passed, and then reachable again.
// The call must end, with or without an error. Then call is repeated until it succeeds; until then only
// temporary errors may occur.
func (s *suite) during(t *testing.T, after time.Duration, cut, restore func(), call func(context.Context) error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call(s.ctx) }()
	select { // this wait is the delay under test, not a wait for an event
	case <-time.After(after):
	case err := <-done:
		done <- err
	}
	cut()
	select {
	case err := <-done:
		t.Logf("the engine became unreachable after %s, and the call returned %v", after, err)
		if class := driver.ClassOf(err); err != nil && class.Cause() == driver.Final {
			t.Errorf("a driver's call during an outage of the engine returned an error of the permanent class %s: %v; want a temporary error", class, err)
		}
	case <-time.After(2 * s.Patience):
		t.Errorf("a driver's call during an outage of the engine does not end")
	}
	restore()
	err := testbed.Poll(s.ctx, s.Patience, "the same call after the outage", func(ctx context.Context) error {
		err := call(ctx)
		switch {
		case err != nil && driver.ClassOf(err).Cause() != driver.Final:
			t.Logf("after the outage the call failed and is repeated: %v", err)
		case err != nil:
			return testbed.Final(err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// untouched fails the test if an instance was restarted or replaced between the observations before and after.
func untouched(t *testing.T, why string, before, after driver.Observed) {
	t.Helper()
	same(t, why, before, after)
	if !before.StartedAt.Equal(after.StartedAt) {
		t.Errorf("the outage restarted the instance: it was started at %s, then at %s", before.StartedAt, after.StartedAt)
	}
}

func testAway(t *testing.T, s *suite) {
	d, cut, restore := s.Outage(t, nodeA)
	spec := s.spec(t, d, nodeA, "away", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	cut()
	for range 3 {
		if all, err := d.List(s.ctx); driver.ClassOf(err) != driver.RuntimeUnhealthy {
			t.Errorf("List during the outage returned %d entries, error %v; want class RuntimeUnhealthy", len(all), err)
		}
	}
	if c, _ := d.Probe(s.ctx); c.Healthy {
		t.Error("Probe reports a healthy engine during the outage")
	}
	wantClass(t, d.Ensure(s.ctx, spec), driver.RuntimeUnhealthy)
	restore()
	s.ensure(t, d, spec)
	after := s.await(t, d, spec.ID, driver.Running)
	untouched(t, "an outage", before, after)
}

// cutDuring interrupts an Ensure by an outage, and checks that Ensure completes after the outage. The Ensure
// creates an instance or, if prepare made one, replaces that instance.
func (s *suite) cutDuring(t *testing.T, name string, prepare func(driver.Driver, driver.Spec) error, version int) {
	for i, after := range moments {
		d, cut, restore := s.Outage(t, nodeA)
		spec := s.spec(t, d, nodeA, name+string(rune('a'+i)), s.Steady(1))
		if prepare != nil {
			if err := prepare(d, spec); err != nil {
				t.Fatal(err)
			}
			s.await(t, d, spec.ID, driver.Running)
			spec.Content, spec.Body = spec.Content+"-next", s.Steady(version)
		}
		s.during(t, after, cut, restore, func(ctx context.Context) error { return d.Ensure(ctx, spec) })
		o := s.await(t, d, spec.ID, driver.Running)
		if o.Content != spec.Content {
			t.Errorf("after the interrupted Ensure and the outage the instance has content %q, want %q", o.Content, spec.Content)
		}
		s.ensure(t, d, spec)
		same(t, "another Ensure", o, s.await(t, d, spec.ID, driver.Running))
	}
}

func testCutHalt(t *testing.T, s *suite) {
	d, cut, restore := s.Outage(t, nodeA)
	spec := s.spec(t, d, nodeA, "cuthalt", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	for _, after := range moments {
		s.during(t, after, cut, restore, func(ctx context.Context) error { return d.Halt(ctx, spec.ID, 2*time.Second) })
		o := s.get(t, d, spec.ID).Under(false)
		if o.State != driver.Stopped {
			t.Errorf("after Halt and the outage the state is %s, want Stopped", o.State)
		}
		same(t, "Halt", before, o)
		s.during(t, after, cut, restore, func(ctx context.Context) error { return d.Ensure(ctx, spec) })
		same(t, "a start", before, s.await(t, d, spec.ID, driver.Running))
	}
}

func testCutRemove(t *testing.T, s *suite) {
	for i, after := range moments {
		d, cut, restore := s.Outage(t, nodeA)
		spec := s.spec(t, d, nodeA, "cutgone"+string(rune('a'+i)), s.Steady(1))
		s.ensure(t, d, spec)
		s.await(t, d, spec.ID, driver.Running)
		s.during(t, after, cut, restore, func(ctx context.Context) error { return d.Remove(ctx, spec.ID) })
		if o := s.get(t, d, spec.ID); o.State != driver.Absent {
			t.Errorf("after Remove and the outage the state is %s, want Absent", o.State)
		}
	}
}

// testLongAway checks that every List and Probe fails during an outage. After the outage the same
// instances exist and all operations work.
func testLongAway(t *testing.T, s *suite) {
	d, cut, restore := s.Outage(t, nodeA)
	spec := s.spec(t, d, nodeA, "minute", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	cut()
	end := time.Now().Add(s.Away)
	looks := 0
	for time.Now().Before(end) {
		if all, err := d.List(s.ctx); driver.ClassOf(err) != driver.RuntimeUnhealthy {
			t.Fatalf("List during the outage returned %d entries, error %v; want class RuntimeUnhealthy", len(all), err)
		}
		wantClass(t, d.Ensure(s.ctx, spec), driver.RuntimeUnhealthy)
		looks++
		select {
		case <-time.After(min(s.Away/20, time.Second)):
		case <-s.ctx.Done():
			t.Fatal(s.ctx.Err())
		}
	}
	restore()
	t.Logf("the engine was unreachable for %s, with %d calls of List", s.Away, looks)
	s.ensure(t, d, spec)
	after := s.await(t, d, spec.ID, driver.Running)
	untouched(t, "an outage of "+s.Away.String(), before, after)
	if err := d.Remove(s.ctx, spec.ID); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if o := s.get(t, d, spec.ID); o.State != driver.Absent {
		t.Errorf("after the long outage and Remove the state is %s, want Absent", o.State)
	}
}

// testFull checks a full disk. Operations that need space fail, name the full disk as the reason, and leave
// no new workload running. Existing workloads keep running, can be inspected, and free space when removed.
// Once space is free, all operations work.
func testFull(t *testing.T, s *suite) {
	d, fill, empty := s.Full(t, nodeA)
	old := s.spec(t, d, nodeA, "full-old", s.Steady(1))
	s.ensure(t, d, old)
	before := s.await(t, d, old.ID, driver.Running)
	fill()
	spec := s.spec(t, d, nodeA, "full-new", s.Steady(1))
	wantClass(t, d.Ensure(s.ctx, spec), driver.StorageFull)
	if o := s.get(t, d, spec.ID); o.State == driver.Running {
		t.Errorf("an instance runs although the disk was full when it was created: %+v", o)
	}
	after := s.await(t, d, old.ID, driver.Running)
	untouched(t, "a full disk", before, after)
	empty()
	s.ensure(t, d, spec)
	s.await(t, d, spec.ID, driver.Running)
	if err := d.Remove(s.ctx, old.ID); err != nil {
		t.Errorf("Remove: %v", err)
	}
}
