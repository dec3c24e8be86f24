package dnsserver

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/persys/compute/fsm"
)

// dump returns the records of a zone as text, by name.
func dump(z *Zone) map[string]string {
	out := map[string]string{}
	for _, b := range z.root {
		if b == nil {
			continue
		}
		for _, slot := range b.slots {
			for _, e := range slot {
				sets := slices.Clone(e.sets)
				slices.SortFunc(sets, func(a, b rrset) int { return int(a.typ) - int(b.typ) })
				out[e.name.String()] = fmt.Sprintf("below %d, apex %v at %d: %v", e.sub, e.apex, e.zone, sets)
			}
		}
	}
	out["(servers)"] = fmt.Sprint(z.servers, z.cap, z.index)
	return out
}

// sameZone reports the first difference between two zones.
func sameZone(t interface {
	Helper()
	Fatalf(string, ...any)
}, got, want *Zone) {
	t.Helper()
	g, w := dump(got), dump(want)
	if got.Names() != len(g)-1 {
		t.Fatalf("the zone has %d names, but Names returns %d", len(g)-1, got.Names())
	}
	for n, text := range w {
		if g[n] != text {
			t.Fatalf("the records of name %s in the updated zone are %q, want %q as in a zone built from scratch", n, g[n], text)
		}
	}
	for n := range g {
		if _, ok := w[n]; !ok {
			t.Fatalf("after updates the zone still has the records of name %s, which a zone built from scratch does not have: %s", n, g[n])
		}
	}
}

func TestUpdateEqualsRebuild(t *testing.T) {
	configs := []Config{
		{},
		{Domain: "persys.local", AgentsDomain: "persys.local"},
		{Domain: "persys.local", AgentsDomain: "agents.deep.persys.local", Shard: "East_1"},
		{Domain: "in.agents.cloud", AgentsDomain: "agents.cloud"},
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		cfg := rapid.SampledFrom(configs).Draw(rt, "config")
		hints := Hints{}
		b, err := NewBuilder(cfg, w.s, hints)
		if err != nil {
			rt.Fatal(err)
		}
		pick := func(label string, list ...string) string { return rapid.SampledFrom(list).Draw(rt, label) }
		place := func() string {
			return pick("place", "10.0.0.1:8085", "10.0.0.2:8085", "10.0.0.2:8086", "[fd00::1]:8085", "a.example.com:8085", "0.0.0.0:1", "10.0.0.3:x")
		}
		replica := func() string { return pick("replica", "r1", "r2", "r3") }
		node := func() string { return pick("node", "n1", "n2", "N1", "n_1") }
		workload := func() string { return pick("workload", "web", "web-0", "web-1", "Web", "api") }
		has := func(id string) *fsm.Workload { x, _ := w.s.Workload(id); return x }
		type held struct {
			z    *Zone
			dump map[string]string
		}
		var former []held
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "follow") {
					b.Update(w.s, w.feed)
					w.feed = nil
				}
				if len(w.feed) > 0 {
					return
				}
				want, err := Build(cfg, w.s, hints)
				if err != nil {
					rt.Fatal(err)
				}
				b.view = w.s // the serial of the zone grows also with log entries that change nothing
				got := b.Zone()
				sameZone(rt, got, want)
				if len(former) < 3 {
					former = append(former, held{got, dump(got)})
				}
				for _, h := range former {
					for n, text := range dump(h.z) {
						if h.dump[n] != text {
							rt.Fatalf("a published zone must not change, but the records of name %s were %q and are %q", n, h.dump[n], text)
						}
					}
				}
			},
			"replica": func(rt *rapid.T) { w.replica(replica(), pick("name", "s1", "s2", "S1", ""), place()) },
			"remove replica": func(rt *rapid.T) {
				id := replica()
				if _, ok := w.s.Replica(id); !ok {
					rt.Skip()
				}
				w.removeReplica(id)
			},
			"node": func(rt *rapid.T) {
				w.node(node(), place())
			},
			"node state": func(rt *rapid.T) {
				id := node()
				if _, ok := w.s.Node(id); !ok {
					rt.Skip()
				}
				w.nodeState(id, rapid.Bool().Draw(rt, "up"))
			},
			"remove node": func(rt *rapid.T) {
				id := node()
				if _, ok := w.s.Node(id); !ok {
					rt.Skip()
				}
				w.removeNode(id)
			},
			"put": func(rt *rapid.T) { w.put(pick("group", "", "blue", "Blue", "blue_1"), workload()) },
			"run": func(rt *rapid.T) {
				id, n := workload(), node()
				x := has(id)
				at, ok := w.s.Node(n)
				if x == nil || !ok || !at.Up {
					rt.Skip()
				}
				if x.Node == "" {
					w.assign(n, id)
				}
				var ports []string
				for range rapid.IntRange(0, 2).Draw(rt, "ports") {
					ports = append(ports, pick("port", "31080:80/tcp", "31081:80/tcp", "31080:80/udp", "9:9/sctp"))
				}
				w.report(id, pick("state", "Running", "Running", "Failed"), pick("addresses", "", "172.17.0.2", "172.17.0.3,fd01::2", "172.17.0.2,172.17.0.2"), ports...)
			},
			"hints": func(rt *rapid.T) {
				hints = Hints{Leader: replica(), Partitioned: rapid.Bool().Draw(rt, "partitioned")}
				hints.Dead = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"r1", "r2", "r3"}), rapid.ID).Draw(rt, "dead")
				b.SetHints(hints)
			},
			"restore": func(rt *rapid.T) {
				w.feed = nil
				b.Rebuild(w.s)
			},
		})
	})
}

