package fsm

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// Bundle holds the files that lie beside a Compose file, as a sealed archive. The first command
// that refers to the bundle carries it. The state keeps the bundle while a workload, a former
// revision or an update refers to it.
type Bundle struct {
	Digest string // SHA-256 of Data, 64 hex digits
	Data   []byte // sealed archive, which only agents open
	Uses   int    // number of workloads, former revisions and updates that refer to the bundle
}

// Bundle returns a bundle by its digest.
func (s State) Bundle(digest string) (*Bundle, bool) { return s.r.bundles.Get(digest) }

// Bundles calls fn for each bundle, in the order of digests.
func (s State) Bundles(fn func(*Bundle) bool) {
	s.r.bundles.Scan(func(_ string, b *Bundle) bool { return fn(b) })
}

type bundleView interface {
	Bundle(digest string) (*Bundle, bool)
}

// bundlesFault checks the bundles (sealed archives with the files of Compose stacks) of a command. offered
// are the bundles that the command carries. It returns an error text if an offered bundle is invalid, or if a
// workload in puts refers to a bundle that neither the command nor the state has; "" otherwise.
func bundlesFault(v bundleView, offered []*commandv1.Bundle, puts []*commandv1.WorkloadPut) string {
	for _, b := range offered {
		if fault := bounds.BundleFault(b.GetDigest(), b.GetData()); fault != "" {
			return fault
		}
	}
	for _, p := range puts {
		if p.GetBundle() != "" && filesBytes(v, offered, p.GetBundle()) == 0 {
			return "workload " + p.GetId() + ": bundle: there are no files with the digest " + quoted(p.GetBundle())
		}
	}
	return ""
}

// filesBytes returns the size in bytes of a bundle that the state or the present command (offered) has; 0 if neither
// has the bundle.
func filesBytes(v bundleView, offered []*commandv1.Bundle, digest string) int64 {
	if digest == "" {
		return 0
	}
	if b, ok := v.Bundle(digest); ok {
		return int64(len(b.Data))
	}
	for _, b := range offered {
		if b.GetDigest() == digest {
			return int64(len(b.GetData()))
		}
	}
	return 0
}

// bytesOfNew returns the total size in bytes of those bundles in offered that the state does not have.
func bytesOfNew(v bundleView, offered []*commandv1.Bundle) (n int64) {
	for _, b := range offered {
		if _, ok := v.Bundle(b.GetDigest()); !ok {
			n += int64(len(b.GetData()))
		}
	}
	return n
}

// referOf updates the counts of references to bundles when record w of a workload replaces record old.
// Either may be nil.
func (t *Tx) referOf(old, w *Workload) {
	if old == nil || w == nil || old.Bundle != w.Bundle || old.history != w.history {
		t.refer(old.bundles(), w.bundles())
	}
}

// refer replaces the bundle references of a record: before lists the former digests, after the new
// digests. A bundle without references is dropped only at the end of the command, because a later
// part of the command may refer to the bundle again.
func (t *Tx) refer(before, after []string) {
	for _, digest := range after {
		t.useBundle(digest, +1)
	}
	for _, digest := range before {
		t.useBundle(digest, -1)
	}
}

func (t *Tx) useBundle(digest string, by int) {
	old, ok := t.r.bundles.Get(digest)
	if !ok {
		t.addBundle(digest)
		if old, ok = t.r.bundles.Get(digest); !ok {
			return // the bundle is missing: State.Check reports that
		}
	}
	b := *old
	b.Uses += by
	own(t, &t.r.bundles, ownBundles).Set(digest, &b)
	if b.Uses == 0 {
		t.unused = append(t.unused, digest)
	}
}

// addBundle stores a bundle that the present command carries.
func (t *Tx) addBundle(digest string) {
	for _, o := range t.offered {
		if o.GetDigest() == digest {
			b := &Bundle{Digest: string([]byte(digest)), Data: o.GetData()}
			own(t, &t.r.bundles, ownBundles).Set(b.Digest, b)
			t.r.total.Bytes += int64(len(b.Data))
			t.changes = append(t.changes, Change{Table: TableBundle, Key: b.Digest, New: b})
			return
		}
	}
}

