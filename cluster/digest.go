package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// compareDigests asks the voters for their digest at an index that this replica has applied as well
// (cluster/DESIGN.md). Each replica judges only itself: if its digest differs from the one that a majority
// of voters agrees on, its state is wrong, and it stops.
func (n *Node) compareDigests() {
	var index uint64
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(n.cfg.Timing.Compare):
		}
		// Ask for the index of one period ago: the other replicas have applied it by now.
		if own, ok := n.machine.digests.at(index); ok {
			n.compareAt(index, own)
		}
		index = n.machine.digests.newest()
	}
}

func (n *Node) compareAt(index, own uint64) {
	ctx, cancel := context.WithTimeout(n.ctx, min(n.cfg.Timing.RPC, 2*time.Second))
	defer cancel()
	level := n.Store().View().Info().FeatureLevel
	var mu sync.Mutex
	var wg sync.WaitGroup
	answers := []digestAnswer{{own, level}}
	voters := 0
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == n.id {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			res, err := n.peers.call(ctx, string(s.ID), string(s.Address), &request{Op: opDigest, Index: index})
			if err != nil || !res.Known {
				return
			}
			mu.Lock()
			answers = append(answers, digestAnswer{res.Digest, res.Level})
			mu.Unlock()
		}()
	}
	wg.Wait()
	other, most := outvoted(answers)
	if most == 0 {
		return
	}
	if most < voters/2+1 {
		n.once.warn(n.log, fmt.Sprintf("digest:%d", index), "replicas disagree about the state, and no majority agrees against this one", "index", index, "own", own, "others", other)
		return
	}
	err := fmt.Errorf("%w: at index %d its digest is %016x, that of %d of %d voters is %016x", ErrDiverged, index, own, most, voters, other)
	if n.IsLeader() {
		hctx, done := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		if terr := n.TransferLeadership(hctx, ""); terr != nil {
			n.log.Warn("could not hand over before stopping", "err", terr)
		}
		done()
	}
	n.halt(err)
}

// digestAnswer is the digest of one voter and the feature level at which it is now.
type digestAnswer struct {
	digest uint64
	level  uint32
}

// outvoted returns the digest on which most of the others agree against the first answer, which
// is this replica's own, and how many they are; 0 if nobody differs. Replicas at another feature
// level do not count: their versions may encode a record in another way.
func outvoted(answers []digestAnswer) (other uint64, most int) {
	own := answers[0]
	count := map[uint64]int{}
	for _, a := range answers[1:] {
		if a.level != own.level || a.digest == own.digest {
			continue
		}
		if count[a.digest]++; count[a.digest] > most {
			other, most = a.digest, count[a.digest]
		}
	}
	return other, most
}
