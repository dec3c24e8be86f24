package persysctl

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
)

// auditCommand returns the command that shows and verifies the audit logs.
func (c *cli) auditCommand() *cobra.Command {
	parent := c.auditList("audit")
	list := c.auditList("list")
	list.Aliases = []string{"ls"}
	parent.AddCommand(list, c.auditVerify())
	return parent
}

func (c *cli) auditList(use string) *cobra.Command {
	var tail int
	var user, log string
	cmd := &cobra.Command{
		Use: use, Short: "Show who changed what, from which address, and which calls were refused",
		Long: `Show who changed what, from which address, and which calls were refused: every call
that changes something, every join, and their refusals, oldest first. -o json and
-o yaml print the events.

Besides the events, the cluster keeps three audit logs, each with its own size limit:
security has changes of people, roles, tokens, policies, namespaces and replicas;
changes has all other changes, and refusals the refused calls. So ordinary updates
cannot remove a record of security. persysctl audit verify checks that nobody altered
a record.`,
		Example: "  persysctl audit list --tail 20\n  persysctl audit list --by user/ada\n  persysctl audit list --log security\n  persysctl audit verify",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if tail < 0 {
				return usagef("--tail %d must be 0 or more", tail)
			}
			records, err := c.auditRecords(ctx, log)
			if err != nil {
				return err
			}
			var list []*clusterv1.Event
			for _, r := range records {
				if user == "" || who(r.GetBy()) == user {
					list = append(list, auditEvent(r))
				}
			}
			slices.SortStableFunc(list, func(a, b *clusterv1.Event) int { return cmp.Compare(a.GetSeq(), b.GetSeq()) })
			if tail > 0 && len(list) > tail {
				list = list[len(list)-tail:]
			}
			if c.machine() {
				return c.emitEvents(list)
			}
			if len(list) == 0 {
				c.empty("No changes.", "persysctl events")
				return nil
			}
			c.print(c.auditTable(list))
			return nil
		}),
	}
	cmd.Flags().IntVar(&tail, "tail", 50, "show only this many of the newest records; 0 shows all")
	cmd.Flags().StringVar(&log, "log", "", "only this audit log: security, changes or refusals")
	cmd.Flags().StringVar(&user, "by", "", "only changes by this identity, for example user/ada")
	return cmd
}

func (c *cli) auditVerify() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "verify", Short: "Check the hashes of the audit logs, in the cluster or in an exported file",
		Long: `Check the hashes of the audit logs. Each record holds a hash of the record before it,
so a record that was changed, removed or inserted is noticed. To be sure that nobody
rewrote the whole log, compare the hash of an old record with a copy that you exported.

--file checks records that were exported to a file, one JSON object per line.`,
		Example: "  persysctl audit verify\n  persysctl audit verify --file audit.jsonl",
		Args:    args(0, 0),
		RunE: func(command *cobra.Command, given []string) error {
			if file != "" {
				records, err := readAudit(file)
				if err != nil {
					return failf(exitFailed, "", "%v", err)
				}
				return c.verifyAudit(records)
			}
			return c.online(func(ctx context.Context, _ []string) error {
				records, err := c.auditRecords(ctx, "")
				if err != nil {
					return err
				}
				return c.verifyAudit(records)
			})(command, given)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "file with exported records, one JSON object per line")
	return cmd
}

// auditRecords reads one audit log, or all of them if log is empty.
func (c *cli) auditRecords(ctx context.Context, log string) ([]*clusterv1.AuditRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	var list []*clusterv1.AuditRecord
	open := func(ctx context.Context) (receiver[*clusterv1.AuditRecord], error) {
		return c.cluster.Audit(ctx, &clusterv1.AuditRequest{Log: log})
	}
	_, err := drainStream(ctx, open, func(r *clusterv1.AuditRecord) error {
		list = append(list, r)
		return nil
	})
	if !errors.Is(err, errEOF) {
		return nil, c.explain(err, false)
	}
	return list, nil
}

// maxAuditLine is the maximum size of one exported audit record in bytes.
const maxAuditLine = 1 << 20

// readAudit reads exported audit records from a file. A record that was exported twice is returned once.
func readAudit(path string) ([]*clusterv1.AuditRecord, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, maxAuditLine)
	type place struct {
		log    string
		number uint64
	}
	seen := map[place]*clusterv1.AuditRecord{}
	var list []*clusterv1.AuditRecord
	for line := 1; in.Scan(); line++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		r := &clusterv1.AuditRecord{}
		if err := protojson.Unmarshal(in.Bytes(), r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, line, err)
		}
		at := place{r.GetLog(), r.GetNumber()}
		if old := seen[at]; old != nil && proto.Equal(old, r) {
			continue
		}
		seen[at] = r
		list = append(list, r)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	slices.SortStableFunc(list, func(a, b *clusterv1.AuditRecord) int {
		return cmp.Or(cmp.Compare(a.GetLog(), b.GetLog()), cmp.Compare(a.GetNumber(), b.GetNumber()))
	})
	return list, nil
}

