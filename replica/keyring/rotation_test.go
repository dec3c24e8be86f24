package keyring

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// rotating is a cluster of two replicas with one secret.
type rotating struct {
	*replicated
	dirs  []string
	rings []*Keyring
}

var secretContext = []byte("secret")

func newRotation(t *testing.T) *rotating {
	l := &rotating{replicated: newLog(t), dirs: []string{t.TempDir(), t.TempDir()}}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range l.dirs {
		if _, err := pki.ImportKey(filepath.Join(dir, "cluster.key"), key.Export()); err != nil {
			t.Fatal(err)
		}
		l.rings = append(l.rings, l.ring(dir))
	}
	l.must(&commandv1.Command{Body: &commandv1.Command_PinClusterKey{PinClusterKey: &commandv1.PinClusterKey{KeyId: key.ID()}}})
	l.putSecret("first")
	return l
}

func (l *rotating) must(c fsm.Command) {
	l.t.Helper()
	if r := l.do(c)[0]; r.Err() != nil {
		l.t.Fatal(r.Err())
	}
}

func (l *rotating) putSecret(name string) {
	l.t.Helper()
	key, err := l.rings[0].Key()
	if err != nil {
		l.t.Fatal(err)
	}
	sealed, err := key.Seal([]byte(name), secretContext)
	if err != nil {
		l.t.Fatal(err)
	}
	l.must(&commandv1.Command{Body: &commandv1.Command_PutObject{PutObject: &commandv1.PutObject{Kind: fsm.KindSecret, Name: name, Data: []byte(sealed), Size: 1}}})
}

func (l *rotating) step(step, key, content string) {
	l.t.Helper()
	l.must(&commandv1.Command{Body: &commandv1.Command_RotateClusterKey{RotateClusterKey: &commandv1.RotateClusterKey{Step: step, KeyId: key, ContentKey: content}}})
}

// fetch gets a key from the other replicas.
func (l *rotating) fetch(from int) Fetch {
	return func(_ context.Context, id string) (*pki.Key, error) {
		for i, r := range l.rings {
			if key := r.Held(id); i != from && key != nil {
				return key, nil
			}
		}
		return nil, NotHeld(id)
	}
}

func (l *rotating) follow() {
	l.t.Helper()
	for i, r := range l.rings {
		if err := r.Follow(l.t.Context(), l.fetch(i)); err != nil {
			l.t.Fatal(err)
		}
	}
}

// readable fails the test if a replica cannot open a value of the state, or has another content hash than at first.
func (l *rotating) readable(when string, content string) {
	l.t.Helper()
	for i, r := range l.rings {
		key, err := r.Key()
		if err != nil {
			l.t.Fatalf("%s: replica %d has no cluster key: %v", when, i, err)
		}
		l.state.Sealed(func(v fsm.SealedValue) bool {
			if _, err := key.Open(string(v.Value), secretContext); err != nil {
				l.t.Fatalf("%s: replica %d cannot open the sealed value %s: %v", when, i, v, err)
			}
			return true
		})
		if got := contentOf(key); got != content {
			l.t.Fatalf("%s: replica %d computes another content hash than before the rotation", when, i)
		}
	}
}

// slowWrap is an encryption of key files that calls another service, which does not answer before the test lets it.
type slowWrap struct {
	pki.Wrapper
	asked, answer chan struct{}
}

func (s *slowWrap) Kind() string { return "slow" }

func (s *slowWrap) Wrap(plain []byte) (string, error) {
	s.asked <- struct{}{}
	<-s.answer
	return hex.EncodeToString(plain), nil
}

