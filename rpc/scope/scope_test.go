package scope

import "testing"

func TestScopes(t *testing.T) {
	ab := Of([]string{"b", "a", "b"})
	for name, c := range map[string]struct {
		s    Scope
		want string
		has  bool // b
	}{
		"nothing said is everywhere":             {Of(nil), "every namespace", true},
		"named once, sorted":                     {ab, "a, b", true},
		"narrowed to some":                       {ab.Narrow([]string{"b", "c"}), "b", true},
		"narrowed to others is nowhere, not all": {ab.Narrow([]string{"c"}), "no namespace", false},
		"nowhere stays nowhere":                  {ab.Narrow([]string{"c"}).Narrow([]string{"b"}), "no namespace", false},
		"narrowed to nothing is unchanged":       {ab.Narrow(nil), "a, b", true},
		"everywhere, narrowed":                   {Scope{}.Narrow([]string{"a"}), "a", false},
	} {
		if c.s.String() != c.want || c.s.Has("b") != c.has {
			t.Errorf("%s: %s, has b: %t", name, c.s, c.s.Has("b"))
		}
	}
	if !ab.Narrow([]string{"c"}).Nowhere() || ab.Nowhere() || (Scope{}).Nowhere() || !(Scope{}).Everywhere() || ab.Everywhere() {
		t.Error("nowhere and everywhere")
	}
}
