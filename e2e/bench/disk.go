package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

const (
	hangs       = 10 // number of stalls of the leader's disk; the peer gets half as many
	shortStalls = 10
	shortStall  = 300 * time.Millisecond
)

// stallable is a cluster in which one member keeps its data on a file system that the benchmark can freeze.
type stallable struct {
	disk  *harness.Disk
	lead  func(context.Context) error // transfers leadership to the member whose disk can be frozen, and waits until all members have caught up
	write func(context.Context) error
	term  func(context.Context) (uint64, error)
}

// diskStall freezes the file system of the leader again and again: first for shortStall, which must cause no
// election, then until another member has acknowledged a write.
func diskStall(ctx context.Context, e *env) (result, error) {
	var elections, peerElections uint64
	var ours, peer []time.Duration
	err := e.ownOnDisk(ctx, func(s stallable) (err error) {
		if elections, err = s.stallShortly(ctx); err == nil {
			ours, err = s.hang(ctx, hangs)
		}
		return err
	})
	if err != nil {
		return result{}, err
	}
	err = e.etcdOnDisk(ctx, func(s stallable) (err error) {
		if peerElections, err = s.stallShortly(ctx); err == nil {
			peer, err = s.hang(ctx, hangs/2)
		}
		return err
	})
	if err != nil {
		return result{}, fmt.Errorf("etcd: %w", err)
	}
	return result{ours: median(ours).Seconds() * 1000, peer: median(peer).Seconds() * 1000, unit: "ms", goal: 2000, lower: true, missed: elections > 0,
		note: fmt.Sprintf("%d hangs, first %s, worst %s; %d stalls of %s: %d elections, goal 0; etcd with its defaults, %d hangs, worst %s, %d elections",
			len(ours), ms(ours[0]), ms(slices.Max(ours)), shortStalls, ms(shortStall), elections, len(peer), ms(slices.Max(peer)), peerElections)}, nil
}

// stallShortly stalls the leader's disk while a write is pending, and returns the number of elections.
func (s stallable) stallShortly(ctx context.Context) (elections uint64, err error) {
	if err := s.lead(ctx); err != nil {
		return 0, err
	}
	before, err := s.term(ctx)
	if err != nil {
		return 0, err
	}
	for range shortStalls {
		if err := s.disk.Freeze(); err != nil {
			return 0, err
		}
		done := make(chan error, 1)
		go func() { done <- testbed.Poll(ctx, 10*time.Second, "an acknowledged write", s.write) }()
		wait(ctx, shortStall)
		if err := errors.Join(s.disk.Thaw(), <-done); err != nil {
			return 0, err
		}
		wait(ctx, 500*time.Millisecond)
	}
	after, err := s.term(ctx)
	return after - before, err
}

// hang freezes the leader's disk n times. Each time it measures how long it takes until a write is
// acknowledged again.
func (s stallable) hang(ctx context.Context, n int) (out []time.Duration, err error) {
	for range n {
		if err := s.lead(ctx); err != nil {
			return nil, err
		}
		d, err := gap(ctx, s.write, s.disk.Freeze)
		if err := errors.Join(err, s.disk.Thaw()); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// onDisk calls fn with a disk that can be frozen. When fn returns, it thaws and closes the disk, so that programs that
// write to the disk can end.
func (e *env) onDisk(fn func(*harness.Disk) error) error {
	dir, err := e.folder()
	if err != nil {
		return err
	}
	disk, err := harness.OpenDisk(dir)
	if err != nil {
		return err
	}
	return errors.Join(fn(disk), disk.Close())
}

// ownOnDisk runs fn on three Persys schedulers, the first of which is on a disk that can be frozen.
func (e *env) ownOnDisk(ctx context.Context, fn func(stallable) error) error {
	return e.onDisk(func(disk *harness.Disk) error {
		g, err := e.startWith(ctx, harness.Options{Schedulers: 3, DataDirs: []string{filepath.Join(disk.Dir, "data")}})
		if err != nil {
			return err
		}
		write, err := g.writes(ctx)
		if err == nil {
			err = fn(stallable{disk: disk, write: write, lead: func(ctx context.Context) error { return g.lead(ctx, g.Schedulers[0]) },
				term: func(ctx context.Context) (uint64, error) {
					st, err := g.Status(ctx, 0)
					return st.GetTerm(), err
				}})
		}
		return errors.Join(err, disk.Thaw(), g.Close())
	})
}

// lead gives leadership to a scheduler.
func (g *group) lead(ctx context.Context, s *harness.Scheduler) error {
	err := testbed.Poll(ctx, 30*time.Second, s.Name+" to lead", func(ctx context.Context) error {
		l, err := g.leader(ctx)
		if err != nil || l == s {
			return err
		}
		admin, err := g.AnyAdmin(ctx)
		if err != nil {
			return err
		}
		if _, err := admin.TransferLeadership(ctx, &clusterv1.TransferLeadershipRequest{Replica: s.Name}); err != nil {
			return err
		}
		return fmt.Errorf("%s does not lead: this benchmark freezes the disk of that scheduler", s.Name)
	})
	if err != nil {
		return err
	}
	return g.caughtUp(ctx)
}

// etcdOnDisk runs fn on an etcd with three members, the first of which is on a disk that can be frozen.
func (e *env) etcdOnDisk(ctx context.Context, fn func(stallable) error) error {
	return e.onDisk(func(disk *harness.Disk) error {
		et, err := e.startEtcd(ctx, 3, filepath.Join(disk.Dir, "data"))
		if err != nil {
			return err
		}
		defer et.close()
		write, done, err := et.writes(250 * time.Millisecond) // while the disk of the etcd leader hangs, a put ends only by this time limit
		if err != nil {
			return err
		}
		defer done()
		err = fn(stallable{disk: disk, write: write, lead: et.lead, term: et.term})
		return errors.Join(err, disk.Thaw())
	})
}

// lead transfers leadership to the etcd member whose data is on the disk that can be frozen.
func (g *etcdGroup) lead(ctx context.Context) error {
	err := testbed.Poll(ctx, 30*time.Second, "the first member of etcd to lead", func(ctx context.Context) error {
		l, err := g.leader(ctx)
		if err != nil || l == g.members[0] {
			return err
		}
		return errors.Join(errors.New("the etcd member whose disk can be frozen does not lead yet"), g.move(ctx, l, g.members[0]))
	})
	wait(ctx, 500*time.Millisecond) // benchmark failover waits the same time between two faults
	return err
}

// move transfers leadership from one member to another.
func (g *etcdGroup) move(ctx context.Context, from, to *etcdMember) error {
	c, err := dialEtcd(from.client)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := c.Status(ctx, to.client)
	if err == nil {
		_, err = c.MoveLeader(ctx, st.Header.MemberId)
	}
	return err
}

func (g *etcdGroup) term(ctx context.Context) (uint64, error) {
	m, err := g.leader(ctx)
	if err != nil {
		return 0, err
	}
	c, err := dialEtcd(m.client)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := c.Status(ctx, m.client)
	if err != nil {
		return 0, err
	}
	return st.RaftTerm, nil
}
