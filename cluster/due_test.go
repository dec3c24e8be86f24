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
		{"few entries with few bytes", 8191, 127 * mib, 0, false},
		{"many small entries", 8192, 1 * mib, 0, true},
		{"few large entries", 10, 128 * mib, 0, true},
		{"many entries and a small last snapshot", 8192, 1 * mib, 16 * mib, true},
		{"entries with less than half the bytes of a large last snapshot", 100_000, 63 * mib, 128 * mib, false},
		{"entries with half the bytes of a large last snapshot", 100_000, 64 * mib, 128 * mib, true},
		{"entries with a quarter of the bytes of a very large last snapshot", 100_000, 128 * mib, 512 * mib, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			if got := timing.snapshotDue(c.entries, c.bytes, c.last); got != c.want {
				t.Errorf("a snapshot is due: %t, want %t", got, c.want)
			}
		})
	}
}
