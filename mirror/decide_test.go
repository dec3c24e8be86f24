package mirror

import (
	"errors"
	"testing"

	"github.com/persys/compute/fsm"
)

// TestDecideByContentsOfEtcd: the function decide returns the right action for each content of etcd. The
// leader of cluster c1 has incarnation 1000, term 5 and index 100.
func TestDecideByContentsOfEtcd(t *testing.T) {
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
		{"etcd is empty and was never attached: fill", found{}, whole, actFill, nil},
		{"etcd is empty and was never attached, the state is empty: fill", found{}, empty, actFill, nil},
		{"etcd is empty and was attached before: emptied", found{}, attached, actRefuse, ErrEmptied},
		{"etcd has only the owner key and was attached before: emptied", found{owner: ours}, attached, actRefuse, ErrEmptied},
		{"the first fill wrote only the owner key: fill", found{owner: ours}, whole, actFill, nil},
		{"data without owner", found{data: true}, whole, actRefuse, ErrForeignData},
		{"data without owner, the state is empty", found{data: true}, empty, actRefuse, ErrForeignData},
		{"data without owner, attached before", found{data: true}, attached, actRefuse, ErrForeignData},
		{"data and owner key of this cluster, no cursor", found{owner: ours, data: true}, attached, actCompare, nil},
		{"data and owner key of this cluster, no cursor, the state is empty", found{owner: ours, data: true}, emptyAttached, actRefuse, ErrForeignData},
		{"data and owner key of another cluster", found{owner: theirs, data: true, cursor: at(1000, 4, 90)}, attached, actRefuse, ErrForeignData},
		{"no data, owner key of another cluster", found{owner: theirs}, whole, actRefuse, ErrForeignData},
		{"an unreadable owner key", found{owner: owner{raw: "?"}, ownerErr: errors.New("odd")}, whole, actRefuse, ErrForeignData},

		{"cursor of an earlier term", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, attached, actResume, nil},
		{"cursor of this term", found{owner: ours, data: true, cursor: at(1000, 5, 90)}, attached, actResume, nil},
		{"cursor of this term with part of a batch written", found{owner: ours, data: true, cursor: at(1000, 5, 90, func(c *cursor) { c.Upto = 95 })}, attached, actResume, nil},
		{"cursor with the same index and digest", found{owner: ours, cursor: at(1000, 4, 100)}, attached, actResume, nil},
		{"cursor with the same index and another digest", found{owner: ours, cursor: at(1000, 4, 100, func(c *cursor) { c.Digest = digestText(8) })}, attached, actCompare, nil},
		{"cursor with a higher index", found{owner: ours, cursor: at(1000, 4, 101)}, attached, actCompare, nil},
		{"cursor that this leadership term did not write", found{owner: ours, cursor: at(1000, 5, 90)}, with(func(s *standing) { s.attached, s.mismatch = true, true }), actCompare, nil},
		{"cursor that is not complete", found{owner: ours, cursor: at(1000, 4, 0, func(c *cursor) { c.Complete = false })}, whole, actCompare, nil},
		{"cursor of another layout", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Layout = LayoutBoth })}, attached, actCompare, nil},
		{"cursor of another shape", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Shape = "12345678" })}, attached, actCompare, nil},
		{"cursor of another format", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Format++ })}, attached, actCompare, nil},
		{"cursor of an earlier incarnation", found{owner: ours, data: true, cursor: at(999, 9, 90)}, attached, actCompare, nil},
		{"cursor of an earlier incarnation, the state is empty", found{owner: ours, data: true, cursor: at(999, 9, 90)}, empty, actRefuse, ErrForeignData},
		{"all workloads were deleted in this incarnation", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, emptyAttached, actResume, nil},
		{"an unreadable cursor", found{owner: ours, data: true, cursor: cursor{raw: "?"}, unreadable: true}, attached, actCompare, nil},
		{"cursor of a later term", found{owner: ours, data: true, cursor: at(1000, 6, 110)}, attached, actRefuse, ErrDeposed},
		{"cursor of a later incarnation", found{owner: ours, data: true, cursor: at(1001, 1, 10)}, attached, actRefuse, ErrDeposed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decide(tt.f, tt.s)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("decide returned action %d, error %v; want %d, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// TestModeFor: ModeFor returns the mode that fsm/DESIGN.md demands for each state of the mirror.
func TestModeFor(t *testing.T) {
	none, required, attached, virgin := Facts{}, Facts{Required: true}, Facts{Attached: true}, Facts{Empty: true}
	for _, tt := range []struct {
		name  string
		state State
		f     Facts
		want  fsm.Mode
	}{
		{"the mirror is starting", Starting, required, ""},
		{"a healthy mirror means normal", Healthy, required, fsm.ModeNormal},
		{"endpoints unset, never attached: unreachable does not change the mode", Unreachable, none, fsm.ModeNormal},
		{"endpoints unset, never attached: failing does not change the mode", Failing, none, fsm.ModeNormal},
		{"endpoints set: unreachable means degraded from the first boot", Unreachable, required, fsm.ModeDegraded},
		{"endpoints set: failing means degraded", Failing, required, fsm.ModeDegraded},
		{"attached: unreachable means degraded", Unreachable, attached, fsm.ModeDegraded},
		{"attached: failing means degraded", Failing, attached, fsm.ModeDegraded},
		{"the attached etcd has lost its data", Emptied, attached, fsm.ModeRecovery},
		{"another etcd than the attached one answers", Other, attached, fsm.ModeDegraded},
		{"foreign data and an empty state", Foreign, virgin, fsm.ModeRecovery},
		{"foreign data, endpoints set", Foreign, required, fsm.ModeRecovery},
		{"foreign data, attached", Foreign, attached, fsm.ModeRecovery},
		{"foreign data, endpoints unset, never attached, the state has workloads", Foreign, none, fsm.ModeNormal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, ok := ModeFor(Health{State: tt.state, Reason: "why"}, tt.f)
			if got != tt.want || ok != (tt.want != "") {
				t.Errorf("ModeFor returns %q, %v; want %q", got, ok, tt.want)
			}
		})
	}
}
