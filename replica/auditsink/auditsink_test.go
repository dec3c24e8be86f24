package auditsink

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInvalidAddressesAreRefused(t *testing.T) {
	for address, want := range map[string]string{
		"file:///var/log/persys/audit.jsonl": "", "syslog:": "", "https://siem.example.com/persys?source=a": "", "http://127.0.0.1:9000/x": "", "http://localhost/x": "",
		"http://siem.example.com/x": "loopback", "file://audit.jsonl": "file:///PATH", "file:///var/log/": "file:///PATH", "/var/log/audit": "file:///PATH",
		"syslog://logs.example.com": "syslog:", "https://ada:pw@siem.example.com": "SCHEDULER_AUDIT_SINK_TOKEN", "https:///x": "https://HOST", "kafka://x": "https://HOST", "https://a b": "https://HOST",
	} {
		err := Check(address)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Check of the sink address %q returned %v, want an error that contains %q, or none if it is empty", address, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("the error about a sink address must not contain the password in the address, but is: %v", err)
		}
	}
}

// world is a test fixture: a state with an audit log, and the metrics that an exporter reports.
type world struct {
	mu            sync.Mutex
	state         fsm.State
	sent, failed  int
	lost, waiting uint64
	index         uint64
	place         string
	t             *testing.T
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, place: filepath.Join(t.TempDir(), "audit.places")}
	w.form()
	return w
}

func (w *world) AuditSent(n int)       { w.sent += n }
func (w *world) AuditSinkFailed()      { w.failed++ }
func (w *world) AuditLost(n uint64)    { w.lost += n }
func (w *world) AuditWaiting(n uint64) { w.waiting = n }
func (w *world) View() fsm.View        { w.mu.Lock(); defer w.mu.Unlock(); return w.state }

// form creates the state of a new cluster.
func (w *world) form() {
	tx := fsm.New().Begin()
	w.index++
	r, _ := tx.Apply(fsm.Meta{Index: w.index, Term: 1}, &commandv1.Command{
		Head: &commandv1.Head{At: int64(w.index) * 1e9},
		Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}},
	})
	if r.Err() != nil {
		w.t.Fatal(r.Err())
	}
	w.state = tx.Commit()
}

// refuse adds n records to the audit log of refused calls.
func (w *world) refuse(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tx := w.state.Begin()
	for range n {
		w.index++
		tx.Apply(fsm.Meta{Index: w.index, Term: 1}, &commandv1.Command{
			Head: &commandv1.Head{At: int64(w.index) * 1e9, By: "persys://c/user/vera"},
			Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: fsm.EventCallRefused, Message: "refused"}},
		})
	}
	w.state = tx.Commit()
}

