package fsm

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// mounts makes a workload use volumes, given as driver:name. The prefix "keep " stands for a volume
// that is retained.
func mounts(volumes ...string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Volumes = nil
		for _, v := range volumes {
			rest, retain := strings.CutPrefix(v, "keep ")
			driver, name, _ := strings.Cut(rest, ":")
			d.Volumes = append(d.Volumes, &commandv1.VolumeUse{Name: name, Driver: driver, Retain: retain, SizeGb: 2})
		}
	})
}

// removeBut deletes a workload but not its volumes.
func removeBut(id string, force bool) Command {
	c := remove(id, force)
	c.GetDeleteWorkload().KeepVolumes = true
	return c
}

func putVolume(name, node string) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{Name: name, Node: node}}}
}

func deleteVolume(name, node string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteVolume{DeleteVolume: &commandv1.DeleteVolume{Name: name, Driver: DriverLocal, Node: node}}}
}

// reportVolumes returns a report in which a node lists its local volumes of the default namespace.
// complete says that the node has no others.
func reportVolumes(node string, complete bool, names ...string) Command {
	b := &commandv1.ReportVolumes{Node: node, Complete: complete}
	for _, n := range names {
		b.Volumes = append(b.Volumes, &commandv1.HeldVolume{Name: n, Driver: DriverLocal, SizeGb: 2})
	}
	return &commandv1.Command{Body: &commandv1.Command_ReportVolumes{ReportVolumes: b}}
}

// volumes describes all records: their keys, and for each whether it has data, its owner, and whether it is unused.
func (w *world) volumes() string {
	var out []string
	w.s.Volumes(func(v *Volume) bool {
		text := v.key()
		for _, is := range []struct {
			ok   bool
			text string
		}{{v.Held, " held"}, {v.Owner != "", " of " + v.Owner}, {v.UnusedSince != 0, " unused"}} {
			if is.ok {
				text += is.text
			}
		}
		out = append(out, text)
		return true
	})
	return strings.Join(out, ", ")
}

