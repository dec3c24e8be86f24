package mirror

import (
	"strings"
	"testing"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// endpoints implements Extra for tests. It writes the endpoint of each node under /where/nodes/.
type endpoints struct{}

func (endpoints) Dirs() []string { return []string{"/where/nodes/"} }

func (e endpoints) Records(v fsm.View) (out []KV) {
	v.Nodes("", func(n *fsm.Node) bool {
		out = append(out, e.of(v, n.ID))
		return true
	})
	return out
}

func (e endpoints) Change(v fsm.View, c *fsm.Change) []KV {
	if c.Table != fsm.TableNode {
		return nil
	}
	return []KV{e.of(v, c.Key)}
}

func (endpoints) of(v fsm.View, id string) KV {
	kv := KV{Key: "/where/nodes/" + id}
	if n, ok := v.Node(id); ok {
		kv.Value = []byte("at " + n.Facts.Endpoint)
	}
	return kv
}

// Extra keys follow the records of their nodes. If an earlier mirror wrote no extra keys, the mirror
// adds them. It removes no keys of other programs outside the directories of extra keys.
func TestExtraKeysFollowTheState(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	o := quick
	o.Prefix = "east"
	c.do(register("a"), put("web"))
	r := c.start(e.client, o)
	r.awaitEqual(e)
	r.stop()
	e.put("/east/where/others", "stays")
	e.put("/east/where/nodes/stale", "goes")

	c.extra = endpoints{}
	r = c.start(e.client, o)
	extras := func(want ...string) {
		t.Helper()
		testbed.Within(t, testbed.Patience, "etcd has the extra keys", func() error {
			got, err := e.contents("/east/where/")
			if err != nil {
				return err
			}
			w := map[string]string{"/east/where/others": "stays"}
			for _, id := range want {
				w["/east/where/nodes/"+id] = "at " + endpointOf(c, id)
			}
			if d := differ(w, got); d != "" {
				return errorString(d)
			}
			return nil
		})
	}
	extras("a")
	c.do(register("b"))
	extras("a", "b")
	if n := r.Stats().Comparisons; n != 1 {
		t.Errorf("the mirror made %d full comparisons, want 1 for the new extra keys", n)
	}
	r.stop()
	c.do(removeNode("b"), register("c"))
	r = c.start(e.client, o)
	extras("a", "c")
	if n := r.Stats().Comparisons; n != 0 {
		t.Errorf("after a restart with the same extra keys the mirror made %d full comparisons, want none", n)
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }

func endpointOf(c *cluster, id string) string {
	n, ok := c.st.View().Node(id)
	if !ok {
		return "(gone)"
	}
	return n.Facts.Endpoint
}

type inDirs struct {
	endpoints
	dirs []string
}

func (d inDirs) Dirs() []string { return d.dirs }

func TestExtraDirectoriesMustNotOverlap(t *testing.T) {
	for _, tt := range []struct {
		dirs []string
		err  string
	}{
		{[]string{"/skydns/local/", "/skydns/cloud/"}, ""},
		{[]string{"/"}, "/"},
		{[]string{"skydns/"}, "skydns/"},
		{[]string{"/skydns"}, "/skydns"},
		{[]string{"/nodes/a/"}, "/nodes/"},
		{[]string{"/persys/"}, "/persys/"},
		{[]string{"/a/b/", "/a/"}, "overlap"},
	} {
		err := checkExtra(inDirs{dirs: tt.dirs})
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("with the directories %q of extra keys New returned %v, want an error that contains %q, or none if it is empty", tt.dirs, err, tt.err)
		}
	}
}
