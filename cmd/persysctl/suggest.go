package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// otherVerbs are verbs of docker, kubectl, nomad and the like, with our command for each.
var otherVerbs = map[string]string{
	"ps": "list", "pods": "list", "jobs": "list", "workloads": "list",
	"run": "apply -f FILE", "up": "apply -f FILE", "create": "apply -f FILE", "deploy": "apply -f FILE", "update": "apply -f FILE",
	"scale": "apply -f FILE   with the new count in FILE", "edit": "get WORKLOAD -o yaml   then apply the changed file",
	"inspect": "get WORKLOAD", "show": "get WORKLOAD", "explain": "why WORKLOAD",
	"down": "delete WORKLOAD", "destroy": "delete WORKLOAD", "kill": "stop WORKLOAD",
	"log": "logs WORKLOAD", "tail": "logs WORKLOAD --follow",
	"attach": "console WORKLOAD", "ssh": "exec -it WORKLOAD -- sh", "shell": "exec -it WORKLOAD -- sh",
	"stats": "top workloads", "members": "status", "info": "status", "schedulers": "status",
	"config": "context", "login": "join TOKEN", "whoami": "context show",
}

// nearestCommand is the hint for an unknown command: our verb for another tool's, or
// the command with the most similar name, or the help.
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

// distance is the number of characters to insert, delete or replace that make b of a.
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
