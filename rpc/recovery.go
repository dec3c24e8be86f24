package rpc

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Mirror is the part of the etcd mirror that this package uses.
type Mirror interface {
	// Health returns the state of the mirror on the replica that writes it, and "standby" on every other
	// replica. index is the log index of the state that is in etcd.
	Health() (state, reason string, index uint64)
	// Endpoints returns the endpoints of the mirror's etcd; none if no etcd is attached. settings is true if
	// they come from ETCD_ENDPOINTS of this replica.
	Endpoints() (endpoints []string, settings bool)
	// Check returns an error if this replica's settings do not allow one of the endpoints.
	Check(endpoints []string) error
	// Probe contacts an etcd from this replica and returns the id of that etcd cluster; 0 if it cannot be
	// reached. It also returns an error if the etcd contains records that other programs have written.
	Probe(ctx context.Context, endpoints []string) (etcdCluster uint64, err error)
	// Read reads the records in an etcd below a prefix (empty: the mirror's own prefix). From them it builds a state
	// that can replace the state of this cluster; present describes that state. It leaves invalid records out of that
	// state and lists them in the returned MirrorContent.
	Read(ctx context.Context, endpoints []string, prefix string, present fsm.Info) (*clusterv1.MirrorContent, fsm.State, error)
	// Preview returns what Restore would change in etcd. It writes nothing.
	Preview(ctx context.Context) (*clusterv1.RestoreMirrorResponse, error)
	// Restore writes this cluster's state to etcd and returns when all of it is there.
	Restore(ctx context.Context) error
}

// Values of the field advice in the answer of Recovery.
const (
	adviseNothing = "nothing"
	adviseRestore = "restore"
	adviseImport  = "import"
	adviseEtcd    = "etcd"
)

// modeWait is the longest time for which a call that repairs the mirror waits for the change of the mode before it
// answers.
const modeWait = 5 * time.Second

// mirror returns the mirror, whether or not an etcd is attached. If the settings allow no mirror, it returns an error.
func (s *Server) mirror() (Mirror, error) {
	if s.cfg.Mirror == nil {
		return nil, errorf(KindPrecondition, "ETCD_ENDPOINTS is none on scheduler %s, which forbids a mirror: remove that setting from every scheduler and restart them. To import a backup file instead, which needs no etcd: `persysctl recovery import FILE`", s.replica.Self().Name)
	}
	return s.cfg.Mirror, nil
}

// attached returns the mirror. It returns an error if no etcd is attached.
func (s *Server) attached() (Mirror, error) {
	m, err := s.mirror()
	if err != nil {
		return nil, err
	}
	if at, _ := m.Endpoints(); len(at) == 0 {
		return nil, errorf(KindPrecondition, "no etcd is attached: `persysctl mirror attach [ENDPOINTS]`")
	}
	return m, nil
}

// Recovery implements the call of cluster.v1: it shows the state of the mirror, and advice for the operator. The leader
// answers, because it writes the mirror.
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
	if id := info.AttachedEtcd(); id != 0 {
		out.AttachedEtcd = strconv.FormatUint(id, 16)
	}
	m, err := s.attached()
	if err != nil {
		out.MirrorReason = err.Error()
		return out, nil
	}
	out.Mirror, out.MirrorReason, out.MirrorIndex = m.Health()
	at, _ := m.Endpoints()
	content, _, err := s.readMirror(ctx, m, at, req.GetPrefix(), info)
	if err != nil {
		out.ContentError = err.Error()
	}
	out.Content = content
	out.Advice = advice(out, fsm.Untouched(state) == nil)
	return out, nil
}

// readMirror reads the records in etcd. It first waits for the cluster key, because the secrets in the
// records must be sealed with it.
func (s *Server) readMirror(ctx context.Context, m Mirror, endpoints []string, prefix string, present fsm.Info) (*clusterv1.MirrorContent, fsm.State, error) {
	if sealer(s.cfg.Keys) == nil {
		s.awaitKey(ctx)
	}
	return m.Read(ctx, endpoints, prefix, present)
}

