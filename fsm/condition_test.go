package fsm

import (
	"bytes"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// ifRevision sets the condition if_revision of a command.
func ifRevision(condition string, c Command) Command {
	switch b := c.GetBody().(type) {
	case *commandv1.Command_PutWorkloads:
		for _, p := range b.PutWorkloads.Workloads {
			p.IfRevision = condition
		}
	case *commandv1.Command_SetDesired:
		b.SetDesired.IfRevision = condition
	case *commandv1.Command_DeleteWorkload:
		b.DeleteWorkload.IfRevision = condition
	case *commandv1.Command_RetryWorkload:
		b.RetryWorkload.IfRevision = condition
	}
	return c
}

func TestConditions(t *testing.T) {
	const second, present = "2-c1-0123456789abcdef-running", "2-c1-ffff-stopped"
	for _, c := range []struct {
		name, condition string
		next            Command
		names           []string // words that the refusal must contain; none if the command must be accepted
	}{
		{"a put without a condition is accepted", "", put("web", content("c1:new")), nil},
		{"a condition with the present number is accepted", "2", put("web", content("c1:new")), nil},
		{"a condition with the present etag is accepted", present, put("web", content("c1:new")), nil},
		{"a condition with an earlier number is refused", "1", put("web", content("c1:new")), []string{`workload "web" is at revision 2 (stopped, applied `, "by tester", "only for revision 1", "persysctl history web", "for revision 2"}},
		{"the etag of another content is refused", second, put("web", content("c1:new")), []string{"only for revision 2", "is at revision 2 (stopped"}},
		{"the etag of another desired state is refused", "2-c1-ffff-running", put("web", content("c1:new")), []string{"is at revision 2 (stopped"}},
		{"a condition that is no revision is refused", "two", put("web", content("c1:new")), []string{"only for revision two"}},
		{"condition 0 refuses a put of a workload that exists", "0", put("web", content("c1:new")), []string{"exists already, at revision 2"}},
		{"condition 0 allows a put of a workload that does not exist", "0", put("other"), nil},
		{"a condition with a revision of a workload that does not exist is refused", "1", put("other"), []string{`"other" does not exist`, "without a condition"}},
		{"condition 0 allows a put of a workload that is being deleted", "0", put("old"), nil},
		{"a condition with a revision of a workload that is being deleted is refused", "1", put("old"), []string{`"old" is being deleted`}},
		{"a start of the present revision is accepted", "2", setDesired("web", "Running"), nil},
		{"a start of another revision is refused", "1", setDesired("web", "Running"), []string{"is at revision 2"}},
		{"a delete of the present revision is accepted", present, remove("web", false), nil},
		{"a delete of another revision is refused", "1", remove("web", true), []string{"is at revision 2"}},
		{"a delete of another revision by desired state is refused", "1", setDesired("web", "Deleted"), []string{"is at revision 2"}},
		{"a restart of another revision is refused", "2", userRetry("run"), []string{`"run" is at revision 1`}},
		{"a restart of the present revision is accepted", "1", userRetry("run"), nil},
		{"a wrong condition of one workload refuses the whole put", "1", puts("", put("run", content("c1:new")).GetPutWorkloads().Workloads[0], put("web").GetPutWorkloads().Workloads[0]), []string{`"web" is at revision 2`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a")
			w.ok(put("web"))
			w.ok(put("web", content("c1:ffff"), desired("Stopped")))
			w.place("run", "a")
			w.place("old", "a")
			w.ok(remove("old", false))
			was := w.workload("run").Content
			res := w.do(ifRevision(c.condition, c.next))
			if len(c.names) == 0 {
				is(t, "verdict on the command", res.Kind, OK)
				return
			}
			refused(t, res, OtherRevision, c.names...)
			is(t, `content of workload "web"`, w.workload("web").Content, "c1:ffff")
			is(t, `content of workload "run", which a refused put must not change`, w.workload("run").Content, was)
		})
	}
	prove(t, []fact{
		{"with the field each, every workload has a condition of its own", func(t *testing.T, w *world) {
			w.ok(put("web"))
			first, second := put("web", content("c1:new")), put("api", content("c1:new"))
			ifRevision("0", second)
			ifRevision("7", first)
			res := w.do(each(first.GetPutWorkloads().Workloads[0], second.GetPutWorkloads().Workloads[0]))
			is(t, "verdict in item 0 of the result", res.Items[0].Kind, OtherRevision)
			is(t, "verdict in item 1 of the result", res.Items[1].Kind, OK)
		}},
		{"a workload that was deleted and created again continues the revision numbers", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(put("web", content("c1:ffff")))
			w.ok(put("api"))
			tag := w.workload("web").ETag()
			w.ok(remove("web", false))
			w.ok(remove("api", false))
			again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err != nil {
				t.Fatal(err)
			}
			w.s = again
			w.ok(put("web", content("c1:ffff")))
			w.ok(put("api"))
			is(t, `revision number of workload "web"`, w.workload("web").Number(), 3)
			is(t, "number of a workload with one revision", w.workload("api").Number(), 2)
			is(t, `number of revisions of workload "web"`, len(w.s.Revisions("web")), 1)
			for _, condition := range []string{"1", "2", tag} {
				refused(t, w.do(ifRevision(condition, put("web", content("c1:new")))), OtherRevision, "is at revision 3")
			}
			w.ok(ifRevision("3", put("web", content("c1:new"))))
			is(t, `revision number of workload "web"`, w.workload("web").Number(), 4)
		}},
		{"a group has no revision", func(t *testing.T, w *world) {
			p := put("g-0", demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
			refused(t, w.do(ifRevision("1", puts("g", p))), Invalid, "if_revision", "each member has its own revision number")
		}},
		{"placement, failures and restarts keep the etag", func(t *testing.T, w *world) {
			w.ok(put("web"))
			tag := w.workload("web").ETag()
			is(t, `etag of workload "web"`, tag, "1-c1-0123456789abcdef-running")
			w.bind("web", "a")
			w.ok(w.says("web", "Failed"))
			w.ok(userRetry("web"))
			is(t, `etag of workload "web"`, w.workload("web").ETag(), tag)
			w.ok(setDesired("web", "Stopped"))
			is(t, `etag of workload "web"`, w.workload("web").ETag(), strings.Replace(tag, "running", "stopped", 1))
		}},
		{"the result lists deleted members only with list_deleted", func(t *testing.T, w *world) {
			of := func(n int) *commandv1.WorkloadPut {
				return put([]string{"g-0", "g-1"}[n], demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
			}
			w.ok(puts("g", of(0), of(1)))
			c := puts("g", of(0))
			c.GetPutWorkloads().ListDeleted = true
			res := w.ok(c)
			is(t, "number of items in the result", len(res.Items), 2)
			is(t, "item 0 of the result is Deleted", res.Items[0].Deleted, false)
			is(t, "item of the deleted member", res.Items[1], Item{ID: "g-1", Generation: res.Items[1].Generation, Revision: res.Items[1].Revision, Deleted: true})
			w.ok(puts("g", of(0), of(1)))
			is(t, "number of items without list_deleted", len(w.ok(puts("g", of(0))).Items), 1)
		}},
	})
}

func TestRequestHash(t *testing.T) {
	prove(t, []fact{
		{"a request id that was used for another request is refused, and nothing is changed", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			send := func(hash uint64, c Command) Result {
				c.Head = &commandv1.Head{Request: id, At: w.now, RequestHash: hash}
				return w.do(c)
			}
			is(t, "verdict on the first request", send(7, put("web")).Kind, OK)
			refused(t, send(8, put("web", content("c1:new"))), OtherRequest, "was used at 2026-01-02T", "id of its own")
			refused(t, send(8, remove("web", false)), OtherRequest)
			is(t, `content of workload "web"`, w.workload("web").Content, "c1:0123456789abcdef0123")
			is(t, "number of receipts in the state", w.s.ReceiptCount(), 1)
			again := send(7, put("web"))
			is(t, "verdict on the repeated request", again.Kind, OK)
			is(t, "the answer comes from a receipt", again.Duplicate, true)
			is(t, "a request without a hash", send(0, put("web")).Duplicate, true)
		}},
		{"a snapshot keeps the hash of the request", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			c := put("web")
			c.Head = &commandv1.Head{Request: id, At: w.now, RequestHash: 7}
			w.ok(c)
			again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err != nil {
				t.Fatal(err)
			}
			w.s = again
			c = put("web")
			c.Head = &commandv1.Head{Request: id, At: w.now, RequestHash: 8}
			refused(t, w.do(c), OtherRequest)
		}},
	})
}

