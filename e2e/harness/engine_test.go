package harness

import (
	"context"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// Two test runs build different images. The end of one run does not remove the image of the other, and
// an image of a killed run is removed after some time.
func TestEachRunHasItsOwnImage(t *testing.T) {
	ctx := t.Context()
	e, err := OpenEngine(ctx)
	testbed.Need(t, "a Docker engine", err)
	defer e.Close()
	build := func() string {
		t.Helper()
		ref, err := e.BuildForRun(ctx, "persys/harness:test", "./examples/hello")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(ctx), ref) }) // if the test fails
		return ref
	}
	one, two := build(), build()
	if one == two {
		t.Errorf("both runs have the image %s", one)
	}
	if err := e.RemoveImage(ctx, one); err != nil {
		t.Error(err)
	}
	if e.HasImage(ctx, one) || !e.HasImage(ctx, two) {
		t.Errorf("after the removal of %s: exists %v; %s exists %v", one, e.HasImage(ctx, one), two, e.HasImage(ctx, two))
	}
	left := runLabel + "=" + two[len("persys/harness:test-"):]
	if err := e.removeLeft(ctx, left, time.Now().Add(-time.Hour)); err != nil || !e.HasImage(ctx, two) {
		t.Errorf("a new image is removed as an old one: %v", err)
	}
	if err := e.removeLeft(ctx, left, time.Now().Add(time.Hour)); err != nil || e.HasImage(ctx, two) {
		t.Errorf("an old image is not removed: %v", err)
	}
}
