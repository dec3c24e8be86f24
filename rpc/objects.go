package rpc

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

// The leader seals the value of a secret before the value becomes part of a command. The errors in this file
// contain no values.

// objectIn returns the namespace of a request about an object (a secret or a config). It returns an error if the
// caller lacks the permission of the call in that namespace, or if the kind of object is unknown.
func (s *Server) objectIn(ctx context.Context, kind, namespace string) (string, error) {
	name := cmp.Or(strings.TrimSpace(namespace), fsm.DefaultNamespace)
	if err := s.mayEnter(ctx, name); err != nil {
		return "", err
	}
	return name, checkObjectKind(kind)
}

func checkObjectKind(kind string) error {
	if kind != fsm.KindSecret && kind != fsm.KindConfig {
		return errorf(KindInvalid, "kind: %q is not secret or config", clip(kind, 64))
	}
	return nil
}

// ListObjects implements cluster.v1. It returns no values.
func (s *Server) ListObjects(ctx context.Context, req *clusterv1.ListObjectsRequest) (*clusterv1.ListObjectsResponse, error) {
	if err := checkObjectKind(req.GetKind()); err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	scope, out := s.scopeOf(ctx), &clusterv1.ListObjectsResponse{Index: r.index}
	only := strings.TrimSpace(req.GetNamespace())
	if only != "" {
		if err := s.mayEnter(ctx, only); err != nil {
			return nil, err
		}
	}
	users := objectUsers(r)
	r.Objects(func(o *fsm.Object) bool {
		if o.Kind == req.GetKind() && scope.Has(o.In()) && (only == "" || o.In() == only) && (req.GetName() == "" || o.Name == req.GetName()) {
			out.Objects = append(out.Objects, objectView(o, users[objectID{o.In(), o.Kind, o.Name}]))
		}
		return true
	})
	if req.GetName() != "" && len(out.GetObjects()) == 0 {
		return nil, errorf(KindNotFound, "%s %q not found; `persysctl %s list` shows them", req.GetKind(), clip(req.GetName(), 128), req.GetKind())
	}
	return out, nil
}

// objectID is the namespace, the kind and the name of a secret or a config.
type objectID struct{ namespace, kind, name string }

// objectUsers finds the workloads that use each secret and config, in one scan.
func objectUsers(v fsm.View) map[objectID][]*clusterv1.ObjectUser {
	out := map[objectID][]*clusterv1.ObjectUser{}
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.Desired == fsm.DesiredDeleted {
			return true
		}
		for _, u := range w.Objects {
			id := objectID{w.In(), u.Kind, u.Name}
			out[id] = append(out[id], &clusterv1.ObjectUser{WorkloadId: w.ID, Version: u.Version})
		}
		return true
	})
	return out
}

func objectView(o *fsm.Object, users []*clusterv1.ObjectUser) *clusterv1.Object {
	out := &clusterv1.Object{Users: users, Kind: o.Kind, Name: o.Name, Namespace: o.In(), CreatedAt: timestamppb.New(time.Unix(0, o.CreatedAt)), CreatedBy: o.CreatedBy}
	for _, x := range slices.Backward(o.Versions) {
		out.Versions = append(out.Versions, &clusterv1.ObjectVersion{Number: x.Number, Size: x.Size, From: x.From, At: timestamppb.New(time.Unix(0, x.At)), By: x.By})
	}
	return out
}

