package fsm

import (
	"bytes"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// bundlesScenario applies the commands about bundles (files of Compose stacks) that the golden corpus records.
func bundlesScenario(w *world) {
	w.do(register("a"))
	w.do(put("web", filed("a-1"))) // refused: neither the command nor the state has the bundle
	w.do(with(put("web", filed("a-1")), "a-1", "b-1"))
	w.do(with(put("db", filed("a-1")), "a-1"))
	w.do(put("cache", filed("a-1")))
	w.do(with(put("web", filed("b-2")), "b-2"))
	w.do(put("web", filed("a-1")))
	w.do(remove("db", true))
	w.do(remove("cache", true))
	w.do(put("web", content("c1:none")))
	w.do(setDrifts([]*commandv1.Drift{drifted("a", "found", DriftOrphan)}))
	w.do(func() Command {
		c := adopt("a", "found")
		c.GetAdoptDrift().Put = put("found", filed("c-1")).GetPutWorkloads().GetWorkloads()[0]
		c.GetAdoptDrift().Bundle = bundleOf("c-1")
		return c
	}())
	files := func(c Command, text string) Command {
		for _, p := range c.GetPutWorkloads().GetWorkloads() {
			p.Bundle = bundleOf(text).GetDigest()
		}
		return with(c, text)
	}
	w.do(remove("web", true))
	w.do(files(group(1, 3, 1, true), "d-1"))
	w.everybodyRuns()
	w.do(files(group(2, 3, 1, true), "e-1"))
	w.step()
	w.wait(minute)
	w.step() // this rolling update fails and reverts
	w.everybodyRuns()
	for range 3 {
		w.wait(10 * second)
		w.step()
	}
	w.do(remove("web-0", true))
	w.do(remove("web-1", true))
	w.do(remove("web-2", true))
}

// TestBundleIsKeptWhileReferred: a bundle is stored once, and for as long as a workload, a former revision or an update refers to it.
func TestBundleIsKeptWhileReferred(t *testing.T) {
	w := formed(t, "a")
	refused(t, w.do(put("web", filed("a-1"))), Invalid, "web", "no files with the digest")
	w.ok(with(put("web", filed("a-1")), "a-1", "b-1"))
	if got, _ := w.s.Bundle(bundleOf("a").GetDigest()); got == nil || string(got.Data) != "a-1" || got.Uses != 1 {
		t.Fatalf("State.Bundle returned %+v, want data a-1 with one use", got)
	}
	is(t, "a bundle that no workload needs is not stored", held(w.s), "a")
	is(t, "the total counts the bundle", w.s.Total().Bytes, int64(len("spec of web")+len("a-1")))
	w.ok(put("db", filed("a-1")))
	is(t, "the total counts a bundle of two workloads once", w.s.Total().Bytes, int64(len("spec of web")+len("spec of db")+len("a-1")))
	is(t, "the namespace counts a bundle for each workload that refers to it", w.s.UseOf("default").Bytes, int64(len("spec of web")+len("spec of db")+2*len("a-1")))
	w.ok(with(put("web", filed("b-1")), "b-1"))
	w.ok(remove("db", true))
	is(t, "a former revision keeps its bundle", held(w.s), "a b")
	revisions := w.s.Revisions("web")
	is(t, "the former revision refers to its bundle", revisions[0].Bundle, bundleOf("a").GetDigest())
	is(t, "the present revision refers to its bundle", revisions[1].Bundle, bundleOf("b").GetDigest())
	var snapshot bytes.Buffer
	if err := w.s.WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSnapshot(bytes.NewReader(snapshot.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "after a snapshot", w.s, again)
	fresh := formed(t, "a")
	restored, err := Restored(again, fresh.s, RestoreInfo{At: w.now})
	if err != nil {
		t.Fatal(err)
	}
	is(t, "a restore keeps the bundles that records refer to", held(restored), "a b")
	for i := range MaxRevisions + 1 {
		w.ok(put("web", content("c1:without-"+decimal(i))))
	}
	is(t, "bundles without references are dropped", held(w.s), "")
	w.ok(with(put("web", filed("a-1")), "a-1"))
	w.ok(remove("web", true))
	is(t, "the deletion of a workload drops its bundles", held(w.s), "")
	is(t, "the total is empty", w.s.Total(), Total{})
}

// TestBundlesOfFormerRevisions: the files of former revisions are dropped earlier than their specifications,
// so that large files do not fill the state.
func TestBundlesOfFormerRevisions(t *testing.T) {
	w := formed(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		text := name + strings.Repeat("x", 700<<10)
		w.ok(with(put("web", filed(text), content("c1:"+name)), text))
	}
	is(t, "two former bundles fit", held(w.s), "c d e")
	is(t, "the revisions of the workload are kept", len(w.s.Revisions("web")), 3)
}

// TestStateSizeCountsBundles: the bytes of bundles (files of Compose stacks) are part of the size of the
// state, whose limit follows from the memory of the smallest scheduler.
func TestStateSizeCountsBundles(t *testing.T) {
	w := formed(t)
	w.ok(replicaWith("r2", 8)) // 1 MiB
	big := "a" + strings.Repeat("x", 700<<10)
	w.ok(with(put("web", filed(big), content("c1:a")), big))
	w.ok(put("db", filed(big), content("c1:a")))
	more := "b" + strings.Repeat("x", 400<<10)
	refused(t, w.do(with(put("more", filed(more), content("c1:b")), more)), OverQuota, "the cluster is full", "400 KiB more")
}

// TestImportOmitsWorkloadsWithoutTheirFiles: an import leaves a Compose stack out if etcd does not have the
// bundle with its files.
func TestImportOmitsWorkloadsWithoutTheirFiles(t *testing.T) {
	w := formed(t)
	w.ok(with(put("web", filed("a-1")), "a-1"))
	record := workloadPB(w.workload("web"))
	a := Assemble(Origin{ClusterID: "c1"})
	if err := a.Workload(record); err == nil || !strings.Contains(err.Error(), "apply it again from its folder") {
		t.Errorf("Assembly must refuse a workload without its files and tell the user to apply it again, got error %v", err)
	}
	for _, text := range []string{"a-1", "b-1"} {
		if err := a.Bundle(bundleOf(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Workload(record); err != nil {
		t.Fatal(err)
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	is(t, "the assembled state has only the needed bundles", held(s), "a")
}

// held lists the bundles of a state: the first byte of each digest, as one text.
func held(s State) string {
	var out []string
	s.Bundles(func(b *Bundle) bool { out = append(out, b.Digest[:1]); return true })
	return strings.Join(out, " ")
}