// TestValuesAreOpenedWhileAKeyIsStored: while a slow service encrypts the file of a new key, values are still sealed and
// opened with the present key.
func TestValuesAreOpenedWhileAKeyIsStored(t *testing.T) {
	l := newRotation(t)
	slow := &slowWrap{asked: make(chan struct{}), answer: make(chan struct{})}
	l.rings[0].wrap = slow
	done := make(chan error, 1)
	go func() {
		_, err := l.rings[0].Prepare()
		done <- err
	}()
	<-slow.asked
	l.putSecret("second")
	close(slow.answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestAKeyOfARestoreIsKeptForAWhile: a restore stores a retired key before the state names it again. If the
// restore is not committed within madeFor, the key is deleted.
func TestAKeyOfARestoreIsKeptForAWhile(t *testing.T) {
	l := newRotation(t)
	former, err := l.rings[0].Key()
	if err != nil {
		t.Fatal(err)
	}
	l.rotate()
	ring := l.rings[0]
	if ring.Held(former.ID()) != nil {
		t.Fatal("the former cluster key is still stored after the rotation")
	}
	if err := ring.Keep(former); err != nil {
		t.Fatal(err)
	}
	l.follow()
	if ring.Held(former.ID()) == nil {
		t.Fatal("a key that a restore has just stored was deleted at once, want it kept for madeFor")
	}
	ring.made[former.ID()] = time.Now().Add(-madeFor)
	l.follow()
	if ring.Held(former.ID()) != nil {
		t.Error("the key of a restore that was never committed must be deleted after madeFor, but is still stored")
	}
}

func contentOf(key *pki.Key) string {
	h := key.ContentHash()
	h.Write([]byte("x"))
	return string(h.Sum(nil))
}

func (l *rotating) restart(i int) { l.rings[i] = l.ring(l.dirs[i]) }

// reseal seals all values again under the new key.
func (l *rotating) reseal() {
	l.t.Helper()
	key, err := l.rings[0].Key()
	if err != nil {
		l.t.Fatal(err)
	}
	b := &commandv1.Reseal{}
	l.state.Sealed(func(v fsm.SealedValue) bool {
		plain, err := key.Open(string(v.Value), secretContext)
		if err != nil {
			l.t.Fatal(err)
		}
		sealed, err := key.Seal(plain, secretContext)
		if err != nil {
			l.t.Fatal(err)
		}
		sum := sha256.Sum256(v.Value)
		b.Values = append(b.Values, &commandv1.ResealedValue{Kind: v.Kind, Key: v.Key, OldSha256: sum[:], Value: []byte(sealed)})
		return true
	})
	l.must(&commandv1.Command{Body: &commandv1.Command_Reseal{Reseal: b}})
}

// rotate runs a whole rotation.
func (l *rotating) rotate() {
	l.t.Helper()
	former, err := l.rings[0].Key()
	if err != nil {
		l.t.Fatal(err)
	}
	next, err := l.rings[0].Prepare()
	if err != nil {
		l.t.Fatal(err)
	}
	content, err := former.SealContentKey(l.rings[0].Held(next))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, s := range []struct{ step, key, content string }{
		{fsm.KeyBegin, next, ""}, {fsm.KeySwitch, next, content}, {fsm.KeyResealed, former.ID(), ""}, {fsm.KeyFinish, former.ID(), ""},
	} {
		if s.step == fsm.KeyResealed {
			l.reseal()
		}
		l.step(s.step, s.key, s.content)
		l.follow()
	}
}

// TestACrashAtEachStep runs a whole rotation. At each step both replicas crash: before they have followed the step, and
// at each write to the disk while they follow it. Afterwards every value must be readable on both, and the rotation
// must go on to its end.
func TestACrashAtEachStep(t *testing.T) {
	const stop = 7 // maximum number of disk writes in one call of Follow
	for at := range 4 {
		for crash := range stop {
			l := newRotation(t)
			first, err := l.rings[0].Key()
			if err != nil {
				t.Fatal(err)
			}
			content := contentOf(first)
			next := ""
			steps := []struct {
				name string
				run  func()
			}{
				{"begin", func() {
					if next, err = l.rings[0].Prepare(); err != nil {
						t.Fatal(err)
					}
					l.step(fsm.KeyBegin, next, "")
				}},
				{"switch", func() {
					sealed, err := first.SealContentKey(l.rings[0].Held(next))
					if err != nil {
						t.Fatal(err)
					}
					l.step(fsm.KeySwitch, next, sealed)
				}},
				{"resealed", func() {
					l.putSecret("second")
					l.reseal()
					l.step(fsm.KeyResealed, first.ID(), "")
				}},
				{"finish", func() { l.step(fsm.KeyFinish, first.ID(), "") }},
			}
			for i, s := range steps {
				s.run()
				l.readable(s.name, content)
				if i == at {
					for j := range l.rings {
						crashed := errors.New("crash")
						n := 0
						l.rings[j].beforeWrite = func(string) error {
							if n++; n > crash {
								return crashed
							}
							return nil
						}
						if err := l.rings[j].Follow(t.Context(), l.fetch(j)); err != nil && !errors.Is(err, crashed) {
							t.Fatal(err)
						}
						l.restart(j)
						l.readable(s.name+", after a crash", content)
					}
				}
				l.follow()
				l.readable(s.name+", followed", content)
			}
			for i, dir := range l.dirs {
				found, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, f := range found {
					names = append(names, f.Name())
				}
				if len(names) != 1 || names[0] != "cluster.key" {
					t.Errorf("crash %d at step %d: replica %d has the files %s, want only cluster.key", crash, at, i, strings.Join(names, ", "))
				}
				if key, err := pki.LoadKey(filepath.Join(dir, "cluster.key")); err != nil || key.ID() != next {
					t.Errorf("replica %d does not have the new cluster key in its key file: %v", i, err)
				}
				l.state.Sealed(func(v fsm.SealedValue) bool {
					if _, err := first.WithOthers().Open(string(v.Value), secretContext); !errors.Is(err, pki.ErrWrongKey) {
						t.Errorf("the former cluster key opens the value %s (error %v), want every value sealed under the new key", v, err)
					}
					return true
				})
			}
		}
	}
}

// TestAReplicaWhoseStateLagsKeepsItsKeys: after a restart a replica may have a state that is older than the key files on
// its disk. The replica must not delete a key that its old state does not name, because a later state names that key.
func TestAReplicaWhoseStateLagsKeepsItsKeys(t *testing.T) {
	l := newRotation(t)
	older := l.state
	next, err := l.rings[0].Prepare()
	if err != nil {
		t.Fatal(err)
	}
	l.step(fsm.KeyBegin, next, "")
	l.follow()
	behind := newLog(t)
	behind.state = older
	behind.store.Publish(older, nil)
	r := behind.ring(l.dirs[1])
	if err := r.Follow(t.Context(), l.fetch(1)); err != nil {
		t.Fatal(err)
	}
	if r.Held(next) == nil {
		t.Error("the replica whose state lags has deleted a key that the newest state names")
	}
}

// TestAForeignKeyFileIsLeftAlone: the key file has a key that this cluster never had. Follow must not replace it.
func TestAForeignKeyFileIsLeftAlone(t *testing.T) {
	l := newRotation(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.key")
	foreign, _, err := pki.LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	r := l.ring(dir)
	if err := r.Follow(t.Context(), l.fetch(2)); err != nil {
		t.Fatal(err)
	}
	if key, err := pki.LoadKey(path); err != nil || key.ID() != foreign.ID() {
		t.Errorf("the key file with a foreign key was replaced: it has key %v (error %v)", key, err)
	}
}
