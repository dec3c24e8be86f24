package compose_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/testbed"
)

// TestWaitingForDependenciesIsTold: while Compose waits for a dependency, the driver reports the dependency's
// name, and the wait is not reported as a failure. The test covers the first start of a stack and a later
// start of its existing containers.
func TestWaitingForDependenciesIsTold(t *testing.T) {
	for _, c := range []struct{ name, service, condition, want string }{
		{"health", `command: [serve], healthcheck: {test: [CMD, /probe, exists, /flags/go], interval: 200ms, retries: 9999}`, "service_healthy", "waiting for db to be healthy, "},
		{"one-off", `command: [until, /flags/go]`, "service_completed_successfully", "waiting for db to end with success, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var said []string
			b := newBench(t, func(o *compose.Options) {
				o.Progress = func(_ driver.ID, text string) {
					mu.Lock()
					defer mu.Unlock()
					said = append(said, text)
				}
			})
			dir := t.TempDir()
			spec := b.spec(c.name, b.yaml(fmt.Sprintf(`services:
  db: {image: IMAGE, %s, volumes: ["%s:/flags"]}
  web: {image: IMAGE, command: [serve], depends_on: {db: {condition: %s}}}
`, c.service, dir, c.condition)))
			waits := func() {
				t.Helper()
				mu.Lock()
				said = nil
				mu.Unlock()
				done := make(chan error, 1)
				go func() { done <- b.d.Ensure(b.ctx, spec) }()
				testbed.Within(t, time.Minute, "the driver reports the dependency for which Compose waits", func() error {
					mu.Lock()
					defer mu.Unlock()
					for _, text := range said {
						if strings.HasPrefix(text, c.want) {
							return nil
						}
					}
					return fmt.Errorf("said %q", said)
				})
				select {
				case err := <-done:
					t.Fatalf("Ensure returned although the dependency never became ready: %v", err)
				default:
				}
				if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if said[len(said)-1] != "" {
					t.Errorf("after the end of Ensure the last progress text is %q, want \"\"", said[len(said)-1])
				}
				b.await(spec.ID, driver.Running)
			}
			waits()
			if c.name == "one-off" {
				return // the container has ended and does not run again
			}
			if err := b.d.Halt(b.ctx, spec.ID, 0); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(dir, "go")); err != nil {
				t.Fatal(err)
			}
			waits()
		})
	}
}
