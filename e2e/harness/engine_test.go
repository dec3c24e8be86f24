package harness

import (
	"context"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/persys/compute/testbed"
)

// TestEachRunHasItsOwnImage: two test runs build different images. When one run ends, the image of the other
// stays. An image of a killed run is removed after some time.
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
		t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(ctx), ref) }) // the cleanup removes the image if the test fails
		return ref
	}
	one, two := build(), build()
	if one == two {
		t.Errorf("two test runs built the same image %s", one)
	}
	if err := e.RemoveImage(ctx, one); err != nil {
		t.Error(err)
	}
	if e.HasImage(ctx, one) || !e.HasImage(ctx, two) {
		t.Errorf("after the removal of image %s it exists: %v, want false; the image of the other run, %s, exists: %v, want true", one, e.HasImage(ctx, one), two, e.HasImage(ctx, two))
	}
	left := runLabel + "=" + two[len("persys/harness:test-"):]
	if err := e.removeLeft(ctx, left, time.Now().Add(-time.Hour)); err != nil || !e.HasImage(ctx, two) {
		t.Errorf("removeLeft removed an image that is younger than its limit, or failed: %v", err)
	}
	if err := e.removeLeft(ctx, left, time.Now().Add(time.Hour)); err != nil || e.HasImage(ctx, two) {
		t.Errorf("removeLeft kept an image that is older than its limit, or failed: %v", err)
	}
}

// TestLeftContainersAreRemoved: after a test has reserved the engine, no container of a former test run is left there.
func TestLeftContainersAreRemoved(t *testing.T) {
	ctx := t.Context()
	e, err := OpenEngine(ctx)
	testbed.Need(t, "a Docker engine", err)
	defer e.Close()
	release, err := e.Alone(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := e.BuildForRun(ctx, "persys/harness:test", "./examples/hello")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(ctx), ref) })
	id, err := e.Run(ctx, "persys-left-by-a-test", ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if release, err = e.Alone(ctx); err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := e.Kill(ctx, id); !cerrdefs.IsNotFound(err) {
		t.Errorf("the container of a former run is still there: %v", err)
	}
}
