package compose

import (
	"testing"
	"time"
)

func TestLongWaitsAreToldInMinutes(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 85*time.Second + 400*time.Millisecond: "85 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min", 3*time.Hour + 59*time.Second: "180 min",
	} {
		if got := waited(d); got != want {
			t.Errorf("a wait of %s is reported as %q, want %q", d, got, want)
		}
	}
}
