package mirror

import (
	"errors"
	"testing"

	"github.com/persys/compute/fsm"
)

// TestDecide is the table of DESIGN, decisions 11 and 12, for a leader of epoch
// 1000/5 of cluster c1 at index 100.
func TestDecide(t *testing.T) {
	at := func(incarnation, term, index uint64, change ...func(*cursor)) cursor {
		c := cursor{
			Incarnation: incarnation, Term: term, Index: index, Digest: digestText(7), Complete: true,
			Format: format, Layout: LayoutWhole, raw: "as read",
		}
		for _, fn := range change {
			fn(&c)
		}
		return c
	}
	ours, theirs := ownerOf("c1"), ownerOf("c2")
	whole := standing{cluster: "c1", epoch: fsm.Epoch{Incarnation: 1000, Term: 5}, index: 100, digest: 7, layout: LayoutWhole}
	with := func(change func(*standing)) standing { s := whole; change(&s); return s }
	empty := with(func(s *standing) { s.empty = true })
	attached := with(func(s *standing) { s.attached = true })
	emptyAttached := with(func(s *standing) { s.empty, s.attached = true, true })

	for _, tt := range []struct {
		name string
		f    found
		s    standing
		want action
		err  error
	}{
		{"nothing there, never attached: filled", found{}, whole, actFill, nil},
		{"nothing there, never attached, a virgin state: filled", found{}, empty, actFill, nil},
		{"nothing there, attached before: emptied", found{}, attached, actRefuse, ErrEmptied},
		{"only the owner is left, attached before: emptied", found{owner: ours}, attached, actRefuse, ErrEmptied},
		{"a first fill that wrote only the owner: filled", found{owner: ours}, whole, actFill, nil},
		{"data of unknown origin", found{data: true}, whole, actRefuse, ErrForeignData},
		{"data of unknown origin and a virgin state", found{data: true}, empty, actRefuse, ErrForeignData},
		{"data of unknown origin although attached before", found{data: true}, attached, actRefuse, ErrForeignData},
		{"data that the owner key says is ours", found{owner: ours, data: true}, attached, actCompare, nil},
		{"such data and a virgin state", found{owner: ours, data: true}, emptyAttached, actRefuse, ErrForeignData},
		{"another cluster's", found{owner: theirs, data: true, cursor: at(1000, 4, 90)}, attached, actRefuse, ErrForeignData},
		{"another cluster's although empty", found{owner: theirs}, whole, actRefuse, ErrForeignData},
		{"an owner that cannot be read", found{owner: owner{raw: "?"}, ownerErr: errors.New("odd")}, whole, actRefuse, ErrForeignData},

		{"a former leader's", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, attached, actResume, nil},
		{"our own", found{owner: ours, data: true, cursor: at(1000, 5, 90)}, attached, actResume, nil},
		{"our own, half a batch written", found{owner: ours, data: true, cursor: at(1000, 5, 90, func(c *cursor) { c.Upto = 95 })}, attached, actResume, nil},
		{"at our index with our digest", found{owner: ours, cursor: at(1000, 4, 100)}, attached, actResume, nil},
		{"at our index with another digest", found{owner: ours, cursor: at(1000, 4, 100, func(c *cursor) { c.Digest = digestText(8) })}, attached, actCompare, nil},
		{"ahead of us", found{owner: ours, cursor: at(1000, 4, 101)}, attached, actCompare, nil},
		{"not the one that this stint wrote last", found{owner: ours, cursor: at(1000, 5, 90)}, with(func(s *standing) { s.attached, s.mismatch = true, true }), actCompare, nil},
		{"not complete", found{owner: ours, cursor: at(1000, 4, 0, func(c *cursor) { c.Complete = false })}, whole, actCompare, nil},
		{"of another layout", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Layout = LayoutBoth })}, attached, actCompare, nil},
		{"of another shape", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Shape = "12345678" })}, attached, actCompare, nil},
		{"of another format", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Format++ })}, attached, actCompare, nil},
		{"of a former incarnation", found{owner: ours, data: true, cursor: at(999, 9, 90)}, attached, actCompare, nil},
		{"of a former incarnation, and a virgin state", found{owner: ours, data: true, cursor: at(999, 9, 90)}, empty, actRefuse, ErrForeignData},
		{"all workloads were deleted in this incarnation", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, emptyAttached, actResume, nil},
		{"unreadable", found{owner: ours, data: true, cursor: cursor{raw: "?"}, unreadable: true}, attached, actCompare, nil},
		{"of a later term", found{owner: ours, data: true, cursor: at(1000, 6, 110)}, attached, actRefuse, ErrDeposed},
		{"of a later incarnation", found{owner: ours, data: true, cursor: at(1001, 1, 10)}, attached, actRefuse, ErrDeposed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decide(tt.f, tt.s)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%d, %v; want %d, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// TestModeFor is the mirror's part of fsm/DESIGN.md.
func TestModeFor(t *testing.T) {
	none, required, attached, virgin := Facts{}, Facts{Required: true}, Facts{Attached: true}, Facts{Empty: true}
	for _, tt := range []struct {
		name  string
		state State
		f     Facts
		want  fsm.Mode
	}{
		{"nothing is known yet", Starting, required, ""},
		{"healthy", Healthy, required, fsm.ModeNormal},
		{"unset endpoints, never attached: absence changes nothing", Unreachable, none, fsm.ModeNormal},
		{"unset endpoints, never attached, failing", Failing, none, fsm.ModeNormal},
		{"set endpoints: absence degrades from the first boot", Unreachable, required, fsm.ModeDegraded},
		{"set endpoints, failing", Failing, required, fsm.ModeDegraded},
		{"attached: absence degrades", Unreachable, attached, fsm.ModeDegraded},
		{"attached, failing", Failing, attached, fsm.ModeDegraded},
		{"emptied", Emptied, attached, fsm.ModeRecovery},
		{"data and a virgin state", Foreign, virgin, fsm.ModeRecovery},
		{"foreign data where a mirror was asked for", Foreign, required, fsm.ModeRecovery},
		{"foreign data where it was", Foreign, attached, fsm.ModeRecovery},
		{"foreign data at the default address of a cluster at work", Foreign, none, fsm.ModeNormal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, ok := ModeFor(Health{State: tt.state, Reason: "why"}, tt.f)
			if got != tt.want || ok != (tt.want != "") {
				t.Errorf("%q, %v; want %q", got, ok, tt.want)
			}
		})
	}
}
