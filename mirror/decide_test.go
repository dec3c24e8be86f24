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
		{"an empty etcd that was never attached is filled", found{}, whole, actFill, nil},
		{"an empty etcd that was never attached is filled, even from an empty state", found{}, empty, actFill, nil},
		{"an empty etcd that was attached before counts as emptied", found{}, attached, actRefuse, ErrEmptied},
		{"an etcd with only the owner key that was attached before counts as emptied", found{owner: ours}, attached, actRefuse, ErrEmptied},
		{"an etcd in which the first fill wrote only the owner key is filled", found{owner: ours}, whole, actFill, nil},
		{"data without an owner key is refused", found{data: true}, whole, actRefuse, ErrForeignData},
		{"data without an owner key is refused, if the state is empty too", found{data: true}, empty, actRefuse, ErrForeignData},
		{"data without an owner key is refused, although the etcd was attached before", found{data: true}, attached, actRefuse, ErrForeignData},
		{"data of this cluster without a cursor is compared with the state", found{owner: ours, data: true}, attached, actCompare, nil},
		{"data of this cluster without a cursor is refused if the state is empty", found{owner: ours, data: true}, emptyAttached, actRefuse, ErrForeignData},
		{"data of another cluster is refused", found{owner: theirs, data: true, cursor: at(1000, 4, 90)}, attached, actRefuse, ErrForeignData},
		{"the owner key of another cluster without data is refused", found{owner: theirs}, whole, actRefuse, ErrForeignData},
		{"an unreadable owner key is refused", found{owner: owner{raw: "?"}, ownerErr: errors.New("odd")}, whole, actRefuse, ErrForeignData},

		{"the mirror resumes after a cursor of an earlier term", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, attached, actResume, nil},
		{"the mirror resumes after a cursor of this term", found{owner: ours, data: true, cursor: at(1000, 5, 90)}, attached, actResume, nil},
		{"the mirror resumes after a cursor of this term with part of a batch written", found{owner: ours, data: true, cursor: at(1000, 5, 90, func(c *cursor) { c.Upto = 95 })}, attached, actResume, nil},
		{"the mirror resumes after a cursor with the state's index and digest", found{owner: ours, cursor: at(1000, 4, 100)}, attached, actResume, nil},
		{"a cursor with the state's index and another digest causes a comparison", found{owner: ours, cursor: at(1000, 4, 100, func(c *cursor) { c.Digest = digestText(8) })}, attached, actCompare, nil},
		{"a cursor with a higher index than the state's causes a comparison", found{owner: ours, cursor: at(1000, 4, 101)}, attached, actCompare, nil},
		{"a cursor that this leadership term did not write causes a comparison", found{owner: ours, cursor: at(1000, 5, 90)}, with(func(s *standing) { s.attached, s.mismatch = true, true }), actCompare, nil},
		{"a cursor that is not complete causes a comparison", found{owner: ours, cursor: at(1000, 4, 0, func(c *cursor) { c.Complete = false })}, whole, actCompare, nil},
		{"a cursor of another layout causes a comparison", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Layout = LayoutBoth })}, attached, actCompare, nil},
		{"a cursor of another shape causes a comparison", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Shape = "12345678" })}, attached, actCompare, nil},
		{"a cursor of another format causes a comparison", found{owner: ours, cursor: at(1000, 4, 90, func(c *cursor) { c.Format++ })}, attached, actCompare, nil},
		{"a cursor of an earlier incarnation causes a comparison", found{owner: ours, data: true, cursor: at(999, 9, 90)}, attached, actCompare, nil},
		{"a cursor of an earlier incarnation is refused if the state is empty", found{owner: ours, data: true, cursor: at(999, 9, 90)}, empty, actRefuse, ErrForeignData},
		{"the mirror resumes if all workloads were deleted in this incarnation", found{owner: ours, data: true, cursor: at(1000, 4, 90)}, emptyAttached, actResume, nil},
		{"an unreadable cursor causes a comparison", found{owner: ours, data: true, cursor: cursor{raw: "?"}, unreadable: true}, attached, actCompare, nil},
		{"a cursor of a later term means that this leader is deposed", found{owner: ours, data: true, cursor: at(1000, 6, 110)}, attached, actRefuse, ErrDeposed},
		{"a cursor of a later incarnation means that this leader is deposed", found{owner: ours, data: true, cursor: at(1001, 1, 10)}, attached, actRefuse, ErrDeposed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decide(tt.f, tt.s)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("decide returned action %d and error %v; want action %d and error %v", got, err, tt.want, tt.err)
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
		{"a mirror that is starting does not change the mode", Starting, required, ""},
		{"a healthy mirror means normal", Healthy, required, fsm.ModeNormal},
		{"without ETCD_ENDPOINTS an etcd that was never attached and is unreachable means normal", Unreachable, none, fsm.ModeNormal},
		{"without ETCD_ENDPOINTS an etcd that was never attached and fails writes means normal", Failing, none, fsm.ModeNormal},
		{"with ETCD_ENDPOINTS an unreachable etcd means degraded from the first start", Unreachable, required, fsm.ModeDegraded},
		{"with ETCD_ENDPOINTS an etcd that fails writes means degraded", Failing, required, fsm.ModeDegraded},
		{"an attached etcd that is unreachable means degraded", Unreachable, attached, fsm.ModeDegraded},
		{"an attached etcd that fails writes means degraded", Failing, attached, fsm.ModeDegraded},
		{"an attached etcd that has lost its data means recovery", Emptied, attached, fsm.ModeRecovery},
		{"another etcd than the attached one means degraded", Other, attached, fsm.ModeDegraded},
		{"foreign data in etcd and an empty state mean recovery", Foreign, virgin, fsm.ModeRecovery},
		{"with ETCD_ENDPOINTS foreign data in etcd means recovery", Foreign, required, fsm.ModeRecovery},
		{"foreign data in an attached etcd means recovery", Foreign, attached, fsm.ModeRecovery},
		{"without ETCD_ENDPOINTS foreign data in an etcd that was never attached means normal, if the state has workloads", Foreign, none, fsm.ModeNormal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, ok := ModeFor(Health{State: tt.state, Reason: "why"}, tt.f)
			if got != tt.want || ok != (tt.want != "") {
				t.Errorf("ModeFor returns mode %q and whether the mode may change, %v; want mode %q", got, ok, tt.want)
			}
		})
	}
}
