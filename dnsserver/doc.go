// Package dnsserver answers DNS from a replica's own copy of the state, with no
// leader needed.
//
// A [Zone] is a pure function of (state, [Hints], [Config]). It is a value that
// never changes: a [Builder] keeps the newest one up to date from the change
// feed, at a cost of what changed, and shares with the former one all that did
// not. Build makes the same zone from scratch. [Zone.Answer] is pure too: query
// bytes in, reply bytes out.
//
// Names, with D = Config.Domain, AD = Config.AgentsDomain, S = Config.Shard:
//
//	_persys-scheduler.D, _persys-scheduler._tcp.D    SRV   one per scheduler, the leader first
//	persys-scheduler.D, <replica>.persys-scheduler.D A, AAAA
//	<node>.S.AD                                      A, AAAA; PTR back from the address
//	_persys-agent._tcp.<node>.S.AD                   SRV   the agent's gRPC port
//	<workload or group>.S.workloads.D                A, AAAA of what runs, rotated
//	_<container port or its name>._<tcp|udp>.<workload or group>.S.workloads.D   SRV
//
// A workload has its own addresses, or its node's where it has none; the SRV
// records lead to the node and the host port, as that is what the host forwards.
// Ids become labels by [Label].
//
// Both domains are zones of this server, and so is the reverse name of each
// node's address, alone: the rest of in-addr.arpa and ip6.arpa is foreign. The
// serial is the low 32 bits of the state's index. There is no zone transfer, no
// ANY (RFC 8482), no CNAME and no recursion; foreign names are refused unless
// Options.Upstream takes them.
//
// Every answer that is not an error exists in wire form before anyone asks:
// names that repeat the question point at it (RFC 1035, 4.1.4), whose place is
// fixed, so an answer is a header, the question as it was sent (its case
// included), and a copy.
//
// Where things are: config.go and label.go say what is named how; build.go keeps
// a zone current, schedulers.go, nodes.go and workloads.go hold its three parts,
// pack.go makes wire form, table.go is the persistent table; message.go reads
// queries, answer.go answers them; server.go, udp*.go, tcp.go, forward.go,
// limit.go and metrics.go do the rest; skydns.go projects the records that
// CoreDNS reads from etcd (docs/contract/state-etcd.md).
package dnsserver