func TestAnswersAreRotatedByTurn(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "10.1.0.1:50051")
	for i := range 3 {
		w.run(fmt.Sprint("api-", i), "api", "n1", fmt.Sprint("172.17.0.", i), fmt.Sprint(30000+i, ":80/tcp"))
	}
	z := w.zone(Hints{})
	for _, q := range []string{"api.default.workloads.persys.local. A", "_80._tcp.api.default.workloads.persys.local. SRV"} {
		first := map[string]bool{}
		all := texts(reply(t, z, question(q), Ask{}).Answer)
		for turn := range uint32(3) {
			m := reply(t, z, question(q), Ask{Turn: turn})
			first[inOrder(m.Answer)[0]] = true
			if got := texts(m.Answer); !slices.Equal(got, all) {
				t.Errorf("the answer to %s at turn %d has the records %q, want %q in some order", q, turn, got, all)
			}
			if len(m.Extra) > 1 {
				t.Errorf("the answer has %d additional records, want at most one, because all instances share a node", len(m.Extra))
			}
		}
		if len(first) != 3 {
			t.Errorf("the answers to %s began, over all turns, only with %v, want each of the three instances first at some turn", q, first)
		}
	}
}

func TestLeaderFirstOnEveryTurn(t *testing.T) {
	w := newWorld(t)
	three(w)
	z := w.zone(Hints{Leader: "r2"})
	for turn := range uint32(4) {
		m := reply(t, z, question("persys-scheduler.persys.local. A"), Ask{Turn: turn})
		if got := inOrder(m.Answer)[0]; !strings.HasSuffix(got, "10.0.0.2") {
			t.Errorf("at turn %d the answer has the scheduler %s first, want the leader 10.0.0.2", turn, got)
		}
	}
}

// crowd returns a world with a group of n instances.
func crowd(t testing.TB, n int) *world {
	w := newWorld(t)
	w.node("n1", "10.1.0.1:50051")
	for i := range n {
		w.run(fmt.Sprint("api-", i), "api", "n1", fmt.Sprintf("172.17.%d.%d", i/250, i%250), fmt.Sprint(20000+i, ":80/tcp"))
	}
	return w
}