// verifyAudit prints one line for each audit log, and returns an error at the first record whose hash does
// not match.
func (c *cli) verifyAudit(records []*clusterv1.AuditRecord) error {
	t := screen.NewTable(screen.Column{Title: "LOG"}, screen.Column{Title: "RECORDS", Right: true}, screen.Column{Title: "FIRST", Right: true},
		screen.Column{Title: "LAST", Right: true}, screen.Column{Title: "LAST HASH"}, screen.Column{Title: "RESULT"})
	var fault error
	for len(records) > 0 {
		log := records[0].GetLog()
		n := slices.IndexFunc(records, func(r *clusterv1.AuditRecord) bool { return r.GetLog() != log })
		if n < 0 {
			n = len(records)
		}
		of := records[:n]
		records = records[n:]
		result := screen.Styled("whole", screen.Good)
		if err := chained(of); err != nil {
			result = screen.Styled(err.Error(), screen.Bad)
			if fault == nil {
				fault = fmt.Errorf("audit log %s: %w", log, err)
			}
		}
		last := of[len(of)-1]
		t.Add(screen.Text(log), screen.Text(strconv.Itoa(len(of))), screen.Text(fmt.Sprint(of[0].GetNumber())), screen.Text(fmt.Sprint(last.GetNumber())),
			screen.Text(hex.EncodeToString(last.GetHash()[:min(8, len(last.GetHash()))])), result)
	}
	c.print(t)
	if fault != nil {
		return failf(exitFailed, "", "%v", fault)
	}
	return nil
}

// chained returns an error if the records of one audit log do not form a chain, in which each record contains the hash
// of the previous record.
func chained(records []*clusterv1.AuditRecord) error {
	before := records[0].GetPreviousHash()
	for i, r := range records {
		if want := records[0].GetNumber() + uint64(i); r.GetNumber() != want {
			return fmt.Errorf("record %d is missing or exists twice", want)
		}
		if len(before) != len(fsm.AuditHash{}) || !bytes.Equal(r.GetPreviousHash(), before) {
			return fmt.Errorf("record %d does not contain the hash of the record before it", r.GetNumber())
		}
		e := &fsm.Event{
			Seq: r.GetEventSeq(), Index: r.GetIndex(), At: r.GetAtUnixNanos(), Type: r.GetType(), Workload: r.GetWorkloadId(),
			Node: r.GetNodeId(), Namespace: r.GetNamespace(), Reason: r.GetReason(), Message: r.GetMessage(), By: r.GetBy(),
		}
		for _, d := range r.GetDetails() {
			e.Details = append(e.Details, fsm.Label{Key: d.GetKey(), Value: d.GetValue()})
		}
		hash := fsm.HashAudit(fsm.AuditHash(before), r.GetNumber(), e)
		if !bytes.Equal(hash[:], r.GetHash()) {
			return fmt.Errorf("record %d was changed", r.GetNumber())
		}
		before = r.GetHash()
	}
	return nil
}

// auditEvent converts an audit record to the event from which it was made.
func auditEvent(r *clusterv1.AuditRecord) *clusterv1.Event {
	e := &clusterv1.Event{
		Seq: r.GetEventSeq(), Index: r.GetIndex(), At: timestamppb.New(time.Unix(0, r.GetAtUnixNanos())), Type: r.GetType(), WorkloadId: r.GetWorkloadId(),
		NodeId: r.GetNodeId(), Reason: r.GetReason(), Message: r.GetMessage(), By: r.GetBy(), Namespace: r.GetNamespace(),
	}
	for i, d := range r.GetDetails() {
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		key := d.GetKey()
		// The key "from" means the caller's address and, in an event about a change of status, also the
		// former status. If a record has the key twice, the first value is the caller's address.
		if key == "from" && i+1 < len(r.GetDetails()) && r.GetDetails()[i+1].GetKey() == "from" {
			key = "caller"
		}
		e.Details[key] = d.GetValue()
	}
	return e
}

// caller returns the address of the caller whose call caused an event; "" for an event that no call caused.
func caller(e *clusterv1.Event) string {
	d := e.GetDetails()
	if v := d["caller"]; v != "" {
		return v
	}
	if d["to"] != "" {
		return "" // the event is a change of state, and "from" is the former state
	}
	return d["from"]
}

func (c *cli) auditTable(list []*clusterv1.Event) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "WHO", Gives: 2, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "FROM", Gives: 3, Least: 9}, screen.Column{Title: "WHAT", Gives: 1, Least: 12}, screen.Column{Title: "ABOUT", Gives: 4, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "RESULT", Gives: 5, Least: 16})
	for _, e := range list {
		result := screen.Styled("done", screen.Good)
		switch e.GetType() {
		case "Mutation", "CallRefused", "JoinRefused":
			result = screen.Styled(screen.Clean(screen.Join(": ", e.GetReason(), e.GetMessage())), screen.Warn)
		}
		what := e.GetType()
		switch e.GetType() {
		case "CallMade": // the message of a CallMade event names the subject of the call
			if result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain); e.GetDetails()["error"] != "" {
				result = screen.Styled(screen.Clean(e.GetDetails()["error"]), screen.Warn)
			}
		case "SessionOpened":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain)
		case "SessionClosed":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Dim)
		}
		if v := screen.Join("", e.GetDetails()["command"], e.GetDetails()["call"]); v != "" {
			what = v
		}
		about := screen.Join(" ", e.GetWorkloadId(), onNode(e.GetNodeId()))
		if about == "" && result.Text == "done" {
			about = e.GetMessage()
		}
		when := c.age(e.GetAt())
		if c.output == outWide {
			when = e.GetAt().AsTime().In(c.zone).Format(time.RFC3339)
		}
		t.Add(screen.Text(when), screen.Text(screen.Join(" via ", who(e.GetBy()), who(e.GetDetails()["via"]))), screen.Text(caller(e)), screen.Text(what), screen.Text(about), result)
	}
	return t
}
