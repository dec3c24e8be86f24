package mover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestFewCopiesAtTheSameTime: a node makes few copies at the same time. The last copy of a move, while which its workload is
// stopped, does not wait for first copies.
func TestFewCopiesAtTheSameTime(t *testing.T) {
	storage := newStorage(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		dials := 0
		m := New(Config{Node: "b", Storage: storage, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Dial: func(string, string) (*grpc.ClientConn, error) {
			dials++
			<-ctx.Done()
			return nil, errors.New("no connection")
		}})
		go m.Run(ctx)
		list := &controlv1.VolumeMoves{}
		move := func(phase string) {
			n := len(list.Moves)
			list.Moves = append(list.Moves, &controlv1.VolumeMove{Id: &controlv1.Generation{Incarnation: 1, Sequence: uint64(n + 1)}, WorkloadId: fmt.Sprint("w", n), Volumes: []string{fmt.Sprint("v", n)}, From: "a", To: "b", Phase: phase})
			m.Heard(list)
			synctest.Wait()
		}
		for range firstCopies + 3 {
			move(copying)
		}
		if dials != firstCopies {
			t.Errorf("%d first copies are made at the same time, want %d", dials, firstCopies)
		}
		move(final)
		if dials != firstCopies+1 {
			t.Error("a last copy waits for first copies")
		}
		cancel()
	})
}

// opened is a stream whose first message opens a copy.
type opened struct {
	grpc.ServerStream
	open *agentv1.VolumeReadOpen
}

func (s opened) Context() context.Context { return context.Background() }
func (s opened) Recv() (*agentv1.VolumeReadRequest, error) {
	return &agentv1.VolumeReadRequest{Open: s.open}, nil
}
func (s opened) Send(*agentv1.VolumeReadResponse) error { return nil }

// TestASourceSendsFewVolumes: a source that sends enough volumes refuses another one, and the target tries again later.
func TestASourceSendsFewVolumes(t *testing.T) {
	m := New(Config{Node: "a", Storage: newStorage(t), Workload: func(string) *core.Workload { return nil }})
	m.Heard(&controlv1.VolumeMoves{Moves: []*controlv1.VolumeMove{{Id: &controlv1.Generation{Incarnation: 1, Sequence: 7}, WorkloadId: "db", Volumes: []string{"data"}, From: "a", To: "b", Phase: final}}})
	stream := opened{open: &agentv1.VolumeReadOpen{Move: &agentv1.Generation{Incarnation: 1, Sequence: 7}, WorkloadId: "db", Volume: "data"}}
	for range firstCopies {
		m.serves.first <- struct{}{}
	}
	err := m.Serve(stream, "b")
	if status.Code(err) != codes.ResourceExhausted || fatal(err) {
		t.Errorf("the source returned %v, want that it sends other volumes", err)
	}
	stream.open.Final = true
	if err := m.Serve(stream, "b"); status.Code(err) == codes.ResourceExhausted {
		t.Errorf("a last copy waits for first copies: %v", err)
	}
	if len(m.serves.last) != 0 {
		t.Error("a copy that has ended keeps its place")
	}
}

// TestTheAddressOfTheSourceMayChange: the agent of the source gets another address during the copy.
func TestTheAddressOfTheSourceMayChange(t *testing.T) {
	storage := newStorage(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var dialled []string
		m := New(Config{Node: "b", Storage: storage, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Dial: func(endpoint, _ string) (*grpc.ClientConn, error) {
			dialled = append(dialled, endpoint)
			return nil, errors.New("no connection")
		}})
		go m.Run(ctx)
		for _, endpoint := range []string{"a:1", "a:2"} {
			m.Heard(&controlv1.VolumeMoves{Moves: []*controlv1.VolumeMove{{Id: &controlv1.Generation{Incarnation: 1, Sequence: 7}, WorkloadId: "db", Volumes: []string{"data"}, From: "a", To: "b", Phase: copying, Endpoint: endpoint}}})
			time.Sleep(2 * lastWait)
			synctest.Wait()
			if n := len(dialled); n == 0 || dialled[n-1] != endpoint {
				t.Errorf("the agent called %v, want that %s was the last", dialled, endpoint)
			}
		}
		cancel()
	})
}

// TestTheSourceIsTheCopyOfTheMove: the mover passes on which copy of each volume is the source.
func TestTheSourceIsTheCopyOfTheMove(t *testing.T) {
	v := &controlv1.VolumeMove{Volumes: []string{"a", "b", "c"}, Copies: []*controlv1.Generation{{}, {Incarnation: 1, Sequence: 3}}}
	for name, want := range map[string]uint64{"a": 0, "b": 3, "c": 0, "d": 0} {
		if got := wasOf(v, name); got.Sequence != want {
			t.Errorf("the copy of %s is %s, want sequence %d", name, got, want)
		}
	}
}

func newStorage(t *testing.T) *volume.Manager {
	t.Helper()
	m, err := volume.New(volume.Config{Pools: []volume.PoolConfig{{Name: "root", Path: t.TempDir()}}}, noStore{}, volume.Records{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
