package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// compareDigests asks the voters for the digest of their state at an index that this replica has applied as
// well (cluster/DESIGN.md). Each replica judges only itself: it stops if its digest differs from that of a
// majority of voters.
func (n *Node) compareDigests() {
	var index uint64
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(n.cfg.Timing.Compare):
		}
		// Ask for the digest at an index that this replica applied one Timing.Compare ago: the other
		// replicas have applied that index by now.
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
		n.once.warn(n.log, fmt.Sprintf("digest:%d", index), "the replicas disagree about the state, but no majority agrees on another state than this replica's", "index", index, "own", own, "others", other)
		return
	}
	err := fmt.Errorf("%w: at index %d its digest is %016x, that of %d of %d voters is %016x", ErrDiverged, index, own, most, voters, other)
	if n.IsLeader() {
		hctx, done := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		if terr := n.TransferLeadership(hctx, ""); terr != nil {
			n.log.Warn("could not transfer leadership before stopping", "err", terr)
		}
		done()
	}
	n.halt(err)
}

// digestAnswer is the digest of the state that one voter returned, with the voter's present
// feature level.
type digestAnswer struct {
	digest uint64
	level  uint32
}

// outvoted compares the digests of the other voters with this replica's own, which is answers[0]. other is
// the most frequent digest that differs from this replica's, and most is the number of voters that have it;
// most is 0 if no digest differs. Answers from another feature level are ignored, because another version may
// encode a record differently.
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
