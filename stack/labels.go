package stack

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/stack/service"
)

// EachLabels calls f for each mapping of labels that the author of a project can set. at holds the keys that lead to the
// mapping in the Compose file. f may change the mapping.
func EachLabels(p *types.Project, f func(at []string, labels map[string]string)) {
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s, at := p.Services[name], []string{"services", name}
		of := func(labels map[string]string, keys ...string) { f(slices.Concat(at, keys), labels) }
		of(s.Labels, "labels")
		if s.Deploy != nil {
			of(s.Deploy.Labels, "deploy", "labels")
		}
		if s.Build != nil {
			of(s.Build.Labels, "build", "labels")
		}
		for i, v := range s.Volumes {
			if v.Volume != nil { // the engine makes a volume with these labels if the mount has no source
				of(v.Volume.Labels, "volumes", strconv.Itoa(i), "volume", "labels")
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Networks)) {
		f([]string{"networks", name, "labels"}, p.Networks[name].Labels)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Volumes)) {
		f([]string{"volumes", name, "labels"}, p.Volumes[name].Labels)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Secrets)) {
		f([]string{"secrets", name, "labels"}, p.Secrets[name].Labels)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Configs)) {
		f([]string{"configs", name, "labels"}, p.Configs[name].Labels)
	}
}

// labels adds a fault for each label that users cannot set.
func (j *judge) labels() {
	EachLabels(j.p, func(at []string, labels map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			if rule := service.ReservedLabel(k); rule != "" {
				f := Fault{File: j.main, At: strings.Join(append(at, k), "."), Rule: rule}
				if place, ok := j.labelled[f.At]; ok {
					f.File, f.Line = place.File, place.Line
				} else {
					f.line(j.docs, append(at, k))
				}
				j.faults.add(f)
			}
		}
	})
}
