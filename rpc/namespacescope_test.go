package rpc

import "testing"

func TestNamespaceScope(t *testing.T) {
	ab := scopeOfNames([]string{"b", "a", "b"})
	for name, c := range map[string]struct {
		s    namespaceScope
		want string
		has  bool // b
	}{
		"no names: every namespace":                     {scopeOfNames(nil), "every namespace", true},
		"duplicates are dropped, order is sorted":       {ab, "a, b", true},
		"narrowed to one of its names":                  {ab.narrow([]string{"b", "c"}), "b", true},
		"narrowed to names outside of it: no namespace": {ab.narrow([]string{"c"}), "no namespace", false},
		"an empty scope stays empty":                    {ab.narrow([]string{"c"}).narrow([]string{"b"}), "no namespace", false},
		"narrowed by no names: unchanged":               {ab.narrow(nil), "a, b", true},
		"every namespace, narrowed":                     {namespaceScope{}.narrow([]string{"a"}), "a", false},
	} {
		if c.s.String() != c.want || c.s.has("b") != c.has {
			t.Errorf("%s: %s, has b: %t", name, c.s, c.s.has("b"))
		}
	}
	if !ab.narrow([]string{"c"}).nowhere() || ab.nowhere() || (namespaceScope{}).nowhere() || !(namespaceScope{}).everywhere() || ab.everywhere() {
		t.Error("nowhere or everywhere is wrong")
	}
}
