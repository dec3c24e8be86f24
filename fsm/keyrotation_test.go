package fsm

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

const (
	keyA, keyB, keyC = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"
	otherKey         = "dddddddddddddddd"
)

func under(key, text string) string { return sealedPrefix + key + ":" + text }

func keyStep(step, key, replaces string) Command {
	b := &commandv1.RotateClusterKey{Step: step, KeyId: key, Replaces: replaces}
	if step == KeySwitch {
		b.ContentKey = under(key, "content")
	}
	return &commandv1.Command{Body: &commandv1.Command_RotateClusterKey{RotateClusterKey: b}}
}

func sealedSecret(name, key, text string) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutObject{PutObject: &commandv1.PutObject{Kind: KindSecret, Name: name, Data: []byte(under(key, text)), Size: 1}}}
}

func withSecret(key, text string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Spec, p.Content = []byte("spec "+under(key, text)), "c1:"+text }
}

// resealed returns the Reseal command that replaces each value of the state that is sealed under the key from
// by one that is sealed under the key to.
func resealed(s State, from, to string) Command {
	b := &commandv1.Reseal{}
	s.Sealed(func(v SealedValue) bool {
		if SealedUnder(v.Value, from) {
			sum := sha256.Sum256(v.Value)
			b.Values = append(b.Values, &commandv1.ResealedValue{Kind: v.Kind, Key: v.Key, OldSha256: sum[:], Value: []byte(strings.ReplaceAll(string(v.Value), from, to))})
		}
		return true
	})
	return &commandv1.Command{Body: &commandv1.Command_Reseal{Reseal: b}}
}

// withEverySeal returns a world whose state has a sealed value of every kind.
func withEverySeal(t testing.TB) *world {
	w := formed(t, "a")
	w.ok(pinKey(keyA))
	fillSeals(w)
	return w
}

func fillSeals(w *world) {
	w.do(put("web", withSecret(keyA, "one")))
	w.do(w.assign("web", "a"))
	w.do(put("web", withSecret(keyA, "two"))) // the first specification becomes a former revision
	w.do(sealedSecret("db", keyA, "v1"))
	w.do(sealedSecret("db", keyA, "v2"))
	w.do(&commandv1.Command{Body: &commandv1.Command_SetGossipRing{SetGossipRing: &commandv1.SetGossipRing{Sealed: under(keyA, "ring"), Step: "opens"}}})
	w.do(&commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: &commandv1.PutAuthority{
		Id: strings.Repeat("1", 64), RootId: strings.Repeat("2", 64), Cert: []byte("cert"), Root: []byte("root"), SealedKey: under(keyA, "ca"), NotAfter: w.now + 1000*minute,
	}}})
}

func pinKey(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_PinClusterKey{PinClusterKey: &commandv1.PinClusterKey{KeyId: id}}}
}

func keyRotationScenario(w *world) {
	w.do(keyStep(KeyBegin, keyB, ""))
	w.do(pinKey(keyA))
	fillSeals(w)
	w.do(keyStep(KeySwitch, keyB, ""))
	w.do(keyStep(KeyBegin, keyC, ""))
	w.do(keyStep(KeyBegin, keyB, keyC))
	w.do(resealed(w.s, keyA, keyB))
	w.do(keyStep(KeySwitch, keyB, ""))
	w.do(keyStep(KeyResealed, keyA, ""))
	w.do(resealed(w.s, keyA, keyB))
	w.do(keyStep(KeyFinish, keyA, ""))
	w.do(keyStep(KeyResealed, keyA, ""))
	w.do(sealedSecret("late", keyA, "x"))
	w.do(keyStep(KeyFinish, keyA, ""))
	w.do(sealedSecret("late", keyA, "x"))
	w.do(put("late", withSecret(keyC, "x")))
	w.do(keyStep("skip", keyB, ""))
}