func listsDeleted(c Command) Command {
	c.GetPutWorkloads().ListDeleted = true
	return c
}

// conditions is a scenario of the golden corpus: commands with conditions on revisions, with
// request hashes, and with a list of the members to delete.
func conditions(w *world) {
	id := requestAt(w.now, 1)
	send := func(hash uint64, c Command) {
		c.Head = &commandv1.Head{Request: id, At: w.now, By: "tester", RequestHash: hash}
		w.do(c)
	}
	send(7, ifRevision("0", put("web")))
	send(7, put("web"))
	send(8, remove("web", false))
	w.do(ifRevision("0", put("web", content("c1:new"))))
	w.do(ifRevision("1", put("web", content("c1:new"))))
	w.do(ifRevision("1", put("web", content("c1:newer"))))
	w.do(ifRevision("2-c1-new-running", setDesired("web", "Stopped")))
	w.do(ifRevision("2-c1-new-running", userRetry("web")))
	w.do(ifRevision("2", remove("web", false)))
	of := func(n string) *commandv1.WorkloadPut {
		return put("g-"+n, demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
	}
	w.do(puts("g", of("0"), of("1"), of("2")))
	w.do(listsDeleted(puts("g", of("0"))))
	w.do(ifRevision("1", puts("g", of("0"))))
}

// revisionNumbers is the scenario of the golden corpus with a workload that is deleted and created again.
func revisionNumbers(w *world) {
	w.do(put("web"))
	w.do(put("web", content("c1:ffff")))
	w.do(remove("web", false))
	w.do(ifRevision("0", put("web")))
	w.do(ifRevision("1", put("web", content("c1:new"))))
	w.do(ifRevision("2", remove("web", false)))
	w.do(ifRevision("3", put("web", content("c1:new"))))
	w.do(ifRevision("4", remove("web", false)))
	w.do(put("web"))
	w.do(ifRevision("5", remove("web", true)))
}
