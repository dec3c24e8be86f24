package ui

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "persysctl " + m.opt.Where
	return v
}

func (m *model) paint(s screen.Style, text string) string {
	return screen.Painter(m.opt.Colour).Paint(s, text)
}

// rows returns the number of table rows that fit on the screen.
func (m *model) rows() int { return max(1, m.height-4) }

// lines returns the lines of the screen: exactly as many as its height, none wider than its width.
func (m *model) lines() []string {
	var out []string
	switch {
	case m.help:
		out = m.helpLines()
	case m.page != nil:
		out = m.pageLines()
	default:
		out = append([]string{m.headLine(), m.tabLine()}, m.tableLines()...)
	}
	out = out[:min(len(out), m.height-1)]
	for len(out) < m.height-1 {
		out = append(out, "")
	}
	return append(out, m.footLine())
}

// cut shortens a line without colours to the width of the screen.
func (m *model) cut(s string) string { return screen.Cut(s, m.width, screen.Head) }

func (m *model) headLine() string {
	left := m.where()
	if s := m.status; s != nil {
		left += fmt.Sprintf("  mode %s  leader %s  nodes %d/%d ready  workloads %d, %d running",
			s.GetMode(), leader(s), s.GetNodesReady(), s.GetNodes(), s.GetWorkloads(), s.GetWorkloadsRunning())
	}
	right, style := "live", screen.Good
	switch {
	case len(m.lost) > 0:
		what := slices.Sorted(maps.Keys(m.lost))
		right, style = fmt.Sprintf("stale for %s", screen.Span(m.opt.Now().Sub(m.lostAt))), screen.Bad
		left = m.where() + "  " + what[0] + ": " + screen.Clean(m.lost[what[0]])
	case !m.loaded[m.tab]:
		right, style = "loading", screen.Warn
	}
	room := m.width - utf8.RuneCountInString(right) - 1
	left = screen.Cut(left, room, screen.Head)
	bold := screen.Bold
	if style == screen.Bad {
		bold = screen.Bad
	}
	return m.paint(bold, left) + strings.Repeat(" ", room-utf8.RuneCountInString(left)+1) + m.paint(style, right)
}

// where returns the name of the cluster, and of the namespace if one is selected.
func (m *model) where() string {
	text := "persysctl  " + screen.Clean(m.opt.Where)
	if m.opt.Namespace != "" {
		text += "  namespace " + screen.Clean(m.opt.Namespace)
	}
	return text
}

func leader(s *clusterv1.StatusResponse) string {
	for _, r := range s.GetReplicas() {
		if r.GetId() == s.GetLeaderId() && r.GetName() != "" {
			return r.GetName()
		}
	}
	if s.GetLeaderId() == "" {
		return "none"
	}
	return s.GetLeaderId()
}

func (m *model) tabLine() string {
	counts := [3]int{len(m.workloads), len(m.nodes), len(m.events)}
	var parts []string
	for i, name := range []string{"Workloads", "Nodes", "Events"} {
		text := fmt.Sprintf("%d %s (%d)", i+1, name, counts[i])
		if i == m.tab {
			text = "[" + text + "]"
		}
		parts = append(parts, text)
	}
	l := m.lists[m.tab]
	if l.filter != "" || m.typing {
		parts = append(parts, fmt.Sprintf("filter: %s (%d)", l.filter, len(m.ids())))
	}
	order := "sort: " + sorts[m.tab][l.sort]
	if l.reverse {
		order += ", reversed"
	}
	return m.cut(strings.Join(append(parts, order), "   "))
}