func TestKeyRotation(t *testing.T) {
	w := withEverySeal(t)
	web := w.workload("web")
	is(t, "keys that seal values of the state", strings.Join(w.s.SealedKeys(), " "), keyA)
	w.ok(keyStep(KeyBegin, keyB, ""))
	is(t, "key that seals new values before the switch", w.s.Info().ClusterKeyID, keyA)
	is(t, "verdict on a switch to a key that did not begin", w.do(keyStep(KeySwitch, keyC, "")).Kind, Conflict)
	w.ok(keyStep(KeySwitch, keyB, ""))
	is(t, "verdict on the step resealed while values are sealed under the former key", w.do(keyStep(KeyResealed, keyA, "")).Kind, Conflict)
	is(t, "verdict on the begin of a second rotation", w.do(keyStep(KeyBegin, keyC, "")).Kind, Conflict)
	w.ok(resealed(w.s, keyA, keyB))
	is(t, "keys that seal values of the state", strings.Join(w.s.SealedKeys(), " "), keyB)
	now := w.workload("web")
	is(t, `generation of workload "web"`, now.Generation, web.Generation)
	is(t, `content of workload "web"`, now.Content, web.Content)
	is(t, `time of the last update of workload "web"`, now.UpdatedAt, web.UpdatedAt)
	revisions := w.s.Revisions("web")
	is(t, `former revision of workload "web"`, string(revisions[0].Spec), "spec "+under(keyB, "one"))
	is(t, `present revision of workload "web"`, string(revisions[1].Spec), "spec "+under(keyB, "two"))
	o, _ := w.s.Object(DefaultNamespace, KindSecret, "db")
	is(t, `version 1 of secret "db"`, string(o.Versions[0].Data), under(keyB, "v1"))
	is(t, `version 2 of secret "db"`, string(o.Versions[1].Data), under(keyB, "v2"))
	is(t, "verdict on the step finish before the step resealed", w.do(keyStep(KeyFinish, keyA, "")).Kind, Conflict)
	w.ok(keyStep(KeyResealed, keyA, ""))
	is(t, "verdict on a new value that is sealed under the former key", w.do(sealedSecret("late", keyA, "x")).Kind, Conflict)
	w.ok(keyStep(KeyFinish, keyA, ""))
	is(t, "retired keys of the state", strings.Join(w.s.Info().RetiredKeyIDs, " "), keyA)
	is(t, "verdict on a new value that is sealed under a retired key", w.do(put("late", withSecret(keyA, "x"))).Kind, Conflict)
	is(t, "verdict on a value that is sealed under the key of another cluster", w.do(put("other", withSecret(otherKey, "x"))).Kind, OK)
	is(t, "verdict on a begin with a retired key", w.do(keyStep(KeyBegin, keyA, "")).Kind, Invalid)
	is(t, "keys that seal values of the state; a rotation does not replace the key of another cluster", strings.Join(w.s.SealedKeys(), " "), keyB+" "+otherKey)
}

// TestAResealNeverOverwritesANewValue: the leader seals a value again, and before its Reseal command is
// committed, a user changes the value. The Reseal command must not replace the user's value.
func TestAResealNeverOverwritesANewValue(t *testing.T) {
	w := withEverySeal(t)
	w.ok(keyStep(KeyBegin, keyB, ""))
	w.ok(keyStep(KeySwitch, keyB, ""))
	planned := resealed(w.s, keyA, keyB)
	w.ok(sealedSecret("db", keyB, "v3"))
	w.ok(put("web", withSecret(keyB, "three")))
	w.ok(remove("web", true))
	w.ok(planned)
	o, _ := w.s.Object(DefaultNamespace, KindSecret, "db")
	is(t, `newest version of secret "db"`, string(o.Present().Data), under(keyB, "v3"))
	for _, v := range o.Versions {
		is(t, `a version of secret "db" is sealed under the former key`, SealedUnder(v.Data, keyA), false)
	}
	// After the switch, a user stores a value that is sealed under the former key. The rotation cannot go on
	// until another Reseal command has sealed this value under the new key.
	w.ok(sealedSecret("db", keyA, "v4"))
	is(t, "verdict on the step resealed while this value is sealed under the former key", w.do(keyStep(KeyResealed, keyA, "")).Kind, Conflict)
	w.ok(resealed(w.s, keyA, keyB))
	w.ok(keyStep(KeyResealed, keyA, ""))
}

