package persysctl

import (
	"context"
	"fmt"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// maxDataLines is the maximum number of lines in which `persysctl delete` lists the affected data before it asks for
// confirmation.
const maxDataLines = 20

// confirmDelete asks the user before workloads are deleted by force, or with data that would be lost. The question
// names the data. Without a terminal, confirmDelete asks nothing and calls no scheduler.
func (c *cli) confirmDelete(ctx context.Context, ids []string, force, keep bool) error {
	if !c.canAsk() {
		return nil
	}
	lines, lost := c.deletedData(ctx, ids, keep)
	question := "Delete " + strings.Join(ids, ", ") + "?"
	switch {
	case force:
		question = "Forget " + strings.Join(ids, ", ") + " even if a node still runs it?"
	case !lost:
		return nil
	}
	return c.confirm(strings.Join(append(firstOf(lines, maxDataLines), question), "\n"))
}

// deletedData returns a line for each workload whose deletion deletes or keeps data, and reports whether any data is
// deleted. If the scheduler cannot list the data, a line says so and lost is true, because data may be deleted.
func (c *cli) deletedData(ctx context.Context, ids []string, keep bool) (lines []string, lost bool) {
	if len(ids) > maxPlan {
		return []string{fmt.Sprintf("their data cannot be listed: %d workloads are given, at most %d can be planned at once", len(ids), maxPlan)}, true
	}
	req := &clusterv1.PlanWorkloadsRequest{KeepVolumes: keep}
	for _, id := range ids {
		req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "deleted"})
	}
	planned, err := read(ctx, c, c.cluster.PlanWorkloads, req)
	if err != nil {
		return []string{"their data cannot be listed: " + screen.Clean(err.Error())}, true
	}
	return dataLines(planned.GetWorkloads())
}

// dataLines returns a line for each workload of a plan whose deletion deletes or keeps data, and reports whether any
// data is deleted.
func dataLines(planned []*clusterv1.PlannedWorkload) (lines []string, lost bool) {
	for _, w := range planned {
		goes, kept := dataOf(w)
		for _, part := range []struct {
			verb string
			data []string
		}{{"deletes", goes}, {"keeps", kept}} {
			if len(part.data) > 0 {
				lines = append(lines, screen.Clean(fmt.Sprintf("%s: %s %s", w.GetWorkloadId(), part.verb, strings.Join(part.data, ", "))))
			}
		}
		lost = lost || len(goes) > 0
	}
	return lines, lost
}

// dataOf returns the data that a planned delete would remove (goes), and the data that it would keep. A scheduler that
// is older than persysctl sends only the list of local data. It cannot keep volumes, so all of this data is returned
// in goes.
func dataOf(w *clusterv1.PlannedWorkload) (goes, kept []string) {
	if w.GetAction() != "delete" {
		return nil, nil
	}
	if goes, kept = w.GetDeletedData(), w.GetKeptData(); len(goes)+len(kept) > 0 {
		return goes, kept
	}
	for _, name := range w.GetLocalData() {
		goes = append(goes, name+" on "+w.GetPresentNodeId())
	}
	return goes, nil
}
