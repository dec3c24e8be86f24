package compose

import (
	"fmt"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
)

// If a service fails its health check, the stack is unhealthy, however long the message about its services is.
// The result is a field of its own: only the end of the message is kept.
func TestHealthOfAStackIsAField(t *testing.T) {
	var parts []*part
	for i := range 200 {
		health, message := driver.Healthy, "running, health check: healthy, and a long line about what it does all day"
		if i == 0 {
			health, message = driver.Unhealthy, "running, health check: unhealthy"
		}
		parts = append(parts, &part{service: fmt.Sprintf("service-%03d", i), Observed: driver.Observed{
			ID: "shop", State: driver.Running, Health: health, Message: message, RuntimeID: fmt.Sprint(i),
		}})
	}
	o := combine("shop", "shop", parts, nil)
	if strings.Contains(o.Message, "unhealthy") || len(o.Message) > driver.MaxMetadata {
		t.Fatalf("the text is not cut (%d bytes): this test shows nothing", len(o.Message))
	}
	if o.State != driver.Running || o.Health != driver.Unhealthy {
		t.Errorf("the stack is %s and %q, want running and unhealthy", o.State, o.Health)
	}
	parts[0].Health = driver.Starting
	if o := combine("shop", "shop", parts, nil); o.Health != driver.Starting {
		t.Errorf("with one that starts it is %q", o.Health)
	}
	parts[0].Health = "" // this service has no health check
	if o := combine("shop", "shop", parts, nil); o.Health != driver.Healthy {
		t.Errorf("with one service without a check it is %q", o.Health)
	}
}

// A stack is not reported as Running if the engine cannot inspect all of its containers.
func TestPartlyInspectedStackIsNotRunning(t *testing.T) {
	parts := []*part{
		{service: "db", Observed: driver.Observed{ID: "shop", State: driver.Unknown, Message: "the engine does not tell", RuntimeID: "1"}},
		{service: "web", Observed: driver.Observed{ID: "shop", State: driver.Running, Message: "running", RuntimeID: "2"}},
	}
	if o := combine("shop", "shop", parts, nil); o.State != driver.Unknown || !strings.Contains(o.Message, "db: the engine does not tell") {
		t.Errorf("the stack is %s: %s", o.State, o.Message)
	}
}
