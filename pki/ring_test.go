package pki

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestGossipRingRotates(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenGossipRing(key, "")
	if err != nil || r.Seals != FirstGossipKey {
		t.Fatalf("the initial ring has keys %v, error %v, want only the first key", r.IDs(), err)
	}
	if seals, all := r.Raw(key); !bytes.Equal(seals, key.GossipKey()) || len(all) != 1 {
		t.Error("the initial ring must have exactly the gossip key that is derived from the cluster key, but has others")
	}
	added, err := r.Add("x")
	if err != nil || len(added.Keys) != 2 || added.Seals != FirstGossipKey {
		t.Fatalf("after Add the ring has keys %v, error %v, want two, of which the first still encrypts", added.IDs(), err)
	}
	if _, err := added.Add(""); err == nil {
		t.Error("Add must fail during a rotation, but succeeded")
	}
	sealed, err := added.Seal(key)
	if err != nil || strings.Contains(sealed, added.Newest()) {
		t.Fatalf("Seal returned %s, error %v, want a text without the key", sealed, err)
	}
	if _, err := OpenGossipRing(other, sealed); err == nil {
		t.Error("OpenGossipRing with another cluster key must fail, but succeeded")
	}
	again, err := OpenGossipRing(key, sealed)
	if err != nil || r.Against() != "" || again.Against() != "x" || !slices.Equal(again.IDs(), added.IDs()) {
		t.Fatalf("the opened ring has keys %v, error %v, want the keys of the sealed ring", again.IDs(), err)
	}
	used, step := again.Next()
	if step != "seals "+added.Newest() || used.Seals != added.Newest() || len(used.Keys) != 2 {
		t.Errorf("after the step %q the ring has keys %v, want both keys, of which the newest encrypts", step, used.IDs())
	}
	only, step := used.Next()
	if step != "only "+added.Newest() || !only.Settled() {
		t.Errorf("after the step %q the ring has keys %v, want only the newest key", step, only.IDs())
	}
	if seals, all := only.Raw(key); len(all) != 1 || bytes.Equal(seals, key.GossipKey()) {
		t.Error("the old key must be removed from the ring after the rotation, but is still there")
	}
	if _, step := only.Next(); step != "" {
		t.Errorf("after the last step of a rotation Next must return no step, but returned %q", step)
	}
	for _, bad := range []string{`{}`, `{"keys":[{"id":"first"}],"seals":"x"}`, `{"keys":[{"id":"x","key":"eA=="}],"seals":"x"}`, `{"keys":[{"id":"first","against":"` + strings.Repeat("x", 129) + `"}],"seals":"first"}`, `x`} {
		if _, err := parseRing([]byte(bad)); err == nil {
			t.Errorf("parseRing must refuse the ring %s, but accepted it", bad)
		}
	}
}
