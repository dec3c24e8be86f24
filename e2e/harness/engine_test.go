package harness

import (
	"context"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// Two runs have an image each, the end of one takes nothing from the other, and what a run has left
// is found by its age.
func TestImagesOfRuns(t *testing.T) {
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
		t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(ctx), ref) }) // for a test that failed
		return ref
	}
	one, two := build(), build()
	if one == two {
		t.Errorf("both are %s", one)
	}
	if err := e.RemoveImage(ctx, one); err != nil {
		t.Error(err)
	}
	if e.HasImage(ctx, one) || !e.HasImage(ctx, two) {
		t.Errorf("after %s was removed: it is there %v, %s is there %v", one, e.HasImage(ctx, one), two, e.HasImage(ctx, two))
	}
	left := runLabel + "=" + two[len("persys/harness:test-"):]
	if err := e.removeLeft(ctx, left, time.Now().Add(-time.Hour)); err != nil || !e.HasImage(ctx, two) {
		t.Errorf("a new image is taken for one that was left: %v", err)
	}
	if err := e.removeLeft(ctx, left, time.Now().Add(time.Hour)); err != nil || e.HasImage(ctx, two) {
		t.Errorf("an old image stays: %v", err)
	}
}
