package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// revised returns a command that gives workload web specification number i, padded to size bytes.
func revised(i, size int) Command {
	return put("web", func(p *commandv1.WorkloadPut) {
		p.Content, p.CallerRevision = fmt.Sprintf("c1:%064d", i), fmt.Sprint("rev-", i)
		p.Spec = []byte(strings.Repeat(fmt.Sprint(i%10), size))
	})
}

// told returns the revisions of a workload as one line of text: for each, its number, the first
// byte of its specification and its author.
func told(list []Revision) string {
	var out []string
	for _, r := range list {
		out = append(out, fmt.Sprintf("%d:%.1s:%s", r.Number, r.Spec, r.By))
	}
	return strings.Join(out, " ")
}

func TestFormerRevisionsAreKept(t *testing.T) {
	w := formed(t, "a")
	w.ok(revised(1, 9))
	is(t, "revisions of a workload whose specification never changed", told(w.s.Revisions("web")), "1:1:")
	w.bind("web", "a")
	w.run("web")
	w.ok(setDesired("web", "Stopped"))
	w.ok(setDesired("web", "Running"))
	w.ok(userRetry("web"))
	is(t, "revisions after orders that do not change the specification", told(w.s.Revisions("web")), "1:1:")
	w.ok(revised(2, 9))
	w.do(revised(2, 9))
	list := w.s.Revisions("web")
	is(t, `revisions of workload "web" after a change`, told(list), "1:1: 2:2:tester")
	is(t, "id of the present revision", list[1].ID(), w.workload("web").Revision()[:len(list[1].ID())])
	is(t, "revisions that the callers named", list[0].CallerRevision+" "+list[1].CallerRevision, "rev-1 rev-2")
	for i := 3; i < 10; i++ {
		w.ok(revised(i, 9))
	}
	is(t, `revisions of workload "web" after many changes`, told(w.s.Revisions("web")), "4:4:tester 5:5:tester 6:6:tester 7:7:tester 8:8:tester 9:9:tester")

	read, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	is(t, `revisions of workload "web" after a snapshot`, told(read.Revisions("web")), told(w.s.Revisions("web")))

	w.ok(revised(10, MaxRevisionBytes/2))
	w.ok(revised(11, MaxRevisionBytes/2))
	w.ok(revised(12, MaxRevisionBytes/2+1))
	is(t, `revisions of workload "web", of which at most MaxRevisionBytes are kept`, told(w.s.Revisions("web")), "10:0:tester 11:1:tester 12:2:tester")
	w.ok(revised(13, MaxRevisionBytes+1))
	w.ok(revised(14, 9))
	is(t, `revisions of workload "web" after a revision that is too large to be kept`, told(w.s.Revisions("web")), "14:4:tester")
	w.ok(revised(15, 9))
	w.ok(remove("web", true))
	w.ok(revised(1, 9))
	is(t, "revisions of a new workload with the id of a deleted one", told(w.s.Revisions("web")), "16:1:tester")
	is(t, "number of revisions of a workload that does not exist", len(w.s.Revisions("none")), 0)
}

// TestRestoreKeepsRevisionsOfTheBackup: a restored workload has the earlier specifications that the backup holds.
func TestRestoreKeepsRevisionsOfTheBackup(t *testing.T) {
	w := formed(t, "a")
	w.ok(revised(1, 9))
	w.ok(revised(2, 9))
	backup := w.s
	w.ok(revised(3, 9))
	back, err := Restored(backup, w.s, RestoreInfo{At: w.now, By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	is(t, `revisions of workload "web" after a restore`, told(back.Revisions("web")), "1:1: 2:2:tester")
}
