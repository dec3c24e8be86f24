package dnsserver

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/persys/compute/fsm"
)

// everything adds to the state w schedulers, nodes and workloads with every kind of address and port that the zone
// treats differently.
func everything(w *world) {
	three(w)
	w.node("n1", "10.1.0.1:50051")
	w.node("n6", "[fd00::16]:50052")
	w.node("nh", "agent.example.com:50053")
	w.node("Node_7", "10.1.0.7:50051")
	w.run("web", "", "n1", "172.17.0.2", "31080:80/tcp", "31053:53/udp", "127.0.0.1|31080:80/tcp", "127.0.0.1|31081:81/tcp", "10.1.0.1|31082:82/tcp")
	w.run("host", "", "n1", "")
	w.run("dual", "", "n6", "172.17.0.9,fd01::9", "8443:443/tcp")
	w.run("far", "", "nh", "172.17.0.4", "9000:90/tcp")
	w.run("api-0", "api", "n1", "172.17.0.20", "30000:8080/tcp")
	w.run("api-1", "api", "n6", "172.17.0.21", "30001:8080/tcp")
	w.run("api-2", "api", "n1", "172.17.0.22", "30002:8080/tcp")
	w.report("api-2", "Failed", "")
	w.put("", "waiting")
	w.run("sick", "", "n1", "172.17.0.30")
	w.reportHealth("sick", "Running", fsm.Unhealthy, "172.17.0.30")
	w.run("fit", "", "n1", "172.17.0.31")
	w.reportHealth("fit", "Running", fsm.Healthy, "172.17.0.31")
	w.run("coming", "", "n1", "172.17.0.32")
	w.reportHealth("coming", "Running", fsm.HealthStarting, "172.17.0.32")
	w.run("shop", "", "n1", "172.17.0.50", "30010:80/tcp", "30011:80/tcp", "30012:53/udp")
	w.name("shop", "admin=30011:80/tcp", "dns=53/udp", "gone=81/tcp", "http=80/tcp")
	w.report("shop", "Running", "172.17.0.50", "30010:80/tcp", "30011:80/tcp", "30012:53/udp")
	w.run("lost", "", "Node_7", "172.17.0.40")
	w.nodeState("Node_7", false)
}

// soa is the authority record of a negative answer; %d is the serial.
const soa = "5 IN SOA persys-scheduler.persys.local. hostmaster.persys.local. %d 60 10 600 5"

const srvGlue = `
	s1.persys-scheduler.persys.local. 5 IN A 10.0.0.1
	s2.persys-scheduler.persys.local. 5 IN A 10.0.0.2
	s3.persys-scheduler.persys.local. 5 IN AAAA fd00::3`

