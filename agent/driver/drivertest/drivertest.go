// Package drivertest is the conformance suite of package driver. It runs the same tests against real engines
// and the simulated engine.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// Harness describes the driver and the engine under test.
type Harness struct {
	// Cluster is the cluster id that drivers returned by Open use. Prefix is the beginning of all workload
	// ids, which makes the ids unique on a shared engine.
	Cluster string
	Prefix  string
	// Open returns the driver of a node on the engine under test. A second Open for the same node simulates a
	// restart of its agent.
	Open func(t *testing.T, node string) driver.Driver
	// Steady returns the spec of a workload that runs until it is stopped and prints LogLine once it is up.
	// Specs of different versions have different contents.
	Steady  func(version int) *agentv1.WorkloadSpec
	LogLine string
	// Crash returns the spec of a workload that exits with code soon after its start.
	Crash func(code int) *agentv1.WorkloadSpec
	// NoExitCodes means that the engine reports failures without an exit code, as for virtual machines.
	NoExitCodes bool
	// Missing returns the spec of a workload whose image (or disk) does not exist.
	Missing func() *agentv1.WorkloadSpec
	// Stranger creates an instance without our labels, under the name that the driver would give the instance
	// of workload id. The function that it returns removes the instance, and fails the test if the driver
	// changed it.
	Stranger func(t *testing.T, id driver.ID) (untouched func())
	// Commands are the commands that can run in a workload of Steady. Nil if the driver does not implement
	// driver.Execer.
	Commands *Commands
	// Outage is like Open, but returns two more functions: cut makes the engine unreachable for d, and
	// restore makes it reachable again. The unreachable engine may finish operations that have begun. Nil if
	// the engine cannot be made unreachable.
	Outage func(t *testing.T, node string) (d driver.Driver, cut, restore func())
	// Full is like Open, but returns two more functions: fill fills the disk of the engine, and empty frees
	// it again. Nil if the disk cannot be filled.
	Full func(t *testing.T, node string) (d driver.Driver, fill, empty func())
	// Away is the length of the outage in the test of a long outage; 0 skips that test. Apart means that an
	// outage affects only the driver that Outage returned: the test of the long outage then runs in parallel
	// with the other tests.
	Away  time.Duration
	Apart bool
	// Patience is the time limit for each expected state. Default 30 s.
	Patience time.Duration
}

// Node ids that the suite uses.
const (
	nodeA = "node-a"
	nodeB = "node-b"
)

type suite struct {
	Harness
	ctx context.Context
}

// Run runs the suite. The subtests are independent of each other and remove their workloads.
func Run(t *testing.T, h Harness) {
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	tests := []namedTest{
		{"a probe reports engine and version", testProbe},
		{"creating a running workload starts it", testCreate},
		{"creating a workload in state stopped does not start it", testCreateStopped},
		{"an Ensure with equal content changes nothing", testNoop},
		{"a new revision with equal content leaves the instance unchanged", testRevisionOnly},
		{"new content replaces the instance", testReplace},
		{"new content under the same revision replaces the instance", testReplaceSameRevision},
		{"after an update, a stopped workload stays stopped", testReplaceStopped},
		{"stop and start keep the instance", testStopStart},
		{"halting an absent workload succeeds", testHaltAbsent},
		{"removing twice succeeds", testRemove},
		{"a crash is Failed with its exit code", testCrash},
		{"exit code 0 is Stopped", testExitZero},
		{"a crashed workload is started again in the same instance", testRestartCrashed},
		{"the list carries every label", testLabels},
		{"Look returns the same as List", testLook},
		{"a restarted agent adopts running instances", testAdopt},
		{"a sibling agent has its own instance", testSibling},
		{"an instance of another cluster belongs to a stranger", testOtherCluster},
		{"a name that a stranger's instance has is an error, and that instance stays unchanged", testStranger},
		{"a missing image is a permanent error", testMissing},
		{"an update to a missing image leaves the old instance running", testMissingReplace},
		{"an empty spec is refused", testInvalid},
		{"a cancelled creation can be finished", testCancelCreate},
		{"a cancelled replacement can be finished", testCancelReplace},
		{"a cancelled context is an error", testCancelled},
		{"events hint at changes", testEvents},
		{"the channel of events is closed when its context ends", testEventsEnd},
		{"logs contain the output of the workload", testLogs},
		{"logs follow until the end", testLogsFollow},
		{"logs of an absent workload are an error", testLogsAbsent},
	}
	if h.Commands != nil {
		tests = append(tests, sessionTests...)
	}
	if h.Outage != nil {
		tests = append(tests, outageTests...)
	}
	if h.Full != nil {
		tests = append(tests, namedTest{"a full disk", testFull})
	}
	one := func(c namedTest) {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 4*h.Patience+h.Away)
			t.Cleanup(cancel)
			c.run(t, &suite{Harness: h, ctx: ctx})
		})
	}
	var beside sync.WaitGroup
	if long := (namedTest{"an engine that is away for long", testLongAway}); h.Outage != nil && h.Away > 0 {
		if h.Apart {
			beside.Go(func() { one(long) })
		} else {
			tests = append(tests, long)
		}
	}
	for _, c := range tests {
		one(c)
	}
	beside.Wait()
}

