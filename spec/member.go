package spec

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// MemberLike returns the part of a command that stores a new member of a group, with the specification of
// another member. The secrets are sealed again, because a sealed value belongs to one workload. It returns
// ErrNoKey if the specification has secrets and key is nil.
func MemberLike(w *fsm.Workload, id, cluster string, key Sealer) (*commandv1.WorkloadPut, error) {
	plain, err := Unseal(w.ID, w.Spec, key)
	if err != nil {
		return nil, err
	}
	put := w.AsPut()
	put.Id = id
	if plain.GetType() == TypeVM {
		put.Demand = DemandOf(id, plain) // the paths of a member's disks may contain its id
		put.Demand.MacAddresses = guestMACs(cluster, id, plain)
	}
	put.Spec, err = sealInPlace(id, plain, key)
	return put, err
}
