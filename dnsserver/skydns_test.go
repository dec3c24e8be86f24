package dnsserver

import (
	"slices"
	"strings"
	"testing"
)

func skyTexts(records []SkyRecord) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.Key+" "+string(r.Value))
	}
	return out
}

func TestSkyDNSRecords(t *testing.T) {
	s, err := NewSkyDNS(Config{}, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.replica("r1", "s1", "10.0.0.1:8085")
	w.replica("r2", "s2", "sched.example.com:8085")
	w.node("n1", "10.1.0.1:50051")
	w.node("nh", "agent.example.com:50051")
	w.run("web", "", "n1", "172.17.0.2")
	want := []string{
		`/skydns/cloud/persys/agents/default/n1 {"host":"10.1.0.1","ttl":300}`,
		`/skydns/local/persys/_persys-scheduler/s1 {"host":"10.0.0.1","port":8085,"ttl":300}`,
		`/skydns/local/persys/_persys-scheduler/s2 {"host":"sched.example.com","port":8085,"ttl":300}`,
		`/skydns/local/persys/_tcp/_persys-scheduler/s1 {"host":"10.0.0.1","port":8085,"ttl":300}`,
		`/skydns/local/persys/_tcp/_persys-scheduler/s2 {"host":"sched.example.com","port":8085,"ttl":300}`,
		`/skydns/local/persys/persys-scheduler/s1 {"host":"10.0.0.1","ttl":300}`,
	}
	if got := skyTexts(s.Records(w.s)); !slices.Equal(got, want) {
		t.Errorf("Records returned %q\nwant %q", got, want)
	}
	for _, r := range s.Records(w.s) {
		if !slices.ContainsFunc(s.Dirs(), func(d string) bool { return strings.HasPrefix(r.Key, d) }) {
			t.Errorf("Records returned the key %s, which is in none of the directories %q", r.Key, s.Dirs())
		}
	}
}

// The mirror updates the DNS records in etcd by calling Change for each change of the state. Afterwards etcd must have
// the same keys and values as Records returns for the whole state.
func TestSkyDNSChangesEqualRecords(t *testing.T) {
	s, err := NewSkyDNS(Config{Shard: "east"}, "/c1/skydns", 60)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	kept := map[string]string{}
	step := func(what string) {
		t.Helper()
		for i := range w.feed {
			for _, r := range s.Change(w.s, &w.feed[i]) {
				if r.Value == nil {
					delete(kept, r.Key)
				} else {
					kept[r.Key] = string(r.Value)
				}
			}
		}
		w.feed = nil
		var got []string
		for k, v := range kept {
			got = append(got, k+" "+v)
		}
		slices.Sort(got)
		if want := skyTexts(s.Records(w.s)); !slices.Equal(got, want) {
			t.Errorf("after %s, the records from Change are %q\nwant those of Records, %q", what, got, want)
		}
	}
	three(w)
	step("three replicas")
	w.replica("r9", "s2", "10.0.0.9:8085")
	step("the replacement of a replica under the same name")
	if got := kept["/c1/skydns/local/persys/persys-scheduler/s2"]; got != `{"host":"10.0.0.9","ttl":60}` {
		t.Errorf("the name of a replaced replica has the address %s, want the address of the new replica", got)
	}
	w.removeReplica("r2")
	step("the removal of the replaced replica")
	w.replica("r1", "renamed", "10.0.0.1:8085")
	step("another name")
	w.replica("r1", "renamed", "host.example.com:8085")
	step("the announcement of a host name")
	w.node("Node_1", "10.1.0.1:50051")
	step("a node")
	w.node("Node_1", "10.1.0.2:50051")
	step("its move")
	w.nodeState("Node_1", false)
	step("its loss")
	w.removeNode("Node_1")
	step("its removal")
	w.removeReplica("r1")
	w.removeReplica("r3")
	w.removeReplica("r9")
	step("the end")
	if len(kept) != 0 {
		t.Errorf("after the removal of all replicas and nodes these records are left: %v", kept)
	}
}
