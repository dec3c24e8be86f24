package dial

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// FuzzCacheFile: the cache file may be damaged. Only valid addresses must be read from it, and no more than the
// maximum number.
func FuzzCacheFile(f *testing.F) {
	file := filepath.Join(f.TempDir(), "cache")
	src := &source{target: Target{Addrs: []string{"10.0.0.1:8085"}}, file: file}
	good := cache{Addrs: src.target.Addrs, Learned: []Endpoint{{Addr: "10.0.0.2:8085", Names: []string{"10.0.0.2"}}}}
	raw, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"addrs":["10.0.0.1:8085"],"learned":[{}]}`))
	f.Add([]byte(`{"addrs":["10.0.0.1:8085"],"endpoints":[{"Addr":":1","Names":[""]}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got := src.recall()
		for _, e := range append(got.Endpoints, got.Learned...) {
			if addr, err := parseAddr(e.Addr, ""); err != nil || addr != e.Addr || len(e.Names) == 0 {
				t.Fatalf("an invalid endpoint in the cache file must be ignored, but was accepted: %+v: %v", e, err)
			}
		}
		if len(got.Endpoints) > maxAddresses || len(got.Learned) > maxAddresses {
			t.Fatalf("%d endpoints and %d learned addresses were read from the cache file, want at most the limit of each", len(got.Endpoints), len(got.Learned))
		}
	})
}
