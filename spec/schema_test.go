package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// check validates a document against the schema alone, without the decoder.
func check(t interface {
	Helper()
	Fatal(...any)
}, text string) Errors {
	t.Helper()
	var all Errors
	for _, c := range documents(text) {
		if c.blank() {
			continue
		}
		root, err := c.tree()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bySchema(root)...)
	}
	return all
}

// TestSchemaAcceptsDocumentsOfTheDecoder: the schema accepts every document that the decoder accepts,
// in all spellings.
func TestSchemaAcceptsDocumentsOfTheDecoder(t *testing.T) {
	texts := map[string]string{
		"every field": everyField, "the wire's names": everyFieldWire,
		"words in upper and lower case": "id: a\ndesired: Running\ncontainer: {image: x, restart: ALWAYS, ports: [{container: 80, protocol: TCP}]}\n",
		"fields with the value null":    "id: a\ngroup:\nresources: ~\ncontainer: {image: x, env: , ports: null}\n",
		"a list":                        "- {id: a, container: {image: x}}\n- {id: b, container: {image: x}}\n",
		"a VM":                          "id: v\nvm: {cpus: 2, memory: 1Gi, image: /x.qcow2, disks: [{size: 1Gi}], networks: [default, {network: lan, ip: 10.0.0.2}], cloud_init: {user_data: x}}\n",
		"a stack from git":              "id: s\ncompose: {git: \"https://example.org/x.git#main\", env: [A=b, {C: d}]}\n",
		"a Compose file":                "name: s\nservices: {web: {image: x}}\n",
		"anchors":                       "id: a\ncontainer: &c {image: x}\n---\nid: b\ncontainer: {image: y, env: {A: 1.5, B: true, C: }}\n",
	}
	files, err := filepath.Glob("../examples/*.*")
	if err != nil || len(files) < 5 {
		t.Fatalf("the example workload files are %v (error %v), want at least 5 files and no error", files, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if ext := filepath.Ext(f); ext == ".yaml" || ext == ".json" {
			texts[f] = string(data)
		}
	}
	for name, text := range texts {
		if errs := check(t, text); len(errs) > 0 {
			t.Errorf("the schema must accept document %q, but reports %v", name, errs)
		}
	}
}

func TestSchemaFindsFaults(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"id: a\ncontaner: {image: x}\n", `2:1: unknown field "contaner"`},
		{"id: a\ncontainer:\n  image: x\n  ports:\n    - {host: 1, contaner: 2}\n", `5:17: container.ports[0]: unknown field "contaner"`},
		{"id: a\ncontainer:\n  image: x\n  restart: sometimes\n", "4:12: container.restart: must be one of no, always, on-failure, unless-stopped"},
		{"id: a\ncount: 1001\ncontainer: {image: x}\n", "2:8: count: must be at most 1000"},
		{"id: a\ncontainer: [x]\n", "2:12: container: is not valid here"},
		{"id: a\ncontainer: {image: x, env: {A: hunter2, B: [hunter2]}}\n", "container.env.B: must be"},
		{"id: a\nexclusive: perhaps\ncontainer: {image: x}\n", "2:12: exclusive: must match"},
	} {
		errs := check(t, c.text)
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
			t.Errorf("for document %[1]q the schema reports %[2]v, want %[3]s", c.text, errs, c.want)
		}
		if strings.Contains(errs.Error(), "hunter2") {
			t.Errorf("an error must not contain a value of the document, but does: %v", errs)
		}
	}
}

// TestOneRunFindsFaultsOfBothKinds: if a document has an unknown field and also a word that is not allowed,
// Parse reports both faults.
func TestOneRunFindsFaultsOfBothKinds(t *testing.T) {
	_, err := Parse("f", []byte("id: a\nbogus: 1\ncontainer: {image: x, restart: sometimes}\npriority: 5000\n"), Options{})
	if err == nil {
		t.Fatal("Parse must refuse a document with two faults, but accepted it")
	}
	for _, want := range []string{`f:2:1: unknown field "bogus"`, "f:3:32: container.restart: must be one of no,", "f:4:11: priority: must be at most 1000"} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("the error is %v\nand must contain once: %s", err, want)
		}
	}
}

