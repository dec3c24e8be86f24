package fsm

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// newerRules is the command table of an imaginary version that knows feature level 2. As an example, put_namespace
// needs level 2 in it.
func newerRules() []armRule {
	rules := slices.Clone(armRules[:])
	for i := range rules {
		if rules[i].name == "put_namespace" {
			rules[i].level = 2
		}
	}
	return rules
}

// applyNewer applies c with the command table of a version that knows feature level 2.
func (w *world) applyNewer(c Command) Result {
	w.t.Helper()
	w.index++
	tx := w.s.Begin()
	tx.rules = newerRules()
	res, _ := tx.Apply(Meta{w.index, w.term}, c)
	w.s = tx.Commit()
	if err := w.s.Check(); err != nil {
		w.t.Fatalf("after command %s the invariants must hold, but Check returned %v", c, err)
	}
	return res
}

func TestFeatureLevels(t *testing.T) {
	prove(t, []fact{
		{"a new cluster is at level 1", func(t *testing.T, w *world) {
			is(t, "feature level of the state", w.s.Info().FeatureLevel, 1)
			is(t, "highest feature level that this version knows", FeatureLevel, 1)
		}},
		{"a command of level 2 is refused at level 1 and changes nothing", func(t *testing.T, w *world) {
			refused(t, w.applyNewer(putNamespace("shop")), Unsupported, "put_namespace", "feature level 2", "the cluster is at 1")
			is(t, `namespace "shop" exists`, w.s.HasNamespace("shop"), false)
		}},
		{"a command of level 2 is accepted after the level was raised", func(t *testing.T, w *world) {
			is(t, "verdict on the announcement of replica r1 with level 2", w.applyNewer(putReplica("r1", 2)).Kind, OK)
			is(t, "verdict on the raise to level 2", w.applyNewer(setLevel(2)).Kind, OK)
			is(t, "verdict on a command of level 2", w.applyNewer(putNamespace("shop")).Kind, OK)
			is(t, `namespace "shop" exists`, w.s.HasNamespace("shop"), true)
		}},
		{"the level rises when every replica understands it", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 2))
			w.ok(setLevel(2))
			is(t, "feature level of the state", w.s.Info().FeatureLevel, 2)
			is(t, "message of the event FeatureLevelRaise", w.eventOf(EventFeatureLevelRaise).Message, "2")
		}},
		{"one replica of the older version keeps the level down until it is replaced", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 2))
			w.ok(putReplica("r2", 1))
			refused(t, w.do(setLevel(2)), Conflict, "name-r2", "only level 1")
			w.ok(putReplica("r2", 2))
			w.ok(setLevel(2))
		}},
		{"the level stays while no replica is announced", func(t *testing.T, w *world) {
			refused(t, w.do(setLevel(2)), Conflict, "level")
		}},
		{"the level never falls", func(t *testing.T, w *world) {
			refused(t, w.do(setLevel(0)), Conflict, "level", "0")
		}},
		{"raising the level to the present level changes nothing", func(t *testing.T, w *world) {
			is(t, "verdict on the command", w.do(setLevel(1)).Kind, AlreadyDone)
		}},
		{"the older version refuses a snapshot of level 2", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 2))
			w.ok(setLevel(2))
			_, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err == nil || !strings.Contains(err.Error(), "feature level is 2, this version knows 1: upgrade this replica") || !errors.Is(err, ErrNewer) {
				t.Errorf("reading a snapshot of feature level 2 returned error %v, want ErrNewer and the advice to upgrade", err)
			}
		}},
	})
}

// TestTwoVersionsSideBySide applies the log of a rolling upgrade with both versions. The results and digests
// must be equal for as long as the cluster is at the feature level that both versions know.
func TestTwoVersionsSideBySide(t *testing.T) {
	older, newer := formed(t), formed(t)
	for _, c := range []Command{
		putReplica("r1", 1), putReplica("r2", 1), register("a"), put("web"),
		putReplica("r1", 2), // replica r1 is upgraded
		setLevel(2),         // refused, because replica r2 is not upgraded yet
		remove("web", true),
		putReplica("r2", 2),
	} {
		was, now := older.applyOlder(c), newer.applyNewer(c)
		is(t, ArmName(c)+" kind", now.Kind, was.Kind)
		is(t, ArmName(c)+" digest", newer.s.Info().Digest, older.s.Info().Digest)
	}
	is(t, "feature level of the state", newer.s.Info().FeatureLevel, 1)
	is(t, "verdict on the raise to level 2 when both replicas know it", newer.applyNewer(setLevel(2)).Kind, OK)
	is(t, "verdict on a command of level 2", newer.applyNewer(putNamespace("shop")).Kind, OK)
}

// applyOlder applies c as a version does that knows feature level 1 only.
func (w *world) applyOlder(c Command) Result {
	w.t.Helper()
	w.index++
	s, res, _ := w.s.Apply(Meta{w.index, w.term}, c)
	w.s = s
	return res
}
