package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

func TestNamesAreOneToOne(t *testing.T) {
	of := func(group string) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.Group = group })
	}
	upper, dotted, group := bounds.DNSLabel("Shop"), bounds.DNSLabel("shop.eu"), bounds.DNSLabel("Blue_Team")
	shop := put("shop-0", of("pay"), inNamespace("shop"))
	member := func(g string, n int) *commandv1.WorkloadPut {
		return put(fmt.Sprintf("%s-%d", g, n), of(g)).GetPutWorkloads().Workloads[0]
	}
	for _, c := range []struct {
		name    string
		have    []Command
		next    Command
		refused []string
	}{
		{"ids that differ only in case, dot or underscore are accepted, because their DNS names differ", []Command{put("Shop"), put("shop"), put("shop.eu")}, put("shop_eu"), nil},
		{"an id that is the label of another id is refused", []Command{put("Shop")}, put(upper), []string{`would have the DNS name of workload "Shop"`, upper}},
		{"an id whose label is another id is refused", []Command{put(dotted)}, put("shop.eu"), []string{`of workload "` + dotted + `"`}},
		{"a group with the name of a workload that is no member is refused", []Command{put("shop")}, put("other", of("shop")), []string{`group "shop"`, `of workload "shop"`}},
		{"a workload with the name of a group without being a member is refused", []Command{put("a", of("blue"))}, put("blue"), []string{`of group "blue"`}},
		{"a workload with the label of a group is refused", []Command{put("a", of("Blue_Team"))}, put(group), []string{`of group "Blue_Team"`}},
		{"a group with the label of a group is refused", []Command{put("a", of("Blue_Team"))}, put("b", of(group)), []string{`of group "Blue_Team"`}},
		{"a group with the label of a workload is refused", []Command{put("Shop")}, put("b", of(upper)), []string{`of workload "Shop"`}},
		{"a workload in a group of the same name is accepted", nil, put("blue", of("blue")), nil},
		{"a second member of a group that has a member with the group's name is accepted", []Command{put("blue", of("blue"))}, put("red", of("blue")), nil},
		{"a workload that joins a group with the name of another workload is refused", []Command{put("shop"), put("b")}, put("b", of("shop"), content("c1:new")), []string{`of workload "shop"`}},
		{"a change of a workload keeps its name", []Command{put("Shop"), put("shop")}, put("Shop", content("c1:new")), nil},
		{"a new workload takes the name of a deleted workload", []Command{put("Shop"), remove("Shop", false)}, put(upper), nil},
		{"a group by count with the name of a workload is refused", []Command{put("web")}, puts("web", member("web", 0), member("web", 1)), []string{`group "web"`, "delete that workload first"}},
		{"a larger count of the same group is accepted", []Command{puts("web", member("web", 0))}, puts("web", member("web", 0), member("web", 1)), nil},
		{"a member of a group in another namespace is refused", []Command{putNamespace("shop"), put("pay-0", of("pay"))}, shop, []string{`group "pay" is in another namespace`}},
		{"a member of a group in another namespace whose name is not a DNS label is refused", []Command{putNamespace("shop"), put("pay-0", of("Pay"))}, put("shop-0", of("Pay"), inNamespace("shop")), []string{`group "Pay" is in another namespace`}},
		{"a group may move to a namespace once it has no member left in another one", []Command{putNamespace("shop"), put("pay-0", of("pay")), remove("pay-0", false)}, shop, nil},
		{"members of a group whose name is not a DNS label are accepted", []Command{puts("Web", member("Web", 0))}, puts("Web", member("Web", 0), member("Web", 1)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			for _, h := range c.have {
				w.ok(h)
			}
			if c.refused == nil {
				w.ok(c.next)
				return
			}
			refused(t, w.do(c.next), Conflict, c.refused...)
		})
	}
}
