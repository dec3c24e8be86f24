package fsm

import "strconv"

// The state may use a fixed share of the memory of the smallest scheduler. A specification uses up to three
// times its size in memory: in the record, in the cache of the log, and in a snapshot that is being written.
// Each workload needs about 10 KiB in addition.
const (
	specShare     = 8        // divisor: specifications may use one eighth of the memory
	workloadShare = 32 << 10 // bytes of memory that one workload needs, so the number of workloads is limited
	warnAt        = 80       // the state warns when more than this percentage of a limit is used
)

// Which parts of the size limit of the state (Room) callers other than admins may use. Schedulers write these
// numbers into the heads of commands, and the state machine uses the numbers in the head. So a later version
// may change the constants: commands that are in the log already keep their numbers.
const (
	NamespaceShare = 50 // percent of Room that one namespace may take by calls of users confined to namespaces
	AdminReserve   = 5  // percent of Room that only admins may use, to repair a full cluster
)

// RoomShares says which parts of the size limit (Room) a command may use.
type RoomShares struct {
	Namespace int64 // percent that one namespace may take, if no quota and no policy limits the namespace; 0 = no limit
	Reserve   int64 // percent that the command must leave free
}

// RoomSharesOf returns the shares that apply to the calls of a user.
func RoomSharesOf(confined, unprivileged bool) (s RoomShares) {
	if confined {
		s.Namespace = NamespaceShare
	}
	if unprivileged {
		s.Reserve = AdminReserve
	}
	return s
}

// Room is the size limit of the whole state. It is computed from the memory of the scheduler that has the
// least. Zero values mean that there is no limit, because no scheduler has reported its memory.
type Room struct {
	Workloads int64
	Bytes     int64  // bytes of all that users can make large: see sizes.go
	Of        string // name of the scheduler with the least memory
	Memory    int64  // memory of that scheduler in MiB
}

// Total is how much all namespaces together use.
type Total struct {
	Workloads int64
	Bytes     int64
}

// Room returns the limit of the size of the state.
func (s State) Room() Room {
	var r Room
	s.Replicas(func(one *Replica) bool {
		if one.Memory > 0 && (r.Memory == 0 || one.Memory < r.Memory) {
			r = Room{Of: one.Name, Memory: one.Memory}
		}
		return true
	})
	r.Workloads, r.Bytes = r.Memory<<20/workloadShare, r.Memory<<20/specShare
	return r
}

// Total returns how much all namespaces together use of the limit Room.
func (s State) Total() Total { return s.r.total }

// Nearly describes the first limit of which more than warnAt percent are used; "" if no limit is so close.
func (r Room) Nearly(t Total) string {
	switch {
	case r.Memory == 0:
		return ""
	case t.Bytes*100 > r.Bytes*warnAt:
		return "specifications and files take " + mib(t.Bytes) + " of " + mib(r.Bytes) + r.why()
	case t.Workloads*100 > r.Workloads*warnAt:
		return "there are " + strconv.FormatInt(t.Workloads, 10) + " workloads of at most " + strconv.FormatInt(r.Workloads, 10) + r.why()
	}
	return ""
}

func mib(bytes int64) string { return strconv.FormatInt(bytes>>20, 10) + " MiB" }

func (r Room) why() string {
	return " (scheduler " + r.Of + " has " + strconv.FormatInt(r.Memory, 10) + " MiB of memory)"
}

// percent returns this part of the limit. A percent above 100 is taken as 100.
func (r Room) percent(n int64) Room {
	n = min(n, 100)
	r.Workloads, r.Bytes = r.Workloads*n/100, r.Bytes/100*n
	return r
}

// overShare refuses a change that takes a namespace above its share of the size limit. A quota of workloads, or a
// limit in the policy p of the namespace (which may be nil), applies instead of the share. A change that lowers the
// use is allowed.
func (r Room) overShare(share int64, use Use, s quotaSum, p *Policy) error {
	if r.Memory == 0 || share == 0 {
		return nil
	}
	most := r.percent(share)
	why := ", " + strconv.FormatInt(share, 10) + " % of the limit of the cluster" + r.why()
	switch {
	case s.bytes > 0 && use.Bytes+s.bytes > most.Bytes && (p == nil || p.MaxSpecBytes == 0):
		return &Refusal{Kind: OverQuota, Reason: "namespace " + quoted(s.of.Name) + " is full: its specifications and files take " + mib(use.Bytes) + ", " +
			strconv.FormatInt(s.bytes>>10, 10) + " KiB more are asked for, and the limit is " + mib(most.Bytes) + why +
			": delete workloads, or ask an admin for a policy with max_spec_bytes: persysctl policy bind POLICY --namespace " + s.of.Name}
	case s.records > 0 && int64(use.Records)+s.records > most.Workloads && s.of.Quota.Workloads == 0 && (p == nil || p.MaxWorkloads == 0):
		return &Refusal{Kind: OverQuota, Reason: "namespace " + quoted(s.of.Name) + " is full: it has " + strconv.Itoa(use.Records) + " workloads, " +
			strconv.FormatInt(s.records, 10) + " more are asked for, and the limit is " + strconv.FormatInt(most.Workloads, 10) + why +
			": delete workloads, or ask an admin for a quota: persysctl namespace set " + s.of.Name + " --workloads N"}
	}
	return nil
}

// over refuses a command that makes a state of size t larger by the amounts in by, if the state would then
// exceed its size limit. reserve is the percentage of the limit that the command must leave free for admins.
// A command that makes the state smaller is always allowed.
func (r Room) over(t, by Total, reserve int64) error {
	advice := r.why() + ": delete workloads, or give that scheduler more memory"
	if reserve > 0 {
		advice = r.why() + "; the last " + strconv.FormatInt(reserve, 10) + " % are for admins: delete workloads, or ask an admin to give that scheduler more memory"
	}
	r = r.percent(100 - reserve)
	switch {
	case r.Memory == 0:
	case by.Bytes > 0 && t.Bytes+by.Bytes > r.Bytes:
		return &Refusal{Kind: OverQuota, Reason: "the cluster is full: specifications and files take " + mib(t.Bytes) + ", " + strconv.FormatInt(by.Bytes>>10, 10) +
			" KiB more are asked for, and the limit is " + mib(r.Bytes) + advice}
	case by.Workloads > 0 && t.Workloads+by.Workloads > r.Workloads:
		return &Refusal{Kind: OverQuota, Reason: "the cluster is full: there are " + strconv.FormatInt(t.Workloads, 10) + " workloads, " +
			strconv.FormatInt(by.Workloads, 10) + " more are asked for, and the limit is " + strconv.FormatInt(r.Workloads, 10) + advice}
	}
	return nil
}
