package mirror

import (
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/persys/compute/fsm"
)

// Extra are further keys that the mirror keeps, with the same fence and in the
// same transactions as the records that they follow from: the DNS records that
// CoreDNS reads. Its methods are pure, and safe for concurrent use. Keys and
// directories are given without ETCD_PREFIX.
type Extra interface {
	// Dirs are directories such as "/a/b/", none within another, that belong to
	// the mirror: what the state does not explain is removed from them.
	Dirs() []string
	// Records are all keys that a state calls for, ascending, each within one of
	// Dirs. Their values are not nil.
	Records(v fsm.View) []KV
	// Change gives the keys that a change concerns, as they are to be at v, the
	// state after it.
	Change(v fsm.View, c *fsm.Change) []KV
}

// checkExtra refuses directories that would take away what belongs to somebody.
func checkExtra(x Extra) error {
	if x == nil {
		return nil
	}
	dirs := x.Dirs()
	for i, d := range dirs {
		if !strings.HasPrefix(d, "/") || !strings.HasSuffix(d, "/") || len(d) < 3 {
			return fmt.Errorf("mirror: directory %q of the extra keys must look like /a/", d)
		}
		others := append([]string{dirNodes, dirWorkloads, dirSpecs, dirStatuses, dirAssignments, dirRetries, dirEvents, dirDrifts, dirNamespaces, "/persys/mirror/"}, dirs[:i]...)
		for _, o := range others {
			if strings.HasPrefix(d, o) || strings.HasPrefix(o, d) {
				return fmt.Errorf("mirror: directory %q of the extra keys and %q overlap", d, o)
			}
		}
	}
	return nil
}

// shape names the settings that decide which keys there are and what is in
// them, apart from the layout: a cursor of another shape leads to a full
// comparison. "" while there are none.
func (p *Projection) shape() string {
	if p.domain == "" && p.extra == nil {
		return ""
	}
	parts := []string{p.domain}
	if p.extra != nil {
		parts = append(parts, p.extra.Dirs()...)
	}
	sum := xxhash.Sum64String(strings.Join(parts, "\n"))
	return hex.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// extras are the extra keys of a state, directory by directory.
func (p *Projection) extras(v fsm.View) (out []section) {
	if p.extra == nil {
		return nil
	}
	all := p.prefixed(p.extra.Records(v))
	for _, dir := range p.extra.Dirs() {
		within := slices.Collect(filter(all, func(kv KV) bool { return strings.HasPrefix(kv.Key, string(p.keys)+dir) }))
		out = append(out, section{dir, slices.Values(within)})
	}
	return out
}

// extraChanges are the extra keys that changes concern, each once, as they are
// to be at v.
func (p *Projection) extraChanges(v fsm.View, changes []fsm.Change) (out []KV) {
	if p.extra == nil {
		return nil
	}
	seen := map[string]bool{}
	for i := range changes {
		for _, kv := range p.prefixed(p.extra.Change(v, &changes[i])) {
			if !seen[kv.Key] {
				seen[kv.Key] = true
				out = append(out, kv)
			}
		}
	}
	return out
}

func (p *Projection) prefixed(list []KV) []KV {
	out := make([]KV, len(list))
	for i, kv := range list {
		out[i] = KV{string(p.keys) + kv.Key, kv.Value}
	}
	return out
}

func filter(list []KV, keep func(KV) bool) iter.Seq[KV] {
	return func(yield func(KV) bool) {
		for _, kv := range list {
			if keep(kv) && !yield(kv) {
				return
			}
		}
	}
}
