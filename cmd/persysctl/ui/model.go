package ui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// The tabs.
const (
	tabWorkloads = iota
	tabNodes
	tabEvents
)

// Limits on the amount of data that the model keeps.
const (
	maxEvents   = 5000
	maxLogLines = 10_000
	maxLine     = 64 << 10 // maximum length of a log line in bytes; a longer line is split
)

// logFeed is the part of the feed that the model calls.
type logFeed interface {
	logs(ctx context.Context, id string)
	endLogs()
}

// list holds the state of one tab: cursor, filter and sort order.
type list struct {
	cursor, top int
	selected    string // id of the row under the cursor; the cursor follows this row when the row moves
	filter      string
	sort        int
	reverse     bool
}

// page is a text that is shown instead of the tabs: a description, or logs.
type page struct {
	title, kind, id string
	lines           []string
	top             int
	follow          bool // the view of the log stays at its end
	partial         string
	note            string
}

type question struct {
	text string
	a    action
	id   string
}

type model struct {
	ctx  context.Context
	opt  Options
	feed logFeed

	width, height int
	tab           int
	lists         [3]list
	page          *page
	asked         *question
	typing        bool // whether the user is typing a filter
	help          bool
	said          string // result of the last action, for the status line of the screen
	saidBad       bool
	lost          map[string]string // name of a failed source of data → its error
	lostAt        time.Time

	workloads map[string]*controlv1.WorkloadView
	nodes     []*controlv1.NodeView
	events    []*clusterv1.Event // events, oldest first
	status    *clusterv1.StatusResponse
	loaded    [3]bool
	order     []string // ids of the rows of the present tab, filtered and sorted; nil if they must be computed again
}

func newModel(ctx context.Context, opt Options) *model {
	return &model{ctx: ctx, opt: opt, width: 100, height: 30, lost: map[string]string{}, workloads: map[string]*controlv1.WorkloadView{}}
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tick() }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(40, msg.Width), max(8, msg.Height)
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	case tickMsg:
		return m, tick() // the next tick draws the screen again, because the ages on it grow
	case workloadsMsg:
		m.take(msg)
	case nodesMsg:
		m.nodes, m.loaded[tabNodes], m.order = msg, true, nil
	case eventsMsg:
		m.events, m.loaded[tabEvents], m.order = append(m.events, msg...), true, nil
		if over := len(m.events) - maxEvents; over > 0 {
			m.events = slices.Clone(m.events[over:])
		}
	case statusMsg:
		m.status = msg
	case lostMsg:
		m.took(msg)
	case logMsg:
		m.log(msg)
	case logEndMsg:
		if p := m.page; p != nil && p.kind == "logs" && p.id == msg.id {
			if p.partial != "" {
				m.log(logMsg{msg.id, []byte("\n")}) // the line end completes an unfinished last line of the log
			}
			p.note = "the end"
			if msg.err != nil && !strings.HasSuffix(msg.err.Error(), "EOF") {
				p.note = m.opt.Explain(msg.err)
			}
		}
	case pageMsg:
		if p := m.page; p != nil && p.kind == msg.kind && p.id == msg.id {
			p.note, p.lines = "", strings.Split(strings.TrimRight(msg.text, "\n"), "\n")
			if msg.err != nil {
				p.lines = screen.Fold(m.opt.Explain(msg.err), m.width-2)
			}
		}
	case doneMsg:
		m.said, m.saidBad = msg.said, msg.err != nil
		if msg.err != nil {
			m.said = m.opt.Explain(msg.err)
		}
	}
	return m, nil
}

func (m *model) take(msg workloadsMsg) {
	if msg.whole {
		clear(m.workloads)
		m.loaded[tabWorkloads] = true
	}
	for _, c := range msg.changes {
		id := c.GetWorkload().GetWorkloadId()
		switch {
		case id == "":
		case c.GetDeleted():
			delete(m.workloads, id)
		default:
			m.workloads[id] = c.GetWorkload()
		}
	}
	m.order = nil
}

// took stores what a lostMsg reports: that a source of data, such as the event stream, has failed or works again.
func (m *model) took(msg lostMsg) {
	if msg.err == nil {
		delete(m.lost, msg.what)
		return
	}
	if len(m.lost) == 0 {
		m.lostAt = m.opt.Now()
	}
	m.lost[msg.what] = m.opt.Explain(msg.err)
}

func (m *model) log(msg logMsg) {
	p := m.page
	if p == nil || p.kind != "logs" || p.id != msg.id {
		return // the lines belong to a log whose page has been closed
	}
	p.note = ""
	parts := strings.Split(p.partial+string(msg.data), "\n")
	if p.partial = parts[len(parts)-1]; len(p.partial) > maxLine {
		parts, p.partial = append(parts, ""), ""
	}
	for _, line := range parts[:len(parts)-1] {
		p.lines = append(p.lines, screen.Clean(strings.TrimRight(line, "\r")))
	}
	if over := len(p.lines) - maxLogLines; over > 0 {
		p.lines = slices.Clone(p.lines[over:])
		p.top = max(0, p.top-over)
	}
}