// tableLines returns the visible part of the table, with the cursor's row inverted.
func (m *model) tableLines() []string {
	ids := m.ids()
	l, rows := &m.lists[m.tab], m.rows()
	if len(ids) == 0 {
		text := "Nothing yet."
		switch {
		case !m.loaded[m.tab]:
			text = "Loading …"
		case l.filter != "":
			text = "Nothing matches " + strconv.Quote(l.filter) + "; Esc shows all."
		case m.tab == tabWorkloads && m.opt.Namespace != "":
			text = fmt.Sprintf("No workloads in namespace %s; persysctl ui -n '*' shows all.", m.opt.Namespace)
		case m.tab == tabWorkloads:
			text = "No workloads yet: persysctl apply -f FILE"
		case m.tab == tabNodes:
			text = "No nodes have registered yet."
		}
		return []string{"", m.cut(text)}
	}
	at := m.settle(ids)
	if at < l.top {
		l.top = at
	}
	if at >= l.top+rows {
		l.top = at - rows + 1
	}
	l.top = max(0, min(l.top, len(ids)-rows))
	part := ids[l.top:min(len(ids), l.top+rows)]
	var t *screen.Table
	switch m.tab {
	case tabWorkloads:
		t = m.workloadTable(part)
	case tabNodes:
		t = m.nodeTable(part)
	default:
		t = m.eventTable(part)
	}
	row := at - l.top + 1
	if !m.opt.Colour {
		out := t.Lines(m.width-1, false)
		for i := range out {
			mark := " "
			if i == row {
				mark = ">"
			}
			out[i] = mark + out[i]
		}
		return out
	}
	out, plain := t.Lines(m.width, true), t.Lines(m.width, false)[row]
	out[row] = "\x1b[7m" + plain + strings.Repeat(" ", max(0, m.width-utf8.RuneCountInString(plain))) + "\x1b[0m"
	return out
}

func (m *model) age(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	return screen.Span(m.opt.Now().Sub(ts.AsTime()))
}

func (m *model) workloadTable(ids []string) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "STATUS"},
		screen.Column{Title: "NODE", Gives: 2, Least: 8, Keeps: screen.Middle}, screen.Column{Title: "AGE", Right: true},
		screen.Column{Title: "IMAGE OR SOURCE", Gives: 4, Least: 15, Keeps: screen.Tail}, screen.Column{Title: "REASON", Gives: 3, Least: 10})
	for _, id := range ids {
		w := m.workloads[id]
		t.Add(screen.Text(id), screen.State(w.GetStatus()), screen.Text(w.GetAssignedNodeId()), screen.Text(m.age(w.GetCreatedAt())),
			screen.Text(w.GetImageOrSource()), screen.Text(reason(w)))
	}
	return t
}

// reason returns the reason why a workload is not in its desired state.
func reason(w *controlv1.WorkloadView) string {
	if w.GetStatus() == w.GetDesiredState() {
		return ""
	}
	parts := []string{w.GetReason().GetCode(), w.GetReason().GetMessage()}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

func (m *model) nodeTable(ids []string) *screen.Table {
	at := map[string]*controlv1.NodeView{}
	for _, n := range m.nodes {
		at[n.GetNodeId()] = n
	}
	t := screen.NewTable(screen.Column{Title: "NODE", Gives: 2, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "STATUS"}, screen.Column{Title: "WORKLOADS", Right: true},
		screen.Column{Title: "CPU", Right: true}, screen.Column{Title: "MEMORY", Right: true}, screen.Column{Title: "SEEN", Right: true}, screen.Column{Title: "REASON", Gives: 1, Least: 12})
	for _, id := range ids {
		n := at[id]
		status := n.GetStatus()
		if n.GetCordoned() {
			status += ",cordoned"
		}
		why := ""
		if n.GetStatus() != "Ready" {
			why = n.GetStatusReason()
		}
		t.Add(screen.Text(id), screen.State(status), screen.Text(fmt.Sprint(n.GetWorkloads())), screen.Text(percent(n.GetReservedCpuMillicores(), int64(n.GetTotalCpuCores()*1000))),
			screen.Text(percent(n.GetReservedMemoryMb(), n.GetTotalMemoryMb())), screen.Text(m.age(n.GetLastHeartbeat())), screen.Text(why))
	}
	return t
}

// percent returns the share of whole that part is, as in "25%".
func percent(part, whole int64) string {
	if whole <= 0 {
		return screen.None
	}
	return fmt.Sprintf("%d %%", part*100/whole)
}

func (m *model) eventTable(ids []string) *screen.Table {
	bySeq := map[string]*clusterv1.Event{}
	for _, e := range m.events {
		bySeq[fmt.Sprint(e.GetSeq())] = e
	}
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "EVENT", Gives: 1, Least: 12}, screen.Column{Title: "WORKLOAD", Gives: 3, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "NODE", Gives: 2, Least: 8, Keeps: screen.Middle}, screen.Column{Title: "MESSAGE", Gives: 4, Least: 12})
	for _, id := range ids {
		e := bySeq[id]
		text := e.GetReason()
		if to := e.GetDetails()["to"]; to != "" {
			text = e.GetDetails()["from"] + " → " + to
		}
		if msg := e.GetMessage(); msg != "" {
			text = strings.TrimPrefix(text+": "+msg, ": ")
		}
		t.Add(screen.Text(m.age(e.GetAt())), screen.Text(e.GetType()), screen.Text(e.GetWorkloadId()), screen.Text(e.GetNodeId()), screen.Text(text))
	}
	return t
}

