package stack

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

// TestEveryMappingOfLabelsIsFound: EachLabels finds every field of a project with the name labels. A field that a later
// version of compose-go adds fails this test.
func TestEveryMappingOfLabelsIsFound(t *testing.T) {
	var want, got []string
	var p types.Project
	fillLabels(reflect.ValueOf(&p).Elem(), nil, nil, &want)
	EachLabels(&p, func(at []string, labels map[string]string) {
		if path := strings.Join(at, "."); labels[path] == "x" {
			got = append(got, path)
		}
	})
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) || !slices.Contains(got, "services.0.volumes.0.volume.labels") {
		t.Errorf("EachLabels calls its function for the labels %q, want all labels of a project, %q", got, want)
	}
}

// fillLabels gives each mapping, list and pointer below v one element, and each mapping of labels the label PATH=x. It
// adds the paths to found. The key of each other mapping is 0.
func fillLabels(v reflect.Value, at []string, within []reflect.Type, found *[]string) {
	if slices.Contains(within, v.Type()) {
		return
	}
	within = append(within[:len(within):len(within)], v.Type())
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillLabels(v.Elem(), at, within, found)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillLabels(v.Index(0), append(at, "0"), within, found)
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		key := reflect.ValueOf("0")
		if at[len(at)-1] == "labels" && element.Kind() == reflect.String {
			path := strings.Join(at, ".")
			*found, key = append(*found, path), reflect.ValueOf(path)
			element.SetString("x")
		} else {
			fillLabels(element, append(at, "0"), within, found)
		}
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key.Convert(v.Type().Key()), element)
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			if name != "-" && name != "" && v.Field(i).CanSet() {
				fillLabels(v.Field(i), append(at[:len(at):len(at)], name), within, found)
			}
		}
	}
}

