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

// replicated simulates the log of a cluster. All replicas apply an entry at the same time.
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

// holders returns an Ask that answers with the keys of these replicas. The first of them is the leader.
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

// TestTwoLeadersEndWithOneKey: a leader creates a key and loses leadership before the key is pinned. The next leader
// creates another key, which is pinned (committed as the cluster key). The first leader must then delete its own key.
func TestTwoLeadersEndWithOneKey(t *testing.T) {
	l := newLog(t)
	dirA := t.TempDir()
	a, b := l.ring(dirA), l.ring(t.TempDir())
	lost := func(context.Context, ...fsm.Command) ([]fsm.Result, error) {
		return nil, errors.New("leadership was lost")
	}
	if err := a.settle(t.Context(), true, lost, nobody); err == nil {
		t.Fatal("a cluster key must not be settled before it is committed, but was")
	}
	if _, err := a.Key(); err == nil || !strings.Contains(err.Error(), "not agreed") {
		t.Fatalf("Key with an uncommitted candidate returned %v, want an error that says that it is not agreed", err)
	}
	if err := b.settle(t.Context(), true, l.commit, nobody); err != nil {
		t.Fatal(err)
	}
	want := keyID(t, b)
	a = l.ring(dirA) // replica a restarts with its candidate on disk
	if err := a.settle(t.Context(), false, lost, holders(b)); err != nil {
		t.Fatal(err)
	}
	if got := keyID(t, a); got != want {
		t.Errorf("replica a has cluster key %s and replica b has %s, want the same key", got, want)
	}
	if left, _ := os.ReadDir(dirA); len(left) != 1 {
		t.Errorf("the folder of replica a has the files %v, want only the key file", left)
	}
}

// TestACommittedCandidateIsKept: a leader's new key (candidate) is pinned by a log entry, but the leader dies before
// it applies this entry. After its restart it must use that key.
func TestACommittedCandidateIsKept(t *testing.T) {
	l := newLog(t)
	dir := t.TempDir()
	a := l.ring(dir)
	unknown := func(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
		l.do(cmds...)
		return nil, errors.New("the outcome is unknown")
	}
	if err := a.settle(t.Context(), true, unknown, nobody); err == nil {
		t.Fatal("settle must return an error if the outcome of the commit is unknown, but returned none")
	}
	a = l.ring(dir)
	if err := a.settle(t.Context(), true, l.commit, nobody); err != nil {
		t.Fatal(err)
	}
	if got := keyID(t, a); got != l.store.View().Info().ClusterKeyID {
		t.Errorf("the replica uses cluster key %s, and the pinned key is %s; want the pinned key", got, l.store.View().Info().ClusterKeyID)
	}
}

// TestAKeyIsUsedOnceAMajorityHoldsIt: a leader has created the cluster key. Nothing must be encrypted with it before a
// majority of the replicas holds it, so that secrets are not lost with the machine that created the key.
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
		t.Fatalf("no key may be pinned while only one of three replicas holds it, but %s was", id)
	}
	step(b, false, a, c)
	step(a, true, c) // replica b holds the key, but does not answer
	if id := l.store.View().Info().ClusterKeyID; id != "" {
		t.Fatalf("no key may be pinned before a majority is known to hold it, but %s was", id)
	}
	step(a, true, b, c)
	want := keyID(t, a)
	step(b, false, a, c)
	step(b, false, a, c)
	if got := keyID(t, b); got != want {
		t.Errorf("replica b has cluster key %s and replica a has %s, want the same key", got, want)
	}
	if again := l.ring(dirB); keyID(t, again) != want {
		t.Error("replica a must use the cluster key again after a restart, but does not")
	}
	// Replica c joins now and gets the key from a. Both together are a majority, so c uses the key at once.
	l.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "web", Content: "c1:x", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}})
	step(c, false, a)
	if got := keyID(t, c); got != want {
		t.Errorf("replica c uses cluster key %s, want %s", got, want)
	}
}

