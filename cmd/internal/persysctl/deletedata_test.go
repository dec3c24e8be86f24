package persysctl

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// `persysctl delete` must list which data it deletes and which data it keeps.
func TestDeleteNamesTheData(t *testing.T) {
	for _, tt := range []struct {
		name    string
		planned *clusterv1.PlannedWorkload
		want    string
		lost    bool
	}{
		{"nothing", &clusterv1.PlannedWorkload{Action: "delete"}, "", false},
		{"deleted and kept data", &clusterv1.PlannedWorkload{Action: "delete", LocalData: []string{"disk vda"}, DeletedData: []string{"disk vda on a"}, KeptData: []string{"volume logs on a (retain: Retain)"}},
			"db: deletes disk vda on a\ndb: keeps volume logs on a (retain: Retain)", true},
		{"only kept data", &clusterv1.PlannedWorkload{Action: "delete", LocalData: []string{"volume data"}, KeptData: []string{"volume data on a"}}, "db: keeps volume data on a", false},
		{"a scheduler that lists only local data", &clusterv1.PlannedWorkload{Action: "delete", LocalData: []string{"volume data"}}, "db: deletes volume data on a", true},
		{"a workload that does not exist", &clusterv1.PlannedWorkload{Action: "refused"}, "", false},
	} {
		tt.planned.WorkloadId, tt.planned.PresentNodeId = "db", "a"
		lines, lost := dataLines([]*clusterv1.PlannedWorkload{tt.planned})
		if got := strings.Join(lines, "\n"); got != tt.want || lost != tt.lost {
			t.Errorf("%s: got %v,\n%s\nwant %v,\n%s", tt.name, lost, got, tt.lost, tt.want)
		}
	}
}

// `persysctl delete` must ask the scheduler to keep volumes unless --volumes is given. It must print a warning if the
// scheduler is too old to keep them.
func TestDeleteKeepsVolumes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		id      string
		flags   []string
		older   bool
		keep    bool
		warning string
	}{
		{"by default", "web", nil, false, true, ""},
		{"with --volumes", "web", []string{"--volumes"}, false, false, ""},
		{"a delete with --volumes after one without it", "old", []string{"--volumes"}, false, false, "warning: the volumes of old stay"},
		{"at an older scheduler", "web", nil, true, true, "warning: the scheduler is older than persysctl"},
	} {
		f, s := start(t, nil), newSession(t)
		f.older = tt.older
		if code := s.run(f, append([]string{"delete", tt.id}, tt.flags...)...); code != 0 || f.lastDelete.GetKeepVolumes() != tt.keep {
			t.Errorf("%s: exit %d, sent %v", tt.name, code, f.lastDelete)
		}
		if got := s.stderr.String(); strings.Contains(got, "warning") != (tt.warning != "") || !strings.Contains(got, tt.warning) {
			t.Errorf("%s: stderr is %q, want %q", tt.name, got, tt.warning)
		}
	}
}

// The question before a delete names the data that would be lost. If the scheduler cannot list the data, the command
// must ask too, because data may be lost.
func TestDeleteAsksWithTheData(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		errs       []error
	}{
		{"data", "web: deletes disk vda on node-a\nweb: keeps volume db on node-a\nDelete web? [y/N] ", nil},
		{"an older scheduler", "their data cannot be listed: ", []error{status.Error(codes.Unimplemented, "unknown method")}},
	} {
		f, s := start(t, nil), newSession(t)
		f.fail["PlanWorkloads"] = tt.errs
		s.inTerm, s.errTerm, s.in = true, true, strings.NewReader("no\n")
		if code := s.run(f, "delete", "web"); code != exitFailed || !strings.Contains(s.stderr.String(), tt.want) || len(f.requestIDs) > 0 {
			t.Errorf("%s: exit %d, %q, want %q", tt.name, code, s.stderr.String(), tt.want)
		}
	}
}
