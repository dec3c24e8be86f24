package store

import (
	"path/filepath"
	"testing"
)

// FuzzRecords reads arbitrary bytes as a record of a state file, of this agent or of a legacy v1 agent. The
// store must return the complete record, or an error that names the record.
func FuzzRecords(f *testing.F) {
	s, err := Open(filepath.Join(f.TempDir(), "state.db"), true)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	buckets := []string{bucketWorkloads, bucketStatus, bucketTasks, bucketTombstones}
	for i, text := range []string{
		`{"id":"web","type":"container","desired_state":"running","spec":{"image":"nginx","env":{"A":"b"}},"health_check":{"http":{"port":80}}}`,
		`{"id":"web","actual_state":"running","metadata":{"a":"b"},"failure":{"attempts":-1}}`,
		`{"id":"t","status":"pending"}`,
		`{"id":"web","generation":{"incarnation":1,"sequence":2}}`,
	} {
		f.Add(byte(i), "web", []byte(text))
		f.Add(byte(i), "", []byte(`null`))
	}
	f.Add(byte(0), "vm", []byte(`{"type":"vm","spec":{"Spec":{"VM":{"vcpus":2}}}}`))
	f.Add(byte(0), "x", []byte(`{"type":"","spec":{}}`))
	f.Add(byte(0), "x", []byte(`{"type":"é","spec":{"é":{}}}`))
	f.Add(byte(0), "x", []byte(`{"sealed_by":"k","spec":{"env":{"A":"sealed"}}}`))
	f.Fuzz(func(t *testing.T, which byte, key string, raw []byte) {
		if key == "" || len(key) > 1000 || len(raw) > 64<<10 {
			return
		}
		bucket := buckets[int(which)%len(buckets)]
		err := s.update(func(w write) error {
			b, err := w.tx.CreateBucketIfNotExists([]byte(bucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(key), raw)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.update(func(w write) error { return w.drop(bucket, key) }); err != nil {
				t.Fatal(err)
			}
		}()
		all, err := s.Load()
		if err != nil {
			return
		}
		for _, in := range all.Intents {
			if in.ID == "" || in.Body == nil || in.SpecHash == "" {
				t.Fatalf("a record was read as an incomplete intent: %+v", in)
			}
			_ = in.Running()
			_ = in.Leased()
		}
	})
}