// PutObject implements cluster.v1 on the leader: it stores a new version of a secret or a config.
func (s *Server) PutObject(ctx context.Context, req *clusterv1.PutObjectRequest) (*clusterv1.ObjectResponse, error) {
	in, err := s.objectIn(ctx, req.GetKind(), req.GetNamespace())
	if err != nil {
		return nil, err
	}
	size := len(req.GetData())
	if size > fsm.MaxObjectBytes {
		return nil, errorf(KindInvalid, "data: has %d bytes, at most %d", size, fsm.MaxObjectBytes)
	}
	put := &commandv1.PutObject{Kind: req.GetKind(), Name: req.GetName(), Namespace: in, Data: req.GetData(), Size: int64(size)}
	if req.GetKind() == fsm.KindSecret {
		sealed, err := withKey(ctx, s, func() (string, error) {
			key := sealer(s.cfg.Keys)
			if key == nil {
				return "", spec.ErrNoKey
			}
			// The receipt stores a hash of the request. The hash must change if the value of the secret changes, but
			// must not allow anyone who reads the state to test guesses of the value. So the value enters the hash
			// only as a digest that is keyed with the cluster key.
			callOf(ctx).hash = objectHash(callOf(ctx).subject(), req, key)
			return key.Seal(req.GetData(), objectContext(in, req.GetKind(), req.GetName()))
		})
		if err != nil {
			return nil, noSealingKey(err)
		}
		put.Data = []byte(sealed)
	}
	return s.putObject(ctx, put, req.GetRequestId())
}

// noSealingKey returns the error of a call about secrets that needs the cluster key.
func noSealingKey(err error) error {
	if errors.Is(err, spec.ErrNoKey) {
		return errorf(KindPrecondition, "this scheduler has no cluster key to seal secrets: persysctl status shows why")
	}
	return errorf(KindInternal, "seal: %w", err)
}

// objectHash returns the requestHash of a request by the caller who, in which a keyed digest replaces the value of the
// secret.
func objectHash(who string, req *clusterv1.PutObjectRequest, key spec.Sealer) uint64 {
	mac := key.ContentHash()
	_, _ = mac.Write([]byte("persys object\x00"))
	_, _ = mac.Write(req.GetData()) // writing to a hash never fails
	with := req.CloneVT()
	with.Data = []byte(hex.EncodeToString(mac.Sum(nil)))
	return requestHash(who, clusterv1.Cluster_PutObject_FullMethodName, with)
}

// objectContext returns the context under which a value is sealed (encrypted). A value that somebody copies into
// another object cannot be decrypted there, because that object has another context.
func objectContext(namespace, kind, name string) []byte {
	return []byte("object\x00" + namespace + "\x00" + kind + "\x00" + name)
}

// openObject returns the plain value of a version of a secret or a config. It decrypts the value of a secret with key.
func openObject(o *fsm.Object, v *fsm.ObjectVersion, key spec.Sealer) ([]byte, error) {
	if o.Kind == fsm.KindConfig {
		return v.Data, nil
	}
	if key == nil {
		return nil, spec.ErrNoKey
	}
	data, err := key.Open(string(v.Data), objectContext(o.In(), o.Kind, o.Name))
	if errors.Is(err, pki.ErrWrongKey) {
		return nil, errorf(KindPrecondition, "version %d of %s %q was sealed under another cluster key, which this cluster does not have: persysctl %s put %s", v.Number, o.Kind, o.Name, o.Kind, o.Name)
	}
	if err != nil {
		return nil, errorf(KindInternal, "version %d of %s %q cannot be opened: %w", v.Number, o.Kind, o.Name, err)
	}
	return data, nil
}

// putObject commits a new version of a secret or a config. Groups that use the object are then updated; for groups
// that start new members first, the command contains the surge members (extra members during the update).
func (s *Server) putObject(ctx context.Context, put *commandv1.PutObject, request string) (*clusterv1.ObjectResponse, error) {
	view, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	if o, ok := view.Object(put.GetNamespace(), put.GetKind(), put.GetName()); ok {
		if put.Surge, err = s.surgeFor(ctx, view, o); err != nil {
			return nil, err
		}
	}
	cmd := &commandv1.Command{Body: &commandv1.Command_PutObject{PutObject: put}}
	if n := cmd.SizeVT(); n > spec.MaxCommand {
		return nil, errorf(KindInvalid, "data: the command with the sealed value and the extra members of the groups that start first has %d bytes, at most %d: use a smaller value", n, spec.MaxCommand)
	}
	r, err := s.mutate(ctx, request, cmd)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.ObjectResponse{Index: r.Index, Unchanged: r.Kind == fsm.AlreadyDone}
	for i, it := range r.Items {
		switch {
		case i == 0:
			out.Version, _ = strconv.ParseUint(it.Revision, 10, 64)
		case it.Kind != fsm.OK:
			out.Warnings = append(out.Warnings, it.ID+" keeps the former version: "+it.Reason)
		case !it.Deleted && !it.Unchanged:
			out.WorkloadIds = append(out.WorkloadIds, it.ID)
		}
	}
	return out, nil
}

