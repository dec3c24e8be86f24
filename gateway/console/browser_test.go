package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/persys/compute/testbed"
)

// patience is the longest wait for a page. A browser is slow on a busy machine.
const patience = 20 * time.Second

// api is a fake gateway whose answers a test sets, by method and path below /v1. An answer is a string (JSON), an int
// (the status of an error) or an HTTP handler.
type api struct {
	mu      sync.Mutex
	answers map[string]any
	events  chan string // events that the fake API sends to the page
}

func (a *api) set(answers map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.answers, answers)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	a.mu.Lock()
	answer := a.answers[r.Method+" "+path]
	a.mu.Unlock()
	switch answer := answer.(type) {
	case http.HandlerFunc:
		answer(w, r)
		return
	case int:
		w.WriteHeader(answer)
		_, _ = fmt.Fprintf(w, `{"error": "refused with %d"}`, answer)
		return
	case string:
		_, _ = fmt.Fprint(w, answer)
		return
	}
	switch {
	case path == "/clusters":
		_, _ = fmt.Fprint(w, `{"clusters": [{"id": "c"}], "default_cluster_id": "c"}`)
	case path == "/events" && r.URL.Query().Has("follow"):
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-a.events:
				_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case path == "/status":
		_, _ = fmt.Fprint(w, `{"mode": "normal"}`)
	case path != "/events":
		_, _ = fmt.Fprint(w, `{}`)
	}
}