func TestVolumes(t *testing.T) {
	running := func(w *world, id string, volumes ...string) {
		w.place(id, "a", mounts(volumes...))
		w.run(id)
	}
	deleted := func(w *world, id string) {
		w.ok(remove(id, false))
		w.ok(gone(id, "a", nil))
	}
	prove(t, []fact{
		{"an apply makes a volume, which gets the node of its workload, and is marked held when the node accepts the order", func(t *testing.T, w *world) {
			w.ok(put("db", mounts("local:data")))
			is(t, "records of all volumes", w.volumes(), "default/data/local/~db of db")
			is(t, "message of the event VolumeCreated", w.eventOf(EventVolumeCreated).Message, "local volume data: for workload db")
			w.bind("db", "a")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a of db")
			w.run("db")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db")
			is(t, "VolumeGB used by namespace default", w.s.UseOf(DefaultNamespace).VolumeGB, 2)
		}},
		{"a volume is deleted with its workload when the node has removed it", func(t *testing.T, w *world) {
			running(w, "db", "local:data")
			w.ok(remove("db", false))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db")
			w.ok(gone("db", "a", nil))
			is(t, "records of all volumes", w.volumes(), "")
			is(t, "message of the event VolumeDeleted", w.eventOf(EventVolumeDeleted).Message, "local volume data: with workload db")
			is(t, "Volumes used by namespace default", w.s.UseOf(DefaultNamespace).Volumes, 0)
		}},
		{"a retained volume is kept, and the next workload that names the volume takes it over", func(t *testing.T, w *world) {
			running(w, "db", "keep local:data")
			deleted(w, "db")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused")
			is(t, "message of the event VolumeKept", w.eventOf(EventVolumeKept).Message, "local volume data: its workload db was deleted")
			w.ok(put("db2", mounts("local:data")))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused")
			w.bind("db2", "a")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db2")
		}},
		{"a delete that keeps volumes also keeps a volume without retain", func(t *testing.T, w *world) {
			running(w, "db", "local:data", "nfs:shared")
			w.ok(removeBut("db", false))
			r, _ := w.s.Residual("a", "db")
			is(t, `KeepVolumes in the residual on node "a"`, r.KeepVolumes, true)
			w.ok(gone("db", "a", nil))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused, default/shared/nfs/ held unused")
			v, _ := w.s.Volume("", "data", DriverLocal, "a")
			is(t, "the volume is kept when its workload is deleted", v.Retain, true)
			is(t, "message of the event VolumeKept", w.eventOf(EventVolumeKept).Message, "local volume data: its workload db was deleted")
			w.ok(put("db", mounts("local:data")))
			w.bind("db", "a")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db, default/shared/nfs/ held unused")
			v, _ = w.s.Volume("", "data", DriverLocal, "a")
			is(t, "the volume is kept when its workload is deleted", v.Retain, false)
		}},
		{"a delete by force that keeps volumes tells the node when it returns", func(t *testing.T, w *world) {
			running(w, "db", "local:data", "nfs:shared")
			w.ok(removeBut("db", true))
			r, _ := w.s.Residual("a", "db")
			is(t, `KeepVolumes in the residual on node "a"`, r.KeepVolumes, true)
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db, default/shared/nfs/ held unused")
			w.ok(gone("db", "a", nil))
			w.ok(reportVolumes("a", true, "data"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused, default/shared/nfs/ held unused")
		}},
		{"a node that was fenced and returns with the instance is told to keep the volumes", func(t *testing.T, w *world) {
			running(w, "db", "nfs:shared")
			told := w.generation("db")
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			w.ok(w.evict("db", CodeNodeLost, true))
			w.ok(removeBut("db", false))
			w.ok(register("a"))
			w.ok(saysOf("db", "a", "Running", told))
			r, found := w.s.Residual("a", "db")
			is(t, `node "a" has a residual with KeepVolumes`, found && r.KeepVolumes, true)
		}},
		{"a second delete can order to keep the volumes, but cannot order to delete them", func(t *testing.T, w *world) {
			kept := func() bool { r, _ := w.s.Residual("a", "db"); return r.KeepVolumes }
			running(w, "db", "local:data")
			w.ok(remove("db", false))
			is(t, "KeepVolumes in the residual after the first delete", kept(), false)
			w.ok(removeBut("db", false))
			is(t, "KeepVolumes in the residual after a delete that keeps the volumes", kept(), true)
			w.do(remove("db", false))
			is(t, "KeepVolumes in the residual after a delete without keep", kept(), true)
			w.ok(remove("db", true))
			is(t, "KeepVolumes in the residual after a forced delete", kept(), true)
		}},
		{"an apply of a workload that is being deleted clears KeepVolumes", func(t *testing.T, w *world) {
			running(w, "db", "local:data")
			w.ok(removeBut("db", false))
			w.ok(put("db", mounts("local:data")))
			x, _ := w.s.Workload("db")
			is(t, `KeepVolumes of workload "db"`, x.KeepVolumes, false)
			w.ok(gone("db", "a", nil))
			w.bind("db", "a")
			w.run("db")
			deleted(w, "db")
			is(t, "records of all volumes", w.volumes(), "")
		}},
		{"the last user of a volume decides whether the volume is kept, even if an earlier user kept its volumes", func(t *testing.T, w *world) {
			running(w, "one", "local:data")
			running(w, "two", "local:data")
			w.ok(removeBut("two", false))
			w.ok(gone("two", "a", nil))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of one")
			deleted(w, "one")
			is(t, "records of all volumes", w.volumes(), "")
		}},
		{"members on several nodes have a volume on each", func(t *testing.T, w *world) {
			w.place("m-0", "a", mounts("local:data"))
			w.place("m-1", "b", mounts("local:data"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a of m-0, default/data/local/b of m-1")
		}},
		{"two workloads on one node share a volume, which is deleted with the last of them", func(t *testing.T, w *world) {
			running(w, "one", "local:data")
			running(w, "two", "local:data")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of two")
			deleted(w, "two")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of one")
			deleted(w, "one")
			is(t, "records of all volumes", w.volumes(), "")
		}},
		{"all nodes reach a volume of another driver, which has one record", func(t *testing.T, w *world) {
			w.place("one", "a", mounts("nfs:shared"))
			w.place("two", "b", mounts("nfs:shared"))
			w.run("one")
			is(t, "records of all volumes", w.volumes(), "default/shared/nfs/ held of two")
			v, _ := w.s.Volume("", "shared", "nfs", "")
			is(t, "workloads that use the volume", strings.Join(w.s.UsersOfVolume(v), " "), "one two")
			deleted(w, "one")
			w.ok(put("two", content("c1:without"), mounts()))
			is(t, "records of all volumes", w.volumes(), "default/shared/nfs/ held of two unused")
		}},
		{"a workload that leaves its node stays the owner of its volume there", func(t *testing.T, w *world) {
			running(w, "db", "local:data")
			w.ok(w.evict("db", CodeDraining, false))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db")
			w.ok(gone("db", "a", nil))
			w.bind("db", "b")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db unused, default/data/local/b of db")
		}},
		{"a volume without data is deleted when its workload leaves the node", func(t *testing.T, w *world) {
			w.place("db", "a", mounts("local:data"))
			w.ok(w.evict("db", CodeDraining, true))
			w.bind("db", "b")
			is(t, "records of all volumes", w.volumes(), "default/data/local/b of db")
		}},
		{"a volume can be created on a node before a workload uses it, and outlives the workload", func(t *testing.T, w *world) {
			w.ok(putVolume("data", "a"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a unused")
			running(w, "db", "local:data")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db")
			deleted(w, "db")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused")
		}},
		{"a volume that is created without a node gets that of its first workload", func(t *testing.T, w *world) {
			w.ok(putVolume("data", ""))
			w.ok(put("db", mounts("local:data")))
			is(t, "records of all volumes", w.volumes(), "default/data/local/~ unused")
			w.bind("db", "b")
			is(t, "records of all volumes", w.volumes(), "default/data/local/b of db")
		}},
		{"a volume in use is not deleted, and the refusal names its users", func(t *testing.T, w *world) {
			running(w, "db", "keep local:data")
			refused(t, w.do(deleteVolume("data", "a")), Conflict, `local volume "data" of node a`, "used by db")
			w.ok(remove("db", false))
			refused(t, w.do(deleteVolume("data", "a")), Conflict, "used by db")
			w.ok(gone("db", "a", nil))
			w.ok(deleteVolume("data", "a"))
			is(t, "records of all volumes", w.volumes(), "")
		}},
		{"invalid volumes are refused", func(t *testing.T, w *world) {
			w.ok(putVolume("data", "a"))
			for want, c := range map[string]Command{
				"name: ":           putVolume("-", ""),
				"node \"none\"":    putVolume("x", "none"),
				"exists already":   putVolume("data", "a"),
				"does not exist":   deleteVolume("data", "b"),
				"driver: \"tape\"": {Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{Name: "x", Driver: "tape"}}},
				"node: only local": {Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{Name: "x", Driver: "nfs", Node: "a"}}},
				"namespace \"no\"": {Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{Name: "x", Namespace: "no"}}},
				"storage pool":     {Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{Name: "x", Node: "a", Pool: "fast"}}},
			} {
				if res := w.do(c); res.Kind == OK || !strings.Contains(res.Reason, want) {
					t.Errorf("the command was answered with %v and reason %q, want a refusal with %q", res.Kind, res.Reason, want)
				}
			}
			res := w.do(put("db", mounts("tape:data")))
			refused(t, res, Invalid, "demand.volumes[0].driver")
		}},
		{"a report of a node adds volumes, and removes unused ones that it does not list any more", func(t *testing.T, w *world) {
			running(w, "db", "local:data")
			w.ok(reportVolumes("a", true, "old", "data"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db, default/old/local/a held unused")
			w.ok(reportVolumes("a", false, "data"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db, default/old/local/a held unused")
			w.ok(reportVolumes("a", true))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held of db")
			is(t, "message of the event VolumeDeleted", w.eventOf(EventVolumeDeleted).Message, "local volume old: its node no longer has the volume")
		}},
		{"a node cannot fill a namespace that has no workload on the node", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop", func(n *commandv1.PutNamespace) { n.Quota = &commandv1.Quota{Volumes: 10} }))
			invented := func(namespace, driver string) Command {
				c := reportVolumes("a", false)
				for i := range 200 {
					c.GetReportVolumes().Volumes = append(c.GetReportVolumes().Volumes, &commandv1.HeldVolume{Name: "v" + decimal(i), Namespace: namespace, Driver: driver})
				}
				return c
			}
			w.ok(invented("shop", "local"))
			is(t, "number of volumes of namespace shop after reports of local volumes", w.s.UseOf("shop").Volumes, int64(5))
			w.ok(invented("shop", "nfs"))
			is(t, "number of volumes of namespace shop after reports of nfs volumes", w.s.UseOf("shop").Volumes, int64(5))
			w.ok(invented("", "local"))
			w.ok(invented("", "local"))
			is(t, "number of strays of the node in both namespaces", w.s.UseOf(DefaultNamespace).Volumes+w.s.UseOf("shop").Volumes, int64(MaxStrayVolumes))
			w.ok(put("db"))
			w.bind("db", "a")
			w.ok(invented("", "local"))
			is(t, "number of volumes of a namespace with a workload on the node", w.s.UseOf(DefaultNamespace).Volumes, int64(200))
		}},
		{"ChangesVolumes is false for a report that changes no record", func(t *testing.T, w *world) {
			changes := func(c Command) bool { return ChangesVolumes(w.s, c.GetReportVolumes()) }
			w.ok(putVolume("made", "a"))
			is(t, "ChangesVolumes of a complete report without volumes", changes(reportVolumes("a", true)), false)
			is(t, "ChangesVolumes of a report of the volume that a user created", changes(reportVolumes("a", true, "made")), true)
			w.ok(reportVolumes("a", true, "made"))
			is(t, "ChangesVolumes of a repeated report", changes(reportVolumes("a", true, "made")), false)
			is(t, "ChangesVolumes of a report of an unknown node", changes(reportVolumes("none", true, "made")), false)
			is(t, "ChangesVolumes of a complete report that no longer lists the volume", changes(reportVolumes("a", true)), true)
			w.ok(reportVolumes("a", true))
			is(t, "records of all volumes", w.volumes(), "default/made/local/a unused")
		}},
		{"volumes of a removed node have no record", func(t *testing.T, w *world) {
			w.ok(reportVolumes("a", true, "old"))
			w.ok(removeNode("a", false))
			is(t, "records of all volumes", w.volumes(), "")
		}},
		{"a volume stays marked as created by a user after its node was removed and registers again", func(t *testing.T, w *world) {
			w.ok(putVolume("data", "a"))
			running(w, "db", "local:data")
			deleted(w, "db")
			w.ok(removeNode("a", false))
			w.ok(register("a"))
			c := reportVolumes("a", true, "data")
			c.GetReportVolumes().Volumes[0].ByHand = true
			w.ok(c)
			running(w, "db2", "local:data")
			deleted(w, "db2")
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused")
			v, _ := w.s.Volume("", "data", DriverLocal, "a")
			is(t, "the volume is marked as created by a user", v.ByHand, true)
			is(t, "the volume is kept when its workload is deleted", v.Retain, true)
		}},
		{"a volume whose owner was deleted by force is free after the next report", func(t *testing.T, w *world) {
			running(w, "db", "keep local:data")
			w.ok(remove("db", true))
			w.ok(gone("db", "a", nil))
			w.ok(reportVolumes("a", true, "data"))
			is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused")
		}},
		{"a pool without a node must be a pool of some node", func(t *testing.T, w *world) {
			c := putVolume("data", "")
			c.GetPutVolume().Pool = "fast"
			refused(t, w.do(c), Invalid, `pool: no node has a storage pool "fast"`)
		}},
		{"reports add volumes only up to MaxVolumes in each namespace", func(t *testing.T, w *world) {
			running(w, "db")
			c := reportVolumes("a", true)
			for i := range MaxVolumes + 2 {
				c.GetReportVolumes().Volumes = append(c.GetReportVolumes().Volumes, &commandv1.HeldVolume{Name: fmt.Sprintf("v-%d", i), Driver: DriverLocal})
			}
			w.ok(c)
			is(t, "Volumes used by namespace default", w.s.UseOf(DefaultNamespace).Volumes, MaxVolumes)
			is(t, "ChangesVolumes of the same report once the namespace has MaxVolumes", ChangesVolumes(w.s, c.GetReportVolumes()), false)
		}},
		{"a namespace with volumes is not deleted", func(t *testing.T, w *world) {
			w.ok(putNamespace("lab"))
			c := putVolume("data", "")
			c.GetPutVolume().Namespace = "lab"
			w.ok(c)
			refused(t, w.do(dropNamespace("lab")), Conflict, "1 volumes", "persysctl volume list")
		}},
		{"a template gets no volumes of its own", func(t *testing.T, w *world) {
			w.ok(put("sys", mounts("local:data"), demand(func(d *commandv1.Demand) { d.Template = &commandv1.Template{Kind: TemplateSystem} })))
			is(t, "records of all volumes", w.volumes(), "")
		}},
	})
}

// TestQuotaOfVolumes: a quota limits the number and the size of the volumes of a namespace.
func TestQuotaOfVolumes(t *testing.T) {
	w := formed(t, "a", "b")
	w.ok(putNamespace("lab", func(p *commandv1.PutNamespace) { p.Quota = &commandv1.Quota{Volumes: 2, VolumeGb: 5} }))
	in := func(p *commandv1.WorkloadPut) { p.Namespace = "lab" }
	w.ok(put("first", in, mounts("keep local:data")))
	w.ok(put("first", in, mounts("keep local:data"), content("c1:again")))
	w.ok(put("second", in, mounts("nfs:shared")))
	w.ok(put("third", in, mounts("nfs:shared")))
	refused(t, w.do(put("fourth", in, mounts("local:data"))), OverQuota, "volumes: 2 used, 1 more asked for, limit 2; volume_gb: 4 used, 2 more asked for, limit 5")
	c := putVolume("more", "")
	c.GetPutVolume().Namespace = "lab"
	refused(t, w.do(c), OverQuota, "volumes: 2 used")
	larger := mounts("nfs:shared")
	refused(t, w.do(put("third", in, larger, demand(func(d *commandv1.Demand) { d.Volumes[0].SizeGb = 4 }))), OverQuota, "volume_gb: 4 used, 2 more")
	w.bind("first", "a")
	w.run("first")
	w.ok(remove("first", false))
	w.ok(gone("first", "a", nil))
	is(t, "number of volumes that count in the quota, with the kept volume", w.s.UseOf("lab").Volumes, 2)
	w.ok(put("fourth", in, mounts("local:data")))
	w.ok(remove("fourth", false))
	c = deleteVolume("data", "a")
	c.GetDeleteVolume().Namespace = "lab"
	w.ok(c)
	is(t, `Volumes used by namespace "lab"`, w.s.UseOf("lab").Volumes, 1)
}

// TestVolumesAreConfined: a caller who may act only in certain namespaces can create and delete volumes
// only in these.
func TestVolumesAreConfined(t *testing.T) {
	w := formed(t, "a")
	w.ok(putNamespace("lab"))
	for _, c := range []Command{putVolume("data", ""), deleteVolume("data", "")} {
		c.Head = &commandv1.Head{At: w.now, By: "ada", Namespaces: []string{"lab"}}
		refused(t, w.do(c), Denied, "ada acts only in lab")
	}
	c := putVolume("data", "")
	c.GetPutVolume().Namespace = "lab"
	c.Head = &commandv1.Head{At: w.now, By: "ada", Namespaces: []string{"lab"}}
	is(t, "verdict on the command", w.do(c).Kind, OK)
}

// TestRestoreOfVolumes: a restore keeps the volumes of the cluster, adds the volumes of the backup,
// and gives the restored workloads their volumes.
func TestRestoreOfVolumes(t *testing.T) {
	w := formed(t, "a")
	w.place("db", "a", mounts("keep local:data"))
	w.run("db")
	w.ok(putVolume("made", "a"))
	backup := w.s
	w.ok(remove("db", false))
	w.ok(gone("db", "a", nil))
	w.ok(deleteVolume("made", "a"))
	s, err := Restored(backup, w.s, RestoreInfo{At: w.now})
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	is(t, "records of all volumes", w.volumes(), "default/data/local/a held unused, default/made/local/a unused")
}

// TestRestoreKeepsWhatUsersCreated: if the cluster knows a volume only from a node's report, and
// the backup says that a user created it, a restore takes this over. So the volume is kept when its
// next workload is deleted.
func TestRestoreKeepsWhatUsersCreated(t *testing.T) {
	old := formed(t, "a")
	old.ok(putVolume("data", "a"))
	w := formed(t, "a")
	w.ok(reportVolumes("a", true, "data"))
	s, err := Restored(old.s, w.s, RestoreInfo{At: w.now})
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	v, _ := w.s.Volume("", "data", DriverLocal, "a")
	is(t, "the volume is marked as created by a user", v.ByHand, true)
	is(t, "the volume is kept when its workload is deleted", v.Retain, true)
	is(t, "the volume may have data", v.Held, true)
}

// volumesScenario applies the commands of the golden file 102-volumes: specifications and users
// create volumes, and workloads take over existing ones; nodes report volumes, and volumes outlive
// their workloads or are deleted; some commands are refused.
func volumesScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	w.do(putNamespace("lab", func(p *commandv1.PutNamespace) { p.Quota = &commandv1.Quota{Volumes: 1, VolumeGb: 5} }))
	w.do(put("db", mounts("keep local:data", "nfs:shared")))
	w.do(w.assign("db", "a"))
	w.do(w.says("db", "Running"))
	w.do(put("web", mounts("nfs:shared")))
	w.do(w.assign("web", "b"))
	w.do(putVolume("made", ""))
	w.do(putVolume("made", "b"))
	w.do(put("made", mounts("local:made")))
	w.do(w.assign("made", "b"))
	w.do(deleteVolume("made", "b"))
	w.do(remove("made", true))
	w.do(gone("made", "b", nil))
	w.do(reportVolumes("b", true, "found"))
	w.do(reportVolumes("b", true))
	w.do(remove("db", false))
	w.do(gone("db", "a", nil))
	w.do(put("db2", mounts("local:data")))
	w.do(w.assign("db2", "a"))
	w.do(w.says("db2", "Running"))
	w.do(w.evict("db2", CodeDraining, true))
	w.do(deleteVolume("data", "a"))
	in := func(p *commandv1.WorkloadPut) { p.Namespace = "lab" }
	w.do(put("one", in, mounts("local:one")))
	w.do(put("two", in, mounts("local:two")))
	w.do(dropNamespace("lab"))
	w.do(removeNode("b", true))
}

func keptVolumesScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	for _, id := range []string{"one", "two", "three"} {
		w.do(put(id, mounts("local:data-"+id, "nfs:shared")))
		w.do(w.assign(id, "a"))
		w.do(w.says(id, "Running"))
	}
	w.do(removeBut("one", false))
	w.do(put("one", mounts("local:data-one")))
	w.do(gone("one", "a", nil))
	w.do(removeBut("one", false))
	w.do(removeBut("two", true))
	w.do(gone("two", "a", nil))
	w.do(removeBut("three", false))
	w.do(remove("three", true))
	w.do(reportVolumes("a", true, "data-one", "data-two"))
}
