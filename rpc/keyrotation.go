package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

// Reseal seals a value of the state again, with key, which must open it.
func Reseal(v fsm.SealedValue, key *pki.Key) ([]byte, error) {
	var sealed string
	var err error
	switch v.Kind {
	case fsm.SealedWorkload, fsm.SealedRollout:
		return spec.Reseal(v.SpecID, v.Value, key)
	case fsm.SealedBundle:
		return spec.ResealFiles(v.Key, v.Value, key)
	case fsm.SealedObject:
		part := strings.SplitN(v.Key, "/", 3)
		if len(part) != 3 {
			return nil, fmt.Errorf("object key %q has no namespace, kind and name", v.Key)
		}
		sealed, err = spec.ResealValue(string(v.Value), objectContext(part[0], part[1], part[2]), key)
	case fsm.SealedAuthority:
		sealed, err = spec.ResealValue(string(v.Value), authorityContext(v.Key), key)
	case fsm.SealedGossip:
		var ring pki.GossipRing
		if ring, err = pki.OpenGossipRing(key, string(v.Value)); err == nil {
			sealed, err = ring.Seal(key)
		}
	default:
		err = fmt.Errorf("unknown kind %q", v.Kind)
	}
	return []byte(sealed), err
}

// RotateClusterKey implements the call of cluster.v1 on the leader. The new key is on this replica's disk before its id
// is committed. The leader then carries out the further steps (package replica).
func (s *Server) RotateClusterKey(ctx context.Context, req *clusterv1.RotateClusterKeyRequest) (*clusterv1.RotateClusterKeyResponse, error) {
	if _, err := s.cfg.Keys.Key(); err != nil {
		return nil, errorf(KindPrecondition, "%w", err)
	}
	id, err := s.cfg.Keys.Prepare()
	if err != nil {
		return nil, errorf(KindPrecondition, "the new key cannot be stored on scheduler %s: %w", s.replica.Self().Name, err)
	}
	err = s.change(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_RotateClusterKey{
		RotateClusterKey: &commandv1.RotateClusterKey{Step: fsm.KeyBegin, KeyId: id},
	}})
	info := s.store.View().Info()
	named := id == info.NextKeyID || id == info.ClusterKeyID
	if kind := edgeKind(err); !named && (err == nil || kind == KindPrecondition || kind == KindInvalid) {
		// A former attempt of this request has begun the rotation, or the state machine refused it. If the outcome is
		// unknown, the key must stay: the command may be committed later.
		if err := s.cfg.Keys.Discard(id); err != nil {
			s.log.Warn("the unused cluster key could not be deleted", "id", id, "err", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if !named {
		id = cmp.Or(info.NextKeyID, info.ClusterKeyID)
	}
	return &clusterv1.RotateClusterKeyResponse{KeyId: id}, nil
}

// ClusterKeyStatus implements the call of cluster.v1 on the leader, which asks all replicas.
func (s *Server) ClusterKeyStatus(ctx context.Context, _ *clusterv1.ClusterKeyStatusRequest) (*clusterv1.ClusterKeyStatusResponse, error) {
	if s.cfg.KeyStatus == nil {
		return nil, errorf(KindPrecondition, "this scheduler has no cluster key")
	}
	return s.cfg.KeyStatus(ctx), nil
}

// formerKey returns the id of the key under which values of a backup are sealed, if it is not the present cluster key.
// offered is the key that the caller sends with the backup; nil if there is none. If this cluster cannot get the key, the
// error names it. Only a key that a rotation of this cluster has replaced must be given.
func (s *Server) formerKey(backup fsm.State, present fsm.Info, offered *pki.Key, force bool) (string, error) {
	if present.ClusterKeyID == "" {
		return "", nil
	}
	ids := slices.DeleteFunc(backup.SealedKeys(), func(id string) bool { return id == present.ClusterKeyID })
	switch {
	case len(ids) == 0:
		return "", nil
	case len(ids) == 1 && (offered != nil && offered.ID() == ids[0] || s.cfg.Keys.Held(ids[0]) != nil):
		return ids[0], nil
	case force:
		return "", nil // the workloads of another cluster are taken without their secrets
	case !slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(present.RetiredKeyIDs, id) }):
		// No rotation of this cluster replaced these keys: their last copy may be lost. Then the restore
		// brings the workloads back without these values, and users must set the values again.
		return "", nil
	case len(ids) == 1 && offered == nil:
		return "", errorf(KindPrecondition, "the backup has values that are sealed under cluster key %s, and this cluster has key %s: "+
			"give the file of the former key with --cluster-key FILE, or restore without these values with --force-new-cluster", ids[0], present.ClusterKeyID)
	}
	return "", errorf(KindPrecondition, "the backup has values that are sealed under cluster key %s, and this cluster has key %s%s",
		strings.Join(ids, " and "), present.ClusterKeyID, offeredID(offered))
}

func offeredID(key *pki.Key) string {
	if key == nil {
		return ""
	}
	return "; --cluster-key has key " + key.ID()
}
