// Package dnsserver answers DNS queries from a replica's local copy of the state. It needs no
// leader.
//
// A [Zone] is an immutable value, computed from (state, [Hints], [Config]) alone. A [Builder] keeps
// the newest Zone up to date from the change feed. The cost of an update is proportional to the
// change; unchanged data is shared with the previous Zone. Build makes the same Zone from scratch.
// [Zone.Answer] is a pure function from query bytes to reply bytes.
//
// Names, with D = Config.Domain, AD = Config.AgentsDomain, S = Config.Shard:
//
//	_persys-scheduler.D, _persys-scheduler._tcp.D    SRV   one per scheduler, the leader first
//	persys-scheduler.D, <replica>.persys-scheduler.D A, AAAA
//	<node>.S.AD                                      A, AAAA; PTR for the address
//	_persys-agent._tcp.<node>.S.AD                   SRV   the agent's gRPC port
//	<workload or group>.S.workloads.D                A, AAAA of running instances, rotated
//	_<container port or its name>._<tcp|udp>.<workload or group>.S.workloads.D   SRV
//
// A workload without addresses of its own gets the address of its node. Its SRV records contain the
// node and the host port, because the host forwards that port. [Label] converts ids to DNS labels.
//
// Both domains are zones of this server. The reverse name of each node's address is a zone too; all
// other names in in-addr.arpa and ip6.arpa are foreign. The serial is the low 32 bits of the state's
// index. There are no zone transfers, no ANY (RFC 8482), no CNAME and no recursion. Foreign names
// are refused unless Options.Upstream is set.
//
// Every positive answer is stored in wire form before the first query. Its names use compression
// pointers into the question (RFC 1035, 4.1.4), whose offset is fixed. An answer is therefore a
// header, the question as it was sent (in its original case), and a copy.
//
// Files:
//
//   - config.go, label.go: names
//   - build.go: keeps a zone current; schedulers.go, nodes.go and workloads.go hold its three parts
//   - pack.go: wire form
//   - table.go: the persistent table
//   - message.go: reads queries; answer.go: answers them
//   - server.go, udp*.go, tcp.go, forward.go, limit.go, metrics.go: the server
//   - skydns.go: the records that CoreDNS reads from etcd (docs/contract/state-etcd.md)
package dnsserver
