package mirrorspec

import (
	"encoding/json"
	"testing"

	"github.com/persys/compute/mirror"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

// FuzzRecords: from any record in the etcd of a legacy v1 scheduler, the translation makes a specification
// that can be stored and read again, or it returns an error.
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
		req, err := Specification(w)
		if err != nil {
			return
		}
		p, err := spec.Prepare(req, key)
		if err != nil {
			return
		}
		if _, err := spec.Unseal(w.ID, p.Command.GetPutWorkloads().GetWorkloads()[0].GetSpec(), key); err != nil {
			t.Fatalf("the sealed specification of a translated record cannot be unsealed: %v", err)
		}
	})
}
