package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/persys/compute/agent/volume"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// moveSeeds is the number of random runs of TestVolumeMoveSeeds; MOVE_SEEDS replaces it.
const moveSeeds = 150

// TestVolumeMoveSeeds moves a volume to and fro while people, nodes, agents and schedulers do anything at any time. At every
// moment some disk has a complete copy of the newest data, and db never starts on another copy. When everything works again,
// the move ends and db runs.
func TestVolumeMoveSeeds(t *testing.T) {
	seeds := moveSeeds
	if s := os.Getenv("MOVE_SEEDS"); s != "" {
		var err error
		if seeds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	done := map[string]int{}
	for seed := range seeds {
		ok := t.Run(strconv.Itoa(seed), func(t *testing.T) { randomMoves(t, uint64(seed), done) })
		if !ok {
			return
		}
	}
	for _, event := range []string{"moved", "undone", "returned", "settled by a person", "rebuilt", "restored"} {
		if done[event] == 0 {
			t.Errorf("no seed had the event %q: %v", event, done)
		}
	}
	t.Log(done)
}

func randomMoves(t *testing.T, seed uint64, done map[string]int) {
	r := rand.New(rand.NewPCG(seed, 28))
	w := newMoveWorld(t)
	w.backup()
	node := func() string { return []string{"a", "b"}[r.IntN(2)] }
	was := w.phase()
	for round := range 160 {
		if r.IntN(4) == 0 {
			event := w.anything(r, node)
			w.notes = append(w.notes, fmt.Sprintf("round %d, phase %q: %s", round, w.phase(), event))
			done[event]++
			w.check()
		}
		if event := w.replaceSchedulers(); event != "" {
			w.notes = append(w.notes, fmt.Sprintf("round %d, phase %q: %s", round, w.phase(), event))
			done[event]++
			w.check()
		}
		w.round()
		if now := w.phase(); now != was {
			w.notes = append(w.notes, fmt.Sprintf("round %d: phase %q", round, now))
			switch was = now; now {
			case fsm.MovePlaced:
				done["moved"]++
			case fsm.MoveUndone:
				done["undone"]++
			}
		}
	}
	w.notes = append(w.notes, "everything works again")
	for _, id := range []string{"a", "b"} {
		w.mount(id)
		w.back(id)
	}
	w.want("Stopped")
	for range 10 {
		w.round()
	}
	w.person("settle", r)
	w.person("cancel", r)
	w.want("Running")
	for i := range 200 {
		if i > 60 {
			w.now += 30 * moveSecond
		}
		w.round()
	}
	if w.rebuilt {
		return // nobody can say what an old backup has missed
	}
	m, moves := w.state.Move("db")
	x, _ := w.state.Workload("db")
	if moves || !w.nodes["a"].runs && !w.nodes["b"].runs {
		t.Fatalf("seed %d: at the end there is a move (%t, %+v), and the workload is %+v %+v\n%s", seed, moves, m, x, x.Actual, strings.Join(w.notes, "\n"))
	}
}

// want sets the desired state of db.
func (w *moveWorld) want(desired string) {
	w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "db", Desired: desired}}})
}

