package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/pki"
)

// deliveryKey is a hash by which a delivery is remembered.
type deliveryKey [sha256.Size]byte

// keys returns the keys under which a delivery is remembered: its id, and its repository with its body. The
// signature covers only the body, so a captured delivery could be repeated under another id.
func (d delivery) keys() [2]deliveryKey {
	sum := sha256.Sum256(d.body)
	return [2]deliveryKey{sha256.Sum256([]byte("id " + d.id)), sha256.Sum256([]byte("body " + strings.ToLower(d.repo) + " " + string(sum[:])))}
}

// deliveryFile keeps the keys of forwarded deliveries across restarts of the gateway. A delivery that was accepted but
// not forwarded is not in the file, so that its sender can send it again after a crash. Each line has the time at which
// the delivery was accepted (Unix seconds) and a key.
type deliveryFile struct {
	path string // "" = no file
	ttl  time.Duration

	mu    sync.Mutex
	lines int // lines appended since the file was last rewritten
}

// rewriteAfter is the number of appended lines after which the file is rewritten without the expired lines.
const rewriteAfter = 4096

type deliveryLine struct {
	at  time.Time
	key deliveryKey
}

// maxDeliveryFile is the size in bytes up to which the file is read; it is larger than the file can become.
const maxDeliveryFile = 16 << 20

// load returns the lines that have not expired, oldest first, at most deliveryKeys, and rewrites the file with them, also
// if there was none, so that a folder without write permission is noticed at the start. Lines that cannot be read are left
// out: a crash can leave the last line incomplete. A time in the future counts as now, because the clock was set back.
func (f *deliveryFile) load(now time.Time) ([]deliveryLine, error) {
	if f.path == "" {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rewrite(now)
}

func (f *deliveryFile) rewrite(now time.Time) ([]deliveryLine, error) {
	text, err := f.read()
	if err != nil {
		return nil, err
	}
	var kept []deliveryLine
	for line := range strings.Lines(text) {
		at, sum, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seconds, err := strconv.ParseInt(at, 10, 64)
		raw, bad := hex.DecodeString(sum)
		l := deliveryLine{at: time.Unix(seconds, 0)}
		if err != nil || bad != nil || copy(l.key[:], raw) != len(l.key) || now.Sub(l.at) > f.ttl {
			continue
		}
		if l.at.After(now) {
			l.at = now
		}
		kept = append(kept, l)
	}
	slices.SortStableFunc(kept, func(a, b deliveryLine) int { return a.at.Compare(b.at) })
	kept = kept[max(0, len(kept)-deliveryKeys):]
	var out bytes.Buffer
	for _, l := range kept {
		out.WriteString(l.String())
	}
	f.lines = 0
	return kept, pki.WriteFile(f.path, out.Bytes(), 0o600)
}

// read returns the content of the file; "" if there is no file.
func (f *deliveryFile) read() (string, error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxDeliveryFile))
	return string(text), err
}

func (l deliveryLine) String() string { return fmt.Sprintf("%d %x\n", l.at.Unix(), l.key) }

// add appends the keys of a delivery that was accepted at the given time.
func (f *deliveryFile) add(keys []deliveryKey, at, now time.Time) error {
	if f.path == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lines >= rewriteAfter {
		if _, err := f.rewrite(now); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	for _, k := range keys {
		out.WriteString(deliveryLine{at, k}.String())
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(out.Bytes())
	f.lines += len(keys)
	if err != nil {
		f.lines = rewriteAfter // the last line may be incomplete: rewrite the file before the next line
	}
	return errors.Join(err, file.Sync(), file.Close())
}

// remember records the keys of a delivery. It reports whether all of them are new.
func (rc *receiver) remember(d delivery) bool {
	keys := d.keys()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	now := rc.now()
	for len(rc.order) > 0 && now.Sub(rc.seen[rc.order[0]]) > rc.ReplayTTL {
		rc.dropOldest()
	}
	for _, k := range keys {
		if _, again := rc.seen[k]; again {
			return false
		}
	}
	for _, k := range keys {
		rc.note(k, now)
	}
	return true
}

// note records one new key.
func (rc *receiver) note(k deliveryKey, at time.Time) {
	if len(rc.order) >= deliveryKeys {
		rc.dropOldest()
	}
	rc.seen[k] = at
	rc.order = append(rc.order, k)
}

func (rc *receiver) dropOldest() {
	delete(rc.seen, rc.order[0])
	rc.order = rc.order[1:]
}

// forget drops all keys of a delivery.
func (rc *receiver) forget(d delivery) {
	keys := d.keys()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, k := range keys {
		delete(rc.seen, k)
	}
	rc.order = slices.DeleteFunc(rc.order, func(k deliveryKey) bool { return slices.Contains(keys[:], k) })
}

// forwarded stores the keys of a delivery that was forwarded, so that they survive a restart.
func (rc *receiver) forwarded(d delivery) {
	keys := d.keys()
	rc.mu.Lock()
	at, ok := rc.seen[keys[0]]
	now := rc.now()
	rc.mu.Unlock()
	if !ok { // the delivery has waited longer than deliveries are remembered
		return
	}
	if err := rc.file.add(keys[:], at, now); err != nil {
		rc.log.Error("a webhook delivery was forwarded, but this gateway cannot remember it after a restart", "delivery", d.id, "error", err)
	}
}

// recall reads the deliveries that were forwarded before this gateway started.
func (rc *receiver) recall() {
	lines, err := rc.file.load(rc.now())
	if err != nil {
		rc.log.Warn("webhook deliveries of the time before this start can be repeated: their file cannot be read or written", "file", rc.file.path, "error", err)
	}
	for _, l := range lines {
		if _, twice := rc.seen[l.key]; !twice {
			rc.note(l.key, l.at)
		}
	}
}
