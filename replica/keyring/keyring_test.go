package keyring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
)

// replicated is the log of a cluster whose replicas all see an entry at once.
type replicated struct {
	t     *testing.T
	state fsm.State
	store *store.Store
	index uint64
}

func newLog(t *testing.T) *replicated {
	t.Helper()
	l := &replicated{t: t, state: fsm.New()}
	l.store = store.New(l.state)
	t.Cleanup(l.store.Close)
	l.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	l.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: "r1", Name: "r1"}}})
	return l
}

func (l *replicated) do(cmds ...fsm.Command) []fsm.Result {
	l.t.Helper()
	l.index++
	var out []fsm.Result
	var changes []fsm.Change
	tx := l.state.Begin()
	for _, c := range cmds {
		r, ch := tx.Apply(fsm.Meta{Index: l.index, Term: 1}, c)
		out, changes = append(out, r), append(changes, ch...)
	}
	l.state = tx.Commit()
	l.store.Publish(l.state, changes)
	return out
}

func (l *replicated) commit(_ context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	return l.do(cmds...), nil
}

func (l *replicated) ring(dir string) *Keyring {
	l.t.Helper()
	k, err := Open(pki.KeyFile{Path: filepath.Join(dir, "cluster.key")}, l.store, slog.New(slog.DiscardHandler))
	if err != nil {
		l.t.Fatal(err)
	}
	return k
}

func nobody(context.Context, bool) []Offer { return nil }

// holders answer for other replicas. The first of them leads.
func holders(rings ...*Keyring) Ask {
	return func(_ context.Context, leader bool) (out []Offer) {
		for i, r := range rings {
			if k, candidate, err := r.Offered(); err == nil && (i == 0 || !leader) {
				out = append(out, Offer{k.Export(), candidate})
			}
		}
		return out
	}
}

func keyID(t *testing.T, k *Keyring) string {
	t.Helper()
	key, err := k.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key.ID()
}

// TestTwoLeadersEndWithOneKey: a leader creates a key and loses leadership before it is committed. The next
// leader creates another one. The first forgets its own.
func TestTwoLeadersEndWithOneKey(t *testing.T) {
	l := newLog(t)
	dirA := t.TempDir()
	a, b := l.ring(dirA), l.ring(t.TempDir())
	lost := func(context.Context, ...fsm.Command) ([]fsm.Result, error) {
		return nil, errors.New("leadership was lost")
	}
	if err := a.settle(t.Context(), true, lost, nobody); err == nil {
		t.Fatal("a key is settled that was not committed")
	}
	if _, err := a.Key(); err == nil || !strings.Contains(err.Error(), "not settled") {
		t.Fatalf("a candidate is used: %v", err)
	}
	if err := b.settle(t.Context(), true, l.commit, nobody); err != nil {
		t.Fatal(err)
	}
	want := keyID(t, b)
	a = l.ring(dirA) // it restarts with its candidate on disk
	if err := a.settle(t.Context(), false, lost, holders(b)); err != nil {
		t.Fatal(err)
	}
	if got := keyID(t, a); got != want {
		t.Errorf("one has key %s, the other %s", got, want)
	}
	if left, _ := os.ReadDir(dirA); len(left) != 1 {
		t.Errorf("left in the folder: %v", left)
	}
}

// TestACommittedCandidateIsKept: the leader dies after the commit and before it learns of it.
func TestACommittedCandidateIsKept(t *testing.T) {
	l := newLog(t)
	dir := t.TempDir()
	a := l.ring(dir)
	unknown := func(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
		l.do(cmds...)
		return nil, errors.New("the outcome is unknown")
	}
	if err := a.settle(t.Context(), true, unknown, nobody); err == nil {
		t.Fatal("no error")
	}
	a = l.ring(dir)
	if err := a.settle(t.Context(), true, l.commit, nobody); err != nil {
		t.Fatal(err)
	}
	if got := keyID(t, a); got != l.store.View().Info().ClusterKeyID {
		t.Errorf("key %s, pinned is %s", got, l.store.View().Info().ClusterKeyID)
	}
}

// TestAKeyIsUsedOnceAMajorityHoldsIt: secrets must not be lost with the machine that created the key.
func TestAKeyIsUsedOnceAMajorityHoldsIt(t *testing.T) {
	l := newLog(t)
	for _, id := range []string{"r2", "r3"} {
		l.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: id}}})
	}
	dirA, dirB := t.TempDir(), t.TempDir()
	a, b, c := l.ring(dirA), l.ring(dirB), l.ring(t.TempDir())
	step := func(k *Keyring, leads bool, others ...*Keyring) {
		t.Helper()
		if err := k.settle(t.Context(), leads, l.commit, holders(others...)); err != nil {
			t.Fatal(err)
		}
	}
	step(a, true, b, c)
	if id := l.store.View().Info().ClusterKeyID; id != "" {
		t.Fatalf("one of three holds the key, and it is the cluster's: %s", id)
	}
	step(b, false, a, c)
	step(a, true, c) // b has the key, and cannot be reached
	if id := l.store.View().Info().ClusterKeyID; id != "" {
		t.Fatalf("it is not known that two of three hold the key, and it is the cluster's: %s", id)
	}
	step(a, true, b, c)
	want := keyID(t, a)
	step(b, false, a, c)
	step(b, false, a, c)
	if got := keyID(t, b); got != want {
		t.Errorf("one uses key %s, the other %s", got, want)
	}
	if again := l.ring(dirB); keyID(t, again) != want {
		t.Error("it is not used after a restart")
	}
	// A replica that joins a cluster with workloads need not reach a majority.
	l.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "web", Content: "c1:x", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}})
	step(c, false, a)
	if got := keyID(t, c); got != want {
		t.Errorf("the last one uses key %s, want %s", got, want)
	}
}

