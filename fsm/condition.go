package fsm

import (
	"fmt"
	"strconv"
	"strings"
)

// Number returns the number of the present revision, from 1.
func (w *Workload) Number() uint64 {
	if w.history == nil {
		return 1
	}
	return w.history.number
}

// ETag returns the etag of w's present revision: revision number, content and desired state. A
// change by a user changes the etag; placement, failures and restarts do not.
func (w *Workload) ETag() string {
	number := w.Number()
	id := (&Revision{Content: w.Content}).ID()
	return strconv.FormatUint(number, 10) + "-" + id + "-" + strings.ToLower(string(w.Desired))
}

// ConditionFault returns why a condition on the present revision of a workload does not hold; "" if
// the condition holds. w is the present record of the workload; nil if the workload does not exist.
// A condition is a revision number, an etag, or 0, which demands that the workload does not exist.
func ConditionFault(condition, id string, w *Workload) string {
	exists := w != nil && w.Desired != DesiredDeleted
	number, _, exact := strings.Cut(condition, "-")
	if w != nil && number == strconv.FormatUint(w.Number(), 10) {
		number = condition // the revision number matches, so the content or the desired state differs
	}
	switch {
	case condition == "":
		return ""
	case condition == "0" && exists:
		return fmt.Sprintf("workload %q exists already, at revision %s: choose another id, or apply without a condition to replace it; `persysctl get %s` shows it",
			clip(id), revisionText(w), clip(id))
	case condition == "0":
		return ""
	case w == nil:
		return fmt.Sprintf("workload %q does not exist, and the change is only for its revision %s: apply without a condition to create it", clip(id), clip(number))
	case w.Desired == DesiredDeleted:
		return fmt.Sprintf("workload %q is being deleted, and the change is only for its revision %s: apply without a condition to keep it", clip(id), clip(number))
	case !exact && condition == strconv.FormatUint(w.Number(), 10), condition == w.ETag():
		return ""
	}
	return fmt.Sprintf("workload %q is at revision %s, but the request is only for revision %s: another request has changed the workload; `persysctl history %s` shows the changes; "+
		"keep them in your specification, and repeat the request for revision %d", clip(id), revisionText(w), clip(number), clip(id), w.Number())
}

// revisionText describes the present revision of w for error texts.
func revisionText(w *Workload) string {
	r := w.present()
	text := strconv.FormatUint(r.Number, 10) + " (" + strings.ToLower(string(w.Desired)) + ", applied " + clockText(r.At)
	return text + suffix(" by ", r.By) + ")"
}
