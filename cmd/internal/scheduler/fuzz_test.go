package scheduler

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/persys/compute/mirror"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

// FuzzRecords: records of an existing etcd become specifications that we could store,
// or errors.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"id":"web","type":"docker-container","image":"nginx:1","command":"a b","ports":["8080:80/tcp","5353:53/udp","81"],"volumes":["/data:/srv:ro"],"metadata":{"team":"blue"}}`))
	f.Add([]byte(`{"id":"s","gitRepo":"https://h/x.git","gitToken":"t"}`))
	f.Add([]byte(`{"id":"m","type":"vm","vm":{"name":"x"},"metadata":{"vm_spec":"{"}}`))
	f.Add([]byte(`{"id":"a","type":"container","image":"x","ports":["-1:70000"],"volumes":[":"]}`))
	f.Add([]byte(`null`))
	key, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &mirror.Workload{}
		if json.Unmarshal(data, w) != nil {
			return
		}
		req, err := specificationOf(w)
		if err != nil {
			return
		}
		p, err := spec.Prepare(req, key)
		if err != nil {
			return
		}
		if _, err := spec.Unseal(w.ID, p.Command.GetPutWorkloads().GetWorkloads()[0].GetSpec(), key); err != nil {
			t.Fatalf("what was sealed is not opened: %v", err)
		}
	})
}

// FuzzRemembered: the authority that a scheduler wrote down for the day of its restart.
func FuzzRemembered(f *testing.F) {
	tr := &trust{identityStore: pki.IdentityStore{Dir: f.TempDir()}}
	key, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"Cert":"AAAA","Root":"AAAA","SealedKey":"x","ActiveAt":1}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(tr.rememberedPath(), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := tr.recall()
		if err != nil {
			return
		}
		if a, err := r.open(key); err == nil {
			t.Fatalf("an authority out of nothing: %v", a.ID())
		}
	})
}
