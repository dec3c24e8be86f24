package stack

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/persys/compute/engine"
)

// lists finds two kinds of mistakes in a service. The first are list entries that contradict each other;
// compose-go would use only the last of them. The second are options of volumes that compose-go would ignore.
func (w *walker) lists(name string, doc *yaml.Node, service string, cfg map[string]any) {
	for _, l := range []struct {
		key string
		of  func(entry any) string // function that returns the name that an entry sets; "" if the entry cannot contradict another entry
	}{
		{"configs", fileTarget}, {"environment", beforeEquals}, {"labels", beforeEquals}, {"secrets", fileTarget}, {"sysctls", beforeEquals}, {"tmpfs", tmpfsTarget}, {"volumes", volumeTarget},
	} {
		entries, _ := cfg[l.key].([]any)
		first := map[string]int{}
		for i, entry := range entries {
			about := l.of(entry)
			at := []string{"services", service, l.key, strconv.Itoa(i)}
			before, twice := first[about]
			switch {
			case about == "":
			case !twice:
				first[about] = i
			case !reflect.DeepEqual(entries[before], entry):
				f := Fault{File: name, Line: lineOf(doc, at), At: strings.Join(at, ".")}
				f.Rule = fmt.Sprintf("says something else about %s than line %d; Compose would take the last: keep one of them", about,
					lineOf(doc, []string{"services", service, l.key, strconv.Itoa(before)}))
				w.faults.add(f)
			}
			if text, ok := entry.(string); ok && l.key == "volumes" {
				if option := unknownOption(text); option != "" {
					w.faults.add(Fault{File: name, Line: lineOf(doc, at), At: strings.Join(at, "."),
						Rule: fmt.Sprintf("has no option %q, and Compose would ignore it; write for example /srv/data:/data:ro", option)})
				}
			}
		}
	}
}

// healthTest checks the command of a health check if the command is a list. compose-go checks it too, but its
// error does not name the service.
func (w *walker) healthTest(name string, doc *yaml.Node, service string, cfg map[string]any) {
	check, _ := cfg["healthcheck"].(map[string]any)
	if _, list := check["test"].([]any); !list {
		return
	}
	if rule := engine.HealthTest(texts(check["test"])); rule != "" {
		at := []string{"services", service, "healthcheck", "test"}
		w.faults.add(Fault{File: name, Line: lineOf(doc, at), At: strings.Join(at, "."), Rule: rule})
	}
}

func beforeEquals(entry any) string {
	text, _ := entry.(string)
	key, _, _ := strings.Cut(text, "=")
	return key
}

func fileTarget(entry any) string {
	switch v := entry.(type) {
	case string:
		return v
	case map[string]any:
		if target, ok := v["target"].(string); ok {
			return cleaned(target)
		}
		source, _ := v["source"].(string)
		return source
	}
	return ""
}

func tmpfsTarget(entry any) string {
	text, _ := entry.(string)
	target, _, _ := strings.Cut(text, ":")
	return cleaned(target)
}

func volumeTarget(entry any) string {
	switch v := entry.(type) {
	case string:
		if parts, ok := shortVolume(v); ok && len(parts) > 1 {
			return cleaned(parts[1])
		}
		return cleaned(v)
	case map[string]any:
		target, _ := v["target"].(string)
		return cleaned(target)
	}
	return ""
}

func cleaned(target string) string {
	if target == "" {
		return ""
	}
	return path.Clean(target)
}

// shortVolume splits a volume in the short form [SOURCE:]TARGET[:OPTIONS]. It returns false for Windows
// paths.
func shortVolume(text string) ([]string, bool) {
	parts := strings.Split(text, ":")
	return parts, len(parts) <= 3 && !strings.Contains(text, `\`)
}

// unknownOption returns an option that Compose does not know, of a volume in the short form; "" if there is
// none.
func unknownOption(text string) string {
	parts, ok := shortVolume(text)
	if !ok || len(parts) < 3 {
		return ""
	}
	known := []string{
		"cached", "consistent", "delegated", "nocopy", "private", "ro", "rprivate", "rshared", "rslave", "rw", "shared", "slave", "z", "Z", "U",
	}
	for option := range strings.SplitSeq(parts[2], ",") {
		if !slices.Contains(known, option) {
			return option
		}
	}
	return ""
}
