package spec

import (
	"strings"
	"testing"
)

// TestUpdateOrderAndCanary: an update with start-first or canary is refused for a workload that cannot have an
// additional copy, for example because of its local data. The error names the line.
func TestUpdateOrderAndCanary(t *testing.T) {
	const web = "id: web\nresources: {cpu: 10m}\ncontainer: {image: nginx}\n"
	for _, c := range []struct{ name, doc, want string }{
		{"start-first", web + "count: 3\nupdate: {order: start-first}", ""},
		{"stop-first", web + "count: 3\nupdate: {order: stop-first}", ""},
		{"an unknown order", web + "count: 3\nupdate: {order: both}", "5|update.order: must be one of stop-first, start-first"},
		{"start-first without a count", web + "update: {order: start-first}", "4|update: is for the copies of a count"},
		{"start-first of an exclusive workload", web + "count: 3\nexclusive: true\nupdate: {order: start-first}", "6|update.order: must be stop-first for an exclusive workload"},
		{"start-first of a system workload", web + "kind: system\nupdate: {order: start-first}", "5|update.order: must be stop-first for a workload of kind system"},
		{"start-first of a job", web + "kind: job\ncount: 3\nupdate: {order: start-first}", "6|update.order: must be stop-first for a workload of kind job"},
		{"start-first of a cron", web + "kind: cron\ncron: {schedule: \"@daily\"}\nupdate: {order: start-first}", "6|update.order: must be stop-first for a workload of kind cron"},
		{"start-first of a virtual machine", "id: web\ncount: 2\nresources: {cpu: 1, memory: 1Gi}\nvm: {os_image: http://example.com/a.qcow2}\nupdate: {order: start-first}",
			"5|update.order: must be stop-first for virtual machines"},
		{"local data", "id: web\ncount: 3\nupdate: {order: start-first}\ncompose: {inline: \"{services: {a: {image: a, volumes: ['data:/data']}}, volumes: {data: {}}}\"}",
			"3|update.order: must be stop-first for a workload with local data"},
		{"canary", web + "count: 3\nupdate: {canary: 2}", ""},
		{"no canary", web + "count: 1\nupdate: {canary: 0}", ""},
		{"a negative canary", web + "count: 3\nupdate: {canary: -1}", "5|update.canary: must be 0 to 1000"},
		{"a canary that equals the count", web + "count: 3\nupdate: {canary: 3}", "5|update.canary: must be less than count, 3"},
		{"canary = count, start-first", web + "count: 3\nupdate: {canary: 3, order: start-first}", ""},
		{"a canary above the count with start-first", web + "count: 3\nupdate: {canary: 4, order: start-first}", "5|update.canary: must be at most count, 3"},
		{"a canary with a count of 0", web + "count: 0\nupdate: {canary: 1}", ""},
		{"a canary that equals autoscale.min", web + "autoscale: {min: 2, max: 4, cpu: 70}\nupdate: {canary: 2}", "5|update.canary: must be less than autoscale.min, 2"},
		{"a canary of a system workload", web + "kind: system\nupdate: {canary: 1}", "5|update.canary: is for the copies of a count"},
	} {
		line, text, _ := strings.Cut(c.want, "|")
		_, err := Documents("web.yaml", []byte(c.doc), Options{})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("a specification with %s: Documents returned the error %v, want none", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), "web.yaml:"+line+":") || !strings.Contains(err.Error(), text)):
			t.Errorf("a specification with %s: Documents returned the error %v\nwant line and text %s", c.name, err, c.want)
		}
	}
}

// TestSurgePuts: the command of a start-first update also contains the specifications of its surge members
// (extra members during the update). Their ids follow the ids of the group's own members.
func TestSurgePuts(t *testing.T) {
	for doc, want := range map[string]string{
		"count: 3\nupdate: {order: start-first}":                             "web-3",
		"count: 3\nupdate: {order: start-first, max_parallel: 2, canary: 1}": "web-3 web-4",
		"count: 1\nupdate: {order: Start-First, max_parallel: 2}":            "web-1",
		"count: 3\nupdate: {order: start-first, canary: 3}":                  "web-3 web-4 web-5",
		"count: 3\nupdate: {canary: 1}":                                      "",
		"count: 0\nupdate: {order: start-first}":                             "",
		"count: 3\ndesired_state: stopped\nupdate: {order: start-first}":     "",
	} {
		docs, err := Documents("web.yaml", []byte("id: web\nresources: {cpu: 10m}\ncontainer: {image: nginx}\n"+doc), Options{})
		if err != nil {
			t.Errorf("Documents must accept %s, but returned %v", doc, err)
			continue
		}
		p, err := Prepare(docs[0].Request, nil)
		if err != nil {
			t.Errorf("Prepare must accept %s, but returned %v", doc, err)
			continue
		}
		b := p.Command.GetPutWorkloads()
		var ids []string
		for _, s := range b.GetSurge() {
			ids = append(ids, s.GetId())
			if own := b.GetWorkloads()[0]; !s.GetDemand().GetSurge() || own.GetDemand().GetSurge() || s.GetContent() != own.GetContent() || s.GetDesired() != "Running" {
				t.Errorf("for a specification with %q the surge member is %v, want the specification of the first member %v", doc, s, own)
			}
		}
		if got := strings.Join(ids, " "); got != want || len(p.IDs) != len(b.GetWorkloads()) {
			t.Errorf("for a specification with %q the surge members are %q and the ids %v, want the surge members %q", doc, got, p.IDs, want)
		}
	}
}
