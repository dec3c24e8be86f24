package spec

import (
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
)

const rulesFile = `workload_id: web
count: 3
spread:
  - zone
  - {by: host, max_skew: 2, when: must}
affinity:
  - {node: "disk in ssd,nvme", weight: 80}
  - {workload: db, by: zone}
anti_affinity:
  - {tag: tier=batch, when: must}
tags: {tier: web}
policy: binpack
container: {image: nginx}
`

func TestRulesBecomeTheDemand(t *testing.T) {
	reqs, err := Parse("web.yaml", []byte(rulesFile), Options{})
	if err != nil {
		t.Fatal(err)
	}
	req := reqs[0]
	if e := Validate(req); len(e) > 0 {
		t.Fatal(e)
	}
	Normalise(req.Spec)
	once := req.Spec.String()
	if Normalise(req.Spec); req.Spec.String() != once {
		t.Errorf("a second call of Normalise must not change the placement rules, but returned %s", req.Spec)
	}
	const want = `spread:{by:"zone" max_skew:1} spread:{by:"host" max_skew:2 must:true} ` +
		`affinities:{node:{key:"disk" op:"in" values:"nvme" values:"ssd"} weight:80} affinities:{workload:"db" by:"zone" weight:50} ` +
		`affinities:{anti:true tag:{key:"tier" value:"batch"} by:"host" must:true} policy:"binpack"`
	d := DemandOf("web", req.Spec)
	if got := strings.ReplaceAll(d.GetPlacement().String(), "  ", " "); got != want {
		t.Errorf("the placement rules in the demand are\n%s, want\n%s", got, want)
	}
	if got := d.GetTags()[0]; got.GetKey() != "tier" || got.GetValue() != "web" {
		t.Errorf("the tag in the demand is %v, want tier=web", got)
	}
}

func TestBadRules(t *testing.T) {
	for _, c := range []struct{ name, rules, want string }{
		{"a spread rule with a negative max_skew", "count: 2\nspread: [{by: zone, max_skew: -1}]", "web.yaml:3:31: spread[0].max_skew: must be 1 to 1000"},
		{"a spread rule with an unknown value of when", "count: 2\nspread: [{by: zone, when: shall}]", `web.yaml:3:27: spread[0].when: must be one of must, prefer, got "shall"`},
		{"a spread rule with an unknown field", "count: 2\nspread: [{by: zone, skew: 1}]", "web.yaml:3:21: spread[0]: unknown field \"skew\""},
		{"a spread rule of a single workload", "spread: [zone]", "web.yaml:2:9: spread: needs count, completions or group"},
		{"two spread rules by the same label", "count: 2\nspread: [zone, zone]", "spread[1].by: is already used by spread[0]"},
		{"an affinity rule that names no node, workload, group or tag", "affinity: [{by: zone}]", "web.yaml:2:13: affinity[0]: must have exactly one of node, workload, group and tag, not 0"},
		{"an affinity rule that names both a group and a tag", "affinity: [{group: a, tag: b=c}]", "affinity[0]: must have exactly one of node, workload, group and tag, not 2"},
		{"an affinity rule that names the workload itself", "affinity: [{workload: web, when: must}]", `web.yaml:2:23: affinity[0].workload: is the workload itself`},
		{"an affinity and an anti-affinity to the same group", "group: g\naffinity: [{group: g, when: must}]\nanti_affinity: [{group: g, by: host, when: must}]", "web.yaml:4:18: anti_affinity[0]: can never hold together with affinity[0]"},
		{"an affinity rule that names a member of its own group", "count: 3\naffinity: [{workload: web-1, when: must}]", "web.yaml:3:23: affinity[0].workload: is a member of this group"},
		{"rules that keep all members on one host and in different zones", "count: 2\naffinity: [{group: web, when: must}]\nanti_affinity: [{group: web, by: zone, when: must}]",
			"anti_affinity[0]: can never hold together with affinity[0], which keeps all members of this group on one host"},
		{"rules that keep all members in one zone, and apart by their own tag", "count: 2\ntags: {app: web}\naffinity: [{group: web, by: zone, when: must}]\nanti_affinity: [{tag: app=web, by: zone, when: must}]",
			"anti_affinity[0]: can never hold together with affinity[0], which keeps all members of this group on one zone"},
		{"reservations of GPUs of any kind and of one kind", "resources: {devices: {gpu: 1, nvidia.com/gpu: 1}}", `reserves GPUs of any kind (gpus, or resources.devices.gpu) together with GPUs of a kind: use one of them, got "nvidia.com/gpu"`},
		{"a toleration of every taint with a value", "tolerations: [{key: \"*\", value: x}]", "tolerations[0].value: must be empty with the key *"},
		{"a required affinity rule with a weight", "affinity: [{group: g, when: must, weight: 5}]", "affinity[0].weight: is for preferred rules"},
		{"a preferred affinity rule with a weight above 100", "affinity: [{group: g, weight: 101}]", "affinity[0].weight: must be 1 to 100"},
		{"an affinity rule about nodes with the field by", "affinity: [{node: disk=ssd, by: zone}]", "affinity[0].by: is for workload, group and tag"},
		{"an affinity rule with a tag without a value", "affinity: [{tag: batch}]", "affinity[0].tag: must be key=value"},
		{"an unknown placement policy", "policy: random", "policy: must be one of spread, binpack"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "workload_id: web\n" + c.rules + "\ncontainer: {image: nginx}\n"
			docs, err := Documents("web.yaml", []byte(text), Options{})
			if err == nil {
				if e := Validate(docs[0].Request); len(e) > 0 {
					t.Log(e)
					err = errorText(docs[0].Locate(e.Error()))
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse returned error %v, want an error that contains %q", err, c.want)
			}
		})
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }

func TestUnknownLabels(t *testing.T) {
	s := &controlv1.WorkloadSpec{
		Spread:       []*controlv1.SpreadRule{{By: "zone", When: "must"}, {By: "rack"}, {By: "host", When: "must"}},
		AntiAffinity: []*controlv1.AffinityRule{{Group: "a", By: "row", When: "Must"}},
	}
	err := UnknownLabels(s, func(key string) bool { return key == "zone" })
	if err == nil || !strings.HasPrefix(err.Error(), "anti_affinity[0].by: no node has this label") && !strings.HasPrefix(err.Error(), "spec.anti_affinity[0].by: no node has this label") {
		t.Errorf("UnknownLabels returned %v, want an error about anti_affinity[0].by only", err)
	}
	if err := UnknownLabels(s, func(string) bool { return true }); err != nil {
		t.Errorf("placement rules by labels that nodes have must be accepted, but were refused: %v", err)
	}
}
