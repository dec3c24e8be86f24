package cluster

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogger writes the Raft library's log lines to slog. For a dead peer the library repeats some lines
// several times per second; raftLogger writes each such line at most once per ten seconds for each peer.
func raftLogger(l *slog.Logger) hclog.Logger {
	h := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Output: io.Discard, Level: hclog.Off})
	h.RegisterSink(&raftSink{l: l.With("part", "raft"), once: &onceLog{every: 10 * time.Second}})
	return h
}

type raftSink struct {
	l    *slog.Logger
	once *onceLog
}

// Accept writes one line; hclog calls it for every line.
func (s *raftSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	var lv slog.Level
	switch level {
	case hclog.Error:
		lv = slog.LevelError
	case hclog.Warn:
		lv = slog.LevelWarn
	case hclog.Info:
		lv = slog.LevelInfo
	default:
		lv = slog.LevelDebug
	}
	if !s.l.Enabled(context.Background(), lv) {
		return
	}
	if lv >= slog.LevelWarn {
		key := msg
		for i := 0; i+1 < len(args); i += 2 {
			if k, ok := args[i].(string); ok && (k == "peer" || k == "target" || k == "server-id" || k == "from") {
				key += fmt.Sprintf("|%v", args[i+1])
			}
		}
		if !s.once.first(key) {
			return
		}
		// The errors that the library logs are nearly always about unreachable peers, without which
		// the cluster goes on. So log them as warnings.
		lv = slog.LevelWarn
	}
	clean := make([]any, 0, len(args))
	for i := 0; i+1 < len(args); i += 2 {
		v := args[i+1]
		if f, ok := v.(hclog.Format); ok && len(f) > 0 {
			v = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		if k, ok := args[i].(string); ok && k != "timestamp" {
			clean = append(clean, attr(k, v))
		}
	}
	s.l.Log(context.Background(), lv, msg, clean...)
}

// attr converts one attribute of a log line of the Raft library. It drops the time, which every
// slog line has, and converts numbers to slog numbers.
func attr(k string, v any) slog.Attr {
	if k == "time" {
		k = "took"
	}
	switch n := v.(type) {
	case uint64:
		return slog.Uint64(k, n)
	case int64:
		return slog.Int64(k, n)
	case int:
		return slog.Int(k, n)
	}
	return slog.String(k, fmt.Sprint(v))
}

// gossipLogger writes memberlist's log lines to slog. memberlist uses log.Logger and writes the level into
// the text of the line.
func gossipLogger(l *slog.Logger) *log.Logger {
	return log.New(gossipWriter{l.With("part", "gossip")}, "", 0)
}

type gossipWriter struct{ l *slog.Logger }

func (w gossipWriter) Write(b []byte) (int, error) {
	line := strings.TrimSpace(string(b))
	lv := slog.LevelInfo
	for prefix, v := range map[string]slog.Level{
		"[DEBUG]": slog.LevelDebug, "[INFO]": slog.LevelDebug, "[WARN]": slog.LevelDebug, "[ERR]": slog.LevelInfo, "[ERROR]": slog.LevelInfo,
	} {
		// Gossip gives only hints, so its warnings are logged at debug level.
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			line, lv = strings.TrimSpace(rest), v
			break
		}
	}
	w.l.Log(context.Background(), lv, strings.TrimPrefix(line, "memberlist: "))
	return len(b), nil
}

// onceLog decides whether a log line is written: each line once, or once per period.
type onceLog struct {
	every time.Duration // shortest time between two equal lines; 0 = write each line only once
	mu    sync.Mutex
	seen  map[string]time.Time
}

const onceKeys = 1024

func (o *onceLog) first(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if at, ok := o.seen[key]; ok && (o.every == 0 || now.Sub(at) < o.every) {
		return false
	}
	if o.seen == nil || len(o.seen) >= onceKeys {
		o.seen = map[string]time.Time{}
	}
	o.seen[key] = now
	return true
}

func (o *onceLog) warn(l *slog.Logger, key, msg string, args ...any) {
	if o.first(key) {
		l.Warn(msg, args...)
	}
}
