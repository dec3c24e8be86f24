package sim

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/persys/compute/agent/driver"
)

// entry is one line of the run log, in which an engine records every start and stop of an instance. Times are
// on the machine's monotonic clock, which all processes share, in nanoseconds.
type entry struct {
	At        time.Duration `json:"at"`
	Event     string        `json:"event"` // "start" or "stop"
	RuntimeID string        `json:"runtime_id"`
	// The following fields are set only for starts.
	Workload   string `json:"workload,omitempty"`
	Cluster    string `json:"cluster,omitempty"`
	Node       string `json:"node,omitempty"`
	Generation string `json:"generation,omitempty"`
	Content    string `json:"content,omitempty"`
	// Until is the time at which the run will end by itself; 0 if never.
	Until time.Duration `json:"until,omitempty"`
	// ExitCode is set only for stops.
	ExitCode int `json:"exit_code,omitempty"`
}

// Run is one interval in which an instance ran. If the engine restarts the instance under its restart
// policy, the interval continues.
type Run struct {
	Workload   driver.ID
	ClusterID  string
	NodeID     string
	RuntimeID  string
	Generation driver.Generation
	Content    string
	// From and To are on the machine's monotonic clock (CLOCK_BOOTTIME unless Options.Mono says otherwise).
	// To is zero while the instance runs.
	From, To time.Duration
}

// ReadRuns reads the run intervals of an engine that is stored in the folder dir, in the order of their
// starts. Other processes may use the engine at the same time.
func ReadRuns(dir string) ([]Run, error) {
	entries, err := readLog(filepath.Join(dir, "runs.log"))
	if err != nil {
		return nil, err
	}
	return runsOf(entries, Boottime()), nil
}

func runsOf(entries []entry, now time.Duration) []Run {
	var out []Run
	open := make(map[string]int)
	for _, e := range entries {
		switch e.Event {
		case "start":
			generation, err := driver.ParseGeneration(e.Generation)
			if err != nil {
				generation = driver.Generation{}
			}
			run := Run{
				Workload: driver.ID(e.Workload), ClusterID: e.Cluster, NodeID: e.Node, RuntimeID: e.RuntimeID,
				Generation: generation, Content: e.Content, From: e.At,
			}
			if e.Until > 0 && e.Until <= now {
				run.To = e.Until
			}
			open[e.RuntimeID] = len(out)
			out = append(out, run)
		case "stop":
			if i, ok := open[e.RuntimeID]; ok {
				if out[i].To == 0 || e.At < out[i].To {
					out[i].To = e.At
				}
				delete(open, e.RuntimeID)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Run) int { return int(min(max(a.From-b.From, -1), 1)) })
	return out
}

// Overlaps returns every pair of runs that overlap in time and belong to the same workload of the same cluster;
// the earlier run is the first of the pair. The list may contain the runs of several engines of one machine.
func Overlaps(runs []Run) [][2]Run {
	type key struct {
		cluster  string
		workload driver.ID
	}
	byWorkload := make(map[key][]Run)
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b Run) int { return int(min(max(a.From-b.From, -1), 1)) })
	var out [][2]Run
	for _, run := range sorted {
		k := key{run.ClusterID, run.Workload}
		still := byWorkload[k][:0]
		for _, earlier := range byWorkload[k] {
			if earlier.To != 0 && earlier.To <= run.From {
				continue
			}
			out = append(out, [2]Run{earlier, run})
			still = append(still, earlier)
		}
		byWorkload[k] = append(still, run)
	}
	return out
}