// dropBundles removes the bundles that lost their last reference.
func (t *Tx) dropBundles() {
	for _, digest := range t.unused {
		if b, ok := t.r.bundles.Get(digest); ok && b.Uses == 0 {
			own(t, &t.r.bundles, ownBundles).Delete(digest)
			t.r.total.Bytes -= int64(len(b.Data))
			t.changes = append(t.changes, Change{Table: TableBundle, Key: digest})
		}
	}
	t.unused = t.unused[:0]
}

// bundles returns the bundles of a workload and its former revisions.
func (w *Workload) bundles() (out []string) {
	if w == nil {
		return nil
	}
	if w.Bundle != "" {
		out = append(out, w.Bundle)
	}
	for _, r := range w.history.kept() {
		if r != nil && r.Bundle != "" {
			out = append(out, r.Bundle)
		}
	}
	return out
}

// rolloutBundles returns the bundles that an update refers to.
func rolloutBundles(r *rollout.Rollout) (out []string) {
	if r == nil {
		return nil
	}
	add := func(p *commandv1.WorkloadPut) {
		if digest := p.GetBundle(); digest != "" {
			out = append(out, digest)
		}
	}
	for i := range r.Members {
		add(r.Members[i].Put)
	}
	for _, p := range r.Former {
		add(p)
	}
	return out
}

// deriveBundles counts, after a snapshot was read or a state restored, the references to each
// bundle (files of a Compose stack), and drops bundles without references.
func (t *Tx) deriveBundles() (err error) {
	have := t.r.bundles
	t.r.bundles = tree[string, *Bundle]()
	count := func(of string, digests []string) {
		for _, digest := range digests {
			b, ok := have.Get(digest)
			if !ok {
				err = broken("%s refers to bundle %q, which does not exist", of, clip(digest))
				return
			}
			n := Bundle{Digest: b.Digest, Data: b.Data, Uses: 1}
			if counted, ok := t.r.bundles.Get(digest); ok {
				n.Uses += counted.Uses
			} else {
				t.r.total.Bytes += int64(len(b.Data))
			}
			t.r.bundles.Set(digest, &n)
		}
	}
	t.state().Workloads("", func(w *Workload) bool {
		count("workload "+w.ID, w.bundles())
		return true
	})
	t.r.rollouts.Scan(func(group string, r *rollout.Rollout) bool {
		count("the update of "+group, rolloutBundles(r))
		return true
	})
	return err
}

// mergeBundles adds the bundles of the backup and of the present state in a restore; deriveBundles then
// drops those that no record refers to.
func (t *Tx) mergeBundles(sides ...State) {
	for _, s := range sides {
		s.Bundles(func(b *Bundle) bool {
			t.r.bundles.Set(b.Digest, b)
			return true
		})
	}
}

// MaxRevisionFiles is the maximum size in bytes of the bundles that only former revisions of one workload
// refer to.
const MaxRevisionFiles = 2 << 20

// filesOf returns the total size in bytes of the bundles of some revisions. It does not count the
// bundle whose digest is present, the bundle of the present revision.
func filesOf(v bundleView, list []*Revision, present string) (n int64) {
	for i, r := range list {
		if r.Bundle != "" && r.Bundle != present && !slices.ContainsFunc(list[:i], func(o *Revision) bool { return o.Bundle == r.Bundle }) {
			n += filesBytes(v, nil, r.Bundle)
		}
	}
	return n
}

func (c *checker) bundles() {
	c.s.Bundles(func(b *Bundle) bool {
		c.must(bounds.BundleFault(b.Digest, b.Data) == "" && b.Uses > 0, "bundle %q of %d bytes has %d uses", clip(b.Digest), len(b.Data), b.Uses)
		return true
	})
}

func (e *encoder) bundle(b *Bundle) {
	e.str(b.Digest)
	e.u64(xxhash.Sum64(b.Data))
}