// spec returns the spec of a new workload named after the test. The workload is removed when the test ends.
func (s *suite) spec(t *testing.T, d driver.Driver, node, name string, body *agentv1.WorkloadSpec) driver.Spec {
	t.Helper()
	id := driver.ID(s.Prefix + name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.Patience)
		defer cancel()
		if err := d.Remove(ctx, id); err != nil {
			t.Errorf("cleaning up %s: %v", id, err)
		}
	})
	return driver.Spec{
		ID: id, Revision: "rev-1", Content: "c1:" + name + "-1", ClusterID: s.Cluster, NodeID: node,
		Generation: driver.Generation{Incarnation: 7, Sequence: 1}, Running: true, Body: body,
	}
}

func (s *suite) ensure(t *testing.T, d driver.Driver, spec driver.Spec) {
	t.Helper()
	if err := d.Ensure(s.ctx, spec); err != nil {
		t.Fatalf("Ensure(%s): %v", spec.ID, err)
	}
}

// get returns a workload as List reports it, or one with state Absent if List does not report it.
func (s *suite) get(t *testing.T, d driver.Driver, id driver.ID) driver.Observed {
	t.Helper()
	all, err := d.List(s.ctx)
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	got := driver.Observed{ID: id, State: driver.Absent}
	for i, o := range all {
		if i > 0 && all[i-1].ID >= o.ID {
			t.Fatalf("List is not sorted by ID, or contains an ID twice: the entry %q comes before %q", all[i-1].ID, o.ID)
		}
		if o.ID == id {
			got = o
		}
	}
	return got
}

// await polls List until the workload is in the wanted state.
func (s *suite) await(t *testing.T, d driver.Driver, id driver.ID, want driver.State) driver.Observed {
	t.Helper()
	var o driver.Observed
	testbed.Within(t, s.Patience, string(id)+" "+string(want), func() error {
		if o = s.get(t, d, id); o.State != want {
			return fmt.Errorf("the workload's instance is in state %s (message %q)", o.State, o.Message)
		}
		return nil
	})
	return o
}

func same(t *testing.T, what string, before, after driver.Observed) {
	t.Helper()
	if before.RuntimeID == "" || before.RuntimeID != after.RuntimeID {
		t.Errorf("%s: runtime id %q became %q, want it unchanged", what, before.RuntimeID, after.RuntimeID)
	}
}

func wantClass(t *testing.T, err error, want ...driver.Class) {
	t.Helper()
	if err == nil {
		t.Fatalf("the driver's call returned no error, want an error of class %v", want)
	}
	var typed *driver.Error
	if !errors.As(err, &typed) {
		t.Fatalf("the driver's call returned an error that is not a *driver.Error: %v", err)
	}
	for _, c := range want {
		if typed.Class == c {
			return
		}
	}
	t.Fatalf("the driver's call returned an error of class %s, want %v: %v", typed.Class, want, err)
}

func testProbe(t *testing.T, s *suite) {
	a, err := s.Open(t, nodeA).Probe(s.ctx)
	if err != nil || !a.Healthy || a.EngineID == "" || a.Version == "" {
		t.Fatalf("Probe returned %+v, %v; want a healthy engine, with engine id and version", a, err)
	}
	b, err := s.Open(t, nodeB).Probe(s.ctx)
	if err != nil || a.EngineID != b.EngineID {
		t.Errorf("two probes returned the engine ids %q and %q (%v), want the same id", a.EngineID, b.EngineID, err)
	}
}

