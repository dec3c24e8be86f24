package quota

import (
	"strings"
	"testing"
)

func TestExcessNamesExceededLimits(t *testing.T) {
	limit := Amounts{CPU: 4000, Memory: 1024, Workloads: 3, Devices: 2}
	for name, c := range map[string]struct {
		used, asked Amounts
		want        string
	}{
		"devices count, too":                                         {Amounts{Devices: 2}, Amounts{Devices: 1}, "devices: 2 used, 1 more asked for, limit 2"},
		"a sum equal to the limit fits":                              {Amounts{CPU: 3000}, Amounts{CPU: 1000}, ""},
		"a sum above the limit does not fit":                         {Amounts{CPU: 3000}, Amounts{CPU: 1001}, "cpu_millicores: 3000 used, 1001 more asked for, limit 4000"},
		"a limit of 0 allows any amount":                             {Amounts{Disk: 1 << 40}, Amounts{Disk: 1 << 40}, ""},
		"every exceeded limit is named":                              {Amounts{CPU: 4000, Workloads: 3}, Amounts{CPU: 1, Workloads: 1}, "cpu_millicores: 4000 used, 1 more asked for, limit 4000; workloads: 3 used, 1 more asked for, limit 3"},
		"an amount above its limit may shrink":                       {Amounts{CPU: 9000}, Amounts{CPU: -1000}, ""},
		"other amounts may grow while one amount is above its limit": {Amounts{CPU: 9000}, Amounts{Memory: 1024}, ""},
		"an amount above its limit may not grow":                     {Amounts{CPU: 9000}, Amounts{CPU: 1}, "cpu_millicores: 9000 used, 1 more asked for, limit 4000"},
	} {
		if got := Excess(c.used, c.asked, limit); got != c.want {
			t.Errorf("%s: Excess returned the refusal %q, want %q (empty: within the quota)", name, got, c.want)
		}
	}
}

func TestTimesStopsAtTheFirstLimit(t *testing.T) {
	each := Amounts{CPU: 500, Memory: 100, Workloads: 1}
	for name, c := range map[string]struct {
		used, limit Amounts
		want        int64
		limited     bool
	}{
		"no limit": {Amounts{CPU: 9000}, Amounts{}, 0, false},
		"a limit of a resource that the demand does not use": {Amounts{}, Amounts{Disk: 1}, 0, false},
		"a demand that fits only in part does not count":     {Amounts{CPU: 1100}, Amounts{CPU: 2500}, 2, true},
		"the smallest of several limits":                     {Amounts{CPU: 500, Memory: 100, Workloads: 1}, Amounts{CPU: 9000, Memory: 250, Workloads: 9}, 1, true},
		"a use above the limit":                              {Amounts{Workloads: 7}, Amounts{Workloads: 5}, 0, true},
	} {
		if n, limited := Times(c.used, each, c.limit); n != c.want || limited != c.limited {
			t.Errorf("%s: Times returned %d, limited %v; want %d, %v", name, n, limited, c.want, c.limited)
		}
	}
}

func TestArithmeticOfAmounts(t *testing.T) {
	a, b := Amounts{1, 2, 3, 4, 5, 6, 7}, Amounts{10, 20, 30, 40, 50, 60, 70}
	if got := a.Plus(b).Minus(a); got != b {
		t.Errorf("a.Plus(b).Minus(a) is %v, want b", got)
	}
	if (Amounts{CPU: 5}).Over(Amounts{Memory: 1}) || !(Amounts{Memory: 2}).Over(Amounts{Memory: 1}) {
		t.Error("Over must return true for a resource above its limit, and false for a resource without a limit")
	}
	for field, a := range map[string]Amounts{"quota.cpu_millicores: -1": {CPU: -1}, "quota.workloads: 1125899906842625": {Workloads: Max + 1}} {
		if got := a.Fault(); !strings.HasPrefix(got, field+" is not in 0..") {
			t.Errorf("Fault is %q, want a text about %q", got, field)
		}
	}
	if got := a.Fault(); got != "" {
		t.Errorf("Fault must accept the largest limits, but returned %q", got)
	}
}
