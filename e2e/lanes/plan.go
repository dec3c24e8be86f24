package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// lane says how a test runs. In the default lane, which has no name, several tests run at the same time,
// each in a network namespace of its own.
type lane string

const (
	// laneEarly is the default lane for the longest tests: they start first, so that none of them runs
	// alone at the end.
	laneEarly lane = "early"
	// laneHost runs one test after another in the network of the machine, where Docker publishes ports.
	laneHost lane = "host"
	// laneShared is for tests that stop no program. They run one after another on one cluster, in one process.
	laneShared lane = "shared"
	// laneFull is for tests that only make test-full runs. They start first, like those of laneEarly.
	laneFull lane = "full"
)

// lanes lists the lanes that may stand in lanes.txt; the default lane has no name and is not in the file.
var lanes = []lane{laneEarly, laneHost, laneShared, laneFull}

// rule is one line of lanes.txt: the lane of one test and the reason.
type rule struct {
	lane   lane
	reason string
}

// readRules reads lanes.txt: "TestName lane reason" on each line. It refuses a test that does not exist,
// a lane that does not exist, and a line without a reason.
func readRules(path string, tests []string) (map[string]rule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rules := map[string]rule{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		in, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		reason = strings.TrimSpace(reason)
		_, twice := rules[name]
		switch {
		case !slices.Contains(tests, name):
			err = fmt.Errorf("there is no test %s", name)
		case twice:
			err = fmt.Errorf("%s is listed twice", name)
		case !slices.Contains(lanes, lane(in)):
			err = fmt.Errorf("the lane is %q: it must be one of %s", in, lanes)
		case reason == "":
			err = fmt.Errorf("%s has no reason: write after the lane why the test needs it", name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		rules[name] = rule{lane(in), reason}
	}
	return rules, nil
}

// plan is the order of the tests.
type plan struct {
	shared     []string // tests that run one after another in one process, which starts first
	namespaced []string // tests that run at the same time in network namespaces, started in this order
	host       []string // tests that run one after another in the network of the machine
	left       []string // tests that do not run: those of the lane "full" without -full
}

// arrange makes a plan that says which tests run in which lane, according to the rules of lanes.txt. In each
// lane they stay in the order of the source files.
func arrange(tests []string, rules map[string]rule, opt options) plan {
	var p plan
	var early []string
	for _, name := range tests {
		if opt.match != nil && !opt.match.MatchString(name) {
			continue
		}
		switch rules[name].lane {
		case laneHost:
			p.host = append(p.host, name)
		case laneShared:
			p.shared = append(p.shared, name)
		case laneEarly:
			early = append(early, name)
		case laneFull:
			if !opt.full {
				p.left = append(p.left, name)
				continue
			}
			early = append(early, name)
		default:
			p.namespaced = append(p.namespaced, name)
		}
	}
	p.namespaced = append(early, p.namespaced...)
	return p
}

// inOrder returns the plan for a machine on which network namespaces cannot be made: all tests run one after
// another.
func (p plan) inOrder() plan {
	return plan{host: slices.Concat(p.host, p.shared, p.namespaced), left: p.left}
}

// workersFor returns how many tests with network namespaces run at the same time by default. The lane host runs one
// more. More tests would delay each other's heartbeats and elections.
func workersFor() int { return min(max(2, runtime.NumCPU()), 8) }