// surgeFor makes the surge members (extra members during an update) of the groups that use an object and
// whose updates start new members first.
func (s *Server) surgeFor(ctx context.Context, view fsm.View, o *fsm.Object) (out []*commandv1.WorkloadPut, err error) {
	var groups []string
	view.UsersOf(o, func(w *fsm.Workload, version uint64) bool {
		if w.Update.StartFirst && version != 0 && w.Desired == fsm.DesiredRunning && fsm.MadeByCount(w.Demand.Group, w.ID) {
			groups = append(groups, w.Demand.Group)
		}
		return true
	})
	for _, group := range slices.Compact(groups) {
		have := fsm.Members(view, group)
		if len(have) == 0 {
			continue
		}
		n := have[0].Update.SurgeCount(len(have))
		for _, id := range fsm.MemberIDs(group, len(have)+n)[len(have):] {
			p, err := withKey(ctx, s, func() (*commandv1.WorkloadPut, error) {
				return spec.MemberLike(have[0], id, view.Info().ClusterID, sealer(s.cfg.Keys))
			})
			if err != nil {
				return nil, errorf(KindPrecondition, "the specification of %s cannot be copied: %w", have[0].ID, err)
			}
			p.Demand = p.GetDemand().CloneVT()
			p.Demand.Surge, p.Desired = true, string(fsm.DesiredRunning)
			out = append(out, p)
		}
	}
	return out, nil
}

// RollBackObject implements cluster.v1 on the leader. The command carries only the number of the version.
func (s *Server) RollBackObject(ctx context.Context, req *clusterv1.RollBackObjectRequest) (*clusterv1.ObjectResponse, error) {
	in, err := s.objectIn(ctx, req.GetKind(), req.GetNamespace())
	if err != nil {
		return nil, err
	}
	view, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	o, ok := view.Object(in, req.GetKind(), req.GetName())
	if !ok {
		return nil, errorf(KindNotFound, "%s", fsm.NoObject(in, req.GetKind(), req.GetName()))
	}
	number := req.GetNumber()
	if number == 0 {
		if answered(view, req.GetRequestId()) {
			// This is a repeated request, which the receipt (stored answer) will answer. Its version may not exist any
			// more, so any valid number will do.
			number = o.Present().Number
		} else if len(o.Versions) < 2 {
			return nil, errorf(KindPrecondition, "%s %q has no earlier version", o.Kind, o.Name)
		} else {
			number = o.Versions[len(o.Versions)-2].Number
		}
	}
	v, ok := o.Version(number)
	if !ok {
		return nil, errorf(KindNotFound, "%s", o.NoVersion(number))
	}
	if _, err := openObject(o, v, sealer(s.cfg.Keys)); err != nil {
		return nil, err
	}
	return s.putObject(ctx, &commandv1.PutObject{Kind: o.Kind, Name: o.Name, Namespace: in, From: number}, req.GetRequestId())
}