// TestLeaderThatCreatedTheKeyIsLost: a leader creates the cluster key and is then lost for good, before or after the
// other replicas learn that the key is pinned (committed). The other replicas must be able to use the key.
func TestLeaderThatCreatedTheKeyIsLost(t *testing.T) {
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
					t.Fatal("the leader must have pinned its cluster key, but no key is pinned")
				}
			}
			b = l.ring(dirB) // replica b restarts
			for range 3 {
				step(b, true, c)
				step(c, false, b)
			}
			if got, want := keyID(t, b), l.store.View().Info().ClusterKeyID; got != want || keyID(t, c) != want {
				t.Errorf("the two remaining replicas have the cluster keys %s and %s, and the pinned key is %s; want the pinned key on both", got, keyID(t, c), want)
			}
			if left, _ := os.ReadDir(dirB); len(left) != 1 {
				t.Errorf("the folder of the replica has the files %v, want only the key file", left)
			}
		})
	}
}

// TestCandidatesAreKeptUntilOneIsPinned: two leaders create keys (candidates) one after the other. No candidate may be
// deleted before one is pinned, because the first leader's proposal may be in the log and be committed later.
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
		t.Fatal("the first leader must have a proposal to pin its key that is committed late, but proposed nothing")
	}
	// Now replica c leads and has a key of its own to propose (candidate). At first it cannot reach the other
	// replicas; then replica b fetches this candidate.
	_ = c.settle(t.Context(), true, l.commit, nobody)
	_ = b.settle(t.Context(), false, l.commit, holders(c))
	l.do(late...)
	for range 2 {
		if err := errors.Join(b.settle(t.Context(), false, l.commit, holders(c)), c.settle(t.Context(), true, l.commit, holders(b))); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := keyID(t, b), l.store.View().Info().ClusterKeyID; got != want {
		t.Errorf("replica b uses cluster key %s, and the pinned key is %s; want the pinned key", got, want)
	}
}

func TestTheClusterKeyIsAgreedOn(t *testing.T) {
	t.Run("a key file that an operator put on another machine is preferred to a new key", func(t *testing.T) {
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
			t.Errorf("the cluster uses key %s, and the operator's key is %s; want the operator's key", got, placed.ID())
		}
	})
	t.Run("a key file with another key than the cluster's is refused and not changed", func(t *testing.T) {
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
			t.Errorf("settle with a key file that has another key returned %v, want an error that names this key", err)
		}
		if _, err := a.Key(); err == nil || !strings.Contains(err.Error(), "move the file away") {
			t.Errorf("Key with a key file that has another key returned %v, want the advice to move the file away", err)
		}
		if now, err := pki.LoadKey(filepath.Join(dir, "cluster.key")); err != nil || now.ID() != placed.ID() {
			t.Errorf("the key file with another key must stay unchanged, but was changed or cannot be read: %v", err)
		}
	})
	// Workloads without secrets must not prevent the creation of a cluster key. Workloads with secrets must, because
	// they are sealed with a key that is missing.
	for _, c := range []struct {
		name, spec, want string
	}{
		{"no key is created if a secret is sealed with a missing key", "x" + pki.SealPrefix + "y", "is missing and workloads hold secrets"},
		{"a key is created if no workload holds a secret", "plain", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog(t)
			l.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
				Id: "web", Content: "c1:x", Spec: []byte(c.spec), Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}})
			err := l.ring(t.TempDir()).settle(t.Context(), true, l.commit, nobody)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("settle of a leader without a key returned %v, want an error that contains %q, or none if it is empty", err, c.want)
			}
			if pinned := l.store.View().Info().ClusterKeyID; (pinned != "") != (c.want == "") {
				t.Errorf("the state has the cluster key id %q; want an id if a key was created, and none after an error", pinned)
			}
		})
	}
}
