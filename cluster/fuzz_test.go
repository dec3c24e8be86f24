package cluster

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// FuzzGreeting parses random bytes as the beginning of a connection on the Raft port. readGreeting must
// return an error or a connection kind that this version knows.
func FuzzGreeting(f *testing.F) {
	for _, body := range []string{`{"from":"a","to":"b","cluster":"c"}`, `{}`, `null`, `[]`, `{"from":1}`, ``} {
		for _, kind := range []byte{kindRaft, kindPeer, 0x16} {
			f.Add(append(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(body))), body...))
		}
	}
	f.Add([]byte{kindPeer, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, g, err := readGreeting(bytes.NewReader(data))
		if err == nil && kind != kindRaft && kind != kindPeer {
			t.Fatalf("readGreeting accepted the unknown connection kind %q with greeting %+v", kind, g)
		}
		answer, err := readFrame(bytes.NewReader(data), greetLimit)
		if err == nil && len(answer) > min(greetLimit, len(data)) {
			t.Fatalf("readFrame returned a frame of %d bytes from %d bytes of input, want at most the given bytes and the limit", len(answer), len(data))
		}
	})
}

// FuzzPeerCall sends random calls between replicas to a replica, which must survive them. Calls
// that stop a replica on purpose are left out.
func FuzzPeerCall(f *testing.F) {
	g := newGroup(f, 1)
	n := g.form()
	for _, op := range []string{opHello, opForm, opDigest, "?"} {
		f.Add([]byte(`{"op":"` + op + `","hello":{"id":"x","name":"y","expect":1},"index":1}`))
		f.Add([]byte(`{"op":"` + op + `"}`))
	}
	f.Add([]byte(`{"error":"no","hello":null,"digest":18446744073709551615,"known":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req request
		if json.Unmarshal(data, &req) == nil && req.Op != opLeave && req.Op != opRemoved && req.Op != opCopied && req.Op != opDepart {
			var res response
			if err := n.answer(&req, &res); err == nil {
				if _, err := json.Marshal(&res); err != nil {
					t.Fatal(err)
				}
			}
		}
		var res response
		if json.Unmarshal(data, &res) == nil && res.Hello != nil {
			_ = res.Hello.replica(true)
		}
	})
}

// FuzzHint parses random gossip metadata of a replica. The replica must be listed whatever its metadata is.
func FuzzHint(f *testing.F) {
	f.Add("x", []byte(`{"n":"s1","r":"10.0.0.1:8086","g":"10.0.0.1:8085"}`))
	f.Add("", []byte(`{"n":[]}`))
	f.Add("x", []byte{})
	f.Fuzz(func(t *testing.T, id string, meta []byte) {
		g := &gossip{n: &Node{id: "me", port: &port{seen: map[string]string{}}}, changed: make(chan struct{}, 1), seen: map[string]sighting{}, dead: map[string]time.Time{}, word: map[string]time.Time{}}
		m := &memberlist.Node{Name: id, Meta: meta}
		g.NotifyJoin(m)
		if s, ok := g.seen[id]; !ok || s.id != id {
			t.Fatalf("gossip must list member %q under its Raft id, but lists %+v", id, g.seen)
		}
		g.NotifyUpdate(m)
		g.NotifyLeave(m)
		if len(g.seen) != 0 {
			t.Fatalf("gossip must not list member %q any more, but does", id)
		}
	})
}

// FuzzDataFolder reads random bytes as the files of the data directory other than the log. The
// readers must return an error or a value, and not panic.
func FuzzDataFolder(f *testing.F) {
	dir := f.TempDir()
	snapshot := filepath.Join(dir, "snapshots", "1-2-3")
	if err := os.MkdirAll(snapshot, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"cluster":"c","replica":"r1","servers":[{"id":"r1","raft":"10.0.0.1:8086"},{"id":"r2","raft":"10.0.0.2:8086","gossip":"10.0.0.2:8088"}],"repair":{"of":"r0","damage":"x","aside":"y","at":"2026-01-02T03:04:05Z"}}`))
	f.Add([]byte(`{"Version":1,"ID":"1-2-3","Index":2,"Term":1,"Peers":"gA==","Configuration":{"Servers":[]}}`))
	f.Add([]byte(`null`))
	f.Add([]byte{})
	n := &Node{cfg: Config{DataDir: dir}}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, path := range []string{filepath.Join(dir, peersFile), filepath.Join(snapshot, "meta.json")} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := n.remembered(); len(got) > 64 {
			t.Fatalf("peers.json contained %d usable addresses, want at most 64", len(got))
		}
		if at, err := verifySnapshots(filepath.Join(dir, "snapshots")); (err == nil) == (at == 0) {
			t.Fatalf("verifySnapshots returned index %d and error %v, want an error exactly if the index is 0", at, err)
		}
	})
}
