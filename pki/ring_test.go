package pki

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestGossipRing(t *testing.T) {
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
		t.Fatalf("the first ring: %v %v", r.IDs(), err)
	}
	if seals, all := r.Raw(key); !bytes.Equal(seals, key.GossipKey()) || len(all) != 1 {
		t.Error("the first ring is not the key that follows from the cluster key")
	}
	added, err := r.Add("x")
	if err != nil || len(added.Keys) != 2 || added.Seals != FirstGossipKey {
		t.Fatalf("added: %v %v", added.IDs(), err)
	}
	if _, err := added.Add(""); err == nil {
		t.Error("two rotations at once")
	}
	sealed, err := added.Seal(key)
	if err != nil || strings.Contains(sealed, added.Newest()) {
		t.Fatalf("%s %v", sealed, err)
	}
	if _, err := OpenGossipRing(other, sealed); err == nil {
		t.Error("another key opens it")
	}
	again, err := OpenGossipRing(key, sealed)
	if err != nil || r.Against() != "" || again.Against() != "x" || !slices.Equal(again.IDs(), added.IDs()) {
		t.Fatalf("%v %v", again.IDs(), err)
	}
	used, step := again.Next()
	if step != "seals "+added.Newest() || used.Seals != added.Newest() || len(used.Keys) != 2 {
		t.Errorf("%s: %v", step, used.IDs())
	}
	only, step := used.Next()
	if step != "only "+added.Newest() || !only.Settled() {
		t.Errorf("%s: %v", step, only.IDs())
	}
	if seals, all := only.Raw(key); len(all) != 1 || bytes.Equal(seals, key.GossipKey()) {
		t.Error("the old key is still in the ring")
	}
	if _, step := only.Next(); step != "" {
		t.Errorf("there is a step after the last: %s", step)
	}
	for _, bad := range []string{`{}`, `{"keys":[{"id":"first"}],"seals":"x"}`, `{"keys":[{"id":"x","key":"eA=="}],"seals":"x"}`, `{"keys":[{"id":"first","against":"` + strings.Repeat("x", 129) + `"}],"seals":"first"}`, `x`} {
		if _, err := parseRing([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
