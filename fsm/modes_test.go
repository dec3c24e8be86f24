package fsm

import (
	"os"
	"path/filepath"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// TestApplyFollowsTheModeMatrix: in each mode, Apply permits or refuses each command as the table armRules says.
func TestApplyFollowsTheModeMatrix(t *testing.T) {
	for _, mode := range []Mode{ModeDegraded, ModeRecovery} {
		for _, c := range []Command{
			put("new"), setDesired("web", "Stopped"), remove("web", false), userRetry("web"),
			cordon("a", true), drain("a", true), removeNode("a", true), fence("a"),
			assign(), evict(), nodeState("a", false), report(), explain("web", "", "", nil),
			putReplica("r1", 1), removeReplica("r1"), setLevel(1), barrier(), initCluster("c1"), setMode("normal", ""), attached(7), attachMirror(7, "e:1"), detachMirror(),
			{Body: &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{}}},
			{Body: &commandv1.Command_ForgiveFailures{ForgiveFailures: &commandv1.ForgiveFailures{}}}, actions("a", ""),
			setDrifts(nil), adopt("a", "x"), dropOrphan("a", "x"), putNamespace("a"), dropNamespace("a"),
			putPolicy("p"), dropPolicy("p"), bind("p", "a"), putRole("p", "read"), deleteRole("p"), unbindRole("viewer", "user/p"),
			finishJob(nil, "a", true), expireJob(nil, "a"), createRuns(), startRun("a", "a-1", "k"), placeMembers(), putAccount("p", 0), deleteAccount("p"), linkConsole("s", "p", 0, 0), openConsole("s", 1), endConsole("s", ""), labelNode("a", "zone=y"), taintNode("a", Taint{Key: "k", Effect: TaintNoExecute}),
			advance(nil, &commandv1.AdvanceRollout{}), rolloutAction("pause"), scaling(1, 3),
		} {
			t.Run(string(mode)+" "+ArmName(c), func(t *testing.T) {
				w := formed(t, "a")
				w.place("web", "a")
				w.ok(setMode(string(mode), "for a test"))
				res := w.do(c)
				is(t, "Apply refuses the command as Frozen; want the same as in armRules", res.Kind == Frozen, PermissionOf(mode, ArmName(c)) == Refused)
				is(t, "Permit refuses the command; want the same as Apply", Permit(mode, c) != nil, res.Kind == Frozen)
			})
		}
		t.Run(string(mode)+" registers known nodes only", func(t *testing.T) {
			w := formed(t, "a")
			w.ok(setMode(string(mode), "for a test"))
			refused(t, w.do(register("new")), Frozen, "new", string(mode), "for a test")
			is(t, "verdict on a registration of a known node", w.do(register("a", engine("e"))).Kind, OK)
		})
	}
	is(t, "permission of the command barrier in an unknown mode", PermissionOf("odd", "barrier"), Refused)
	is(t, "permission of an unknown command", PermissionOf(ModeNormal, "odd"), Refused)
}

// TestGoldenMatrix: for each mode, matrix.golden lists which commands it permits. Rows are only added. To
// change a row, change fsm/DESIGN.md and edit the file by hand.
func TestGoldenMatrix(t *testing.T) {
	path := filepath.Join("testdata", "matrix.golden")
	if _, err := os.Stat(path); *update && err != nil {
		addFile(t, path, []byte(Matrix()))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustEqualText(t, []byte(Matrix()), want)
}
