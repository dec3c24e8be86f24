package composefile

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/schema"
)

// TestEveryComposeKeyHasAVerdict: the rules cover every key in the schema of the Compose library.
func TestEveryComposeKeyHasAVerdict(t *testing.T) {
	type object struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var doc struct {
		object
		Defs map[string]object `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(schema.Schema), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Properties) == 0 || len(doc.Defs["service"].Properties) == 0 || len(doc.Defs["deployment"].Properties) == 0 {
		t.Fatal("the schema of the Compose library has no properties where this test expects them: adapt the test to the schema")
	}
	want := []string{"services.*.deploy.resources.limits", "services.*.deploy.resources.reservations"}
	for prefix, keys := range map[string]map[string]json.RawMessage{
		"": doc.Properties, "services.*.": doc.Defs["service"].Properties, "services.*.deploy.": doc.Defs["deployment"].Properties,
	} {
		for key := range keys {
			want = append(want, prefix+key)
		}
	}
	have := honoured()
	for _, r := range rules() {
		have = append(have, r.path)
		if r.verdict != Honoured && r.note == "" {
			t.Errorf("key %s is %s by nodes, so it must have a note that says why, but has none", r.path, r.verdict)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	for _, key := range want {
		if !slices.Contains(have, key) {
			t.Errorf("key %s of Compose has no entry in the table of treatments", key)
		}
	}
	for i, key := range have {
		if !slices.Contains(want, key) {
			t.Errorf("the table of treatments has key %s, but Compose has no such key", key)
		}
		if i > 0 && have[i-1] == key {
			t.Errorf("the table of treatments has two entries for key %s, want one", key)
		}
	}
}

func TestKeysListTheTreatmentOfEachKey(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"a file with one key of every treatment", "version: '3'\nservices:\n  web:\n    image: x\n    profiles: [p]\n    x-mine: {a: 1}\n    bogus: 1\n    deploy:\n      replicas: 2\n      placement: {}\n      resources:\n        limits: {cpus: '1'}\n",
			[]string{"1 version ignored", "4 services.web.image honoured", "5 services.web.profiles translated", "6 services.web.x-mine ignored", "7 services.web.bogus refused",
				"9 services.web.deploy.replicas honoured", "10 services.web.deploy.placement ignored", "12 services.web.deploy.resources.limits honoured"}},
		{"a service with both build and image, and one with build only", "services: {a: {build: ., image: x}, b: {build: .}}", []string{"1 services.a.build ignored", "1 services.a.image honoured", "1 services.b.build refused"}},
		{"top-level secrets and configs of a file", "services: {a: {image: x}}\nsecrets:\n  db: {external: true, name: shop-db}\n  own: {file: ./x}\nconfigs: {c: {external: false, content: x}}",
			[]string{"1 services.a.image honoured", "3 secrets.db translated", "4 secrets.own honoured", "5 configs.c honoured"}},
		{"a service with keys merged from an anchor", "x-base: &b {tty: true}\nservices: {a: {<<: *b, image: x}}", []string{"1 x-base ignored", "1 services.a.tty honoured", "2 services.a.image honoured"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, err := Keys(c.text)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range keys {
				got = append(got, strings.Join([]string{strconv.Itoa(k.Line), k.Path, k.Verdict}, " "))
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("Keys returned\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
	if _, err := Keys("a: 1"); err == nil {
		t.Error("Keys must refuse a file without services, but accepted it")
	}
}
