package rpc

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// TestAuditLogsAreServedWithHashes: any replica serves the audit logs, and each record has the hash of the
// previous record.
func TestAuditLogsAreServedWithHashes(t *testing.T) {
	g, dialAs := tlsGroup(t)
	cc := dialAs(1, "user/admin")
	read := func(req *clusterv1.AuditRequest) ([]*clusterv1.AuditRecord, error) {
		s, err := clusterv1.NewClusterClient(cc).Audit(ctxFor(t), req)
		ok(t, err)
		var out []*clusterv1.AuditRecord
		for {
			r, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	g.do(audited1("refused"))
	g.do(audited1("refused again"))
	got, err := read(&clusterv1.AuditRequest{Log: "refusals"})
	ok(t, err)
	if n := len(got); n < 2 || got[n-1].GetMessage() != "refused again" || string(got[n-1].GetPreviousHash()) != string(got[n-2].GetHash()) {
		t.Errorf("the audit log \"refusals\" has the records %v, want the new refusal as the last record, with the hash of the record before it", got)
	}
	later, err := read(&clusterv1.AuditRequest{Log: "refusals", After: got[len(got)-2].GetNumber()})
	ok(t, err)
	if len(later) != 1 || string(later[0].GetPreviousHash()) != string(got[len(got)-2].GetHash()) {
		t.Errorf("a read of the audit log after its second to last record returned %v, want one record that continues the hash chain", later)
	}
	_, err = read(&clusterv1.AuditRequest{After: 3})
	code(t, err, codes.InvalidArgument)
	_, err = read(&clusterv1.AuditRequest{Log: "x"})
	code(t, err, codes.InvalidArgument)
}

// TestRefusalsAreCoalesced: for each caller, the first refusals within a minute get a record each; further refusals
// share one record with their number. So one caller with very many refusals cannot push the records of other callers
// out of the log, whose size is limited.
func TestRefusalsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals()
		var mu sync.Mutex // protects said and fails, which the goroutines that end each caller's minute use
		var said []string
		fails := false
		note := func(who caller) bool {
			return r.note(who, false, func(n int, together bool) error {
				mu.Lock()
				defer mu.Unlock()
				if fails {
					return errors.New("no scheduler leads")
				}
				name := refusalKey(who)
				if together {
					name = "others"
				}
				said = append(said, name+" "+strconv.Itoa(n))
				return nil
			})
		}
		vera, ada := caller{id: pki.Identity{Role: pki.RoleUser, ID: "vera"}}, caller{id: pki.Identity{Role: pki.RoleUser, ID: "ada"}}
		recorded := 0
		for range 1000 {
			if note(vera) {
				recorded++
			}
		}
		is(t, "number of recorded refusals of one caller within a minute", recorded, refusalEach)
		is(t, "the refusal of another caller is recorded", note(ada), true)
		strangers := 0
		for i := range 100_000 {
			if note(caller{from: "10." + strconv.Itoa(i/65536) + "." + strconv.Itoa(i/256%256) + "." + strconv.Itoa(i%256)}) {
				strangers++
			}
		}
		if strangers > strangerBurst || len(r.callers) > maxRefusedNetworks+3 {
			t.Errorf("%d refusals of callers without a certificate were recorded and %d callers are in memory, want at most the limits", strangers, len(r.callers))
		}
		is(t, "the refusal of user ada is recorded, although many refusals of callers without a certificate came before", note(ada), true)
		time.Sleep(refusalWindow + time.Second)
		synctest.Wait()
		if !strings.Contains(strings.Join(said, ","), "user/vera 980") {
			t.Errorf("the records with numbers of refusals are %.200v, want one with the 980 further refusals of user vera", said)
		}
		if !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, "others ") }) || len(said) > maxRefusedNetworks+2 {
			t.Errorf("there are %d records with numbers of refusals, want at most %d, one of them for the networks that were counted together", len(said), maxRefusedNetworks+2)
		}
		is(t, "callers in memory after a minute", len(r.callers)+r.networks, 0)

		// If the record with the number of further refusals cannot be written, it must be written later. Its number
		// must then include the refusals that should have got records of their own, but whose records could not be
		// written.
		mu.Lock()
		said, fails = nil, true
		mu.Unlock()
		for range refusalEach + 5 {
			note(vera)
		}
		r.unrecorded(vera, false)
		time.Sleep(refusalWindow + time.Second)
		synctest.Wait()
		is(t, "number of records that could be written without a leader", len(said), 0)
		mu.Lock()
		fails = false
		mu.Unlock()
		time.Sleep(refusalAgain)
		synctest.Wait()
		is(t, "records that are written once there is a leader again", strings.Join(said, ","), "user/vera 6")
		is(t, "callers in memory at the end", len(r.callers), 0)
	})
}

// TestCallsOnReplicasAreRecordsOfSecurity: calls that change the group of schedulers are no commands of the log. Their
// audit events are recognised by the names of their methods.
func TestCallsOnReplicasAreRecordsOfSecurity(t *testing.T) {
	g := newGroup(t, 1)
	for _, full := range []string{clusterv1.Cluster_TransferLeadership_FullMethodName, clusterv1.Cluster_RemoveReplica_FullMethodName} {
		before := g.view().AuditLast(fsm.AuditSecurity)
		g.do(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: fsm.EventCallMade, Details: []*commandv1.Label{{Key: "call", Value: methods[full].op}},
		}}})
		is(t, full, g.view().AuditLast(fsm.AuditSecurity), before+1)
	}
}

func audited1(message string) *commandv1.Command {
	return &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: fsm.EventCallRefused, Message: message}}}
}
