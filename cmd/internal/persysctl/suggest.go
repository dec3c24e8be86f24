package persysctl

import (
	"slices"
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

// otherTools are other programs whose command lines people type after persysctl by mistake.
var otherTools = []string{"docker", "docker-compose", "podman", "kubectl", "nomad", "swarm"}

// otherNouns are the nouns of other tools for workloads, such as stack or service. In the command lines of
// these tools a verb follows the noun, as in stack deploy.
var otherNouns = []string{"stack", "stacks", "service", "services", "container", "containers", "deployment", "deployments", "pod", "task", "app", "workload", "compose", "job", "group"}

// nounVerbs maps verbs that follow otherNouns to the persysctl command for each, if otherVerbs lacks it.
var nounVerbs = map[string]string{
	"ls": "list", "list": "list", "status": "list", "services": "list", "tasks": "list", "run": "apply -f FILE", "start": "start WORKLOAD", "stop": "stop WORKLOAD",
	"restart": "restart WORKLOAD", "rm": "delete WORKLOAD", "remove": "delete WORKLOAD", "delete": "delete WORKLOAD", "scale": "scale GROUP=COUNT",
	"logs": "logs WORKLOAD", "rollback": "rollback WORKLOAD", "exec": "exec -it WORKLOAD -- sh", "apply": "apply -f FILE", "get": "get WORKLOAD", "describe": "get WORKLOAD",
	"history": "history WORKLOAD", "top": "top workloads", "plan": "plan -f FILE",
}

// ofNoun returns the persysctl command for the noun and the verb of another tool, such as stack deploy.
func ofNoun(words []string) (string, bool) {
	if len(words) == 0 || !slices.Contains(otherNouns, words[0]) {
		return "", false
	}
	if len(words) == 1 {
		return "list", true
	}
	if ours, ok := nounVerbs[words[1]]; ok {
		return ours, true
	}
	ours, ok := otherVerbs[words[1]]
	return ours, ok
}

// nearestCommand returns a hint for a command line that begins with an unknown command: the equivalent of
// another tool's command, else the command with the most similar name, else the help.
func nearestCommand(root *cobra.Command, words []string) string {
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	if len(words) > 1 && slices.Contains(otherTools, words[0]) {
		words = words[1:]
		if cmd, _, err := root.Find(words); err == nil && cmd != root {
			return "persysctl " + strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		}
	}
	if ours, ok := ofNoun(words); ok {
		return "persysctl " + ours
	}
	word := words[0]
	if ours, ok := otherVerbs[word]; ok {
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