func (m *model) pageLines() []string {
	p, rows := m.page, m.height-2
	end := max(0, len(p.lines)-rows)
	if p.follow || p.top > end {
		p.top = end
	}
	title := p.title
	if p.kind == "logs" {
		title += fmt.Sprintf("  (%d lines", len(p.lines))
		if p.follow {
			title += ", follows"
		}
		title += ")"
	}
	if p.note != "" && len(p.lines) > 0 {
		title += "  " + p.note
	}
	out := []string{m.paint(screen.Bold, m.cut(screen.Clean(title)))}
	if len(p.lines) == 0 {
		return append(out, "", m.cut(screen.Clean(p.note)))
	}
	for _, line := range p.lines[p.top:min(len(p.lines), p.top+rows)] {
		out = append(out, m.cut(line))
	}
	return out
}

func (m *model) footLine() string {
	switch {
	case m.asked != nil:
		return m.paint(screen.Warn, m.cut(m.asked.text+" [y/N]"))
	case m.typing:
		return m.cut("/" + m.lists[m.tab].filter + "▏ Enter keeps it, Esc ends it")
	case m.help:
		return m.paint(screen.Dim, m.cut("any key goes back"))
	case m.page != nil:
		keys := "q back  ↑↓ PgUp PgDn"
		if m.page.kind == "logs" {
			keys += "  f follow"
		}
		if m.page.kind != "node" {
			keys += "  d describe  y why  l logs"
		}
		return m.paint(screen.Dim, m.cut(keys))
	case m.said != "":
		style := screen.Good
		if m.saidBad {
			style = screen.Bad
		}
		return m.paint(style, m.cut(screen.Clean(m.said)))
	}
	keys := "q quit  ? help  / filter  s sort"
	switch m.tab {
	case tabWorkloads:
		keys += "  ↵ describe  y why  l logs  e events  a start  x stop  r restart  D delete"
	case tabNodes:
		keys += "  ↵ describe  w workloads  e events  c cordon  u uncordon  D drain"
	}
	return m.paint(screen.Dim, m.cut(keys))
}

func (m *model) helpLines() []string {
	lines := strings.Split(`Keys

  1 2 3, Tab     workloads, nodes, events
  ↑ ↓ j k        one line; PgUp PgDn a page; g G first and last
  /              filter: words in id, state, node, group, namespace or image
  s  S           sort by the next column; reversed
  Enter, d       describe what is under the cursor
  y              why a workload is where it is
  l              what a workload prints, as it prints it (f: follow or stay)
  e              events about what is under the cursor
  w              workloads on the node

  a x r D        start, stop, restart, delete the workload
  c u D          cordon, uncordon, drain the node
                 each asks first: y does it, any other key does not

  q, Esc         back, quit`, "\n")
	for i := range lines {
		lines[i] = m.cut(lines[i])
	}
	return lines
}