func testCreate(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "create", s.Steady(1))
	s.ensure(t, d, spec)
	o := s.await(t, d, spec.ID, driver.Running)
	if o.RuntimeID == "" || o.Name == "" || o.StartedAt.IsZero() || !o.Owned {
		t.Errorf("List returned %+v, want an entry with runtime id, name, start time and Owned set", o)
	}
	if age := time.Since(o.StartedAt); age < -time.Minute || age > 10*time.Minute {
		t.Errorf("the instance is reported as started %s ago, want a few seconds", age)
	}
}

func testCreateStopped(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "created", s.Steady(1))
	spec.Running = false
	s.ensure(t, d, spec)
	o := s.await(t, d, spec.ID, driver.Stopped)
	if !o.StartedAt.IsZero() {
		t.Errorf("the stopped workload is reported as started at %s, want no start", o.StartedAt)
	}
	spec.Running = true
	s.ensure(t, d, spec)
	same(t, "start of a created workload", o, s.await(t, d, spec.ID, driver.Running))
}

func testNoop(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "noop", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	s.ensure(t, d, spec)
	after := s.await(t, d, spec.ID, driver.Running)
	same(t, "second Ensure", before, after)
	if !before.StartedAt.Equal(after.StartedAt) {
		t.Errorf("Ensure with equal content restarted the instance: it was started at %s, then at %s", before.StartedAt, after.StartedAt)
	}
}

func testRevisionOnly(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "revision", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	spec.Revision = "rev-2"
	spec.Generation.Sequence++
	s.ensure(t, d, spec)
	after := s.await(t, d, spec.ID, driver.Running)
	same(t, "new revision, equal content", before, after)
	if after.Revision != "rev-1" || after.Generation.Sequence != 1 {
		t.Errorf("the instance has revision %s and generation %s; want those of the order that created it", after.Revision, after.Generation)
	}
}

func (s *suite) replace(t *testing.T, name, revision string) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, name, s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	spec.Revision, spec.Content, spec.Body = revision, "c1:"+name+"-2", s.Steady(2)
	s.ensure(t, d, spec)
	after := s.await(t, d, spec.ID, driver.Running)
	if after.RuntimeID == before.RuntimeID {
		t.Errorf("after an Ensure with new content the runtime id is still %q, want a new instance", after.RuntimeID)
	}
	if after.Content != spec.Content || after.Revision != revision {
		t.Errorf("the new instance has content %q and revision %q, want %q and %q", after.Content, after.Revision, spec.Content, revision)
	}
	if after.Name != before.Name {
		t.Errorf("the replacement changed the name of the instance from %q to %q, want the same name", before.Name, after.Name)
	}
}

func testReplace(t *testing.T, s *suite)             { s.replace(t, "replace", "rev-2") }
func testReplaceSameRevision(t *testing.T, s *suite) { s.replace(t, "constant", "rev-1") }

func testReplaceStopped(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "replstop", s.Steady(1))
	spec.Running = false
	s.ensure(t, d, spec)
	spec.Content, spec.Body = "c1:replstop-2", s.Steady(2)
	s.ensure(t, d, spec)
	if o := s.await(t, d, spec.ID, driver.Stopped); o.Content != spec.Content || !o.StartedAt.IsZero() {
		t.Errorf("after an update of a stopped workload its instance has content %q and start time %s; want content %q and no start", o.Content, o.StartedAt, spec.Content)
	}
}

func testStopStart(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "stopstart", s.Steady(1))
	s.ensure(t, d, spec)
	first := s.await(t, d, spec.ID, driver.Running)
	if err := d.Halt(s.ctx, spec.ID, 5*time.Second); err != nil {
		t.Fatalf("Halt: %v", err)
	}
	o := s.get(t, d, spec.ID).Under(false)
	if o.State != driver.Stopped || o.FinishedAt.IsZero() {
		t.Errorf("after Halt the workload is in state %s with the end time %s; want Stopped with an end time", o.State, o.FinishedAt)
	}
	same(t, "Halt", first, o)
	if err := d.Halt(s.ctx, spec.ID, 0); err != nil {
		t.Errorf("a second Halt returned %v, want success", err)
	}
	s.ensure(t, d, spec)
	same(t, "start", first, s.await(t, d, spec.ID, driver.Running))
	spec.Running = false
	s.ensure(t, d, spec)
	o = s.get(t, d, spec.ID).Under(false)
	if o.State != driver.Stopped {
		t.Errorf("after Ensure with desired state stopped the workload is %s, want Stopped", o.State)
	}
	same(t, "Ensure(stopped)", first, o)
}