func TestLargeAnswersAreTruncated(t *testing.T) {
	z := crowd(t, 60).zone(Hints{})
	const a, srv = "api.default.workloads.persys.local. A", "_80._tcp.api.default.workloads.persys.local. SRV"
	for _, c := range []struct {
		name, question string
		edit           func(*dns.Msg)
		tcp            bool
		limit          int
		truncated      bool
	}{
		{"without EDNS the limit is 512 bytes", a, nil, false, 512, true},
		{"an EDNS size below 512 counts as 512", a, edns(100), false, 512, true},
		{"an EDNS size of 900 is used", a, edns(900), false, 900, true},
		{"an EDNS size of 4096 counts as 1232", srv, edns(4096), false, 1232, true},
		{"an answer that fits is not truncated", a, edns(1232), false, 1232, false},
		{"TCP", srv, nil, true, 65535, false},
		{"TCP ignores the EDNS size", srv, edns(512), true, 65535, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var edits []func(*dns.Msg)
			if c.edit != nil {
				edits = append(edits, c.edit)
			}
			for turn := range uint32(61) {
				b, out := z.Answer(nil, question(c.question, edits...), Ask{TCP: c.tcp, Turn: turn})
				m := new(dns.Msg)
				if err := m.Unpack(b); err != nil {
					t.Fatal(err)
				}
				if len(b) > c.limit || m.Truncated != c.truncated || out.Truncated != c.truncated || (len(m.Answer) == 60) == c.truncated {
					t.Fatalf("the answer at turn %d has %d bytes, limit %d, truncated %v, %d answers; want 60 answers or a truncated answer within the limit", turn, len(b), c.limit, m.Truncated, len(m.Answer))
				}
				if c.truncated && c.limit-len(b) > 80 {
					t.Errorf("the truncated answer leaves %d bytes unused, although another record would fit", c.limit-len(b))
				}
			}
		})
	}
}

func TestAdditionalRecordsAreDroppedWithoutTC(t *testing.T) {
	w := newWorld(t)
	var want int
	for i := range 7 {
		n := fmt.Sprint("n", i)
		w.node(n, fmt.Sprintf("10.1.0.%d:50051", i+1))
		w.run(fmt.Sprint("api-", i), "api", n, "", fmt.Sprint(20000+i, ":80/tcp"))
		want++
	}
	m := reply(t, w.zone(Hints{}), question("_80._tcp.api.default.workloads.persys.local. SRV"), Ask{Turn: 5})
	if m.Truncated || len(m.Answer) != want || len(m.Extra) != 0 || m.Answer[0].(*dns.SRV).Port != 20005 {
		t.Errorf("the answer that is too long with additional records begins with %v, truncated %v, %d answers, %d additional; want no additional record", m.Answer[0], m.Truncated, len(m.Answer), len(m.Extra))
	}
	m = reply(t, w.zone(Hints{}), question("_80._tcp.api.default.workloads.persys.local. SRV", edns(1232)), Ask{})
	if m.Truncated || len(m.Answer) != want || len(texts(m.Extra)) != want {
		t.Errorf("with enough space, the answer is truncated %v, %d answers, %d additional; want all of them", m.Truncated, len(m.Answer), len(texts(m.Extra)))
	}
}

func TestAnswersListAtMostMaxPerAnswerRecords(t *testing.T) {
	z := crowd(t, maxPerAnswer+8).zone(Hints{})
	for _, q := range []string{"api.default.workloads.persys.local. A", "_80._tcp.api.default.workloads.persys.local. SRV"} {
		m := reply(t, z, question(q), Ask{TCP: true})
		if m.Truncated || len(m.Answer) != maxPerAnswer {
			t.Errorf("the answer to %s is truncated: %v, with %d answers; want maxPerAnswer", q, m.Truncated, len(m.Answer))
		}
	}
}

// Thousands of nodes have the same address, and all of them change in one update. The PTR records of the address must
// be made only once.
func TestNodesAtOneAddress(t *testing.T) {
	w := newWorld(t)
	b, err := NewBuilder(Config{}, w.s, Hints{})
	if err != nil {
		t.Fatal(err)
	}
	w.feed = nil
	for i := range maxPerAnswer + 8 {
		w.node(fmt.Sprintf("n%04d", i), fmt.Sprintf("10.1.0.1:%d", 20000+i))
	}
	b.Update(w.s, w.feed)
	const reverse = "1.0.1.10.in-addr.arpa. PTR"
	m := reply(t, b.Zone(), question(reverse), Ask{TCP: true})
	if m.Truncated || len(m.Answer) != maxPerAnswer {
		t.Errorf("the PTR answer is truncated: %v, with %d answers; want maxPerAnswer", m.Truncated, len(m.Answer))
	}
	if len(b.dirtyAddrs) != 0 {
		t.Errorf("after the update the PTR records of these addresses are still not made: %v", b.dirtyAddrs)
	}
	w.feed = nil
	for i := range maxPerAnswer + 7 {
		w.removeNode(fmt.Sprintf("n%04d", i))
	}
	b.Update(w.s, w.feed)
	m = reply(t, b.Zone(), question(reverse), Ask{})
	if want := fmt.Sprintf("n%04d.default.agents.persys.cloud.", maxPerAnswer+7); len(m.Answer) != 1 || m.Answer[0].(*dns.PTR).Ptr != want {
		t.Errorf("the PTR records of the address, with one remaining node, are %v, want %s", m.Answer, want)
	}
}