// anything lets one thing happen and returns its name.
func (w *moveWorld) anything(r *rand.Rand, node func() string) string {
	id := node()
	switch r.IntN(20) {
	case 0, 1, 2, 3:
		if x, ok := w.state.Workload("db"); ok && w.do(w.moveFrom(x.Node, "")).Kind == fsm.OK {
			return "a move begins"
		}
		return "a move is refused"
	case 4, 5, 6:
		return w.person("cancel", r)
	case 7:
		return w.person("settle", r)
	case 8:
		w.want("Stopped")
		return "stopped"
	case 9, 10:
		w.want("Running")
		return "started"
	case 11:
		w.nodes[id].restart(w.t)
		return "the agent of " + id + " is killed"
	case 12:
		w.lose(id)
		return id + " is lost"
	case 13, 14:
		w.mount(id)
		w.back(id)
		return id + " is back"
	case 15:
		if !w.nodes[id].up && w.unmount(id) {
			w.back(id)
			return id + " is back without its disk"
		}
		w.mount(id)
		return "the disk of " + id + " is mounted"
	case 16:
		w.newTerm()
		return "the leader changes"
	case 17:
		w.lateOrder(id)
		w.snapshot()
		return "a late order for " + id + ", and a snapshot"
	case 18:
		w.now += []int64{600, 3600, 25 * 3600}[r.IntN(3)] * moveSecond
		return "time passes"
	}
	switch r.IntN(4) {
	case 0, 1:
		w.backup()
		return "a backup"
	case 2:
		w.restore()
		return "restored"
	}
	if _, moves := w.state.Move("db"); moves {
		w.backup()
		w.rebuildIn = 1 + r.IntN(20)
		return "a backup for new schedulers"
	}
	return "nothing"
}

// replaceSchedulers restores the backup into new schedulers, if its time has come. A backup of a time without a move, or of
// another move, does not know that the volume has moved since.
func (w *moveWorld) replaceSchedulers() string {
	if w.rebuildIn--; w.rebuildIn != 0 {
		return ""
	}
	before, saved := w.saved.Move("db")
	now, moves := w.state.Move("db")
	if !saved || !moves || before.ID != now.ID || w.phase() == fsm.MoveUndone {
		return "no restore into new schedulers"
	}
	w.rebuild()
	return "rebuilt"
}

// unmount takes the disk with the volumes away from a node that is lost and has a copy.
func (w *moveWorld) unmount(id string) bool {
	n := w.nodes[id]
	for _, v := range n.volumes {
		if v.Phase != volume.Moving && os.Rename(n.dir, n.dir+".off") == nil {
			return true
		}
	}
	return false
}

// mount makes the disk of a node appear again.
func (w *moveWorld) mount(id string) {
	n := w.nodes[id]
	if _, err := os.Stat(n.dir + ".off"); err != nil {
		return
	}
	if err := os.RemoveAll(n.dir); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(n.dir+".off", n.dir); err != nil {
		w.t.Fatal(err)
	}
}

// person ends the move as an informed person does, whom the schedulers let do it: see rpc, MoveVolume.
func (w *moveWorld) person(end string, r *rand.Rand) string {
	m, ok := w.state.Move("db")
	if !ok {
		return "no move to end"
	}
	says := func(node string, state string) bool {
		n := w.nodes[node]
		return n.up && n.report.Move == m.ID && n.report.State == state
	}
	side, other := m.To, m.From
	if end == "cancel" {
		side, other = m.From, m.To
	}
	if m.Phase == fsm.MoveKept {
		// Nobody knows which copy is the newest, so the person looks, and stops an instance that the schedulers do not know.
		if !w.newestOn(side) || !w.nodes[other].up {
			return "both copies stay"
		}
		w.nodes[other].runs = false
	}
	if end == "cancel" && (m.Phase == fsm.MovePlaced || m.Phase == fsm.MoveKept) && !says(m.From, sched.MoveReportKept) ||
		end == "settle" && m.Phase == fsm.MoveKept && !says(m.To, sched.MoveReportReady) {
		return "the end is refused"
	}
	if w.do(w.moveFrom(m.From, end)).Kind != fsm.OK {
		return "the end is refused"
	}
	if end == "settle" {
		return "settled by a person"
	}
	if m.Phase != fsm.MovePlaced {
		return "cancelled"
	}
	w.newest = w.bestOn(m.From) // what was written since the switch is given up
	return "returned"
}

// bestOn returns the highest number of a complete copy on a node.
func (w *moveWorld) bestOn(id string) (best int) {
	for was := w.newest; was >= 0; was-- {
		w.newest = was
		if w.newestOn(id) {
			return was
		}
	}
	w.t.Fatalf("node %s has no complete copy\n%s", id, strings.Join(w.notes, "\n"))
	return 0
}
