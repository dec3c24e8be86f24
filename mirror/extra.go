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

// Extra supplies additional keys that the mirror writes in the same fenced transactions as its own records,
// for example the DNS records for CoreDNS. Its methods are pure and safe for concurrent use. Keys and
// directories do not include ETCD_PREFIX.
type Extra interface {
	// Dirs returns the directories of the extra keys, such as "/a/b/". Directories must
	// not overlap. The mirror removes all other keys from them.
	Dirs() []string
	// Records returns all extra keys of a state in ascending order. Every key is in one
	// of Dirs and no value is nil.
	Records(v fsm.View) []KV
	// Change returns the extra keys that a change affects, with their values in v, the
	// state after the change. A nil value deletes the key.
	Change(v fsm.View, c *fsm.Change) []KV
}

// checkExtra refuses directories that are malformed or overlap with other directories.
func checkExtra(x Extra) error {
	if x == nil {
		return nil
	}
	dirs := x.Dirs()
	for i, d := range dirs {
		if !strings.HasPrefix(d, "/") || !strings.HasSuffix(d, "/") || len(d) < 3 {
			return fmt.Errorf("mirror: directory %q of the extra keys must look like /a/", d)
		}
		others := append([]string{dirNodes, dirWorkloads, dirSpecs, dirStatuses, dirAssignments, dirRetries, dirEvents, dirDrifts, dirNamespaces, dirBundles, "/persys/mirror/"}, dirs[:i]...)
		for _, o := range others {
			if strings.HasPrefix(d, o) || strings.HasPrefix(o, d) {
				return fmt.Errorf("mirror: directory %q of the DNS records and directory %q overlap", d, o)
			}
		}
	}
	return nil
}

// shape returns a hash of the domain and of the directories of extra keys, because these settings change the
// keys or values that the mirror writes (the layout is compared separately). If the cursor in etcd has
// another shape, the mirror compares all keys. shape returns "" if no such setting is used.
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

// extras returns the keys that Deps.Extra adds for a state, one section per directory.
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

// extraChanges returns the extra keys that the changes affect, each once, with their
// values in v.
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