// TestReservedLabels: a stack that is applied may set no label of agents and Compose. A stack that is stored already may:
// the agent removes such labels.
func TestReservedLabels(t *testing.T) {
	const text = `services:
  web:
    image: a:1
    labels: {own: x, persys.namespace: bank}
    deploy:
      labels: [com.docker.compose.project=x]
    volumes:
      - {type: volume, target: /x, volume: {labels: {persys.managed: "true"}}}
    networks: [n]
    secrets: [s]
networks:
  n:
    labels:
      persys.node_id: x
secrets:
  s:
    environment: X
    labels:
      com.docker.compose.project: y
`
	src := source(text)
	src.Env = map[string]string{"X": "secret"}
	for _, strict := range []bool{true, false} {
		src.Strict = strict
		out, err := load(t.Context(), src, Root)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range out.Faults {
			got = append(got, f.String())
		}
		var want []string
		if strict {
			want = []string{
				"compose.yaml:4: services.web.labels.persys.namespace: begins with persys., which is for the labels of the agents: remove it, or choose another name",
				"compose.yaml:6: services.web.deploy.labels.com.docker.compose.project: begins with com.docker.compose., which is for the labels of Compose: remove it, or choose another name",
				"compose.yaml:8: services.web.volumes.0.volume.labels.persys.managed: begins with persys., which is for the labels of the agents: remove it, or choose another name",
				"compose.yaml:14: networks.n.labels.persys.node_id: begins with persys., which is for the labels of the agents: remove it, or choose another name",
				"compose.yaml:19: secrets.s.labels.com.docker.compose.project: begins with com.docker.compose., which is for the labels of Compose: remove it, or choose another name",
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("with Strict %v the load returned the faults\n%s\nwant\n%s", strict, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestReservedLabelsOfAFile: a fault about a label of a label_file names that file and the line.
func TestReservedLabelsOfAFile(t *testing.T) {
	src := source("services:\n  web:\n    image: a:1\n    label_file: [one, two]\n    labels: {persys.c: mine}\n",
		"one", "# labels\nown=x\npersys.a=1\n", "two", "export com.docker.compose.project: y\npersys.c=2\n")
	src.Strict = true
	out, err := load(t.Context(), src, Root)
	if err != nil {
		t.Fatal(err)
	}
	want := `compose.yaml:5: services.web.labels.persys.c: begins with persys., which is for the labels of the agents: remove it, or choose another name
one:3: services.web.labels.persys.a: begins with persys., which is for the labels of the agents: remove it, or choose another name
two:1: services.web.labels.com.docker.compose.project: begins with com.docker.compose., which is for the labels of Compose: remove it, or choose another name`
	if got := out.Faults.Error(); got != want {
		t.Errorf("the load of a stack with a reserved label in a label_file returned the faults\n%s\nwant\n%s", got, want)
	}
}

// TestReservedLabelsInEveryWay: labels of the agents are refused however they get into a stack.
func TestReservedLabelsInEveryWay(t *testing.T) {
	const web = "services:\n  web:\n    image: a:1\n"
	for _, tt := range []struct {
		name  string
		files []string // the Compose file, then names and contents of other files
		want  string   // field of the fault
	}{
		{"a reserved label in a list with a variable", []string{web + "    labels: ['${KEY}=x']\n"}, "services.web.labels.persys.managed"},
		{"a reserved label from a merge key", []string{"x-all: &all {persys.managed: x}\n" + web + "    labels: {<<: *all}\n"}, "services.web.labels.persys.managed"},
		{"a reserved label from a merged fragment of the whole service", []string{"x-all: &all {labels: {persys.managed: x}}\n" + web + "    <<: *all\n"}, "services.web.labels.persys.managed"},
		{"a reserved label in an included file", []string{"include: [more.yaml]\n" + web, "more.yaml", "services:\n  b:\n    image: a:1\n    labels: {persys.managed: x}\n"}, "services.b.labels.persys.managed"},
		{"a reserved label of a network in an included file", []string{"include: [{path: more.yaml}]\n" + web, "more.yaml", "networks: {n: {labels: {persys.managed: x}}}\nservices: {b: {image: 'a:1', networks: [n]}}\n"}, "networks.n.labels.persys.managed"},
		{"a reserved label in a file that an included file includes", []string{"include: [more.yaml]\n" + web, "more.yaml", "include: [last.yaml]\n", "last.yaml", "services:\n  b:\n    image: a:1\n    labels: {persys.managed: x}\n"}, "services.b.labels.persys.managed"},
		{"a reserved label of an extended service in the same file", []string{web + "    extends: {service: b}\n  b:\n    image: a:1\n    scale: 0\n    labels: {persys.managed: x}\n"}, "services.web.labels.persys.managed"},
		{"a reserved label of an extended service in another file", []string{web + "    extends: {file: more.yaml, service: b}\n", "more.yaml", "services:\n  b:\n    image: a:1\n    labels: {persys.managed: x}\n"}, "services.web.labels.persys.managed"},
		{"a reserved label of a service that an extended service extends", []string{web + "    extends: {file: more.yaml, service: b}\n", "more.yaml", "services:\n  b: {extends: {service: c}}\n  c:\n    image: a:1\n    labels: {persys.managed: x}\n"}, "services.web.labels.persys.managed"},
		{"a reserved label in a label file", []string{web + "    label_file: l\n", "l", "persys.managed=x\n"}, "services.web.labels.persys.managed"},
		{"a reserved label in a label file of an included file", []string{"include: [dir/more.yaml]\n" + web, "dir/more.yaml", "services:\n  b:\n    image: a:1\n    label_file: l\n", "dir/l", "persys.managed=x\n"}, "services.b.labels.persys.managed"},
		{"a reserved label in a label file of an extended service", []string{web + "    extends: {file: dir/more.yaml, service: b}\n", "dir/more.yaml", "services:\n  b:\n    image: a:1\n    label_file: l\n", "dir/l", "persys.managed=x\n"}, "services.web.labels.persys.managed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := source(tt.files[0], tt.files[1:]...)
			src.Strict, src.Env = true, map[string]string{"KEY": "persys.managed"}
			_, err := loadHere(t, src)
			var faults Faults
			if !errors.As(err, &faults) || !slices.ContainsFunc(faults, func(f Fault) bool { return f.At == tt.want && strings.HasPrefix(f.Rule, "begins with persys.") }) {
				t.Errorf("the load returned %v, want a fault about the reserved label at %s", err, tt.want)
			}
		})
	}
}