// TestTheMakerOfTheKeyDies: the leader that created the key is lost for good, before or after the others
// learn that it was pinned.
func TestTheMakerOfTheKeyDies(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned=%v", pinned), func(t *testing.T) {
			l := newLog(t)
			for _, id := range []string{"r2", "r3"} {
				l.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: id}}})
			}
			dirB := t.TempDir()
			a, b, c := l.ring(t.TempDir()), l.ring(dirB), l.ring(t.TempDir())
			step := func(k *Keyring, leads bool, others ...*Keyring) {
				t.Helper()
				if err := k.settle(t.Context(), leads, l.commit, holders(others...)); err != nil {
					t.Fatal(err)
				}
			}
			step(a, true, b, c)
			step(b, false, a, c)
			if pinned {
				step(a, true, b, c)
				if id := l.store.View().Info().ClusterKeyID; id == "" {
					t.Fatal("nothing is pinned")
				}
			}
			b = l.ring(dirB) // and the other one restarts
			for range 3 {
				step(b, true, c)
				step(c, false, b)
			}
			if got, want := keyID(t, b), l.store.View().Info().ClusterKeyID; got != want || keyID(t, c) != want {
				t.Errorf("keys %s and %s, pinned is %s", got, keyID(t, c), want)
			}
			if left, _ := os.ReadDir(dirB); len(left) != 1 {
				t.Errorf("left in the folder: %v", left)
			}
		})
	}
}

// TestCandidatesAreKeptUntilOneIsPinned: a leader's proposal may still be under way when the next leader
// creates a key.
func TestCandidatesAreKeptUntilOneIsPinned(t *testing.T) {
	l := newLog(t)
	for _, id := range []string{"r2", "r3"} {
		l.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: id}}})
	}
	a, b, c := l.ring(t.TempDir()), l.ring(t.TempDir()), l.ring(t.TempDir())
	late := []fsm.Command(nil)
	slow := func(_ context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
		late = cmds
		return nil, errors.New("the outcome is unknown")
	}
	_ = a.settle(t.Context(), true, slow, holders(b, c))
	_ = b.settle(t.Context(), false, slow, holders(a))
	if _ = a.settle(t.Context(), true, slow, holders(b, c)); late == nil {
		t.Fatal("nothing was proposed")
	}
	// c leads now, cannot reach the others at first, and b follows it.
	_ = c.settle(t.Context(), true, l.commit, nobody)
	_ = b.settle(t.Context(), false, l.commit, holders(c))
	l.do(late...)
	for range 2 {
		if err := errors.Join(b.settle(t.Context(), false, l.commit, holders(c)), c.settle(t.Context(), true, l.commit, holders(b))); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := keyID(t, b), l.store.View().Info().ClusterKeyID; got != want {
		t.Errorf("key %s, pinned is %s", got, want)
	}
}

func TestKeyring(t *testing.T) {
	t.Run("a key that an operator put on another machine goes first", func(t *testing.T) {
		l := newLog(t)
		dir := t.TempDir()
		placed, _, err := pki.LoadOrCreateKey(filepath.Join(dir, "cluster.key"))
		if err != nil {
			t.Fatal(err)
		}
		a, b := l.ring(t.TempDir()), l.ring(dir)
		if err := a.settle(t.Context(), true, l.commit, holders(b)); err != nil {
			t.Fatal(err)
		}
		if got := keyID(t, a); got != placed.ID() {
			t.Errorf("key %s, the operator's is %s", got, placed.ID())
		}
	})
	t.Run("a file with another key is refused and left alone", func(t *testing.T) {
		l := newLog(t)
		b := l.ring(t.TempDir())
		if err := b.settle(t.Context(), true, l.commit, nobody); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		placed, _, err := pki.LoadOrCreateKey(filepath.Join(dir, "cluster.key"))
		if err != nil {
			t.Fatal(err)
		}
		a := l.ring(dir)
		if err := a.settle(t.Context(), true, l.commit, holders(b)); err == nil || !strings.Contains(err.Error(), placed.ID()) {
			t.Errorf("settled with %v", err)
		}
		if _, err := a.Key(); err == nil || !strings.Contains(err.Error(), "move the file away") {
			t.Errorf("it is used: %v", err)
		}
		if now, err := pki.LoadKey(filepath.Join(dir, "cluster.key")); err != nil || now.ID() != placed.ID() {
			t.Errorf("the file was changed: %v", err)
		}
	})
	// Workloads from before the cluster had a key hold no secret, and must not keep it from getting one.
	for _, c := range []struct {
		name, spec, want string
	}{
		{"none is made when something is sealed with one that is missing", "x" + pki.SealPrefix + "y", "is missing and workloads hold secrets"},
		{"one is made when workloads came first", "plain", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t)
			l.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
				Id: "web", Content: "c1:x", Spec: []byte(c.spec), Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}})
			err := l.ring(t.TempDir()).settle(t.Context(), true, l.commit, nobody)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if pinned := l.store.View().Info().ClusterKeyID; (pinned != "") != (c.want == "") {
				t.Errorf("the cluster's key is %q", pinned)
			}
		})
	}
}