func TestAnswerDoesNotAllocate(t *testing.T) {
	w := newWorld(t)
	everything(w)
	z := w.zone(Hints{Partitioned: true})
	buf := make([]byte, 0, 4096)
	var r reader
	for _, q := range []string{
		"_persys-scheduler._tcp.persys.local. SRV", "api.default.workloads.persys.local. A", "no.persys.local. A", "persys.local. SOA", "example.com. A",
	} {
		ask := question(q, edns(1232))
		if n := testing.AllocsPerRun(100, func() { z.answer(buf, ask, Ask{}, &r) }); n != 0 {
			t.Errorf("an answer to %s makes %v memory allocations, want none", q, n)
		}
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for field, c := range map[string]Config{
		"DOMAIN":                  {Domain: "a..b"},
		"AGENTS_DISCOVERY_DOMAIN": {AgentsDomain: strings.Repeat("long.", 30)},
		"TTLs.Agent":              {TTLs: TTLs{Agent: 1}},
		"SCHEDULER_SHARD_KEY":     {Domain: "persys.local", AgentsDomain: "workloads.persys.local"},
	} {
		_, err := Build(c, newWorld(t).s, Hints{})
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("with a wrong %s, Build returned error %v; want an error that names the setting", field, err)
		}
	}
}

func TestLabelOfAnID(t *testing.T) {
	long := strings.Repeat("a", 80)
	seen := map[string]string{}
	for _, id := range []string{"web-1", "Web-1", "web_1", "web.1", "web-1.", long, long + "b", "9", "___", strings.Repeat("a", 63)} {
		l := Label(id)
		if !isLabel(l) || seen[l] != "" {
			t.Errorf("the DNS label of id %q is %q, which is invalid or equals the label of id %q", id, l, seen[l])
		}
		seen[l] = id
		if isLabel(id) != (l == id) {
			t.Errorf("the DNS label of id %q is %q, but an id may be its own label only if it is a valid label", id, l)
		}
	}
	if got := Label("Web_1"); !strings.HasPrefix(got, "web-1-") || len(got) != len("web-1-")+6 {
		t.Errorf("the DNS label of id Web_1 is %q, want a cleaned id with a hash", got)
	}
}

func FuzzAnswer(f *testing.F) {
	w := newWorld(f)
	everything(w)
	z := w.zone(Hints{Partitioned: true})
	for _, c := range answerCases {
		edit := c.edit
		if edit == nil {
			edit = edns(1232)
		}
		f.Add(question(c.question, edit), false)
	}
	f.Add(question("api.default.workloads.persys.local. A")[:20], true)
	f.Fuzz(func(t *testing.T, packet []byte, tcp bool) {
		sent := bytes.Clone(packet)
		got, out := z.Answer([]byte("kept"), packet, Ask{TCP: tcp, Turn: uint32(len(packet))})
		if !bytes.Equal(sent, packet) || !bytes.HasPrefix(got, []byte("kept")) {
			t.Fatal("the query or the buffer's beginning was overwritten")
		}
		got = got[len("kept"):]
		answerable := len(packet) >= headerLen && packet[2]&0x80 == 0
		if (len(got) > 0) != answerable {
			t.Fatalf("the answer %x must have the id and the question of the query %x", got, packet)
		}
		if len(got) == 0 {
			return
		}
		m := new(dns.Msg)
		if err := m.Unpack(got); err != nil {
			t.Fatalf("Answer returned the malformed message %x: %v", got, err)
		}
		if !m.Response || got[0] != packet[0] || got[1] != packet[1] || !tcp && len(got) > maxUDP {
			t.Fatalf("Answer returned %v, want a response with the id of the query and of allowed size", m)
		}
		if short := new(reader).slipped(nil, packet); len(short) > 0 && new(dns.Msg).Unpack(short) != nil {
			t.Fatalf("the empty answer to a client over its rate limit is malformed: %x", short)
		}
		if m.Rcode != out.Rcode || m.Truncated != out.Truncated {
			t.Fatalf("Answer returned outcome %+v, which differs from its message %v", out, m)
		}
	})
}