func testHaltAbsent(t *testing.T, s *suite) {
	if err := s.Open(t, nodeA).Halt(s.ctx, driver.ID(s.Prefix+"never"), 0); err != nil {
		t.Errorf("Halt: %v", err)
	}
}

func testRemove(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "remove", s.Steady(1))
	s.ensure(t, d, spec)
	s.await(t, d, spec.ID, driver.Running)
	for range 2 {
		if err := d.Remove(s.ctx, spec.ID); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if o := s.get(t, d, spec.ID); o.State != driver.Absent {
			t.Fatalf("after Remove the workload is still listed, in state %s", o.State)
		}
	}
}

func testCrash(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "crash", s.Crash(7))
	s.ensure(t, d, spec)
	o := s.await(t, d, spec.ID, driver.Failed)
	if o.ExitCode != 7 && !s.NoExitCodes || o.FinishedAt.IsZero() || o.Class == "" || o.Message == "" {
		t.Errorf("after a crash List returned %+v, want exit code 7, an end time, an error class and a message", o)
	}
	for k, v := range o.Metadata {
		if len(v) > driver.MaxMetadata {
			t.Errorf("the metadata %s has %d bytes, more than MaxMetadata", k, len(v))
		}
	}
	if o = o.Under(false); o.State != driver.Stopped {
		t.Errorf("a crashed workload whose desired state is stopped is reported as %s, want Stopped", o.State)
	}
}

func testExitZero(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "exit0", s.Crash(0))
	s.ensure(t, d, spec)
	var o driver.Observed
	testbed.Within(t, s.Patience, "its end", func() error {
		if o = s.get(t, d, spec.ID); o.FinishedAt.IsZero() {
			return fmt.Errorf("the instance is in state %s, and has not ended", o.State)
		}
		return nil
	})
	if o.State != driver.Stopped {
		t.Errorf("after exit code 0 the state is %s (%s), want Stopped", o.State, o.Message)
	}
}

func testRestartCrashed(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "again", s.Crash(3))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Failed)
	s.ensure(t, d, spec)
	testbed.Within(t, s.Patience, "another start", func() error {
		o := s.get(t, d, spec.ID)
		same(t, "start after a crash", before, o)
		if !o.StartedAt.After(before.StartedAt) {
			return fmt.Errorf("the crashed instance was not started again, its last start was at %s", o.StartedAt)
		}
		return nil
	})
}

func testLabels(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "labels", s.Steady(1))
	spec.Labels = map[string]string{"team": "blue", driver.LabelNode: "forged", "persys.other": "x"}
	s.ensure(t, d, spec)
	o := s.await(t, d, spec.ID, driver.Running)
	for k, want := range map[string]string{
		driver.LabelManaged: "true", driver.LabelWorkload: string(spec.ID), driver.LabelRevision: "rev-1",
		driver.LabelCluster: s.Cluster, driver.LabelNode: nodeA, driver.LabelGeneration: "7.1",
		driver.LabelContent: spec.Content, driver.LabelKind: string(d.Kind()), "team": "blue", "persys.other": "",
	} {
		if o.Labels[k] != want {
			t.Errorf("the label %s is %q, want %q", k, o.Labels[k], want)
		}
	}
	if o.Revision != "rev-1" || o.Content != spec.Content || o.Generation != spec.Generation ||
		o.ClusterID != s.Cluster || o.NodeID != nodeA {
		t.Errorf("List returned %+v, want revision, content, generation, cluster and node of the spec", o)
	}
}