var answerCases = []struct {
	name      string
	build     func(*world) // builds the replicated state of the case; nil selects the function everything
	hints     Hints
	question  string
	edit      func(*dns.Msg)
	rcode     int
	answer    string
	negative  string // apex of the zone whose SOA record is in the authority section
	extra     string
	foreign   bool // whether the answer must not be authoritative
	truncated bool
}{
	{
		name: "the SRV records of the schedulers have the leader first", question: "_persys-scheduler._tcp.persys.local. SRV", hints: Hints{Leader: "r2"},
		answer: `
			_persys-scheduler._tcp.persys.local. 5 IN SRV 10 100 8085 s2.persys-scheduler.persys.local.
			_persys-scheduler._tcp.persys.local. 5 IN SRV 20 100 8085 s1.persys-scheduler.persys.local.
			_persys-scheduler._tcp.persys.local. 5 IN SRV 20 100 8086 s3.persys-scheduler.persys.local.`,
		extra: srvGlue,
	},
	{
		name: "the SRV records of the schedulers exist without _tcp too", question: "_persys-scheduler.persys.local. SRV",
		answer: `
			_persys-scheduler.persys.local. 5 IN SRV 20 100 8085 s1.persys-scheduler.persys.local.
			_persys-scheduler.persys.local. 5 IN SRV 20 100 8085 s2.persys-scheduler.persys.local.
			_persys-scheduler.persys.local. 5 IN SRV 20 100 8086 s3.persys-scheduler.persys.local.`,
		extra: srvGlue,
	},
	{
		name: "dead schedulers are left out, and the TTLs are short meanwhile", question: "_persys-scheduler.persys.local. SRV", hints: Hints{Dead: []string{"r1", "r3"}},
		answer: `_persys-scheduler.persys.local. 1 IN SRV 20 100 8085 s2.persys-scheduler.persys.local.`,
		extra:  `s2.persys-scheduler.persys.local. 1 IN A 10.0.0.2`,
	},
	{
		name: "a suspect leader gets the lowest priority", question: "_persys-scheduler.persys.local. SRV", hints: Hints{Leader: "r1", Suspect: []string{"r1"}, Dead: []string{"r3"}},
		answer: `
			_persys-scheduler.persys.local. 1 IN SRV 20 100 8085 s2.persys-scheduler.persys.local.
			_persys-scheduler.persys.local. 1 IN SRV 30 100 8085 s1.persys-scheduler.persys.local.`,
		extra: `
			s1.persys-scheduler.persys.local. 1 IN A 10.0.0.1
			s2.persys-scheduler.persys.local. 1 IN A 10.0.0.2`,
	},
	{
		name: "if gossip reports all schedulers dead, all are listed", question: "persys-scheduler.persys.local. A", hints: Hints{Dead: []string{"r1", "r2", "r3"}},
		answer: `
			persys-scheduler.persys.local. 1 IN A 10.0.0.1
			persys-scheduler.persys.local. 1 IN A 10.0.0.2`,
	},
	{
		name: "hints never add a scheduler", question: "_persys-scheduler.persys.local. SRV", hints: Hints{Leader: "r9", Suspect: []string{"r8"}},
		build:  func(w *world) { w.replica("r1", "s1", "10.0.0.1:8085") },
		answer: `_persys-scheduler.persys.local. 1 IN SRV 20 100 8085 s1.persys-scheduler.persys.local.`,
		extra:  `s1.persys-scheduler.persys.local. 1 IN A 10.0.0.1`,
	},
	{
		name: "the A records have the IPv4 addresses of all schedulers", question: "persys-scheduler.persys.local. A",
		answer: `
			persys-scheduler.persys.local. 5 IN A 10.0.0.1
			persys-scheduler.persys.local. 5 IN A 10.0.0.2`,
	},
	{
		name: "the AAAA records have the IPv6 addresses of all schedulers", question: "persys-scheduler.persys.local. AAAA",
		answer: `persys-scheduler.persys.local. 5 IN AAAA fd00::3`,
	},
	{
		name: "a scheduler's own name has the address of this scheduler", question: "s2.persys-scheduler.persys.local. A",
		answer: `s2.persys-scheduler.persys.local. 5 IN A 10.0.0.2`,
	},
	{
		name: "the name of a dead scheduler does not exist", question: "s2.persys-scheduler.persys.local. A", hints: Hints{Dead: []string{"r2"}},
		rcode: dns.RcodeNameError, negative: "persys.local.",
	},
	{
		name: "the name of a removed scheduler does not exist", question: "s2.persys-scheduler.persys.local. A",
		build: func(w *world) { three(w); w.removeReplica("r2") },
		rcode: dns.RcodeNameError, negative: "persys.local.",
	},
	{
		name: "the SRV target of a scheduler that announced a host name is that host name", question: "_persys-scheduler.persys.local. SRV",
		build:  func(w *world) { w.replica("r1", "s1", "Sched.Example.com:8085") },
		answer: `_persys-scheduler.persys.local. 5 IN SRV 20 100 8085 sched.example.com.`,
	},
	{
		name: "a scheduler that announced a host name has no address record", question: "s1.persys-scheduler.persys.local. A",
		build: func(w *world) { w.replica("r1", "s1", "sched.example.com:8085") },
		rcode: dns.RcodeNameError, negative: "persys.local.",
	},
	{
		name: "a scheduler with an unspecified address is left out", question: "_persys-scheduler.persys.local. SRV",
		build: func(w *world) { w.replica("r1", "s1", "0.0.0.0:8085") },
		rcode: dns.RcodeNameError, negative: "persys.local.",
	},

	{
		name: "an agent has an A record with its IPv4 address", question: "n1.default.agents.persys.cloud. A",
		answer: `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "an agent has an AAAA record with its IPv6 address", question: "n6.default.agents.persys.cloud. AAAA",
		answer: `n6.default.agents.persys.cloud. 30 IN AAAA fd00::16`,
	},
	{
		name: "the A query for an agent without IPv4 address is answered with NODATA", question: "n6.default.agents.persys.cloud. A",
		negative: "agents.persys.cloud.",
	},
	{
		name: "an agent has an SRV record with its gRPC port", question: "_persys-agent._tcp.n1.default.agents.persys.cloud. SRV",
		answer: `_persys-agent._tcp.n1.default.agents.persys.cloud. 30 IN SRV 0 100 50051 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "the SRV record of an agent that registered a host name points to that host name", question: "_persys-agent._tcp.nh.default.agents.persys.cloud. SRV",
		answer: `_persys-agent._tcp.nh.default.agents.persys.cloud. 30 IN SRV 0 100 50053 agent.example.com.`,
	},
	{
		name: "a node id that is no valid label is cleaned and gets a hash", question: Label("Node_7") + ".default.agents.persys.cloud. A",
		answer: `node-7-` + strings.TrimPrefix(Label("Node_7"), "node-7-") + `.default.agents.persys.cloud. 30 IN A 10.1.0.7`,
	},
	{
		name: "the IPv4 address of a node has a PTR record", question: "1.0.1.10.in-addr.arpa. PTR",
		answer: `1.0.1.10.in-addr.arpa. 30 IN PTR n1.default.agents.persys.cloud.`,
	},
	{
		name: "the IPv6 address of a node has a PTR record", question: "6.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. PTR",
		answer: `6.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. 30 IN PTR n6.default.agents.persys.cloud.`,
	},
	{
		name: "an A query for a reverse name is answered with NODATA", question: "1.0.1.10.in-addr.arpa. A",
		negative: "1.0.1.10.in-addr.arpa.",
	},
	{
		name: "a name below an IPv4 reverse name does not exist", question: "x.1.0.1.10.in-addr.arpa. PTR",
		rcode: dns.RcodeNameError, negative: "1.0.1.10.in-addr.arpa.",
	},
	{
		name: "a name below an IPv6 reverse name does not exist", question: "x.6.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. PTR",
		rcode: dns.RcodeNameError, negative: "6.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
	},
	{name: "the reverse name of an unknown address is outside the zones", question: "9.9.9.9.in-addr.arpa. PTR", rcode: dns.RcodeRefused, foreign: true},
	{name: "the reverse domain itself is outside the zones", question: "10.in-addr.arpa. SOA", rcode: dns.RcodeRefused, foreign: true},

	{
		name: "a workload has an A record with its own address", question: "web.default.workloads.persys.local. A",
		answer: `web.default.workloads.persys.local. 5 IN A 172.17.0.2`,
	},
	{
		name: "a workload without an own address has the address of its node", question: "host.default.workloads.persys.local. A",
		answer: `host.default.workloads.persys.local. 5 IN A 10.1.0.1`,
	},
	{
		name: "a workload has an AAAA record with its IPv6 address", question: "dual.default.workloads.persys.local. AAAA",
		answer: `dual.default.workloads.persys.local. 5 IN AAAA fd01::9`,
	},
	{
		name: "the SRV record of a TCP port contains the node and the host port", question: "_80._tcp.web.default.workloads.persys.local. SRV",
		answer: `_80._tcp.web.default.workloads.persys.local. 5 IN SRV 0 100 31080 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "a port that is bound to a loopback address has no SRV record", question: "_81._tcp.web.default.workloads.persys.local. SRV", rcode: dns.RcodeNameError, negative: "persys.local.",
	},
	{
		name: "a port that is bound to an address of the node has an SRV record", question: "_82._tcp.web.default.workloads.persys.local. SRV",
		answer: `_82._tcp.web.default.workloads.persys.local. 5 IN SRV 0 100 31082 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "a published UDP port has an SRV record", question: "_53._udp.web.default.workloads.persys.local. SRV",
		answer: `_53._udp.web.default.workloads.persys.local. 5 IN SRV 0 100 31053 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "a UDP port is not listed under _tcp", question: "_53._tcp.web.default.workloads.persys.local. SRV",
		rcode: dns.RcodeNameError, negative: "persys.local.",
	},
	{
		name: "the SRV record of a port on a node with a host name points to that host name", question: "_90._tcp.far.default.workloads.persys.local. SRV",
		answer: `_90._tcp.far.default.workloads.persys.local. 5 IN SRV 0 100 9000 agent.example.com.`,
	},
	{
		name: "the addresses of a group are those of its running instances", question: "api.default.workloads.persys.local. A",
		answer: `
			api.default.workloads.persys.local. 5 IN A 172.17.0.20
			api.default.workloads.persys.local. 5 IN A 172.17.0.21`,
	},
	{
		name: "the SRV records of a group are those of its running instances", question: "_8080._tcp.api.default.workloads.persys.local. SRV",
		answer: `
			_8080._tcp.api.default.workloads.persys.local. 5 IN SRV 0 100 30000 n1.default.agents.persys.cloud.
			_8080._tcp.api.default.workloads.persys.local. 5 IN SRV 0 100 30001 n6.default.agents.persys.cloud.`,
		extra: `
			n1.default.agents.persys.cloud. 30 IN A 10.1.0.1
			n6.default.agents.persys.cloud. 30 IN AAAA fd00::16`,
	},
	{name: "a member of a group has an A record under its own name", question: "api-1.default.workloads.persys.local. A", answer: `api-1.default.workloads.persys.local. 5 IN A 172.17.0.21`},
	{name: "a failed workload is omitted", question: "api-2.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "a pending workload is omitted", question: "waiting.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "a workload on a lost node is omitted", question: "lost.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "an unhealthy workload is omitted", question: "sick.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "a workload whose health check is still starting is left out", question: "coming.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{
		name: "a port name stands for all host ports of a container port", question: "_http._tcp.shop.default.workloads.persys.local. SRV",
		answer: `
			_http._tcp.shop.default.workloads.persys.local. 5 IN SRV 0 100 30010 n1.default.agents.persys.cloud.
			_http._tcp.shop.default.workloads.persys.local. 5 IN SRV 0 100 30011 n1.default.agents.persys.cloud.`,
		extra: `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "the SRV record of a named port may have a single host port", question: "_admin._tcp.shop.default.workloads.persys.local. SRV",
		answer: `_admin._tcp.shop.default.workloads.persys.local. 5 IN SRV 0 100 30011 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{
		name: "a port name is under its protocol", question: "_dns._udp.shop.default.workloads.persys.local. SRV",
		answer: `_dns._udp.shop.default.workloads.persys.local. 5 IN SRV 0 100 30012 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 30 IN A 10.1.0.1`,
	},
	{name: "a port name does not exist under another protocol", question: "_dns._tcp.shop.default.workloads.persys.local. SRV", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "the name of a port that is not published does not exist", question: "_gone._tcp.shop.default.workloads.persys.local. SRV", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "a healthy workload is included", question: "fit.default.workloads.persys.local. A", answer: `fit.default.workloads.persys.local. 5 IN A 172.17.0.31`},
	{name: "names of another shard do not exist", question: "web.other.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},

	{name: "an existing name without records of the queried type is answered with NODATA", question: "web.default.workloads.persys.local. TXT", negative: "persys.local."},
	{name: "an empty non-terminal is answered with NODATA", question: "_tcp.web.default.workloads.persys.local. A", negative: "persys.local."},
	{name: "the name of a shard is answered with NODATA", question: "default.agents.persys.cloud. A", negative: "agents.persys.cloud."},
	{name: "an A query for the apex of a zone is answered with NODATA", question: "persys.local. A", negative: "persys.local."},
	{name: "a CNAME query for a workload is answered with NODATA", question: "web.default.workloads.persys.local. CNAME", negative: "persys.local."},
	{name: "a name below a workload does not exist", question: "a.web.default.workloads.persys.local. A", rcode: dns.RcodeNameError, negative: "persys.local."},
	{name: "a name that shares only part of a label with the zone is outside the zones", question: "notpersys.local. A", rcode: dns.RcodeRefused, foreign: true},
	{name: "the parent of a zone is outside the zones", question: "local. SOA", rcode: dns.RcodeRefused, foreign: true},
	{name: "the root is outside the zones", question: ". NS", rcode: dns.RcodeRefused, foreign: true},
	{name: "other domains are outside the zones", question: "example.com. A", rcode: dns.RcodeRefused, foreign: true},
	{
		name: "the apex of a zone has NS records", question: "persys.local. NS",
		answer: `
			persys.local. 60 IN NS s1.persys-scheduler.persys.local.
			persys.local. 60 IN NS s2.persys-scheduler.persys.local.
			persys.local. 60 IN NS s3.persys-scheduler.persys.local.`,
		extra: srvGlue,
	},
	{
		name: "the NS records of the agents' zone leave out dead schedulers", question: "agents.persys.cloud. NS", hints: Hints{Dead: []string{"r1", "r3"}},
		answer: `agents.persys.cloud. 60 IN NS s2.persys-scheduler.persys.local.`,
		extra:  `s2.persys-scheduler.persys.local. 1 IN A 10.0.0.2`,
	},
	{
		name: "a zone without schedulers has an NS record", question: "persys.local. NS", build: func(*world) {},
		answer: `persys.local. 60 IN NS persys-scheduler.persys.local.`,
	},
	{name: "an NS query below the apex is answered with NODATA", question: "web.default.workloads.persys.local. NS", negative: "persys.local."},
	{name: "an SOA query below the apex is answered with NODATA", question: "web.default.workloads.persys.local. SOA", negative: "persys.local."},
	{
		name: "a partitioned replica answers with short TTLs", question: "n1.default.agents.persys.cloud. A", hints: Hints{Partitioned: true},
		answer: `n1.default.agents.persys.cloud. 1 IN A 10.1.0.1`,
	},
	{
		name: "the additional records of a partitioned replica have short TTLs too", question: "_80._tcp.web.default.workloads.persys.local. SRV", hints: Hints{Partitioned: true},
		answer: `_80._tcp.web.default.workloads.persys.local. 1 IN SRV 0 100 31080 n1.default.agents.persys.cloud.`,
		extra:  `n1.default.agents.persys.cloud. 1 IN A 10.1.0.1`,
	},

	{name: "a query of type ANY is refused", question: "web.default.workloads.persys.local. ANY", rcode: dns.RcodeRefused, foreign: true},
	{name: "a zone transfer is refused", question: "persys.local. AXFR", rcode: dns.RcodeRefused, foreign: true},
	{
		name: "an incremental zone transfer is refused", question: "persys.local. IXFR", rcode: dns.RcodeRefused, foreign: true,
		edit: func(m *dns.Msg) {
			m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "persys.local.", Rrtype: dns.TypeSOA, Class: 1}, Ns: ".", Mbox: "."}}
		},
	},
	{
		name: "a query of another class than IN is refused", question: "persys.local. SOA", rcode: dns.RcodeRefused, foreign: true,
		edit: func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
	},
	{
		name: "a query of the class ANY is refused", question: "persys.local. SOA", rcode: dns.RcodeRefused, foreign: true,
		edit: func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY },
	},
	{
		name: "a DNS update is answered with NOTIMP", question: "persys.local. SOA", rcode: dns.RcodeNotImplemented, foreign: true,
		edit: func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
	},
	{
		name: "a query with two questions is answered with FORMERR", question: "persys.local. SOA", rcode: dns.RcodeFormatError, foreign: true,
		edit: func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
	},
	{
		name: "a query without a question is answered with FORMERR", question: "persys.local. SOA", rcode: dns.RcodeFormatError, foreign: true,
		edit: func(m *dns.Msg) { m.Question = nil },
	},
	{
		name: "a query with two EDNS records is answered with FORMERR", question: "persys.local. SOA", rcode: dns.RcodeFormatError, foreign: true,
		edit: func(m *dns.Msg) { m.SetEdns0(4096, false); m.SetEdns0(4096, false) },
	},
	{
		name: "a query with an unknown EDNS version is answered with BADVERS", question: "persys-scheduler.persys.local. A", rcode: dns.RcodeBadVers, foreign: true,
		edit: func(m *dns.Msg) { m.SetEdns0(4096, false); m.IsEdns0().SetVersion(1) },
	},
}

func TestAnswersToQuestions(t *testing.T) {
	for _, c := range answerCases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			if c.build == nil {
				c.build = everything
			}
			c.build(w)
			z := w.zone(c.hints)
			if c.edit == nil {
				c.edit = func(*dns.Msg) {}
			}
			ask := question(c.question, c.edit)
			m := reply(t, z, ask, Ask{})
			if m.Rcode != c.rcode {
				t.Errorf("the answer has rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[c.rcode])
			}
			if m.Id != 4711 || !m.Response || m.RecursionAvailable || m.Authoritative == c.foreign || m.Truncated != c.truncated {
				t.Errorf("the answer has header %+v, want the id of the query and the flags of this case", m.MsgHdr)
			}
			var authority string
			if c.negative != "" {
				authority = c.negative + " " + fmt.Sprintf(soa, w.index)
			}
			for _, x := range []struct {
				section string
				got     []dns.RR
				want    string
			}{{"answer", m.Answer, c.answer}, {"authority", m.Ns, authority}, {"additional", m.Extra, c.extra}} {
				if got, want := texts(x.got), lines(x.want); !slices.Equal(got, want) {
					t.Errorf("section %s of the answer is:\n  %s\nwant:\n  %s", x.section, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
				}
			}
			opt := m.IsEdns0()
			asked := new(dns.Msg)
			if asked.Unpack(ask) == nil && (opt != nil) != (asked.IsEdns0() != nil) {
				t.Errorf("the answer has the EDNS record %v, want one exactly if the query has one", opt)
			}
		})
	}
}

func TestSOA(t *testing.T) {
	w := newWorld(t)
	three(w)
	w.index = 1<<32 + 6 // the serial is the low 32 bits of the index
	w.node("n1", "10.1.0.1:50051")
	for _, apex := range []string{"persys.local.", "agents.persys.cloud.", "1.0.1.10.in-addr.arpa."} {
		m := reply(t, w.zone(Hints{}), question(apex+" SOA"), Ask{})
		want := apex + " 60 IN SOA persys-scheduler.persys.local. hostmaster.persys.local. 7 60 10 600 5"
		if got := texts(m.Answer); len(got) != 1 || got[0] != want {
			t.Errorf("the SOA record is %q, want %q", got, want)
		}
	}
}

func TestAnswersPreserveQuestionCase(t *testing.T) {
	w := newWorld(t)
	everything(w)
	const asked = "WeB.dEfAuLt.WoRkLoAdS.pErSyS.LoCaL."
	m := reply(t, w.zone(Hints{}), question(asked+" A"), Ask{})
	if len(m.Answer) != 1 || m.Question[0].Name != asked || m.Answer[0].Header().Name != asked {
		t.Errorf("the answer is %v, want the case of the question in its names", m)
	}
	m = reply(t, w.zone(Hints{}), question("nO."+asked+" A"), Ask{})
	if m.Rcode != dns.RcodeNameError || m.Question[0].Name != "nO."+asked || m.Ns[0].Header().Name != "pErSyS.LoCaL." {
		t.Errorf("the negative answer is %v, want the case of the question in its names", m)
	}
}

func TestFlagsInAnswer(t *testing.T) {
	z := newWorld(t).zone(Hints{})
	m := reply(t, z, question("persys.local. SOA", func(m *dns.Msg) {
		m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = true, true, true
		m.SetEdns0(4096, true)
	}), Ask{Recursive: true})
	if !m.RecursionDesired || !m.CheckingDisabled || m.AuthenticatedData || !m.RecursionAvailable || !m.IsEdns0().Do() || m.IsEdns0().UDPSize() != maxUDP {
		t.Errorf("the answer to a query with RD, CD, DO and AD is %v, want the flags RD, CD, RA and DO, and not AD", m)
	}
	m = reply(t, z, question("persys.local. SOA", func(m *dns.Msg) { m.RecursionDesired = false }), Ask{})
	if m.RecursionDesired || m.CheckingDisabled || m.RecursionAvailable {
		t.Errorf("the answer to a query without flags is %v, want none of the flags RD, CD and RA", m)
	}
}

func TestForeignNamesAreMarked(t *testing.T) {
	w := newWorld(t)
	everything(w)
	z := w.zone(Hints{})
	for text, want := range map[string]bool{
		"example.com. A": true, "8.8.8.8.in-addr.arpa. PTR": true, ". NS": true,
		"example.com. ANY": false, "example.com. AXFR": false, "persys.local. A": false, "x.persys.local. A": false, "1.0.1.10.in-addr.arpa. PTR": false,
	} {
		if _, out := z.Answer(nil, question(text), Ask{}); out.Foreign != want {
			t.Errorf("whether the query %s must be forwarded: %v, want %v", text, out.Foreign, want)
		}
	}
	if _, out := z.Answer(nil, question("example.com. A", func(m *dns.Msg) { m.RecursionDesired = false }), Ask{}); out.Foreign {
		t.Error("a query without the RD bit must not be forwarded, but Foreign is true")
	}
}

func TestMalformedPackets(t *testing.T) {
	z := newWorld(t).zone(Hints{})
	const head = "1267 0000 0001 0000 0000 0000"
	for name, c := range map[string]struct {
		packet string
		rcode  int // expected rcode; -1 means that no answer is expected
	}{
		"empty":                            {"", -1},
		"a packet shorter than a header":   {"1267 0000 0001 0000 0000 00", -1},
		"a packet that is an answer":       {"1267 8000 0001 0000 0000 0000 00 0001 0001", -1},
		"an answer of another opcode":      {"1267 a800 0000 0000 0000 0000", -1},
		"a missing question":               {head, 1},
		"a name without an end":            {head + "0161", 1},
		"a label without an end":           {head + "05616161", 1},
		"a pointer in the question":        {head + "c00c 0001 0001", 1},
		"a reserved label type":            {head + "40 00 0001 0001", 1},
		"a question that ends in its type": {head + "00 00", 1},
		"a question without a class":       {head + "00 0001", 1},
		"bytes after the question":         {head + "00 0001 0001 00", 1},
		"an answer section":                {"1267 0000 0001 0001 0000 0000 00 0001 0001 00 0001 0001 00000000 0000", 1},
		"missing additional records":       {"1267 0000 0001 0000 0000 0001 00 0001 0001", 1},
		"EDNS not at the root":             {"1267 0000 0001 0000 0000 0001 00 0001 0001 0161 00 0029 1000 00000000 0000", 1},
		"an EDNS option without an end":    {"1267 0000 0001 0000 0000 0001 00 0001 0001 00 0029 1000 00000000 0005 0003 0004 61", 1},
		"half an EDNS option":              {"1267 0000 0001 0000 0000 0001 00 0001 0001 00 0029 1000 00000000 0002 0003", 1},
		"a question of type 0":             {head + "00 0000 0001", 1},
		"a question of type OPT":           {head + "00 0029 0001", 1},
		"another additional record":        {"1267 0000 0001 0000 0000 0001 00 0001 0001 c00c 0010 0001 00000000 0000", 5},
		"an unknown EDNS option":           {"1267 0000 0001 0000 0000 0001 00 0001 0001 00 0029 1000 00000000 0006 fde9 0002 6161", 5},
		"a name of 256 bytes":              {head + strings.Repeat("3f"+strings.Repeat("61", 63), 4) + "00 0001 0001", 1},
		"a name of 255 bytes":              {head + strings.Repeat("3f"+strings.Repeat("61", 63), 3) + "3d" + strings.Repeat("61", 61) + "00 0001 0001", 5},
		"a name of 127 labels":             {head + strings.Repeat("0161", 127) + "00 0001 0001", 5},
	} {
		t.Run(name, func(t *testing.T) {
			packet, err := hex.DecodeString(strings.ReplaceAll(c.packet, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			got, out := z.Answer(nil, packet, Ask{})
			if c.rcode < 0 {
				if len(got) > 0 {
					t.Errorf("a packet that needs no reply was answered with %x", got)
				}
				return
			}
			if len(got) < headerLen || int(got[3]&15) != c.rcode || out.Rcode != c.rcode || got[0] != 0x12 || got[1] != 0x67 {
				t.Errorf("the answer to a malformed packet is %x with outcome %+v, want rcode %d", got, out, c.rcode)
			}
		})
	}
}
