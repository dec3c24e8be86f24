package access

import (
	"slices"
	"testing"
)

func TestBuiltinRoles(t *testing.T) {
	for role, want := range map[string]string{
		Viewer:   "read, logs",
		Operator: "read, logs, exec, deploy, nodes",
		Admin:    "read, logs, exec, deploy, nodes, fence, volumes, namespaces, policies, cluster, backups, secrets, trust",
	} {
		s, ok := Builtin(role)
		if !ok || s.String() != want {
			t.Errorf("role %s has permissions %s, want %s", role, s, want)
		}
		if s.Has(Never) || !s.Has(Any) || SetOf(s.Names()) != s {
			t.Errorf("role %s has permissions %s; want that it has Any, lacks Never, and that SetOf of its names returns the same set", role, s)
		}
	}
	if _, ok := Builtin("root"); ok || Set(0).Has(Any) {
		t.Error("an unknown role and the empty set must have no permissions, but one of them has")
	}
}

func TestNamesOfPermissions(t *testing.T) {
	for _, p := range All() {
		if got, err := Parse(p.String()); err != nil || got != p || p.Meaning() == "" {
			t.Errorf("permission %d: Parse returns %s, error %v, want the same permission, with a meaning", p, got, err)
		}
	}
	for _, name := range []string{"", "never", "always", "any", "Read", "root"} {
		if _, err := Parse(name); err == nil {
			t.Errorf("Parse must refuse %q as the name of a permission, but accepted it", name)
		}
	}
	if s := SetOf([]string{"logs", "fly", "any"}); s.String() != "logs" {
		t.Errorf("SetOf of unknown names returns %s, want only logs", s)
	}
}

func TestWhereReturnsTheScopeOfAPermission(t *testing.T) {
	view, _ := Builtin(Viewer)
	operate, _ := Builtin(Operator)
	for name, c := range map[string]struct {
		grants []Grant
		p      Permission
		want   string
	}{
		"a person without grants has no permission":                               {nil, Read, "no namespace"},
		"a person without grants has the permission Always":                       {nil, Always, "every namespace"},
		"Any needs a grant":                                                       {nil, Any, "no namespace"},
		"a grant whose role lacks the permission gives no scope":                  {[]Grant{{Viewer, view, Everywhere()}}, Deploy, "no namespace"},
		"an admin everywhere does not have the permission Never":                  {[]Grant{{Admin, ^Set(0) - 1, Everywhere()}}, Never, "no namespace"},
		"a grant of any permission gives the permission Any":                      {[]Grant{{Viewer, view, Only([]string{"a"})}}, Any, "a"},
		"a grant in every namespace gives its permissions in every namespace":     {[]Grant{{Viewer, view, Everywhere()}}, Logs, "every namespace"},
		"several grants of a permission give it in the namespaces of all of them": {[]Grant{{Viewer, view, Only([]string{"b", "a"})}, {Operator, operate, Only([]string{"c", "a"})}}, Read, "a, b, c"},
		"a permission has the scope of the grants that include it":                {[]Grant{{Viewer, view, Everywhere()}, {Operator, operate, Only([]string{"shop"})}}, Deploy, "shop"},
		"a grant everywhere includes a grant in one namespace":                    {[]Grant{{Operator, operate, Only([]string{"shop"})}, {Viewer, view, Everywhere()}}, Read, "every namespace"},
		"a grant in no namespace gives no scope":                                  {[]Grant{{Viewer, view, Only(nil)}}, Read, "no namespace"},
	} {
		if got := Where(c.grants, c.p).String(); got != c.want {
			t.Errorf("%s: Where returns %s, want %s", name, got, c.want)
		}
	}
}

func TestScopeOfNamespaces(t *testing.T) {
	ab := Only([]string{"b", "a", "b"})
	for name, c := range map[string]struct {
		s    Scope
		want string
		has  bool // expected answer to Has("b")
	}{
		"the zero value is empty":                                             {Scope{}, "no namespace", false},
		"Only without names is empty":                                         {Only(nil), "no namespace", false},
		"Only drops duplicates and sorts the names":                           {ab, "a, b", true},
		"a scope narrowed to one of its names has only that name":             {ab.Narrow([]string{"b", "c"}), "b", true},
		"a scope narrowed to names outside of it is empty":                    {ab.Narrow([]string{"c"}), "no namespace", false},
		"an empty scope stays empty":                                          {ab.Narrow([]string{"c"}).Narrow([]string{"b"}), "no namespace", false},
		"a scope narrowed by an empty list is unchanged":                      {ab.Narrow(nil), "a, b", true},
		"the scope of all namespaces narrowed to one name has only that name": {Everywhere().Narrow([]string{"a"}), "a", false},
	} {
		if c.s.String() != c.want || c.s.Has("b") != c.has {
			t.Errorf("%s: the scope is %s and contains namespace b: %t; want %s and %t", name, c.s, c.s.Has("b"), c.want, c.has)
		}
	}
	if !ab.Narrow([]string{"c"}).Nowhere() || ab.Nowhere() || Everywhere().Nowhere() || !Everywhere().Everywhere() || ab.Everywhere() {
		t.Error("Nowhere must be true only for the empty scope, and Everywhere only for the scope of all namespaces")
	}
	if !slices.Equal(ab.Names(), []string{"a", "b"}) || Everywhere().Names() != nil {
		t.Error("Names must return a and b for the scope of a and b, and nil for the scope of all namespaces")
	}
}
