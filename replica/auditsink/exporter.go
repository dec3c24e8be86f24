package auditsink

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc"
)

// Config is the configuration of an exporter.
type Config struct {
	Address string // address of the sink to which records are sent, in a form that Check accepts
	Token   string // bearer token for HTTPS; "" for none
	Place   string // path of the file that stores the position reached in each log
	View    func() fsm.View
	Log     *slog.Logger
	Metrics Metrics
}

// Metrics receives the measurements of an exporter.
type Metrics interface {
	AuditSent(records int)
	AuditSinkFailed()
	AuditLost(records uint64)
	// AuditWaiting is called with the number of audit records that are not sent yet.
	AuditWaiting(records uint64)
}

// Limits of the number and size of records in a batch, and the exporter's intervals.
const (
	batchRecords = 500
	batchBytes   = 1 << 20
	look         = time.Second // interval at which the exporter checks for new records
	minBackOff   = time.Second
	maxBackOff   = time.Minute
)

// position says up to where the records of a log were sent: the number and the hash (in hexadecimal digits) of the last
// record sent.
type position struct {
	Number uint64 `json:"number"`
	Hash   string `json:"hash"`
}

// Exporter sends the records in the audit logs of a replica to a sink.
type Exporter struct {
	cfg       Config
	sink      sink
	positions map[fsm.AuditLog]position
}

// New returns an exporter. It fails if the address is invalid or the file with the positions is damaged.
func New(cfg Config) (*Exporter, error) {
	s, err := open(cfg.Address, cfg.Token)
	if err != nil {
		return nil, fmt.Errorf("SCHEDULER_AUDIT_SINK: %w", err)
	}
	e := &Exporter{cfg: cfg, sink: s, positions: map[fsm.AuditLog]position{}}
	text, err := os.ReadFile(cfg.Place)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, &e.positions); err != nil {
			return nil, fmt.Errorf("%s: %w; remove the file to send all audit records that the cluster has again", cfg.Place, err)
		}
	}
	return e, nil
}

// Run sends records until ctx ends. If a write to the sink fails, it is repeated after a pause that grows
// from 1 s to 1 minute.
func (e *Exporter) Run(ctx context.Context) {
	defer e.sink.Close()
	wait := time.NewTimer(0)
	defer wait.Stop()
	pause := minBackOff
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		more, err := e.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.cfg.Metrics.AuditSinkFailed()
			e.cfg.Log.Warn("audit records cannot be exported", "sink", e.cfg.Address, "again_in", pause, "err", err)
			wait.Reset(pause)
			pause = min(2*pause, maxBackOff)
		case more:
			wait.Reset(0)
			pause = minBackOff
		default:
			wait.Reset(look)
			pause = minBackOff
		}
	}
}

// step sends one batch of records from each audit log. more is true if further records are waiting.
func (e *Exporter) step(ctx context.Context) (more bool, err error) {
	view := e.cfg.View()
	var waiting uint64
	for _, l := range fsm.AuditLogs() {
		b, err := e.batch(view, l)
		if err != nil {
			return false, err
		}
		if len(b.lines) > 0 {
			if err := e.sink.write(ctx, b.lines); err != nil {
				e.cfg.Metrics.AuditWaiting(waiting + view.AuditLast(l) - e.positions[l].Number)
				return false, err
			}
			e.positions[l] = b.end
			if err := e.save(); err != nil {
				return false, err
			}
			e.cfg.Metrics.AuditSent(len(b.lines))
			if b.lost > 0 {
				e.cfg.Metrics.AuditLost(b.lost)
				e.cfg.Log.Error("the cluster dropped audit records before they were exported", "log", l, "records", b.lost)
			}
		}
		waiting += view.AuditLast(l) - min(e.positions[l].Number, view.AuditLast(l))
		more = more || b.more
	}
	e.cfg.Metrics.AuditWaiting(waiting)
	return more, nil
}

// batch is a number of consecutive records of one audit log, which are sent together.
type batch struct {
	lines [][]byte
	end   position
	lost  uint64 // number of records after the stored position that the cluster has dropped
	more  bool
}

// batch returns the next records after the stored position in a log. If the log does not have the record at
// that position, for example after a restore from a backup, the batch begins with the oldest record.
func (e *Exporter) batch(view fsm.View, l fsm.AuditLog) (b batch, err error) {
	at := e.positions[l]
	if at.Number > 0 && !holds(view, l, at) {
		e.cfg.Log.Warn("the audit log no longer contains the last exported record, for example after a restore; it is exported again from its oldest record", "log", l, "number", at.Number)
		at = position{}
	}
	bytes := 0
	view.Audit(l, at.Number, func(before fsm.AuditHash, r *fsm.AuditRecord) bool {
		if len(b.lines) >= batchRecords || bytes >= batchBytes {
			b.more = true
			return false
		}
		if len(b.lines) == 0 && at.Number > 0 {
			b.lost = r.Number - at.Number - 1
		}
		var line []byte
		if line, err = protojson.Marshal(rpc.AuditRecord(l, before, r)); err != nil {
			return false
		}
		b.lines, bytes = append(b.lines, append(line, '\n')), bytes+len(line)
		b.end = position{r.Number, hex.EncodeToString(r.Hash[:])}
		return true
	})
	return b, err
}

// holds reports whether the log l is the log from which the last record (at) was sent, so that the export can continue
// after it. In that log, the record with the number at.Number has the hash at.Hash. If that record was dropped because
// of its age, the next record must contain at.Hash as the hash of its predecessor. If the next record was dropped too,
// nothing can be compared, and holds returns true.
func holds(view fsm.View, l fsm.AuditLog, at position) bool {
	if at.Number > view.AuditLast(l) {
		return false
	}
	same := true
	view.Audit(l, at.Number-1, func(before fsm.AuditHash, r *fsm.AuditRecord) bool {
		switch r.Number {
		case at.Number:
			same = hex.EncodeToString(r.Hash[:]) == at.Hash
		case at.Number + 1:
			same = hex.EncodeToString(before[:]) == at.Hash
		}
		return false
	})
	return same
}

func (e *Exporter) save() error {
	text, err := json.Marshal(e.positions)
	if err != nil {
		return err
	}
	return pki.WriteFile(e.cfg.Place, append(text, '\n'), 0o600)
}