// advice returns what the operator should do about a mirror. The replicated state takes precedence over the records in
// etcd, except if the state is empty.
func advice(r *clusterv1.RecoveryResponse, untouched bool) string {
	held := r.GetContent().GetWorkloads() + r.GetContent().GetNodes()
	switch r.GetMirror() {
	case "unreachable", "failing", "other":
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

// RestoreMirror implements the call of cluster.v1: it overwrites etcd with the state of the cluster.
func (s *Server) RestoreMirror(ctx context.Context, req *clusterv1.RestoreMirrorRequest) (*clusterv1.RestoreMirrorResponse, error) {
	m, err := s.attached()
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

// tellRestored commits an event that names the user who requested that etcd be overwritten. At that time etcd
// is already overwritten, so a failure is only logged.
func (s *Server) tellRestored(ctx context.Context, out *clusterv1.RestoreMirrorResponse) {
	_, err := s.commit(ctx, "", &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
		Type: fsm.EventMirrorRestored, Message: "the content of etcd was overwritten with the state",
		Details: []*commandv1.Label{
			{Key: "changed", Value: strconv.FormatInt(int64(out.GetChanged()), 10)},
			{Key: "created", Value: strconv.FormatInt(int64(out.GetCreated()), 10)},
			{Key: "removed", Value: strconv.FormatInt(int64(out.GetRemoved()), 10)},
		},
	}}})
	if err != nil {
		s.log.Warn("could not record in the audit log that the mirror was restored", "by", callOf(ctx).who(), "err", err)
	}
}

// leaveRecovery waits until the leader ends the mode that refuses changes, which it does once the mirror is healthy.
// It returns the mode. The leader does not change a mode that a user has set.
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
			return string(s.store.View().Info().Mode), nil // stop waiting: the mode will change later
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
	// Do not return Unavailable: clients would try another replica, which could not reach etcd either.
	return errorf(KindPrecondition, "%w; `persysctl recovery show` shows what is in etcd", err)
}

// ImportMirror implements the call of cluster.v1: it replaces the state by the records in etcd. This happens
// in one step and, as in a restore of a backup, under a new incarnation (a number that grows with each
// restore).
func (s *Server) ImportMirror(ctx context.Context, req *clusterv1.ImportMirrorRequest) (*clusterv1.ImportMirrorResponse, error) {
	m, err := s.mirror()
	if err != nil {
		return nil, err
	}
	present := s.store.State()
	if err := mayImport(present); err != nil {
		return nil, err
	}
	at, _ := m.Endpoints()
	attached := len(at) > 0
	switch {
	case attached && len(req.GetEndpoints()) > 0:
		return nil, errorf(KindInvalid, "endpoints: the mirror has %s; an import reads no other etcd: leave the endpoints out, or `persysctl mirror detach` first", strings.Join(at, ", "))
	case !attached:
		if at = mirrorEndpoints(req.GetEndpoints()); len(at) > 0 {
			if err := m.Check(at); err != nil {
				return nil, errorf(KindInvalid, "%w", err)
			}
		}
	}
	content, found, err := s.readMirror(ctx, m, at, req.GetPrefix(), present.Info())
	if err != nil {
		return nil, etcdFailed(err)
	}
	if content.GetNodes()+content.GetWorkloads()+content.GetProblemCount() == 0 {
		return nil, errorf(KindPrecondition, "etcd has no nodes and no workloads at this prefix: there is nothing to import. --prefix reads another prefix; `persysctl recovery show`")
	}
	out := &clusterv1.ImportMirrorResponse{Content: content, Mode: string(present.Info().Mode), Endpoints: at, Detached: !attached}
	by, via := callOf(ctx).by()
	source := "the records in etcd"
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
		return nil, errorf(KindPrecondition, "%d keys cannot be imported, the first is %s: %s. --skip-unreadable imports the other keys and deletes the unreadable ones from etcd; `persysctl recovery import --dry-run` lists them",
			n, first.GetKey(), first.GetReason())
	}
	index, err := s.replica.Restore(ctx, build)
	if err != nil {
		return nil, err
	}
	out.Imported, out.Change.Restored, out.Change.Index = true, true, index
	out.Change.Incarnation = s.store.View().Info().Incarnation
	s.log.Warn("the records in etcd were imported", "by", callOf(ctx).who(), "from_cluster", content.GetClusterId(), "index", index,
		"workloads", out.GetChange().GetAddedCount(), "nodes", out.GetChange().GetNodesAdded(), "left_out", content.GetProblemCount())
	if !attached {
		out.MirrorError = "no etcd is attached"
		out.Mode, err = s.leaveRecovery(ctx)
		return out, err
	}
	// The import has succeeded. If the new state cannot be written to etcd, that is a part of the answer and
	// not an error.
	if err := m.Restore(ctx); err != nil {
		out.MirrorError = err.Error()
	}
	out.Mirrored = out.GetMirrorError() == ""
	out.Mode, err = s.leaveRecovery(ctx)
	return out, err
}

// mayImport returns an error if the cluster has nodes or workloads, because an import would replace them.
func mayImport(present fsm.State) error {
	if err := fsm.Untouched(present); err != nil {
		return errorf(KindPrecondition, "%w. To go back to a backup: `persysctl backup restore FILE`; to overwrite etcd with this cluster's state: `persysctl recovery restore`", err)
	}
	return nil
}
