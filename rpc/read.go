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

// level of a read.
type level uint8

const (
	linearizable level = iota
	session
	stale
	staleFallback // nobody asked for it, but there is no leader
)

// leveled is a request that may carry our read fields.
type leveled interface {
	GetLevel() controlv1.ReadLevel
	GetMinIndex() uint64
}

// wish reads the wished level and index from the request's fields or the
// metadata; asked is false for peers that name no level.
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
		return false, nil // linearizable
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

// reading is a view and what has to be said about it.
type reading struct {
	fsm.View
	index uint64
	stale bool
	ageMS int64
}

// read takes the view that the level of the call asks for.
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

// old levels are answered without asking a leader.
func (l level) old() bool { return l == stale || l == staleFallback }

// age of this replica's state: time since it heard from a leader.
func (s *Server) age() time.Duration {
	if to, ok := s.replica.Leader(); ok && to.ID == s.replica.Self().ID {
		return 0
	}
	return max(0, time.Since(s.replica.LastContact()))
}

// trailer tells the client at which index the answer holds and, unless that is this
// replica, who leads. What the leader said of a call that was passed on stands: this
// replica may be behind it.
func (s *Server) trailer(c *call) metadata.MD {
	md := make(metadata.MD, 2)
	if to, ok := s.replica.Leader(); ok && to.GRPCAddr != "" && to.ID != s.replica.Self().ID {
		md[dial.KeyLeader] = []string{to.GRPCAddr}
	}
	if c.trailers != nil {
		for _, k := range [...]string{dial.KeyIndex, dial.KeyStale, dial.KeyAgeMS} {
			if v := c.trailers[k]; len(v) > 0 {
				md[k] = v
			}
		}
		return md
	}
	md[dial.KeyIndex] = []string{strconv.FormatUint(s.store.View().Info().Index, 10)}
	if c.level.old() {
		md[dial.KeyStale] = []string{"true"}
		md[dial.KeyAgeMS] = []string{strconv.FormatInt(s.age().Milliseconds(), 10)}
	}
	return md
}
