package rpc

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Mirror is the part of the etcd mirror that this package uses.
type Mirror interface {
	// Health returns the state of the mirror on the replica that writes it, and "standby" on every
	// other. index is the log index of the state that etcd holds.
	Health() (state, reason string, index uint64)
	// Read reads the records in etcd below a prefix (empty: the mirror's own) and builds a state
	// that can be restored over a state with the given info. It leaves out invalid records and
	// lists them in the content.
	Read(ctx context.Context, prefix string, present fsm.Info) (*clusterv1.MirrorContent, fsm.State, error)
	// Preview returns what Restore would change. It writes nothing.
	Preview(ctx context.Context) (*clusterv1.RestoreMirrorResponse, error)
	// Restore writes the state to etcd and returns when etcd holds all of it.
	Restore(ctx context.Context) error
}

// Values of the advice of Recovery.
const (
	adviseNothing = "nothing"
	adviseRestore = "restore"
	adviseImport  = "import"
	adviseEtcd    = "etcd"
)

// modeWait is the longest time that an answer waits for the mode to change.
const modeWait = 5 * time.Second

func (s *Server) mirror() (Mirror, error) {
	if s.cfg.Mirror == nil {
		return nil, errorf(KindPrecondition, "these schedulers have no mirror, ETCD_ENDPOINTS is none: name an etcd there and restart them. A backup file needs none; `persysctl recovery import FILE`")
	}
	return s.cfg.Mirror, nil
}

// Recovery implements cluster.v1 on the leader, which writes the mirror.
func (s *Server) Recovery(ctx context.Context, req *clusterv1.RecoveryRequest) (*clusterv1.RecoveryResponse, error) {
	state := s.store.State()
	info := state.Info()
	out := &clusterv1.RecoveryResponse{
		Mode: string(info.Mode), ModeReason: info.ModeReason, ModePinned: info.ModePinned, Mirror: "off",
		Present: backupInfo(state), Advice: adviseNothing,
	}
	if info.ModeChangedAt > 0 {
		out.ModeChangedAt = timestamppb.New(time.Unix(0, info.ModeChangedAt))
	}
	if s.cfg.Mirror == nil {
		return out, nil
	}
	out.Mirror, out.MirrorReason, out.MirrorIndex = s.cfg.Mirror.Health()
	if info.MirrorEtcd != 0 {
		out.AttachedEtcd = strconv.FormatUint(info.MirrorEtcd, 16)
	}
	content, _, err := s.readMirror(ctx, s.cfg.Mirror, req.GetPrefix(), info)
	if err != nil {
		out.ContentError = err.Error()
	}
	out.Content = content
	out.Advice = advice(out, fsm.Untouched(state) == nil)
	return out, nil
}

// readMirror reads etcd after waiting for the cluster key, with which it seals the secrets that it
// finds.
func (s *Server) readMirror(ctx context.Context, m Mirror, prefix string, present fsm.Info) (*clusterv1.MirrorContent, fsm.State, error) {
	if sealer(s.cfg.Keys) == nil {
		s.awaitKey(ctx)
	}
	return m.Read(ctx, prefix, present)
}

// advice returns what to do about a mirror. The state takes precedence over etcd, unless the state
// is empty.
func advice(r *clusterv1.RecoveryResponse, untouched bool) string {
	held := r.GetContent().GetWorkloads() + r.GetContent().GetNodes()
	switch r.GetMirror() {
	case "unreachable", "failing":
		return adviseEtcd
	case "foreign":
		if untouched && held > 0 {
			return adviseImport
		}
		return adviseRestore
	case "emptied":
		return adviseRestore
	}
	return adviseNothing
}

// RestoreMirror implements cluster.v1.
func (s *Server) RestoreMirror(ctx context.Context, req *clusterv1.RestoreMirrorRequest) (*clusterv1.RestoreMirrorResponse, error) {
	m, err := s.mirror()
	if err != nil {
		return nil, err
	}
	out, err := m.Preview(ctx)
	if err != nil {
		return nil, etcdFailed(err)
	}
	out.Mode, out.Index = string(s.store.View().Info().Mode), s.store.View().Info().Index
	if req.GetPreview() {
		return out, nil
	}
	if err := m.Restore(ctx); err != nil {
		return nil, etcdFailed(err)
	}
	out.Restored = true
	s.tellRestored(ctx, out)
	if out.Mode, err = s.leaveRecovery(ctx); err != nil {
		return nil, err
	}
	s.log.Warn("the mirror was restored from the state", "by", callOf(ctx).who(), "created", out.GetCreated(),
		"changed", out.GetChanged(), "removed", out.GetRemoved())
	return out, nil
}