// key handles one key press.
func (m *model) key(k string) tea.Cmd {
	if k == "ctrl+c" {
		return tea.Quit
	}
	switch {
	case m.asked != nil:
		q := m.asked
		m.asked = nil
		if k == "y" || k == "Y" {
			m.said, m.saidBad = q.id+": "+q.a.verb+" …", false
			return m.run(q.a, q.id)
		}
		m.said, m.saidBad = "nothing was done", false
		return nil
	case m.typing:
		m.edit(k)
		return nil
	case m.help:
		m.help = false
		return nil
	case m.page != nil:
		return m.pageKey(k)
	}
	m.said = ""
	l := &m.lists[m.tab]
	switch k {
	case "q":
		return tea.Quit
	case "?", "h":
		m.help = true
	case "1", "2", "3":
		m.show(int(k[0] - '1'))
	case "tab", "right":
		m.show((m.tab + 1) % 3)
	case "shift+tab", "left":
		m.show((m.tab + 2) % 3)
	case "/":
		m.typing = true
	case "esc":
		l.filter, m.order = "", nil
	case "s":
		l.sort, m.order = (l.sort+1)%len(sorts[m.tab]), nil
	case "S":
		l.reverse, m.order = !l.reverse, nil
	case "enter", "d":
		return m.open(map[int]string{tabWorkloads: "get", tabNodes: "node"}[m.tab])
	case "y":
		if m.tab == tabWorkloads {
			return m.open("why")
		}
	case "l":
		if m.tab == tabWorkloads {
			return m.open("logs")
		}
	case "e":
		if id := m.current(); id != "" && m.tab != tabEvents {
			m.show(tabEvents)
			m.lists[tabEvents].filter, m.order = id, nil
		}
	case "w":
		if id := m.current(); id != "" && m.tab == tabNodes {
			m.show(tabWorkloads)
			m.lists[tabWorkloads].filter, m.order = id, nil
		}
	default:
		if !m.move(k) {
			m.ask(k)
		}
	}
	return nil
}

func (m *model) show(tab int) { m.tab, m.order = tab, nil }

// edit handles a key while a filter is typed. The filter takes effect with each key.
func (m *model) edit(k string) {
	l := &m.lists[m.tab]
	switch k {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, l.filter = false, ""
	case "backspace":
		if r := []rune(l.filter); len(r) > 0 {
			l.filter = string(r[:len(r)-1])
		}
	case "space":
		l.filter += " "
	default:
		if r := []rune(k); len(r) == 1 {
			l.filter += k
		}
	}
	l.cursor, l.top, l.selected, m.order = 0, 0, "", nil
}

// move moves the cursor if the key is a cursor key, and reports whether it did.
func (m *model) move(k string) bool {
	l, n := &m.lists[m.tab], len(m.ids())
	rows := m.rows()
	to, ok := map[string]int{"up": l.cursor - 1, "k": l.cursor - 1, "down": l.cursor + 1, "j": l.cursor + 1,
		"pgup": l.cursor - rows, "pgdown": l.cursor + rows, "ctrl+b": l.cursor - rows, "ctrl+f": l.cursor + rows,
		"home": 0, "g": 0, "end": n - 1, "G": n - 1}[k]
	if !ok {
		return false
	}
	l.cursor = max(0, min(to, n-1))
	l.selected = ""
	if n > 0 {
		l.selected = m.ids()[l.cursor]
	}
	return true
}

// ask shows the question that confirms the action of key k.
func (m *model) ask(k string) {
	id := m.current()
	actions := map[int][]action{tabWorkloads: workloadActions(), tabNodes: nodeActions()}[m.tab]
	for _, a := range actions {
		if a.key == k && id != "" {
			m.asked = &question{fmt.Sprintf(a.ask, id), a, id}
		}
	}
}

// open shows a page about the row under the cursor.
func (m *model) open(kind string) tea.Cmd {
	id := m.current()
	if kind == "" || id == "" {
		return nil
	}
	m.page = &page{title: kind + " " + id, kind: kind, id: id, note: "asking …"}
	if kind != "logs" {
		return m.describe(kind, id)
	}
	m.page.follow = true
	m.feed.logs(m.ctx, id)
	return nil
}

