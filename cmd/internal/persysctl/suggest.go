package persysctl

import (
	"strings"

	"github.com/spf13/cobra"
)

// otherVerbs maps verbs of docker, kubectl, nomad and similar tools to the persysctl command for each.
var otherVerbs = map[string]string{
	"ps": "list", "pods": "list", "jobs": "list", "workloads": "list",
	"up": "apply -f FILE", "create": "apply -f FILE", "deploy": "apply -f FILE", "update": "apply -f FILE",
	"edit":    "get WORKLOAD -o yaml   then apply the changed file",
	"inspect": "get WORKLOAD", "show": "get WORKLOAD", "explain": "why WORKLOAD",
	"down": "delete WORKLOAD", "destroy": "delete WORKLOAD", "kill": "stop WORKLOAD",
	"log": "logs WORKLOAD", "tail": "logs WORKLOAD --follow",
	"attach": "console WORKLOAD", "ssh": "exec -it WORKLOAD -- sh", "shell": "exec -it WORKLOAD -- sh",
	"stats": "top workloads", "members": "status", "info": "status", "schedulers": "status",
	"login": "join TOKEN", "whoami": "context show",
}

// nearestCommand returns the hint for an unknown command: the command for another tool's verb, else the
// command with the most similar name, else the help.
func nearestCommand(root *cobra.Command, word string) string {
	if ours, ok := otherVerbs[strings.ToLower(word)]; ok {
		return "persysctl " + ours
	}
	best, least := "--help", min(len(word), 1+max(2, len(word)/3))
	for _, cmd := range root.Commands() {
		if cmd.Hidden {
			continue
		}
		for _, name := range append([]string{cmd.Name()}, cmd.Aliases...) {
			if d := distance(strings.ToLower(word), name); d < least {
				best, least = cmd.Name(), d
			}
		}
	}
	return "persysctl " + best
}

// distance returns how many characters must be inserted, deleted or replaced to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