func (w *world) exporter(address, token string) *Exporter {
	w.t.Helper()
	e, err := New(Config{Address: address, Token: token, Place: w.place, View: w.View, Log: slog.New(slog.DiscardHandler), Metrics: w})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// steps calls Exporter.step again and again until all records are exported.
func (w *world) steps(e *Exporter) {
	w.t.Helper()
	for more := true; more; {
		var err error
		if more, err = e.step(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func records(t *testing.T, r io.Reader) (list []*clusterv1.AuditRecord) {
	t.Helper()
	for in := bufio.NewScanner(r); in.Scan(); {
		one := &clusterv1.AuditRecord{}
		if err := protojson.Unmarshal(in.Bytes(), one); err != nil {
			t.Fatalf("a line of the sink must be a record in JSON, but is %s (error %v)", in.Bytes(), err)
		}
		list = append(list, one)
	}
	return list
}

// chained checks that each record holds the hash of the previous record.
func chained(t *testing.T, list []*clusterv1.AuditRecord, first, last uint64) {
	t.Helper()
	if len(list) == 0 || list[0].GetNumber() != first || list[len(list)-1].GetNumber() != last {
		t.Fatalf("the exporter sent %d records, want the records with the numbers %d to %d", len(list), first, last)
	}
	for i := 1; i < len(list); i++ {
		if list[i].GetNumber() != list[i-1].GetNumber()+1 || !bytes.Equal(list[i].GetPreviousHash(), list[i-1].GetHash()) {
			t.Fatalf("record %d does not follow record %d by number and hash, want an unbroken chain", list[i].GetNumber(), list[i-1].GetNumber())
		}
	}
}

// TestRecordsAreWrittenOnceAndInOrder: the file contains each record once and in order, even over several
// batches, a rotation of the file and a restart of the exporter.
func TestRecordsAreWrittenOnceAndInOrder(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	e := w.exporter("file://"+path, "")
	w.refuse(2*batchRecords + 5)
	w.steps(e)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	w.refuse(3)
	w.steps(w.exporter("file://"+path, "")) // make a new exporter, as after a restart
	var list []*clusterv1.AuditRecord
	for _, p := range []string{path + ".1", path} {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, records(t, f)...)
		f.Close()
	}
	chained(t, list, 1, 2*batchRecords+8)
	if w.sent != len(list) || w.waiting != 0 || w.lost != 0 {
		t.Errorf("the metrics report %d sent, %d waiting and %d lost records, want all records sent", w.sent, w.waiting, w.lost)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the audit file has mode %v (error %v), want 0600", info.Mode(), err)
	}
}

// TestBatchesAreRepeatedUntilStored: a batch is sent again until the HTTPS endpoint has stored it; a redirect
// is not followed.
func TestBatchesAreRepeatedUntilStored(t *testing.T) {
	w := newWorld(t)
	var got bytes.Buffer
	code := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("Authorization") != "Bearer s3cret" {
			t.Errorf("the endpoint got a request %s with headers %v, want a POST with records in NDJSON and the bearer token", r.Method, r.Header)
		}
		if code == http.StatusOK {
			_, _ = io.Copy(&got, r.Body)
		}
		out.Header().Set("Location", "/elsewhere")
		out.WriteHeader(code)
	}))
	defer server.Close()
	e := w.exporter(server.URL, "s3cret")
	defer e.sink.Close()
	w.refuse(4)
	for _, code = range []int{http.StatusServiceUnavailable, http.StatusTemporaryRedirect} {
		if _, err := e.step(t.Context()); err == nil {
			t.Fatalf("the HTTP status %d of the endpoint must count as a failed write, but counts as success", code)
		}
	}
	if w.waiting != 4 || w.sent != 0 {
		t.Errorf("after the failed writes %d records are waiting and %d are sent, want 4 and 0", w.waiting, w.sent)
	}
	code = http.StatusOK
	w.steps(e)
	chained(t, records(t, &got), 1, 4)
}

// TestDroppedRecordsAreCounted: if the cluster drops records before they are exported, the exporter must count them
// and continue with the next record that exists.
func TestDroppedRecordsAreCounted(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	e := w.exporter("file://"+path, "")
	w.refuse(1)
	w.steps(e)
	w.refuse(fsm.MaxAuditRefusals + 7)
	w.steps(e)
	if w.lost != 7 {
		t.Errorf("the metrics report %d lost records, want 7", w.lost)
	}
}

// TestARestoredLogIsExportedFromItsStart: after a restore from a backup, the log has other records under numbers that
// were already exported. The export then begins again with the oldest record.
func TestARestoredLogIsExportedFromItsStart(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	w.refuse(5)
	w.steps(w.exporter("file://"+path, ""))
	w.index += 100
	w.form()
	w.refuse(6)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.steps(w.exporter("file://"+path, ""))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chained(t, records(t, f), 1, 6)
}

func TestADamagedPositionFileIsRefused(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(w.place, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Address: "syslog:", Place: w.place}); err == nil || !strings.Contains(err.Error(), w.place) {
		t.Errorf("New with a damaged position file returned %v, want an error that names the file", err)
	}
}

// TestRunExportsUntilItsContextEnds: Run exports the records that arrive while it runs, and returns when its
// context ends.
func TestRunExportsUntilItsContextEnds(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	e := w.exporter("file://"+path, "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	w.refuse(2)
	testbed.Until(t, "the records", func() bool {
		b, _ := os.ReadFile(path)
		return bytes.Count(b, []byte("\n")) == 2
	})
	cancel()
	<-ended
}
