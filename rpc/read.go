package rpc

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// level is the consistency that a read asks for.
type level uint8

const (
	linearizable level = iota
	session
	stale
	staleFallback // stale, because the caller requested no level and there is no leader
)

// leveled is implemented by requests that have fields for the read level (linearizable, session or stale).
type leveled interface {
	GetLevel() controlv1.ReadLevel
	GetMinIndex() uint64
}

// wish reads the read level and the index that the caller requests, from the fields of the request
// or from the metadata. asked is false if the caller requests neither.
func (c *call) wish(ctx context.Context, req any) (asked bool, err error) {
	r, ours := req.(leveled)
	if ours {
		c.least = r.GetMinIndex()
	}
	if v := told(ctx, dial.KeyIndex); c.least == 0 && v != "" {
		if c.least, err = strconv.ParseUint(v, 10, 64); err != nil {
			return false, errorf(KindInvalid, "%s %q must be a log index", dial.KeyIndex, v)
		}
	}
	word := told(ctx, dial.KeyRead)
	if ours && r.GetLevel() != controlv1.ReadLevel_READ_LEVEL_UNSPECIFIED {
		word = levelWords[r.GetLevel()]
	}
	switch word {
	case "":
		return false, nil // the default level: linearizable
	case dial.ReadLinearizable:
	case dial.ReadSession:
		c.level = session
	case dial.ReadStale:
		c.level = stale
	default:
		return false, errorf(KindInvalid, "%s %q must be %s, %s or %s", dial.KeyRead, word,
			dial.ReadLinearizable, dial.ReadSession, dial.ReadStale)
	}
	return true, nil
}

var levelWords = map[controlv1.ReadLevel]string{
	controlv1.ReadLevel_READ_LEVEL_LINEARIZABLE: dial.ReadLinearizable,
	controlv1.ReadLevel_READ_LEVEL_SESSION:      dial.ReadSession,
	controlv1.ReadLevel_READ_LEVEL_STALE:        dial.ReadStale,
}

// reading is a view of the state with its index, and with its age if it is stale.
type reading struct {
	fsm.View
	index uint64
	stale bool
	ageMS int64
}

// read returns a view of the state that is at least as recent as the read level of the call requires.
func (s *Server) read(ctx context.Context) (reading, error) {
	c := callOf(ctx)
	var view fsm.View
	var err error
	switch c.level {
	case linearizable:
		var index uint64
		if index, err = s.replica.Confirm(ctx); err != nil {
			return reading{}, err
		}
		view, err = s.store.At(ctx, max(index, c.least))
	case staleFallback:
		view = s.store.View()
	default:
		view, err = s.store.At(ctx, c.least)
	}
	if err != nil {
		return reading{}, err
	}
	out := reading{View: view, index: view.Info().Index}
	if c.level.old() {
		out.stale, out.ageMS = true, s.age().Milliseconds()
	}
	return out, nil
}

// old reports whether a read of this level may return an old state, so that no leader is needed.
func (l level) old() bool { return l == stale || l == staleFallback }

// age returns the time since this replica last heard from a leader.
func (s *Server) age() time.Duration {
	if to, ok := s.replica.Leader(); ok && to.ID == s.replica.Self().ID {
		return 0
	}
	return max(0, time.Since(s.replica.LastContact()))
}

// trailer returns the trailer of an answer. It contains the leader's address (unless this replica leads),
// whether the state machine judged the call, and the age of a stale answer.
func (s *Server) trailer(c *call) metadata.MD {
	var md metadata.MD
	if to, ok := s.replica.Leader(); ok && to.GRPCAddr != "" && to.ID != s.replica.Self().ID {
		md = metadata.Pairs(dial.KeyLeader, to.GRPCAddr)
	}
	if c.judged {
		md = metadata.Join(md, metadata.Pairs(dial.KeyJudged, "true"))
	}
	if !c.level.old() {
		return md
	}
	return metadata.Join(md, metadata.Pairs(dial.KeyStale, "true", dial.KeyAgeMS, strconv.FormatInt(s.age().Milliseconds(), 10)))
}

// latest returns the state of a leader that has confirmed its leadership.
func (s *Server) latest(ctx context.Context) (fsm.View, error) {
	index, err := s.replica.Confirm(ctx)
	if err != nil {
		return nil, err
	}
	return s.store.At(ctx, index)
}
