package cluster

import "testing"

func TestASnapshotIsDueAfterEnoughEntries(t *testing.T) {
	const mib = 1 << 20
	timing := Timing{}.withDefaults()
	for _, c := range []struct {
		fact                 string
		entries, bytes, last int64
		want                 bool
	}{
		{"no snapshot is due below both limits", 8191, 127 * mib, 0, false},
		{"a snapshot is due after 8192 small entries", 8192, 1 * mib, 0, true},
		{"a snapshot is due after few entries with 128 MiB", 10, 128 * mib, 0, true},
		{"after a small last snapshot, a snapshot is due after 8192 small entries", 8192, 1 * mib, 16 * mib, true},
		{"no snapshot is due after entries with less than half the bytes of a large last snapshot", 100_000, 63 * mib, 128 * mib, false},
		{"a snapshot is due after entries with half the bytes of a large last snapshot", 100_000, 64 * mib, 128 * mib, true},
		{"no snapshot is due after entries with a quarter of the bytes of a very large last snapshot", 100_000, 128 * mib, 512 * mib, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			if got := timing.snapshotDue(c.entries, c.bytes, c.last); got != c.want {
				t.Errorf("whether a snapshot is due: %t, want %t", got, c.want)
			}
		})
	}
}