// TestALostNewKeyIsReplaced: the leader begins a rotation and dies with the only copy of the new key. The
// next leader begins the rotation with another key.
func TestALostNewKeyIsReplaced(t *testing.T) {
	w := withEverySeal(t)
	w.ok(keyStep(KeyBegin, keyB, ""))
	is(t, "verdict on a begin with another key, if the command does not name the lost key", w.do(keyStep(KeyBegin, keyC, "")).Kind, Conflict)
	w.ok(keyStep(KeyBegin, keyC, keyB))
	is(t, "verdict on a switch to the lost key", w.do(keyStep(KeySwitch, keyB, "")).Kind, Conflict)
	is(t, "retired keys of the state", slices.Equal(w.s.Info().RetiredKeyIDs, []string{keyB}), true)
	w.ok(keyStep(KeySwitch, keyC, ""))
}

// TestRestoreAfterARotation: a backup was made before a rotation, so its values are sealed under the former
// key. After a restore of this backup, the rotation is in the step in which Reseal commands seal the values
// under the present key.
func TestRestoreAfterARotation(t *testing.T) {
	w := withEverySeal(t)
	backup := w.s
	w.ok(keyStep(KeyBegin, keyB, ""))
	w.ok(keyStep(KeySwitch, keyB, ""))
	w.ok(resealed(w.s, keyA, keyB))
	w.ok(keyStep(KeyResealed, keyA, ""))
	w.ok(keyStep(KeyFinish, keyA, ""))
	s, err := Restored(backup, w.s, RestoreInfo{At: w.now, FormerKey: keyA})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	w = w.withState(s)
	is(t, "FormerKeyID in the state", w.s.Info().FormerKeyID, keyA)
	// The same backup may be restored again meanwhile, for instance because the first call got no answer.
	if s, err = Restored(backup, w.s, RestoreInfo{At: w.now, FormerKey: keyA}); err != nil {
		t.Fatal(err)
	}
	w = w.withState(s)
	w.ok(resealed(w.s, keyA, keyB))
	w.ok(keyStep(KeyResealed, keyA, ""))
	if _, err := Restored(backup, w.s, RestoreInfo{At: w.now, FormerKey: keyA}); err == nil {
		t.Error("a restore of values that are sealed under a key which replicas are about to delete was accepted, want a refusal")
	}
	w.ok(keyStep(KeyFinish, keyA, ""))
	is(t, "keys that seal values of the state", strings.Join(w.s.SealedKeys(), " "), keyB)
}

// TestARestoredClusterHashesAsBefore: after a rotation all schedulers are lost, and new ones start with the new key. The
// restored content hashes were made with a key that only the backup has.
func TestARestoredClusterHashesAsBefore(t *testing.T) {
	w := withEverySeal(t)
	w.ok(keyStep(KeyBegin, keyB, ""))
	w.ok(keyStep(KeySwitch, keyB, ""))
	w.ok(resealed(w.s, keyA, keyB))
	w.ok(keyStep(KeyResealed, keyA, ""))
	w.ok(keyStep(KeyFinish, keyA, ""))
	fresh := formed(t)
	fresh.ok(pinKey(keyB))
	s, err := Restored(w.s, fresh.s, RestoreInfo{At: w.now})
	if err != nil {
		t.Fatal(err)
	}
	is(t, "ContentKey in the state", s.Info().ContentKey, w.s.Info().ContentKey)
}