func testLook(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	one, ok := d.(driver.Looker)
	if !ok {
		return // a driver need not implement Looker
	}
	look := func(id driver.ID) *driver.Observed {
		t.Helper()
		o, err := one.Look(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	spec, other := s.spec(t, d, nodeA, "look", s.Steady(1)), s.spec(t, d, nodeA, "look-2", s.Steady(1))
	if o := look(spec.ID); o != nil {
		t.Errorf("Look of a workload that does not exist returned %+v, want nothing", o)
	}
	s.ensure(t, d, spec)
	s.ensure(t, d, other)
	listed := s.await(t, d, spec.ID, driver.Running)
	if o := look(spec.ID); o == nil || o.State != driver.Running || !o.StartedAt.Equal(listed.StartedAt) {
		t.Errorf("Look of a running workload returns %+v, List returns %+v", o, listed)
	} else {
		same(t, "Look", listed, *o)
	}
	if o, err := s.Open(t, nodeB).(driver.Looker).Look(t.Context(), spec.ID); err != nil || o != nil {
		t.Errorf("Look by the agent of another node returned %+v, %v; want nothing", o, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := one.Look(ctx, spec.ID); err == nil {
		t.Error("Look with a cancelled context returns no error")
	}
}

func testAdopt(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "adopt", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	restarted := s.Open(t, nodeA)
	same(t, "List of a restarted agent", before, s.await(t, restarted, spec.ID, driver.Running))
	s.ensure(t, restarted, spec)
	after := s.await(t, restarted, spec.ID, driver.Running)
	same(t, "Ensure of a restarted agent", before, after)
	if !before.StartedAt.Equal(after.StartedAt) {
		t.Errorf("the Ensure of the restarted agent restarted the running instance")
	}
}

func testSibling(t *testing.T, s *suite) {
	a, b := s.Open(t, nodeA), s.Open(t, nodeB)
	specA := s.spec(t, a, nodeA, "sibling", s.Steady(1))
	specB := s.spec(t, b, nodeB, "sibling", s.Steady(1))
	s.ensure(t, a, specA)
	if o := s.get(t, b, specA.ID); o.State != driver.Absent {
		t.Errorf("node-b lists node-a's workload: %+v", o)
	}
	s.ensure(t, b, specB)
	onA, onB := s.await(t, a, specA.ID, driver.Running), s.await(t, b, specB.ID, driver.Running)
	if onA.RuntimeID == onB.RuntimeID || onA.Name == onB.Name {
		t.Errorf("the workloads of both nodes share the instance %q or the name %q", onA.RuntimeID, onA.Name)
	}
	specB.Content, specB.Body = "c1:sibling-2", s.Steady(2)
	s.ensure(t, b, specB)
	if err := b.Remove(s.ctx, specB.ID); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	same(t, "node-b's replace and remove", onA, s.await(t, a, specA.ID, driver.Running))
}

func testOtherCluster(t *testing.T, s *suite) {
	other := *s
	other.Cluster += "-other"
	d, o := s.Open(t, nodeA), s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "foreign", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	foreign := spec
	foreign.ClusterID = other.Cluster
	// A driver must refuse a spec of another cluster, because the instance would carry the labels of that
	// cluster.
	if err := o.Ensure(s.ctx, foreign); err == nil {
		t.Error("Ensure accepts a spec of another cluster")
	} else {
		wantClass(t, err, driver.InvalidSpecification)
	}
	same(t, "refusal", before, s.await(t, d, spec.ID, driver.Running))
}

func testStranger(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "stranger", s.Steady(1))
	untouched := s.Stranger(t, spec.ID)
	err := d.Ensure(s.ctx, spec)
	wantClass(t, err, driver.NameConflict, driver.PortBindConflict)
	if !strings.Contains(err.Error(), string(spec.ID)) {
		t.Errorf("an instance without our labels has the name, but the error of Ensure does not name it: %v", err)
	}
	if o := s.get(t, d, spec.ID); o.State != driver.Absent {
		t.Errorf("List returned the instance of a stranger: %+v", o)
	}
	if err := d.Halt(s.ctx, spec.ID, 0); err != nil {
		t.Errorf("Halt: %v", err)
	}
	if err := d.Remove(s.ctx, spec.ID); err != nil {
		t.Errorf("Remove: %v", err)
	}
	untouched()
	s.ensure(t, d, spec)
	s.await(t, d, spec.ID, driver.Running)
}

func testMissing(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "missing", s.Missing())
	err := d.Ensure(s.ctx, spec)
	wantClass(t, err, driver.InvalidImage)
	if o := s.get(t, d, spec.ID); o.State == driver.Running {
		t.Errorf("an instance of the missing image runs: %+v", o)
	}
	spec.Body, spec.Content = s.Steady(1), "c1:missing-2"
	s.ensure(t, d, spec)
	s.await(t, d, spec.ID, driver.Running)
}

func testMissingReplace(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "badimage", s.Steady(1))
	s.ensure(t, d, spec)
	before := s.await(t, d, spec.ID, driver.Running)
	spec.Body, spec.Content = s.Missing(), "c1:badimage-2"
	wantClass(t, d.Ensure(s.ctx, spec), driver.InvalidImage)
	after := s.await(t, d, spec.ID, driver.Running)
	same(t, "refused replacement", before, after)
	if !before.StartedAt.Equal(after.StartedAt) {
		t.Errorf("an Ensure that failed for a missing image restarted the running instance")
	}
}

func testInvalid(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	good := s.spec(t, d, nodeA, "invalid", s.Steady(1))
	for field, spoil := range map[string]func(*driver.Spec){
		"id":         func(sp *driver.Spec) { sp.ID = "" },
		"content":    func(sp *driver.Spec) { sp.Content = "" },
		"cluster_id": func(sp *driver.Spec) { sp.ClusterID = "" },
		"node_id":    func(sp *driver.Spec) { sp.NodeID = "" },
		"spec":       func(sp *driver.Spec) { sp.Body = nil },
	} {
		bad := good
		spoil(&bad)
		err := d.Ensure(s.ctx, bad)
		wantClass(t, err, driver.InvalidSpecification)
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("the error of Ensure does not name the missing field %q: %v", field, err)
		}
	}
	if o := s.get(t, d, good.ID); o.State != driver.Absent {
		t.Errorf("an instance was created for an empty spec: %+v", o)
	}
}

