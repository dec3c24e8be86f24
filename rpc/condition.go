package rpc

import (
	"regexp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// conditionForm is the form of a condition: the number of a revision, or an etag that package fsm makes.
var conditionForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,18}|[1-9][0-9]{0,18}-c1-[0-9a-f]{1,64}-[a-z]{1,16})$`)

// checkCondition checks the form of the condition if_revision. The state machine checks whether the condition is met.
func checkCondition(condition string) error {
	if condition != "" && !conditionForm.MatchString(condition) {
		return errorf(KindInvalid, "if_revision: %.64q must be the number of a revision (`persysctl history WORKLOAD`), an etag, or 0 for a workload that does not exist", condition)
	}
	return nil
}

func errGroupCondition(condition string) error {
	return errorf(KindInvalid, "if_revision: %.64q: the members of a group have revisions of their own; name one member, or leave the condition out and look at `persysctl plan`", condition)
}

// conditional adds the condition if_revision of a request to the command that stores the workload.
func conditional(put *commandv1.PutWorkloads, condition string) error {
	if condition == "" {
		return nil
	}
	if put.GetGroupOf() != "" || len(put.GetWorkloads()) != 1 {
		return errGroupCondition(condition)
	}
	put.Workloads[0].IfRevision = condition
	return checkCondition(condition)
}

// tagged adds the etag of the workload to the response of an apply. If somebody has changed the workload since the
// apply, it adds nothing.
func (s *Server) tagged(resp *controlv1.ApplyWorkloadResponse) {
	if !resp.GetSuccess() || len(resp.GetWorkloadIds()) != 1 {
		return
	}
	w, ok := s.store.View().Workload(resp.GetWorkloadIds()[0])
	if ok && w.Revision() == resp.GetRevisionId() && !fsm.MadeByCount(w.Demand.Group, w.ID) {
		resp.Etag = w.ETag()
	}
}

// takesBack returns the fields that an apply would set back to the value of an earlier revision. It warns a user
// who applies a file that is older than the present revision.
func takesBack(view fsm.View, p *commandv1.WorkloadPut) (out []*controlv1.TakenBack) {
	w, ok := view.Workload(p.GetId())
	if !ok || w.Desired == fsm.DesiredDeleted {
		return nil
	}
	if fsm.Wanted(view, w) == fsm.DesiredStopped && p.GetDesired() == string(fsm.DesiredRunning) {
		out = append(out, &controlv1.TakenBack{Field: "desired_state", Before: string(w.Desired), After: p.GetDesired()})
	}
	if w.Content == p.GetContent() || w.Number() == 1 {
		return out
	}
	revs := view.Revisions(p.GetId())
	last := len(revs) - 1
	// For each earlier revision, find the fields in which it differs from the present revision, and the fields in which
	// it differs from the new revision.
	fromPresent, fromNew := make([][]string, last), make([][]string, last)
	sameAsNew := -1
	for i := range last {
		if revs[i].Content == p.GetContent() {
			sameAsNew = i
		}
		fromPresent[i], fromNew[i] = differing(&revs[i], &revs[last]), differing(&revs[i], &fsm.Revision{Spec: p.GetSpec(), Content: p.GetContent()})
	}
	for _, c := range between(&revs[last], &fsm.Revision{Spec: p.GetSpec(), Content: p.GetContent()}) {
		setIn, former := 0, false
		for i := range last {
			if slices.Contains(fromPresent[i], c.Field) {
				setIn = i + 1
			}
			former = former || !slices.Contains(fromNew[i], c.Field)
		}
		if c.Field == secretValue { // skip secrets: those of a stored revision cannot be compared one by one
			setIn, former = sameAsNew+1, sameAsNew >= 0
		}
		if !former {
			continue
		}
		by := revs[setIn]
		out = append(out, &controlv1.TakenBack{
			Field: c.Field, Before: c.Before, After: c.After, Revision: by.Number, By: by.By, AppliedAt: timestamppb.New(time.Unix(0, by.At)),
		})
	}
	return out
}

// differing returns the names of the fields in which two revisions differ.
func differing(a, b *fsm.Revision) (out []string) {
	for _, c := range between(a, b) {
		out = append(out, c.GetField())
	}
	return out
}
