package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
)

// line is one line of a log, parsed from JSON, with its keys in the order in which they were written.
type line struct {
	keys   []string
	fields map[string]any
}

func parseLine(text string) (line, error) {
	l := line{fields: map[string]any{}}
	dec := json.NewDecoder(strings.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return l, fmt.Errorf("the log line is not a JSON object: %v", err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return l, err
		}
		var v any
		if err := dec.Decode(&v); err != nil {
			return l, err
		}
		name, _ := key.(string)
		l.keys, l.fields[name] = append(l.keys, name), v
	}
	if _, err := dec.Token(); err != nil {
		return l, err
	}
	if rest, err := io.ReadAll(dec.Buffered()); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return l, fmt.Errorf("the log line has more than one object: %v %q", err, rest)
	}
	return l, nil
}

// fault describes how a line differs from the documented format. It returns "" if the line has that format.
func (l line) fault() string {
	at, _ := l.fields["time"].(string)
	if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
		return "time: " + err.Error()
	}
	if level, _ := l.fields["level"].(string); !slices.Contains([]string{"DEBUG", "INFO", "WARN", "ERROR"}, level) {
		return "no level"
	}
	if msg, _ := l.fields["msg"].(string); msg == "" {
		return "no msg"
	}
	for i, k := range l.keys {
		if slices.Contains(l.keys[:i], k) {
			return "the line has the key " + k + " twice"
		}
		if slices.Contains([]string{"workload_id", "workloadId", "node_id", "nodeId", "error", "!BADKEY"}, k) {
			return "the key " + k + " is not allowed; the documented keys are workload, node, epoch, index and err"
		}
	}
	for _, k := range []string{"workload", "node", "epoch"} {
		if v, ok := l.fields[k]; ok {
			if s, _ := v.(string); s == "" {
				return k + " is not a text, or is empty"
			}
		}
	}
	if v, ok := l.fields["index"]; ok {
		if _, number := v.(float64); !number {
			return "index is not a number"
		}
	}
	return ""
}

// logsHaveOneForm reads the logs of a whole test. Every line must be a JSON object of the documented format.
// The lines about important steps must exist, with the ids (of traces, workloads and so on) by which an
// operator finds the lines of other programs about the same step.
func logsHaveOneForm(t *testing.T, c *harness.Cluster) {
	t.Helper()
	wanted := []struct {
		msg  string
		keys []string
	}{
		{"serving", []string{"scheduler", "grpc", "http", "raft_id"}},
		{"leading", []string{"scheduler", "epoch", "index"}},
		{"order delivered", []string{"scheduler", "workload", "node", "epoch", "generation", "action"}},
		{"mode changed", []string{"scheduler", "from", "mode", "reason", "at"}},
		{"registered", []string{"node", "epoch"}},
		{"step", []string{"node", "workload", "generation", "do"}},
	}
	found := make([]bool, len(wanted))
	for _, p := range c.Processes() {
		text := got[string](t)(p.Output())
		faults, lines := 0, 0
		for raw := range strings.Lines(text) {
			lines++
			l, err := parseLine(raw)
			fault := ""
			if err != nil {
				fault = err.Error()
			} else {
				fault = l.fault()
			}
			if fault != "" {
				if faults++; faults <= 5 {
					t.Errorf("%s, line %d: %s: %s", p.Name, lines, fault, raw)
				}
				continue
			}
			for i, w := range wanted {
				found[i] = found[i] || l.fields["msg"] == w.msg && !slices.ContainsFunc(w.keys, func(k string) bool { _, ok := l.fields[k]; return !ok })
			}
		}
		if lines == 0 {
			t.Errorf("program %s has logged nothing", p.Name)
		}
	}
	for i, w := range wanted {
		if !found[i] {
			t.Errorf("no log has a line with the message %q and the keys %v", w.msg, w.keys)
		}
	}
}
