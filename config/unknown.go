package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// prefixes are the prefixes of variables that only Persys programs read.
var prefixes = []string{"PERSYS_", "SCHEDULER_"}

// serviceVariable matches the variables that Kubernetes sets for every service in the namespace of a pod.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT(_\w+)?)=|_PORT_\d+_(TCP|UDP)(_\w+)?=|_PORT=(tcp|udp)://`)

// Unknown lists the environment variables that have one of our prefixes but are not settings of this program,
// each with the most similar setting. The variables in except are not listed.
func (l *Loader) Unknown(from Sources, except ...string) (out []string) {
	known := slices.Clone(except)
	for _, s := range l.settings {
		for _, name := range s.Env {
			known = append(known, name, name+"_FILE")
		}
	}
	for _, v := range from.Variables {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }), slices.Contains(known, name):
		case serviceVariable.MatchString(v):
		default:
			hint := ""
			if near := nearestVariable(name, known); near != "" {
				hint = "; did you mean " + near + "?"
			}
			out = append(out, fmt.Sprintf("%s is no setting of this program%s", name, hint))
		}
	}
	slices.Sort(out)
	return out
}

// nearestVariable returns the known variable that is most similar to the unknown variable name: the shortest known
// variable that contains every word of name, such as PERSYS_NODE_LABELS for PERSYS_LABELS. If no variable contains
// every word, it returns the variable with the smallest edit distance.
func nearestVariable(name string, known []string) string {
	best, words := "", strings.Split(name, "_")
	for _, k := range known {
		have := strings.Split(k, "_")
		all := !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(have, w) })
		if all && (best == "" || len(k) < len(best)) {
			best = k
		}
	}
	if best != "" {
		return best
	}
	return nearest(name, known)
}