func (m *model) pageKey(k string) tea.Cmd {
	p, rows := m.page, m.height-2
	end := max(0, len(p.lines)-rows)
	if p.follow {
		p.top = end
	}
	switch k {
	case "q", "esc", "backspace":
		m.page = nil
		m.feed.endLogs()
		return nil
	case "f":
		p.follow = p.kind == "logs" && !p.follow
	case "up", "k":
		p.top--
	case "down", "j":
		p.top++
	case "pgup", "ctrl+b":
		p.top -= rows
	case "pgdown", "ctrl+f", "space":
		p.top += rows
	case "home", "g":
		p.top = 0
	case "end", "G":
		p.top = end
	case "l", "y", "d":
		if kind := map[string]string{"l": "logs", "y": "why", "d": "get"}[k]; p.kind != "node" && kind != p.kind {
			m.feed.endLogs()
			return m.open(kind)
		}
	}
	if p.top < end && slices.Contains([]string{"up", "k", "pgup", "ctrl+b", "home", "g"}, k) {
		p.follow = false
	}
	p.top = max(0, min(p.top, end))
	return nil
}

// current returns the id of the row under the cursor.
func (m *model) current() string {
	ids := m.ids()
	if len(ids) == 0 {
		return ""
	}
	return ids[m.settle(ids)]
}

// settle returns the index in ids of the row under the cursor, after the list has changed. The cursor stays on the id
// that was selected before. If ids does not contain this id any more, the index stays the same, but is at most that of
// the last row.
func (m *model) settle(ids []string) int {
	l := &m.lists[m.tab]
	if l.selected != "" && (l.cursor >= len(ids) || ids[l.cursor] != l.selected) {
		if i := slices.Index(ids, l.selected); i >= 0 {
			l.cursor = i
		}
	}
	l.cursor = max(0, min(l.cursor, len(ids)-1))
	return l.cursor
}

// sorts are the sort orders of each tab; the first is the default.
var sorts = [3][]string{{"name", "state", "node", "age"}, {"name", "state", "workloads", "cpu"}, {"newest"}}

// ids lists the ids of the rows of the present tab, filtered and sorted. On the events tab an id is an index in
// m.events.
func (m *model) ids() []string {
	if m.order != nil {
		return m.order
	}
	l := m.lists[m.tab]
	var out []string
	switch m.tab {
	case tabWorkloads:
		for id, w := range m.workloads {
			if matches(l.filter, id, w.GetStatus(), w.GetAssignedNodeId(), w.GetGroup(), w.GetNamespace(), w.GetImageOrSource()) {
				out = append(out, id)
			}
		}
		slices.SortFunc(out, func(a, b string) int {
			x, y := m.workloads[a], m.workloads[b]
			var by int
			switch l.sort {
			case 1:
				by = cmp.Compare(trouble(x.GetStatus()), trouble(y.GetStatus()))
			case 2:
				by = screen.Natural(x.GetAssignedNodeId(), y.GetAssignedNodeId())
			case 3:
				by = y.GetCreatedAt().AsTime().Compare(x.GetCreatedAt().AsTime())
			}
			return cmp.Or(by, screen.Natural(a, b))
		})
	case tabNodes:
		at := map[string]*controlv1.NodeView{}
		for _, n := range m.nodes {
			if matches(l.filter, n.GetNodeId(), n.GetStatus(), n.GetGrpcEndpoint()) {
				at[n.GetNodeId()] = n
				out = append(out, n.GetNodeId())
			}
		}
		slices.SortFunc(out, func(a, b string) int {
			x, y := at[a], at[b]
			var by int
			switch l.sort {
			case 1:
				by = cmp.Compare(trouble(x.GetStatus()), trouble(y.GetStatus()))
			case 2:
				by = cmp.Compare(y.GetWorkloads(), x.GetWorkloads())
			case 3:
				by = cmp.Compare(y.GetReservedCpuMillicores(), x.GetReservedCpuMillicores())
			}
			return cmp.Or(by, screen.Natural(a, b))
		})
	case tabEvents:
		for _, e := range slices.Backward(m.events) {
			if matches(l.filter, e.GetType(), e.GetWorkloadId(), e.GetNodeId(), e.GetReason(), e.GetMessage()) {
				out = append(out, fmt.Sprint(e.GetSeq()))
			}
		}
	}
	if l.reverse {
		slices.Reverse(out)
	}
	if out == nil {
		out = []string{}
	}
	m.order = out
	return out
}

// matches reports whether each word of the filter occurs in at least one of the texts.
func matches(filter string, texts ...string) bool {
	for _, word := range strings.Fields(strings.ToLower(filter)) {
		if !slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), word) }) {
			return false
		}
	}
	return true
}

// trouble returns the rank of a state for sorting: states that need attention come first.
func trouble(state string) int {
	switch screen.StateStyle(state) {
	case screen.Bad:
		return 0
	case screen.Warn:
		return 1
	case screen.Good:
		return 2
	}
	return 3
}