// TestSchemaAcceptsMutatedValidDocuments mutates valid documents. If the decoder accepts the result, the
// schema must accept it too.
func TestSchemaAcceptsMutatedValidDocuments(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(everyField), "\n")
	values := []string{"1", "x", "true", "~", "[]", "{}", "[1, x]", "{a: 1}", "\"\"", "0.5", "1Gi", "Always", "no", "-3"}
	rapid.Check(t, func(rt *rapid.T) {
		text := append([]string(nil), lines...)
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			i := rapid.IntRange(0, len(text)-1).Draw(rt, "line")
			if key, _, ok := strings.Cut(text[i], ":"); ok {
				text[i] = key + ": " + rapid.SampledFrom(values).Draw(rt, "value")
			}
		}
		whole := strings.Join(text, "\n") + "\n"
		if _, err := Parse("f", []byte(whole), Options{}); err != nil {
			return
		}
		if errs := check(rt, whole); len(errs) > 0 {
			rt.Fatalf("the decoder accepts this document, so the schema must too, but reports %v:\n%s", errs, whole)
		}
	})
}

func TestEveryFieldIsDescribed(t *testing.T) {
	all, missing := SchemaFields()
	if len(all) < 60 || len(missing) > 0 {
		t.Errorf("each of %d fields must have a description in spec/schemanotes.go, but these have none: %v", len(all), missing)
	}
	have := map[string]bool{}
	for _, f := range all {
		have[f] = true
	}
	for f := range notes() {
		if !have[f] {
			t.Errorf("spec/schemanotes.go must describe only fields that documents have, but describes %s", f)
		}
	}
}

func TestPlainComposeFile(t *testing.T) {
	const file = "# a comment stays\nservices:\n  web:\n    image: nginx:1.27\n    ports: [\"8080:80\"]\n"
	named := func(name string) func(StackText) (Stack, error) {
		return func(StackText) (Stack, error) { return Stack{Name: name}, nil }
	}
	faulty := func(StackText) (Stack, error) {
		return Stack{}, Errors{{Line: 4, Column: 1, Field: "services.web.image", Rule: "is wrong"}, {File: "beside", Line: 7, Column: 1, Rule: "is wrong too"}}
	}
	for _, c := range []struct {
		name, text string
		options    Options
		id, err    string
	}{
		{"a stack gets the name in its Compose file", "name: shop\n" + file, Options{}, "shop", ""},
		{"the name that the stack loader derives takes precedence over the name in the file", "name: shop\n" + file, Options{Stack: named("folder")}, "folder", ""},
		{"the name in Options takes precedence over the name in the file", "name: shop\n" + file, Options{Name: "other"}, "other", ""},
		{"a fault in the Compose file names its line", file, Options{Stack: faulty}, "", "f:4:1: services.web.image: is wrong"},
		{"a fault in another file of the stack names that file", "---\n" + file, Options{Stack: faulty}, "", "beside:7:1: is wrong too"},
		{"a Compose file without a name", file, Options{}, "", "f:2:1: name: a Compose file needs a name"},
		{"an invalid name in Options is refused", file, Options{Name: "a b"}, "", "workload_id: must be a letter or digit"},
		{"a Compose file with a key that nodes refuse", "name: x\nservices:\n  web:\n    build: .\n", Options{}, "", "f:4:1: services.web.build: is refused by nodes: nodes build no images"},
		{"a Compose file without services", "name: x\nservices: {}\n", Options{}, "", "services must name at least one service"},
		{"a specification is not taken for a Compose file", "id: x\nservices: {}\ncontainer: {image: y}\n", Options{}, "", `unknown field "services"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			reqs, err := Parse("f", []byte(c.text), c.options)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("Parse of the Compose file returned error %v, want an error that contains %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(reqs) != 1 || reqs[0].GetWorkloadId() != c.id || reqs[0].GetSpec().GetCompose().GetInlineYaml() != c.text {
				t.Errorf("Parse of the Compose file returned the requests %v, want one stack with the name of the case", reqs)
			}
			if _, err := Prepare(reqs[0], testKey(t)); err != nil {
				t.Error(err)
			}
		})
	}
	reqs, err := Parse("f", []byte(file), Options{Name: "x", Stack: func(s StackText) (Stack, error) {
		return Stack{Name: s.Name, Env: map[string]string{"A": "1"}}, nil
	}})
	if err != nil || reqs[0].GetSpec().GetCompose().GetEnv()["A"] != "1" {
		t.Errorf("Parse with a stack loader returned the requests %v and error %v, want one request with the loaded environment", reqs, err)
	}
}