// tellRestored records who had etcd overwritten. The restore is done by then, so a failure to
// record it is only logged.
func (s *Server) tellRestored(ctx context.Context, out *clusterv1.RestoreMirrorResponse) {
	_, err := s.commit(ctx, "", &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
		Type: fsm.EventMirrorRestored, Message: "the state was written over what etcd held",
		Details: []*commandv1.Label{
			{Key: "changed", Value: strconv.FormatInt(int64(out.GetChanged()), 10)},
			{Key: "created", Value: strconv.FormatInt(int64(out.GetCreated()), 10)},
			{Key: "removed", Value: strconv.FormatInt(int64(out.GetRemoved()), 10)},
		},
	}}})
	if err != nil {
		s.log.Warn("could not record the restore of the mirror", "by", callOf(ctx).who(), "err", err)
	}
}

// leaveRecovery waits until the leader ends the frozen mode, which it does once the mirror is
// healthy, and returns the mode. A pinned mode stays.
func (s *Server) leaveRecovery(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, modeWait)
	defer cancel()
	for info := s.store.View().Info(); ; {
		if !info.Mode.Frozen() || info.ModePinned {
			return string(info.Mode), nil
		}
		v, err := s.store.At(ctx, info.Index+1)
		switch {
		case err != nil && ctx.Err() != nil:
			return string(s.store.View().Info().Mode), nil // the mode will change later
		case err != nil:
			return "", err
		}
		info = v.Info()
	}
}

func etcdFailed(err error) error {
	if k := kindOf(err); k != KindInternal {
		return err
	}
	// Not Unavailable: another replica could not reach etcd either.
	return errorf(KindPrecondition, "%w; `persysctl recovery show` says what is known of etcd", err)
}

// ImportMirror implements cluster.v1. It replaces the state in one step, under a new incarnation,
// as the restore of a backup does.
func (s *Server) ImportMirror(ctx context.Context, req *clusterv1.ImportMirrorRequest) (*clusterv1.ImportMirrorResponse, error) {
	m, err := s.mirror()
	if err != nil {
		return nil, err
	}
	present := s.store.State()
	if err := mayImport(present); err != nil {
		return nil, err
	}
	content, found, err := s.readMirror(ctx, m, req.GetPrefix(), present.Info())
	if err != nil {
		return nil, etcdFailed(err)
	}
	if content.GetNodes()+content.GetWorkloads()+content.GetProblemCount() == 0 {
		return nil, errorf(KindPrecondition, "etcd holds no nodes and no workloads there: nothing to import. --prefix reads another prefix; `persysctl recovery show`")
	}
	out := &clusterv1.ImportMirrorResponse{Content: content, Mode: string(present.Info().Mode)}
	by, via := callOf(ctx).by()
	source := "what etcd held"
	if via != "" {
		source += ", through " + via
	}
	build := func(present fsm.State) (fsm.State, error) {
		if err := mayImport(present); err != nil {
			return fsm.State{}, err
		}
		if err := mayRestore(found.Info(), present.Info(), req.GetForceNewCluster()); err != nil {
			return fsm.State{}, err
		}
		next, err := fsm.Restored(found, present, fsm.RestoreInfo{At: s.now().UnixNano(), By: by, Source: source})
		if err == nil {
			out.Change = difference(present, next)
			out.Change.Backup, out.Change.Present = backupInfo(found), backupInfo(present)
		}
		return next, err
	}
	if req.GetPreview() {
		_, err := build(present)
		return out, err
	}
	if n := content.GetProblemCount(); n > 0 && !req.GetSkipUnreadable() {
		first := content.GetProblems()[0]
		return nil, errorf(KindPrecondition, "%d keys cannot be taken, the first is %s: %s. --skip-unreadable imports the rest, and etcd then loses them; `persysctl recovery import --dry-run`",
			n, first.GetKey(), first.GetReason())
	}
	index, err := s.replica.Restore(ctx, build)
	if err != nil {
		return nil, err
	}
	out.Imported, out.Change.Restored, out.Change.Index = true, true, index
	out.Change.Incarnation = s.store.View().Info().Incarnation
	s.log.Warn("what etcd held was imported", "by", callOf(ctx).who(), "from_cluster", content.GetClusterId(), "index", index,
		"workloads", out.GetChange().GetAddedCount(), "nodes", out.GetChange().GetNodesAdded(), "left_out", content.GetProblemCount())
	// The import is done, so a failure to write etcd is part of the answer and not an error.
	if err := m.Restore(ctx); err != nil {
		out.MirrorError = err.Error()
	}
	out.Mirrored = out.GetMirrorError() == ""
	out.Mode, err = s.leaveRecovery(ctx)
	return out, err
}

// mayImport refuses an import into a cluster that has nodes or workloads.
func mayImport(present fsm.State) error {
	if err := fsm.Untouched(present); err != nil {
		return errorf(KindPrecondition, "%w. `persysctl backup restore FILE` goes back to a backup; to write this cluster's state over what etcd holds: `persysctl recovery restore`", err)
	}
	return nil
}
