package persysctl

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzAuditFile reads random files as exported audit records, and verifies the records that it can parse.
func FuzzAuditFile(f *testing.F) {
	f.Add([]byte(`{"log":"changes","number":"1","previousHash":"AA==","hash":"AA=="}` + "\n\n"))
	f.Add([]byte(`{"log":"changes"}` + "\n" + `{"number":"7"}`))
	f.Add([]byte("not JSON"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := readAudit(path)
		if err == nil && len(records) > 0 && chained(records) == nil && len(records[0].GetHash()) != 32 {
			t.Errorf("records without a hash are accepted: %v", records)
		}
	})
}
