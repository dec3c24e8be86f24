package persysctl

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestAutoscaleIsShown: get, why and list -o wide show the CPU use of an autoscaled group, the target of its
// autoscaler and the autoscaler's last decision.
func TestAutoscaleIsShown(t *testing.T) {
	f := start(t, nil)
	status := &controlv1.AutoscaleStatus{Settings: &controlv1.Autoscale{Min: 2, Max: 10, Cpu: 70}}
	f.find("web-0").Autoscale, f.why.Autoscale = status, status
	show := func(args ...string) string {
		t.Helper()
		s := newSession(t)
		if code := s.run(f, args...); code != exitOK {
			t.Fatalf("%v ended with exit code %d: %s", args, code, s.stderr.String())
		}
		return strings.Join(strings.Fields(s.stdout.String()), " ")
	}
	has := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("the output does not contain %q: %s", w, text)
			}
		}
	}
	has(show("list", "-o", "wide"), "? of 70 %, 2 to 10")
	has(show("get", "web-0"), "target 70 % CPU, 2 to 10 members", "none yet; only the leader knows it")

	status.CpuPercent, status.Count, status.Measured = new(45.4), 3, 2
	status.Decision, status.DecidedAt = "CPU use is 45 %: 2 members, if it stays so for 4m15s", timestamppb.New(epoch.Add(-5*time.Second))
	status.LastChange, status.ChangedAt = "from 2 to 3: CPU use is 90 %", timestamppb.New(epoch.Add(-time.Hour))
	has(show("list", "-o", "wide"), "45 % of 70 %, 2 to 10")
	for _, verb := range []string{"get", "why"} {
		has(show(verb, "web-0"), "now 45 %, measured in 2 of 3", "Last decision 5s ago (11:59:55): CPU use is 45 %: 2 members, if it stays so for 4m15s", "Last change 1h ago (11:00:00): from 2 to 3: CPU use is 90 %")
	}
}