// body returns a handler that sends answer if the body of the request is want, and otherwise an error.
func (a *api) body(answer, want string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != want {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"error": %q}`, fmt.Sprintf("the body is %s, want %s", got, want))
			return
		}
		_, _ = fmt.Fprint(w, answer)
	}
}

// tab is one open page of the console, with its own connection to a fake API.
type tab struct {
	*api
	t   *testing.T
	ctx context.Context
	url string
}

func (p *tab) do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// open goes to a page.
func (p *tab) open(path string) {
	p.t.Helper()
	p.do(chromedp.Navigate(p.url + "/ui/#" + path))
}

// is evaluates a script in the page again and again until its result is want. If that takes too long, it fails the
// test.
func (p *tab) is(script string, want any) {
	p.t.Helper()
	text, err := json.Marshal(want)
	if err != nil {
		p.t.Fatal(err)
	}
	testbed.Within(p.t, patience, script, func() error {
		ctx, cancel := context.WithTimeout(p.ctx, patience)
		defer cancel()
		var got any
		if err := chromedp.Run(ctx, chromedp.Evaluate(script, &got)); err != nil {
			return err
		}
		if is, err := json.Marshal(got); err != nil || string(is) != string(text) {
			return fmt.Errorf("the script returns %s, want %s", is, text)
		}
		return nil
	})
}

// sees waits until each text is on the page. With the prefix "not " it waits until the text is not there.
func (p *tab) sees(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		text, not := strings.CutPrefix(text, "not ")
		p.is(fmt.Sprintf("document.body.innerText.includes(%q)", text), !not)
	}
}

// tell sends an event to the page over the event stream that the page has opened.
func (p *tab) tell(event string) {
	p.t.Helper()
	select {
	case p.events <- event:
	case <-time.After(patience):
		p.t.Fatal("the page has no event stream open")
	}
}

// press clicks the button or link with that text, in the dialog if one is open.
func (p *tab) press(name string) {
	p.t.Helper()
	p.is(fmt.Sprintf(`(() => { const el = [...(document.querySelector("dialog[open]") || document).querySelectorAll("button, a")].find((b) => b.textContent.trim() === %q && !b.disabled && !b.hidden);
		if (el) el.click(); return !!el; })()`, name), true)
}

// TestTheConsoleWorksInABrowser opens the console in a real browser. In some cases the gateway answers with an error,
// late or not at all.
func TestTheConsoleWorksInABrowser(t *testing.T) {
	// The test needs a network namespace of its own: the browser fails to load a page (ERR_NETWORK_CHANGED) when other
	// tests add networks to the machine.
	if !testbed.OwnNetwork(t) {
		return
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(testbed.Program(t, "chromium")), chromedp.WSURLReadTimeout(time.Minute))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	browser, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // the library reports events of newer Chromium versions as errors; drop them
	t.Cleanup(cancel)
	if err := chromedp.Run(browser); err != nil { // the browser runs as long as the context of this first run
		t.Fatal(err)
	}
	assets, err := Handler("/ui/")
	if err != nil {
		t.Fatal(err)
	}
	for fact, test := range browserCases() {
		t.Run(fact, func(t *testing.T) {
			a := &api{answers: map[string]any{}, events: make(chan string)}
			mux := http.NewServeMux()
			mux.Handle("/ui/", assets)
			mux.Handle("/", a)
			s := httptest.NewServer(mux)
			t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
			ctx, leave := chromedp.NewContext(browser)
			t.Cleanup(leave)
			if err := chromedp.Run(ctx); err != nil { // the tab exists as long as the context of this run
				t.Fatal(err)
			}
			test(&tab{api: a, t: t, ctx: ctx, url: s.URL})
		})
	}
}

// browserCases are the tests of the console, keyed by the property that each test checks.
func browserCases() map[string]func(*tab) {
	return map[string]func(*tab){
		// Two workloads are applied and one is refused. The progress of the accepted workload must not replace the
		// reason why the other workload was refused.
		"the reason of a refused workload stays on the page": func(p *tab) {
			p.set(map[string]any{
				"POST /plan":       `{"workloads": [{"workload_id": "a", "action": "create"}, {"workload_id": "b", "action": "create"}]}`,
				"POST /apply":      `{"results": [{"success": true, "workload_ids": ["a"]}, {"error_message": "over the quota"}]}`,
				"GET /workloads/a": `{"workload": {"workload_id": "a", "status": "Running", "desired_state": "Running"}}`,
			})
			p.open("/deploy")
			p.press("Show the plan")
			p.press("Apply")
			p.sees("Done", "over the quota", "not Nothing has been changed")
		},
		// An apply that gets no answer may have been carried out, so the page must not say that nothing was changed.
		"an apply without an answer is not shown as unchanged": func(p *tab) {
			p.set(map[string]any{"POST /plan": `{"workloads": [{"workload_id": "a", "action": "create"}]}`, "POST /apply": 504})
			p.open("/deploy")
			p.press("Show the plan")
			p.press("Apply")
			p.sees("refused with 504", "not Nothing has been changed")
			p.press("Apply") // this second press waits until the button Apply is enabled again
		},
		"a visitor whose session has ended is asked to sign in": func(p *tab) {
			p.set(map[string]any{"GET /auth/session": `{"login": true, "user": "<b>ada</b>"}`, "GET /nodes": `{"nodes": [{"node_id": "old"}]}`})
			p.open("/nodes")
			p.sees("old", "<b>ada</b>", "Sign out", "not Sign in")
			p.set(map[string]any{"GET /nodes": 401})
			p.tell(`{"seq": "1", "type": "NodeState", "node_id": "n"}`)
			p.sees("You are not signed in", "refused with 401", "Sign in", "not Sign out", "not ada")
		},
		"a list of workloads that was empty is read again": func(p *tab) {
			p.set(map[string]any{"GET /workloads": `{}`})
			p.open("/workloads")
			p.sees("There is no workload yet")
			p.set(map[string]any{"GET /workloads": `{"workloads": [{"workload_id": "first", "status": "Running"}]}`})
			p.tell(`{"seq": "1", "type": "WorkloadCreated", "workload_id": "first"}`)
			p.sees("first", "1 workload")
		},
		"a list of workloads that could not be read is not called empty": func(p *tab) {
			p.set(map[string]any{"GET /workloads": 503})
			p.open("/workloads")
			p.sees("refused with 503", "not There is no workload yet")
			p.set(map[string]any{"GET /workloads": `{"workloads": [{"workload_id": "first", "status": "Running"}]}`})
			p.tell(`{"seq": "1", "type": "WorkloadCreated", "workload_id": "first"}`)
			p.sees("first")
		},
		"a list that grew after it was read to its end is read to its new end": func(p *tab) {
			var mu sync.Mutex
			n := 1
			p.set(map[string]any{"GET /workloads": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				var ids []string
				next := ""
				for i := range n {
					id := fmt.Sprintf("w-%03d", i)
					if id <= r.URL.Query().Get("page_token") {
						continue
					}
					if len(ids) == 100 {
						next = fmt.Sprintf("w-%03d", i-1)
						break
					}
					ids = append(ids, fmt.Sprintf(`{"workload_id": %q, "status": "Running"}`, id))
				}
				_, _ = fmt.Fprintf(w, `{"workloads": [%s], "next_page_token": %q}`, strings.Join(ids, ","), next)
			})})
			p.open("/workloads")
			p.sees("1 workload")
			mu.Lock()
			n = 120
			mu.Unlock()
			p.tell(`{"seq": "1", "type": "WorkloadCreated", "workload_id": "w-001"}`)
			p.sees("100 workloads so far")
			p.do(chromedp.Evaluate(`{ const view = document.querySelector(".view"); view.scrollTop = 1e6; view.dispatchEvent(new Event("scroll")); }`, nil))
			p.sees("120 workloads")
		},
		// The user opens another page while the first page still waits for its list of events. When the list arrives,
		// the first page must not replace the new one.
		"a page that was left does not replace the next page": func(p *tab) {
			reading := make(chan struct{})
			p.set(map[string]any{"GET /events": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("follow") {
					return
				}
				close(reading)
				<-r.Context().Done()
			})})
			p.open("/events")
			<-reading
			p.do(chromedp.Evaluate(`location.hash = "#/nodes"`, nil))
			p.sees("Name or label")
			p.is(`document.querySelector("h1").textContent`, "Nodes")
		},
		// A steady stream of events must not postpone the next read of the page's data for ever.
		"a page is read again under a steady stream of events": func(p *tab) {
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "old"}]}`})
			p.open("/nodes")
			p.sees("old")
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "new"}]}`})
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			began := time.Now()
			for i := 1; time.Since(began) < 4*time.Second; i++ {
				<-tick.C
				p.tell(fmt.Sprintf(`{"seq": "%d", "type": "NodeState", "node_id": "n"}`, i))
			}
			var text string
			p.do(chromedp.Evaluate(`document.body.innerText`, &text))
			if !strings.Contains(text, "new") {
				p.t.Error("after four seconds of events the page still shows the old nodes")
			}
		},
		"a page recovers after a read that failed": func(p *tab) {
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "old"}]}`})
			p.open("/nodes")
			p.sees("old")
			p.set(map[string]any{"GET /nodes": 504})
			p.tell(`{"seq": "1", "type": "NodeState", "node_id": "n"}`)
			p.sees("refused with 504")
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "new"}]}`})
			p.tell(`{"seq": "2", "type": "NodeState", "node_id": "n"}`)
			p.sees("new")
		},
		// The request for the nodes fails without an HTTP status, as when the connection breaks, while other requests
		// succeed. The page must show the failure.
		"a read that fails is shown even while other requests succeed": func(p *tab) {
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "old"}]}`})
			p.open("/nodes")
			p.sees("old", "live")
			p.set(map[string]any{"GET /nodes": `<html>`, "GET /status": `{"mode": "degraded"}`})
			p.tell(`{"seq": "1", "type": "NodeState", "node_id": "n"}`)
			p.sees("What you see is", "old")
			p.tell(`{"seq": "2", "type": "ModeChanged"}`)
			p.sees("The cluster is in mode degraded", "What you see is", "not live")
			p.set(map[string]any{"GET /nodes": `{"nodes": [{"node_id": "new"}]}`})
			p.tell(`{"seq": "3", "type": "NodeState", "node_id": "n"}`)
			p.sees("new", "not What you see is", "live")
		},
		"the overview shows the error when its events cannot be read": func(p *tab) {
			p.open("/")
			p.sees("Latest events")
			p.set(map[string]any{"GET /events": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !r.URL.Query().Has("follow") {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})})
			p.tell(`{"seq": "1", "type": "NodeState", "node_id": "n"}`)
			p.sees("the gateway answered 503. What you see is")
		},
		// Every page, and not only the overview, must show that the cluster's mode refuses changes, until the mode
		// ends.
		"every page shows a frozen mode until the mode ends": func(p *tab) {
			p.set(map[string]any{"GET /status": `{"mode": "degraded", "mode_reason": "etcd is away"}`})
			p.open("/events")
			p.sees("The cluster is in mode degraded")
			p.set(map[string]any{"GET /status": `{"mode": "normal"}`})
			p.tell(`{"seq": "1", "type": "ModeChanged"}`)
			p.sees("not The cluster is in mode degraded")
		},
		"the reason why logs cannot be read is shown": func(p *tab) {
			p.set(map[string]any{"GET /workloads/a": `{"workload": {"workload_id": "a", "status": "Running"}}`, "GET /workloads/a/logs": 503})
			p.open("/workloads/a")
			p.press("Logs")
			p.sees("refused with 503")
		},
		"the state above the tabs is read again on every tab": func(p *tab) {
			p.set(map[string]any{"GET /workloads/a": `{"workload": {"workload_id": "a", "status": "Running", "desired_state": "Running"}}`, "GET /workloads/a/logs": `data: {"data": "b25l"}`})
			p.open("/workloads/a")
			p.press("Logs")
			p.sees("Running")
			p.set(map[string]any{"GET /workloads/a": `{"workload": {"workload_id": "a", "status": "Failed", "desired_state": "Stopped"}}`})
			p.tell(`{"seq": "1", "type": "WorkloadState", "workload_id": "a"}`)
			p.sees("Failed", "Start")
		},
		// A gateway sends a comment on an event stream every 15 seconds. After a longer silence the page must treat
		// the connection as dead and open the stream again.
		"a stream that is silent for too long is opened again": func(p *tab) {
			var opened atomic.Int32
			p.set(map[string]any{"GET /events": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !r.URL.Query().Has("follow") {
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				if opened.Add(1) > 1 {
					_, _ = fmt.Fprint(w, "data: {\"seq\": \"1\", \"type\": \"NodeLost\"}\n\n")
				}
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})})
			p.do(chromedp.ActionFunc(func(ctx context.Context) error {
				_, err := page.AddScriptToEvaluateOnNewDocument(`{ const set = setTimeout; window.setTimeout = (f, ms) => set(f, ms > 30000 ? 1000 : ms); }`).Do(ctx)
				return err
			}))
			p.open("/events")
			p.sees("NodeLost")
		},
		// A node's page shows at most 500 workloads. If the node has more, the page must link to the full list.
		"a node's page links to the workloads that it does not show": func(p *tab) {
			p.set(map[string]any{
				"GET /nodes/n":   `{"node": {"node_id": "n", "status": "Ready", "workloads": 2}}`,
				"GET /workloads": `{"workloads": [{"workload_id": "first", "status": "Running"}], "next_page_token": "first"}`,
			})
			p.open("/nodes/n")
			p.press("All workloads of n")
			p.is(`document.getElementById("on-node")?.value`, "n")
		},
		"a job's page shows its result, its output and the runs of its group": func(p *tab) {
			job := `{"workload_id": "load-0", "kind": "job", "group": "load", "status": "Failed", "desired_state": "Running", "job_result": {"finished_at": "2026-11-27T03:00:09Z",
				"node_id": "n", "message": "all attempts failed", "exit": {"code": 7, "started_at": "2026-11-27T03:00:00Z", "ended_at": "2026-11-27T03:00:09Z", "output": "no such table\n<b>x</b>"}}}`
			p.set(map[string]any{
				"GET /workloads/load-0": `{"workload": ` + job + `}`,
				"GET /workloads":        `{"workloads": [` + job + `, {"workload_id": "load-1", "kind": "job", "group": "load", "status": "Stopped", "desired_state": "Running", "job_result": {"succeeded": true, "exit": {}}}]}`,
			})
			p.open("/workloads/load-0")
			p.sees("all attempts failed", "9.0 s", "no such table", "<b>x</b>", "1 of 2 have succeeded", "Run again", "not Retry")
			p.is(`[...document.querySelectorAll("tbody tr")].map((r) => [...r.cells].slice(0, 3).map((c) => c.textContent).join(" "))`, []string{"load-0 Failed 7", "load-1 Succeeded 0"})
		},
		// A job with completions makes a group of jobs, and no workload with its own id.
		"the id of a job with completions leads to the page of its group": func(p *tab) {
			p.set(map[string]any{
				"GET /workloads/load": 404,
				"GET /workloads":      `{"workloads": [{"workload_id": "load-0", "kind": "job", "group": "load", "status": "Running", "desired_state": "Running"}]}`,
			})
			p.open("/workloads/load")
			p.sees("Group load", "load-0")
			p.is(`location.hash`, "#/groups/load")
		},
		"a cron's page shows its times and its runs, and starts, suspends and resumes": func(p *tab) {
			cron := `{"workload": {"workload_id": "nightly", "kind": "cron", "status": "Running", "desired_state": %q, "template": {"cron": {"schedule": "30 2 * * *", "time_zone": "Asia/Tokyo",
				"concurrency": "forbid", "keep_succeeded": 3, "keep_failed": 1}, "next_run": "2100-01-01T17:30:00Z", "last_failure": "2026-11-27T02:30:09Z"}}}`
			p.set(map[string]any{
				"GET /workloads/nightly": fmt.Sprintf(cron, "Running"),
				"GET /workloads": `{"workloads": [{"workload_id": "nightly-b-20261128-0130", "owner": "nightly-b", "kind": "job", "status": "Running", "created_at": "2026-11-28T01:30:00Z"},
					{"workload_id": "nightly-20261127-0130", "owner": "nightly", "kind": "job", "status": "Failed", "desired_state": "Running", "scheduled_at": "2026-11-27T01:30:00Z", "created_at": "2026-11-27T01:30:01Z",
						"job_result": {"finished_at": "2026-11-27T01:30:09Z", "node_id": "n", "exit": {"code": 7, "started_at": "2026-11-27T01:30:01Z", "ended_at": "2026-11-27T01:30:09Z"}}},
					{"workload_id": "nightly-0a1b2c", "owner": "nightly", "kind": "job", "status": "Running", "created_at": "2026-11-28T09:00:00Z", "assigned_node_id": "n"}]}`,
				"POST /workloads/nightly/runs": p.body(`{"run_id": "nightly-ffff"}`, `{}`),
				"POST /workloads":              p.body(`{"success": true}`, `{"workload_id":"nightly","desired_state":"Stopped"}`),
			})
			p.do(emulation.SetTimezoneOverride("Etc/UTC"))
			p.open("/workloads/nightly")
			p.sees("30 2 * * *", "In Asia/Tokyo", "02 Jan, 02:30:00", "forbid", "3 that succeeded, 1 that failed", "nightly-0a1b2c", "not Retry", "not Restart", "not nightly-b-")
			p.is(`[...document.querySelectorAll("tbody tr")].map((r) => [r.cells[0], r.cells[1], r.cells[2], r.cells[6]].map((c) => c.textContent).join(" ").trim())`, []string{"nightly-0a1b2c Running", "nightly-20261127-0130 Failed 7 8.0 s"})
			p.is(`[...document.querySelectorAll("[role=tab]")].filter((b) => !b.hidden).map((b) => b.textContent).join()`, "State,Timeline,Revisions,Specification")
			p.press("Run now")
			p.sees("Run nightly-ffff is started")
			p.press("Suspend")
			p.sees("nightly is suspended")
			p.set(map[string]any{"GET /workloads/nightly": fmt.Sprintf(cron, "Stopped"), "POST /workloads": p.body(`{"success": true}`, `{"workload_id":"nightly","desired_state":"Running"}`)})
			p.tell(`{"seq": "1", "type": "WorkloadState", "workload_id": "nightly"}`)
			p.sees("Suspended")
			p.press("Resume")
			p.sees("nightly is resumed")
		},
		"a parameterized job is started with its parameters, which stay in the form": func(p *tab) {
			p.set(map[string]any{
				"GET /workloads/encode": `{"workload": {"workload_id": "encode", "kind": "job", "status": "Running", "desired_state": "Running", "template": {},
					"spec": {"kind": "job", "job": {"parameterized": {"parameters": [{"name": "file", "required": true}, {"name": "quality", "default": "23"}]}}}}}`,
				"POST /workloads/encode/runs": p.body(`{"run_id": "encode-1"}`, `{"parameters":{"file":"a.wav"},"input":"one","key":"order-17"}`),
			})
			p.open("/workloads/encode")
			p.sees("No run has been started", "not Suspend", "not Retry")
			p.press("Start a run") // the browser refuses the form: a required parameter is missing
			p.do(chromedp.SendKeys("#param-file", "a.wav"), chromedp.SendKeys("#run-input", "one"), chromedp.SendKeys("#run-key", "order-17"))
			p.set(map[string]any{"GET /workloads": `{"workloads": [{"workload_id": "encode-1", "owner": "encode", "kind": "job", "status": "Running", "created_at": "2026-11-27T01:30:00Z"}]}`})
			p.tell(`{"seq": "1", "type": "WorkloadState", "workload_id": "encode"}`)
			p.sees("encode-1")
			p.is(`document.activeElement.id + document.getElementById("param-file").value`, "run-keya.wav")
			p.press("Start a run")
			p.sees("Run encode-1 is started")
		},
		"a system workload's page shows its members": func(p *tab) {
			p.set(map[string]any{
				"GET /workloads/shipper": `{"workload": {"workload_id": "shipper", "kind": "system", "status": "Running", "desired_state": "Running"}}`,
				"GET /workloads": `{"workloads": [{"workload_id": "shipper-n2", "owner": "shipper", "kind": "system", "group": "shipper", "status": "Pending", "desired_state": "Running", "message": "no room"},
					{"workload_id": "shipper-n1", "owner": "shipper", "kind": "system", "group": "shipper", "status": "Running", "desired_state": "Running", "assigned_node_id": "n1"}]}`,
			})
			p.open("/workloads/shipper")
			p.sees("1 of 2 run", "no room", "not Restart", "not Scale …", "Stop")
			p.is(`[...document.querySelectorAll("tbody tr")].map((r) => [r.cells[0], r.cells[1], r.cells[2]].map((c) => c.textContent).join(" "))`, []string{"shipper-n1 Running n1", "shipper-n2 Pending none"})
		},
		"a delete names the data that goes and the data that stays, and keeps volumes unless the user says otherwise": func(p *tab) {
			plan := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked, _ := io.ReadAll(r.Body)
				data := `"deleted_data": ["disk vda on n1", "volume db on n1"]`
				if strings.Contains(string(asked), `"keep_volumes":true`) {
					data = `"deleted_data": ["disk vda on n1"], "kept_data": ["volume db on n1"]`
				}
				_, _ = fmt.Fprintf(w, `{"workloads": [{"workload_id": "web", "action": "delete", %s}]}`, data)
			})
			var asked atomic.Value
			gone := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Store(r.URL.RawQuery)
				_, _ = fmt.Fprint(w, `{"success": true}`)
			})
			p.set(map[string]any{
				"GET /workloads/web": `{"workload": {"workload_id": "web", "status": "Running", "desired_state": "Running"}}`,
				"POST /plan":         plan, "DELETE /workloads/web": gone,
			})
			p.do(page.BringToFront()) // a dialog in a hidden tab does not close
			for _, volumes := range []bool{false, true} {
				p.open("/workloads/web")
				p.press("Delete …")
				p.sees("web deletes disk vda on n1", "web keeps volume db on n1")
				want := "keep_volumes=true"
				if volumes {
					want = ""
					p.do(chromedp.Click(`dialog input[type="checkbox"]`))
					p.sees("web deletes disk vda on n1, volume db on n1", "not keeps")
				}
				asked.Store("no request")
				p.press("Delete")
				testbed.Within(p.t, patience, "the request of the page", func() error {
					if got := asked.Load(); got != want {
						return fmt.Errorf("the page sent the parameters %q, want %q", got, want)
					}
					return nil
				})
				p.sees("web is being deleted.")
			}
		},
		"the console names the members that scaling down would delete": func(p *tab) {
			member := `{"workload_id": "web-%d", "group": "web", "status": "Running", "desired_state": "Running", "revision_number": "2", "spec": {"update": {"max_parallel": 1}}}`
			p.set(map[string]any{
				"GET /workloads/web-0":   `{"workload": ` + fmt.Sprintf(member, 0) + `}`,
				"GET /workloads":         fmt.Sprintf(`{"workloads": [`+member+`, `+member+`, `+member+`]}`, 0, 10, 2),
				"POST /groups/web/scale": p.body(`{}`, `{"count":1}`),
				"GET /rollouts/web":      `{"group": "web", "phase": "Paused", "reason": "web-2 is unhealthy", "can_undo": true, "members": [{"workload_id": "web-2", "state": "Updating"}]}`,
				"POST /rollouts/web":     p.body(`{}`, `{"action":"resume"}`),
			})
			p.do(page.BringToFront()) // a dialog in a hidden tab does not close
			p.open("/workloads/web-0")
			p.press("Scale …")
			p.sees("3 of 3 run", "web-2 is unhealthy", "Updating")
			p.is(`document.getElementById("count").value + [...document.querySelectorAll("tbody tr")].map((r) => r.cells[0].textContent)`, "3web-0,web-2,web-10")
			p.do(chromedp.SetValue("#count", "1"))
			p.press("Scale")
			p.sees("Scale web from 3 to 1?")
			p.is(`[...document.querySelectorAll("dialog li")].map((e) => e.textContent).join()`, "web-2,web-10")
			p.press("Scale down")
			p.sees("web gets 1 member.")
			p.press("Resume")
			p.sees("The update goes on")
			p.set(map[string]any{"POST /rollouts/web": p.body(`{}`, `{"action":"undo"}`)})
			p.press("Undo …")
			p.press("Undo")
			p.sees("The update is undone")
			p.set(map[string]any{
				"GET /workloads":       fmt.Sprintf(`{"workloads": [`+member+`, {"workload_id": "web-1", "group": "web", "surge": true, "revision_id": "r2", "status": "Running", "desired_state": "Running"}]}`, 0),
				"GET /workloads/web-0": `{"workload": {"workload_id": "web-0", "group": "web", "revision_number": "1", "spec": {}}}`, // the update has changed only the extra member
				"GET /rollouts/web": `{"group": "web", "phase": "AwaitPromotion", "reason": "waits for its promotion", "can_undo": true, "update": {"order": "start-first", "canary": 1},
					"members": [{"workload_id": "web-0", "state": "Waiting"}, {"workload_id": "web-1", "state": "Updated", "surge": true, "canary": true}]}`,
				"POST /rollouts/web": p.body(`{}`, `{"action":"promote"}`),
			})
			p.open("/nodes")
			p.open("/groups/web")
			p.sees("AwaitPromotion", "start-first", "Updated, extra, canary", "not Undo")
			p.is(`document.getElementById("count").value`, "1") // an extra member is not counted
			p.press("Promote")
			p.sees("The update goes on")
			p.set(map[string]any{"POST /rollouts/web": p.body(`{}`, `{"action":"abort"}`)})
			p.press("Abort …")
			p.press("Abort")
			p.sees("The update goes back")
		},
		// The schedulers would refuse these changes from a user who may only read, so the console hides their buttons.
		"a user who may only read sees no buttons for changes": func(p *tab) {
			member := `{"workload_id": "web-0", "group": "web", "status": "Running", "desired_state": "Running"}`
			p.set(map[string]any{
				"GET /access":                    `{"grants": [{"role": "viewer", "permissions": ["read"], "everywhere": true}]}`,
				"GET /workloads/web-0":           `{"workload": ` + member + `}`,
				"GET /workloads":                 `{"workloads": [` + member + `]}`,
				"GET /workloads/encode":          `{"workload": {"workload_id": "encode", "kind": "job", "status": "Running", "desired_state": "Running", "template": {}, "spec": {"job": {"parameterized": {}}}}}`,
				"GET /workloads/web-0/revisions": `{"revisions": [{"number": "2", "present": true}, {"number": "1"}]}`,
			})
			p.open("/workloads/web-0")
			p.sees("Identity", "Logs", "not Stop", "not Retry", "not Restart", "not Delete …", "not Scale", "not Exec")
			p.press("Revisions")
			p.sees("2 (now)", "not Roll back")
			p.set(map[string]any{"GET /nodes/n": `{"node": {"node_id": "n", "status": "NotReady"}}`})
			p.open("/nodes/n")
			p.sees("Reserved and used", "not Cordon", "not Drain", "not Fence")
			p.open("/groups/web")
			p.sees("1 of 1 run", "not Scale")
			p.open("/workloads/encode")
			p.sees("No run has been started", "not Start a run")
		},
		"a member of one namespace sees the buttons of that namespace": func(p *tab) {
			p.set(map[string]any{
				"GET /access":          `{"grants": [{"role": "operator", "permissions": ["read", "deploy"], "namespaces": ["shop"]}]}`,
				"GET /networks":        `{"networks": [{"name": "back", "namespace": "shop"}, {"name": "side", "namespace": "default"}]}`,
				"GET /objects/secret":  `{"objects": [{"kind": "secret", "name": "key", "namespace": "default", "versions": [{"number": 1}]}]}`,
				"GET /objects/config":  `{}`,
				"GET /workloads/web-0": `{"workload": {"workload_id": "web-0", "namespace": "shop", "status": "Running", "desired_state": "Running"}}`,
			})
			p.open("/networks")
			p.sees("back", "side", "New network …")
			p.is(`[...document.querySelectorAll("tbody tr")].map((r) => r.cells[0].textContent + "|" + r.cells[7].textContent).join()`, "back|Delete …,side|")
			p.open("/secrets")
			p.sees("key", "New secret …", "not New version …", "not Delete …")
			p.open("/workloads/web-0")
			p.sees("Stop", "Delete …")
		},
		// When the data of a page is read again, its elements are replaced. The button that had the keyboard focus
		// must have it again afterwards.
		"the focus stays on its button when the page is read again": func(p *tab) {
			p.set(map[string]any{"GET /nodes/n": `{"node": {"node_id": "n", "status": "Ready"}}`})
			p.open("/nodes/n")
			p.sees("Drain …")
			p.do(chromedp.Evaluate(`[...document.querySelectorAll("button")].find((b) => b.textContent === "Drain …").focus()`, nil))
			p.set(map[string]any{"GET /nodes/n": `{"node": {"node_id": "n", "status": "NotReady"}}`})
			p.tell(`{"seq": "1", "type": "NodeState", "node_id": "n"}`)
			p.sees("Fence …")
			p.is(`document.activeElement.textContent`, "Drain …")
		},
		"the focus stays in its row when the page is read again": func(p *tab) {
			list := `{"workloads": [{"workload_id": "a", "status": "Running", "assigned_node_id": "n"}, {"workload_id": "b", "status": %q, "assigned_node_id": "n"}]}`
			p.set(map[string]any{"GET /workloads": fmt.Sprintf(list, "Running")})
			p.open("/workloads")
			p.sees("2 workloads")
			p.do(chromedp.Evaluate(`document.querySelectorAll(".row")[1].querySelector("a[href='#/nodes/n']").focus()`, nil))
			p.set(map[string]any{"GET /workloads": fmt.Sprintf(list, "Updating")})
			p.tell(`{"seq": "1", "type": "WorkloadState", "workload_id": "b"}`)
			p.is(`document.querySelectorAll(".row")[1].textContent.includes("Updating")`, true)
			p.is(`document.activeElement.closest(".row")?.firstElementChild.textContent`, "b")
		},
	}
}