// interruptions returns delays after which a test interrupts an Ensure. The delays fall between the
// first and the last step of the Ensure.
func interruptions() []time.Duration {
	return []time.Duration{2 * time.Millisecond, 15 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond}
}

func (s *suite) interrupted(t *testing.T, d driver.Driver, spec driver.Spec, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, after)
	defer cancel()
	err := d.Ensure(ctx, spec)
	t.Logf("Ensure was interrupted after %s: %v", after, err)
	s.ensure(t, d, spec)
	o := s.await(t, d, spec.ID, driver.Running)
	if o.Content != spec.Content {
		t.Errorf("after an interrupted Ensure and a second one, content %q runs, want %q", o.Content, spec.Content)
	}
}

func testCancelCreate(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "cutcreate", s.Steady(1))
	for _, after := range interruptions() {
		s.interrupted(t, d, spec, after)
		if err := d.Remove(s.ctx, spec.ID); err != nil {
			t.Fatalf("Remove: %v", err)
		}
	}
}

func testCancelReplace(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "cutreplace", s.Steady(1))
	s.ensure(t, d, spec)
	name := s.await(t, d, spec.ID, driver.Running).Name
	for i, after := range interruptions() {
		spec.Content, spec.Body = fmt.Sprintf("c1:cutreplace-%d", i+2), s.Steady(i+2)
		s.interrupted(t, d, spec, after)
		if o := s.get(t, d, spec.ID); o.Name != name {
			t.Errorf("the interrupted replacement changed the instance's name from %q to %q", name, o.Name)
		}
	}
}

func testCancelled(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "cancelled", s.Steady(1))
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if err := d.Ensure(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure with a cancelled context returned %v, want context.Canceled", err)
	}
	if got, err := d.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("List with a cancelled context returned %v, %v, want context.Canceled", got, err)
	}
}

func testEvents(t *testing.T, s *suite) {
	d := s.Open(t, nodeA)
	spec := s.spec(t, d, nodeA, "events", s.Steady(1))
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	events, err := d.Events(ctx)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	expect := func(what string) {
		t.Helper()
		timeout := time.After(s.Patience)
		for {
			select {
			case id, ok := <-events:
				if !ok {
					t.Fatalf("%s: the channel of events is closed", what)
				}
				if id == spec.ID || id == "" {
					return
				}
			case <-timeout:
				t.Fatalf("%s: the driver sent no hint (workload id) within %s", what, s.Patience)
			}
		}
	}
	// The subscription to events may not be active yet, so the test repeats the change until an event arrives.
	s.ensure(t, d, spec)
	deadline := time.Now().Add(s.Patience)
	for seen := false; !seen; {
		if time.Now().After(deadline) {
			t.Fatal("the driver sent no hint although the workload changed again and again")
		}
		if err := d.Halt(s.ctx, spec.ID, 0); err != nil {
			t.Fatalf("Halt: %v", err)
		}
		s.ensure(t, d, spec)
		select {
		case id := <-events:
			seen = id == spec.ID || id == ""
		case <-time.After(200 * time.Millisecond):
		}
	}
	drain(events)
	if err := d.Remove(s.ctx, spec.ID); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	expect("removal")
	spec.Body = s.Crash(4)
	s.ensure(t, d, spec)
	expect("creation")
	s.await(t, d, spec.ID, driver.Failed)
	expect("crash")
}

func drain(events <-chan driver.ID) {
	for {
		select {
		case <-events:
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}

func testEventsEnd(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	events, err := s.Open(t, nodeA).Events(ctx)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	cancel()
	timeout := time.After(s.Patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the channel of events stays open after the end of its context")
		}
	}
}