// DeleteObject implements cluster.v1. The state machine refuses it while a workload uses the object.
func (s *Server) DeleteObject(ctx context.Context, req *clusterv1.DeleteObjectRequest) (*clusterv1.ObjectResponse, error) {
	in, err := s.objectIn(ctx, req.GetKind(), req.GetNamespace())
	if err != nil {
		return nil, err
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteObject{
		DeleteObject: &commandv1.DeleteObject{Kind: req.GetKind(), Name: req.GetName(), Namespace: in},
	}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.ObjectResponse{Index: r.Index}, nil
}

// ShowSecret implements cluster.v1 on the leader. It commits the audit event before it returns the value.
func (s *Server) ShowSecret(ctx context.Context, req *clusterv1.GetObjectValueRequest) (*clusterv1.GetObjectValueResponse, error) {
	o, v, err := s.objectValue(ctx, fsm.KindSecret, req)
	if err != nil {
		return nil, err
	}
	data, err := openObject(o, v, sealer(s.cfg.Keys))
	if errors.Is(err, spec.ErrNoKey) {
		return nil, noSealingKey(err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.change(ctx, "", &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
		Type: fsm.EventSecretShown, Namespace: o.In(), Message: o.Name + " version " + strconv.FormatUint(v.Number, 10),
		Details: []*commandv1.Label{{Key: "name", Value: o.Name}, {Key: "version", Value: strconv.FormatUint(v.Number, 10)}},
	}}}); err != nil {
		return nil, err
	}
	return &clusterv1.GetObjectValueResponse{Data: data, Version: v.Number}, nil
}

// GetConfig implements cluster.v1.
func (s *Server) GetConfig(ctx context.Context, req *clusterv1.GetObjectValueRequest) (*clusterv1.GetObjectValueResponse, error) {
	_, v, err := s.objectValue(ctx, fsm.KindConfig, req)
	if err != nil {
		return nil, err
	}
	return &clusterv1.GetObjectValueResponse{Data: v.Data, Version: v.Number}, nil
}

func (s *Server) objectValue(ctx context.Context, kind string, req *clusterv1.GetObjectValueRequest) (*fsm.Object, *fsm.ObjectVersion, error) {
	in, err := s.objectIn(ctx, kind, req.GetNamespace())
	if err != nil {
		return nil, nil, err
	}
	view, err := s.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	o, ok := view.Object(in, kind, req.GetName())
	if !ok {
		return nil, nil, errorf(KindNotFound, "%s", fsm.NoObject(in, kind, req.GetName()))
	}
	v, ok := o.Version(req.GetNumber())
	if !ok {
		return nil, nil, errorf(KindNotFound, "%s", o.NoVersion(req.GetNumber()))
	}
	return o, v, nil
}

// knownObjects returns an error for each secret or config of a specification that does not exist in the namespace of
// the workload. project is the loaded Compose stack; nil for other workloads.
func (s *Server) knownObjects(of *controlv1.WorkloadSpec, project *loadedStack, put *commandv1.PutWorkloads) error {
	if len(put.GetWorkloads()) == 0 || len(put.GetWorkloads()[0].GetObjects()) == 0 {
		return nil
	}
	v := s.store.View()
	in := fsm.NamespaceOf(v, put.GetWorkloads()[0])
	if project != nil {
		of = &controlv1.WorkloadSpec{Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{Objects: objectsIn(project.Project)}}}
	}
	return spec.UnknownObjects(of, func(kind, name string) bool {
		_, ok := v.Object(in, kind, name)
		return ok
	})
}

// addObjects puts the values of the secrets and configs of a workload into its order.
func (a *Agents) addObjects(v fsm.View, w *fsm.Workload, plain *controlv1.WorkloadSpec, order *agentv1.WorkloadSpec) error {
	return spec.AddObjects(order, plain, func(kind, name string) (spec.ObjectValue, error) {
		i := slices.IndexFunc(w.Objects, func(u fsm.ObjectUse) bool { return u.Kind == kind && u.Name == name })
		o, ok := v.Object(w.In(), kind, name)
		if i < 0 || !ok {
			return spec.ObjectValue{}, errors.New(fsm.NoObject(w.In(), kind, name))
		}
		x, ok := o.Version(w.Objects[i].Version)
		if !ok {
			return spec.ObjectValue{}, errorf(KindPrecondition, "version %d of %s %q is no longer stored: apply the specification again", w.Objects[i].Version, kind, name)
		}
		data, err := openObject(o, x, sealer(a.keys))
		return spec.ObjectValue{Data: data, Version: w.Objects[i].Version}, err
	})
}
