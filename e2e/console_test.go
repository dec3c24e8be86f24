package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// audit checks a page against accessibility rules and returns the violations.
//
//go:embed testdata/audit.js
var audit string

// dev runs persys dev with simulated workloads. It returns the addresses of the first scheduler and
// of the gateway, and the folder.
func dev(t *testing.T) (grpc, http, dir string) {
	t.Helper()
	dir = t.TempDir()
	p := &harness.Process{
		Name: "persys dev", Path: raced(t).Dev, Args: []string{"dev", "--simulate", "--port", "0", "--http-port", "0"},
		Env: append(os.Environ(), "TMPDIR="+dir), Log: filepath.Join(dir, "dev.log"),
	}
	must(t, p.Start())
	t.Cleanup(func() {
		if err := p.Terminate(endsWithin); err != nil {
			t.Errorf("stopping persys dev: %v", err)
		}
		for _, a := range p.Alarms() {
			t.Errorf("the log of persys dev has a panic or a data race: %s", a)
		}
	})
	addrs := regexp.MustCompile(`http://(\S+)/ in a browser[\s\S]*PERSYS_SCHEDULER_ADDR=(\S+)`)
	must(t, testbed.Poll(t.Context(), settle, "persys dev to be up", func(context.Context) error {
		m := addrs.FindStringSubmatch(p.Tail(200))
		if m == nil {
			return fmt.Errorf("persys dev has printed:\n%s", p.Tail(5))
		}
		http, grpc = m[1], m[2]
		return nil
	}))
	return grpc, http, dir
}

// browser opens a page in a real browser.
func browser(t *testing.T) *page {
	t.Helper()
	path := testbed.Program(t, "chromium")
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.WindowSize(1440, 900), chromedp.WSURLReadTimeout(2*settle))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(format string, args ...any) {
		if !strings.HasPrefix(format, "unhandled node event") { // the library reports events of newer browsers as errors
			t.Logf(format, args...)
		}
	}))
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("closing the browser: %v", err)
		}
		cancel()
	})
	must(t, chromedp.Run(ctx)) // the browser runs as long as the context of the first Run
	p := &page{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, p.listen)
	p.do(network.Enable(), log.Enable(), runtime.Enable())
	return p
}

// page is a tab of the browser, with the errors that its scripts and requests have caused.
type page struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string
	bytes  float64 // number of transferred bytes
}

func (p *page) listen(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		p.faults = append(p.faults, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			p.faults = append(p.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			p.faults = append(p.faults, fmt.Sprintf("console.%s %v", e.Type, e.Args))
		}
	case *network.EventLoadingFinished:
		p.bytes += e.EncodedDataLength
	}
}

// clean fails the test if the page has caused errors since the last call: exceptions in its scripts, or
// failed requests.
func (p *page) clean(where string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		p.t.Errorf("%s: the browser reported an error of the page: %s", where, f)
	}
	p.faults = nil
}

func (p *page) do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, settle)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.shot("failed")
		p.t.Fatal(err)
	}
}

// sees waits until the main part of the page contains the texts.
func (p *page) sees(want ...string) {
	p.t.Helper()
	var text string
	err := testbed.Poll(p.ctx, settle, "the page to show "+strings.Join(want, ", "), func(ctx context.Context) error {
		if err := chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &text)); err != nil {
			return err
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("the page does not show %q", w)
			}
		}
		return nil
	})
	if err != nil {
		p.shot("failed")
		p.t.Fatalf("%v; the page shows:\n%s", err, text)
	}
}

// press clicks a button or link by its text, in the open dialog if there is one.
func (p *page) press(name string) {
	p.t.Helper()
	script := fmt.Sprintf(`(() => { const root = document.querySelector("dialog[open]") || document;
		const el = [...root.querySelectorAll("button, a")].find((b) => b.textContent.trim() === %q && !b.disabled && !b.hidden);
		if (el) el.click(); return !!el; })()`, name)
	must(p.t, testbed.Poll(p.ctx, settle, "a button "+name, func(ctx context.Context) error {
		var found bool
		if err := chromedp.Run(ctx, chromedp.Evaluate(script, &found)); err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("the page lacks the button or link")
		}
		return nil
	}))
}

// shot writes a screenshot into artifacts.
func (p *page) shot(name string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, settle)
	defer cancel()
	var png []byte
	if err := chromedp.Run(ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
		p.t.Errorf("screenshot %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(artifacts(p.t), name+".png"), png, 0o644); err != nil {
		p.t.Error(err)
	}
}

// accessible checks the page against the accessibility rules, in the light and the dark theme.
func (p *page) accessible(where string) {
	p.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		var broken []string
		p.do(chromedp.Evaluate(fmt.Sprintf(`document.documentElement.dataset.theme = %q`, theme), nil), chromedp.Evaluate(audit, &broken))
		for _, b := range broken {
			p.t.Errorf("%s, %s: %s", where, theme, b)
		}
	}
	p.do(chromedp.Evaluate(`delete document.documentElement.dataset.theme`, nil))
}

// stray starts a container on the simulated engine of persys dev for which the cluster has no workload (an
// orphan).
func stray(t *testing.T, dir, status string) {
	t.Helper()
	var st struct {
		ClusterID string `json:"cluster_id"`
	}
	must(t, json.Unmarshal([]byte(status), &st))
	found, err := filepath.Glob(filepath.Join(dir, "persys-dev-*", "engine"))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("engines of persys dev: %v, want one", found)
	}
	engine, err := sim.NewEngine(sim.Options{Dir: found[0]})
	must(t, err)
	must(t, engine.Driver(driver.Identity{ClusterID: st.ClusterID, NodeID: "dev-1"}).Ensure(t.Context(), driver.Spec{
		ID: "stray", Content: "c1:stray", ClusterID: st.ClusterID, NodeID: "dev-1", Running: true,
		Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{Image: "sim/stray"}}},
	}))
}

// TestConsole opens every page of the console in a real browser, carries out every action, and checks the
// results with persysctl.
func TestConsole(t *testing.T) {
	p := browser(t)
	grpc, http, dir := dev(t)
	ctl := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), shipped(t).Ctl, args...)
		cmd.Env = append(os.Environ(), "PERSYS_SCHEDULER_ADDR="+grpc, "PERSYS_INSECURE=true")
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("persysctl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	ctl("id: web\ncount: 3\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.27\"}\n---\nid: huge\nresources: {cpu: 900, memory: 1Gi}\ncontainer: {image: \"nginx:1.27\"}\n", "apply", "-f", "-")
	stray(t, dir, ctl("", "status", "-o", "json"))
	open := func(path string, want ...string) {
		t.Helper()
		p.do(chromedp.Navigate("http://"+http+"/ui/#"+path), chromedp.Evaluate(`window.scrollTo(0, 0)`, nil))
		p.sees(want...)
	}
	seen := func(name string) {
		t.Helper()
		p.accessible(name)
		p.shot(name)
		p.clean(name)
	}

	open("/", "of 4 run", "1 of 1 ready", "huge", "leader", "Latest events", "WorkloadState", "in use", "reserved of")
	t.Logf("the first view took %.0f KiB over the wire", p.bytes/1024)
	if p.bytes > 100*1024 {
		t.Errorf("the first view took %.0f bytes, want at most 100 KiB", p.bytes)
	}
	seen("overview")

	open("/nodes", "dev-1", "Ready")
	seen("nodes")
	p.press("Map")
	p.sees("dev-1")
	seen("nodes-map")
	p.press("List")
	open("/nodes/dev-1", "Reserved and used against capacity", "in use", "web-0")
	var lines int
	p.do(chromedp.Evaluate(`document.querySelectorAll(".spark .used").length`, &lines))
	if lines < 2 {
		t.Errorf("%d charts on the page of a node, want at least CPU and memory", lines)
	}
	p.press("Cordon")
	p.sees("cordoned", "dev-1 takes no new workloads.")
	p.press("Uncordon")
	p.sees("dev-1 takes workloads again.")
	p.press("Drain …")
	p.sees("Drain dev-1?", "nowhere")
	seen("drain-preview")
	p.press("Cancel")
	seen("node")

	open("/workloads", "web-0", "huge")
	seen("workloads")
	p.do(chromedp.SendKeys("#search", "hug"))
	must(t, testbed.Poll(p.ctx, settle, "the search to narrow the list", func(ctx context.Context) error {
		var rows int
		if err := chromedp.Run(ctx, chromedp.Evaluate(`document.querySelectorAll(".row").length`, &rows)); err != nil || rows != 1 {
			return fmt.Errorf("the list has %d rows as elements (%v)", rows, err)
		}
		return nil
	}))

	open("/workloads/web-0", "Running", "nginx:1.27", "Identity")
	seen("workload")
	for tab, want := range map[string]string{"Timeline": "WorkloadCreated", "Placement": "here", "Logs": "", "Specification": `"image": "nginx:1.27"`} {
		p.press(tab)
		p.sees(want)
		seen("workload-" + strings.ToLower(tab))
	}
	execSession(t, p, ctl, open, seen)
	open("/workloads/huge", "Pending")
	p.press("Placement")
	p.sees("CPU", "No node takes it.")
	seen("placement")
	p.press("Retry")
	p.sees("huge is tried again.")
	open("/workloads/web-1", "Running")
	p.press("Stop")
	p.sees("web-1 stops.", "Stopped")
	p.press("Start")
	p.sees("web-1 starts.")
	p.press("Delete …")
	p.sees("Delete web-1?")
	p.press("Delete")
	p.sees("web-1 is being deleted.")
	p.clean("actions")

	open("/deploy", "Specification")
	write := func(text string) {
		p.do(chromedp.SetValue("#spec", text), chromedp.Evaluate(`document.getElementById("spec").dispatchEvent(new Event("input"))`, nil))
	}
	write("id: new\ncontaner: {image: x}\n")
	p.press("Show the plan")
	p.sees("Nothing has been changed", `did you mean "container"?`)
	p.faults = slices.DeleteFunc(p.faults, func(f string) bool { return strings.Contains(f, "400") }) // the browser logs every answer with status 400
	seen("deploy-mistake")
	write("id: new\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.28\"}\n---\nid: web\ncount: 2\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.28\"}\n")
	p.press("Show the plan")
	p.sees("create", "replace", "container.image", "nginx:1.27 → nginx:1.28", "delete")
	seen("deploy-plan")
	p.press("Apply")
	p.sees("Apply this plan?", "delete web-2")
	p.press("Apply")
	p.sees("Done")
	seen("deploy-progress")
	if out := ctl("", "get", "new"); !strings.Contains(out, "Running") {
		t.Errorf("the workload does not run:\n%s", out)
	}

	// On the page for new workloads, choose a Compose file from the disk, give the stack a name, look at the
	// plan and confirm it.
	file := filepath.Join(t.TempDir(), "compose.yaml")
	must(t, os.WriteFile(file, []byte("services:\n  web: {image: \"nginx:1.27\"}\n  db: {image: \"postgres:17\", environment: {POSTGRES_PASSWORD: swordfish}}\n"), 0o644))
	open("/deploy", "Specification")
	p.do(chromedp.SetUploadFiles("input[type=file]", []string{file}))
	p.sees("Name of the stack")
	p.press("Show the plan")
	p.sees("Nothing has been changed", "name")
	p.faults = slices.DeleteFunc(p.faults, func(f string) bool { return strings.Contains(f, "400") })
	p.do(chromedp.SendKeys("#stack", "shop"))
	p.press("Show the plan")
	p.sees("The plan", "shop", "create", "dev-1", "Placement of shop, node by node")
	seen("deploy-compose")
	p.press("Apply")
	p.sees("Done")
	if out := ctl("", "get", "shop"); !strings.Contains(out, "compose") || !strings.Contains(out, "Running") || strings.Contains(out, "swordfish") {
		t.Errorf("the stack does not run:\n%s", out)
	}

	open("/workloads/new", "Running")
	second := "id: new\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.29\", env: {PASSWORD: hidden}}\n"
	ctl(second, "apply", "--wait", "-f", "-")
	p.press("Revisions")
	p.sees("2 (now)", "container.image", "nginx:1.28", "nginx:1.29", "***")
	seen("workload-revisions")
	p.press("Roll back …")
	p.sees("Roll new back to revision 1?", "nginx:1.28")
	p.press("Roll back")
	p.sees("Revision 1 of new is applied again.", "3 (now)")
	if out := ctl("", "get", "new"); !strings.Contains(out, "nginx:1.28") {
		t.Errorf("the workload was not rolled back:\n%s", out)
	}
	if out := ctl("", "diff", "new", "--revision", "1..2"); !strings.Contains(out, "nginx:1.29") || strings.Contains(out, "hidden") {
		t.Errorf("persysctl diff says:\n%s", out)
	}

	jobsAndGroups(t, p, ctl, open, seen)

	open("/drifts", "stray", "runs there, but the schedulers have no such workload", "operator investigation")
	seen("drifts")
	p.press("Delete …")
	p.sees("Delete stray on dev-1?")
	p.press("Delete")
	p.sees("Every machine has what was asked for.")
	open("/audit", "Workload, node, person or text", "anonymous") // the frame around the pages shows the caller too
	seen("audit")
	sharedPages(p, open, seen)
	open("/events", "WorkloadCreated")
	ctl("", "delete", "huge")
	p.sees("WorkloadDeleted") // the event appears although the page was not reloaded
	seen("events")

	open("/nodes/dev-1", "Received", "at most")
	p.press("Day")
	p.sees("Received", "at most")
	seen("node-usage")

	// Give the window the size of a phone, and check the pages. After that, use the console with the keyboard
	// only.
	p.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	for path, want := range map[string]string{"/": "Needs attention", "/workloads": "web-0", "/nodes": "dev-1", "/workloads/web-0": "Identity",
		"/workloads/nightly": "Next run", "/workloads/encode": "Start a run", "/workloads/shipper": "1 of 1 run", "/groups/load": "Group load", "/groups/web": "Members", "/nodes/dev-1": "Received",
		"/namespaces": "default", "/networks": "New network …", "/secrets": "New secret …", "/volumes": "There is no volume.", "/policies": "baseline"} {
		open(path, want)
		var wide bool
		p.do(chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth + 1
			|| [...document.querySelectorAll(".stack")].some((e) => e.scrollWidth > e.clientWidth + 1)`, &wide))
		if wide {
			t.Errorf("page %s is wider than a phone", path)
		}
		seen("phone" + strings.ReplaceAll(path, "/", "-"))
	}
	p.do(emulation.ClearDeviceMetricsOverride())
	open("/", "Overview")
	p.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("w"))
	p.sees("Id, group or image")
	p.do(chromedp.KeyEvent("/"))
	var focused string
	p.do(chromedp.Evaluate(`document.activeElement.id`, &focused))
	if focused != "search" {
		t.Errorf("after / the focus is on %q, want the search", focused)
	}
	p.clean("keys")
}

// sharedPages creates, changes and deletes namespaces, networks, secrets, configs, volumes and policies, each
// on its page of the console.
func sharedPages(p *page, open func(string, ...string), seen func(string)) {
	p.t.Helper()
	fill := func(id, text string) { p.t.Helper(); p.do(chromedp.SetValue("#"+id, text)) }
	open("/namespaces", "default", "New namespace …")
	p.press("New namespace …")
	p.sees("Create")
	fill("namespace-name", "shop")
	fill("quota-cpu", "4000")
	seen("namespace-new")
	p.press("Create")
	p.sees("shop is created.", "0 of 4 cores")
	seen("namespaces")
	remove := `[...document.querySelectorAll("tr")].find((r) => r.textContent.startsWith("shop")).querySelector("button.danger").click()`
	p.do(chromedp.Evaluate(remove, nil))
	p.sees("Type shop to confirm")
	p.press("Delete")
	p.sees("Nothing was deleted")
	p.do(chromedp.Evaluate(remove, nil))
	p.sees("Type shop to confirm")
	fill("typed-name", "shop")
	p.press("Delete")
	p.sees("shop is deleted.")

	open("/networks", "There is no network yet.")
	p.press("New network …")
	fill("network-name", "back")
	p.press("Create")
	p.sees("back is created.", "10.216.0.0/20")
	seen("networks")
	p.press("Delete …")
	p.sees("Delete network back?")
	p.press("Delete")
	p.sees("back is deleted.", "There is no network yet.")

	open("/secrets", "There is no secret and no config yet.")
	p.press("New secret …")
	fill("object-name", "db")
	fill("object-value", "c4nary-one")
	p.press("Create")
	p.sees("db has version 1.")
	p.press("New version …")
	p.sees("New version of secret db")
	fill("object-value", "c4nary-two")
	p.press("Put")
	p.sees("db has version 2.", "version 2")
	p.press("Roll back …")
	p.sees("Roll back secret db")
	p.press("Roll back")
	p.sees("db has version 3.")
	p.press("New config …")
	fill("object-name", "site")
	fill("object-value", "c4nary-three")
	p.press("Create")
	p.sees("site has version 1.")
	p.do(chromedp.Evaluate(`document.querySelectorAll("details").forEach((d) => d.open = true)`, nil))
	p.sees("the value of version 1")
	seen("secrets")
	var shown string
	if p.do(chromedp.Evaluate(`document.documentElement.innerHTML`, &shown)); strings.Contains(shown, "c4nary") {
		p.t.Error("the page of secrets shows a value")
	}
	for _, name := range []string{"db", "site"} {
		p.do(chromedp.Evaluate(`[...document.querySelectorAll("tr")].find((r) => r.textContent.startsWith("`+name+`")).querySelector("button.danger").click()`, nil))
		p.sees("Type " + name + " to confirm")
		fill("typed-name", name)
		p.press("Delete")
		p.sees(name + " is deleted.")
	}

	open("/volumes", "There is no volume.")
	seen("volumes")
	open("/policies", "baseline", "restricted", "What it allows")
	seen("policies")
}

// terminalCases run in the browser: each writes text to a terminal of 10 columns and compares the screen.
const terminalCases = `import("./term.js").then(({ Screen, bytesOf }) => {
	const bad = [];
	const text = (s) => [...s.past, ...s.grid].map((r) => r.map((c) => c.ch).join("").trimEnd()).join("|").replace(/\|+$/, "");
	for (const [fact, rows, input, want] of [
		["lines", 3, ["a\r\nb"], "a|b"], ["what scrolls off is kept", 2, ["a\r\nb\r\nc"], "a|b|c"], ["a long line goes on below", 3, ["0123456789x"], "0123456789|x"],
		["a full line waits for more", 3, ["0123456789\r\nd"], "0123456789|d"], ["backspace and erase", 3, ["abc\b\b\x1b[KX"], "aX"], ["the cursor", 3, ["\x1b[2;3Hx\x1b[1;1Hy"], "y|  x"],
		["a sequence in pieces", 3, ["a\x1b", "[", "1;5", "Hb"], "a   b"], ["a title is not shown", 3, ["\x1b]0;tit", "le\x07x"], "x"], ["a title without an end", 3, ["\x1b]0;tit\x1b[1mle"], "le"], ["colours", 3, ["\x1b[1;31mred\x1b[38;5;200m\x1b[0m"], "red"],
		["the alternate screen, and back", 3, ["one\x1b[?1049hfull\x1b[?1049l!"], "one!"], ["inserting and deleting", 3, ["abcd\x1b[1;2H\x1b[2P\x1b[@x"], "axd"],
		["a region scrolls", 4, ["1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\nx"], "1|3|x|4"], ["inserting lines", 3, ["a\r\nb\x1b[1;1H\x1b[L"], "|a|b"], ["erasing all", 3, ["abc\r\ndef\x1b[2J\x1b[Hx"], "x"],
	]) { const s = new Screen(10, rows); input.forEach((i) => s.write(i)); if (text(s) !== want) bad.push(fact + ": " + text(s) + ", want " + want); }
	let said = "";
	new Screen(10, 3, (x) => { said += x; }).write("ab\x1b[6n");
	for (const [fact, got, want] of [["the report of the cursor's position", said, "\x1b[1;3R"], ["Ctrl+C", bytesOf({ key: "c", ctrlKey: true }), "\x03"], ["up", bytesOf({ key: "ArrowUp" }, true), "\x1bOA"],
		["a letter, which the hidden text field handles", bytesOf({ key: "x" }), ""], ["Ctrl+Shift+C, which the browser handles", bytesOf({ key: "C", ctrlKey: true, shiftKey: true }), ""], ["Alt+b", bytesOf({ key: "b", altKey: true }), "\x1bb"]])
		if (got !== want) bad.push(fact + ": " + JSON.stringify(got));
	const cell = (s) => { const c = new Screen(10, 3); c.write(s); return c.grid[0][0].at; };
	for (const [fact, got, want] of [["one of 256 colours", cell("\x1b[1;38;5;196;48;5;236mx"), "b c#ff0000 k#303030"], ["a true colour", cell("\x1b[38;2;1;2;255mx"), "c#0102ff"],
		["a bright background", cell("\x1b[101mx"), "k#b3423a"], ["the default colours", cell("\x1b[31;41m\x1b[39;49mx"), ""]])
		if (got !== want) bad.push(fact + ": " + JSON.stringify(got));
	return bad;
})`

// execSession runs a command in web-1 from its page, with only the keyboard, and leaves the page.
func execSession(t *testing.T, p *page, ctl func(string, ...string) string, open func(string, ...string), seen func(string)) {
	t.Helper()
	var bad []string
	p.do(chromedp.Evaluate(terminalCases, &bad, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	for _, b := range bad {
		t.Errorf("a test of the terminal failed: %s", b)
	}
	shows := func(want string) {
		t.Helper()
		var text string
		must(t, testbed.Poll(p.ctx, settle, "the terminal to show "+want, func(ctx context.Context) error {
			if err := chromedp.Run(ctx, chromedp.Evaluate(`document.querySelector(".term-view")?.innerText || ""`, &text)); err != nil || !strings.Contains(text, want) {
				return fmt.Errorf("the terminal shows %q: %v", text, err)
			}
			return nil
		}))
	}
	keys := func(text string) { t.Helper(); p.do(chromedp.KeyEvent(text)) }
	open("/workloads/web-1", "Running")
	p.press("Exec")
	p.sees("No session is open.")
	p.do(chromedp.Focus("#exec-command"), chromedp.KeyEvent("\r"))
	p.sees("Open on dev-1")
	keys("echo one 'two'\recho wrong\b\b\b\bright\rsize\r")
	shows("wright")
	seen("workload-exec")
	keys("exit 3\r")
	p.sees("The command ended with exit code 3.")
	// A held Enter key sends further line ends after the one that starts the command. They must not start the
	// command again.
	keys("\r\r")
	p.sees("The command ended with exit code 3.")
	p.do(chromedp.SetValue("#exec-command", "echo 'unfinished"))
	p.press("Run")
	p.sees("a quote ' is not closed")
	p.do(chromedp.SetValue("#exec-command", "no-such-program"))
	p.press("Run")
	p.sees("The command ended with exit code 127.")
	p.press("Console")
	p.sees("Open on dev-1")
	shows("sim: console of web-1")
	// Press Ctrl+], which moves the keyboard focus out of the terminal. Then leave the page, which must end the
	// session.
	p.do(chromedp.KeyEvent("]", chromedp.KeyModifiers(input.ModifierCtrl)))
	var focused string
	p.do(chromedp.Evaluate(`document.activeElement.textContent`, &focused))
	if focused != "End session" {
		t.Errorf("after Ctrl+] the focus is on %q, want the button that ends the session", focused)
	}
	open("/workloads", "web-0")
	must(t, testbed.Poll(t.Context(), settle, "a record of the end of every session", func(context.Context) error {
		out := ctl("", "audit", "--tail", "0", "-o", "json")
		if n, m := strings.Count(out, "SessionOpened"), strings.Count(out, "SessionClosed"); n < 3 || n != m || !strings.Contains(out, "the caller disconnected") {
			return fmt.Errorf("the audit has %d opened and %d closed sessions:\n%s", n, m, out)
		}
		return nil
	}))
}

// jobsAndGroups uses the pages of a cron, a parameterized job, a job, a system workload and a group.
func jobsAndGroups(t *testing.T, p *page, ctl func(string, ...string) string, open func(string, ...string), seen func(string)) {
	t.Helper()
	ctl(`id: nightly
kind: cron
cron: {schedule: "30 2 1 1 *", time_zone: Europe/Berlin, concurrency: forbid}
container: {image: sim/exit}
---
id: encode
kind: job
job: {parameterized: {parameters: [{name: file, required: true}, {name: quality, default: "23"}]}}
container: {image: sim/exit}
---
id: load
kind: job
job: {completions: 2, parallelism: 1, retries: 0}
container: {image: "sim/crash:3"}
---
id: shipper
kind: system
resources: {cpu: 10m, memory: 16Mi}
container: {image: "nginx:1.27"}
`, "apply", "-f", "-")
	says := func(want string, args ...string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, want, func(context.Context) error {
			if out := ctl("", args...); !strings.Contains(out, want) {
				return fmt.Errorf("persysctl %v says:\n%s", args, out)
			}
			return nil
		}))
	}
	open("/workloads/nightly", "30 2 1 1 *", "In Europe/Berlin", "No run has been started")
	p.press("Run now")
	p.sees("is started.") // the message disappears after some seconds, so it is not waited for together with the end of the run
	p.sees("by hand", "Succeeded", "Last success")
	says("by hand", "cron", "history", "nightly")
	p.press("Suspend")
	p.sees("nightly is suspended", "Suspended")
	says("Suspended", "cron", "list")
	seen("cron")
	p.press("Resume")
	p.sees("nightly is resumed")
	says("Running", "cron", "list")
	p.press("Logs")
	p.sees("The job has ended")
	seen("run-logs")

	open("/workloads/encode", "Start a run", "No run has been started")
	p.do(chromedp.SendKeys("#param-file", "a.wav"), chromedp.SendKeys("#run-input", "notes"), chromedp.SendKeys("#run-key", "order-17"))
	p.press("Start a run")
	p.sees("is started.")
	p.sees("Succeeded")
	p.press("Start a run")
	p.sees("The key has started encode-")
	seen("dispatch")
	if n := strings.Count(ctl("", "cron", "history", "encode"), "encode-"); n != 1 {
		t.Errorf("%d runs of encode, want one, because both had the same key", n)
	}

	open("/workloads/load-0", "Runs of load", "Failed", "0 of 2 have succeeded")
	seen("job")
	open("/workloads/shipper", "1 of 1 run", "shipper-dev-1")
	seen("system")
	p.press("Placement")
	p.sees("one member on each of 1 of 1 nodes")
	p.clean("system workload")

	open("/workloads/web-0", "Running")
	p.press("Scale …")
	p.sees("Group web", "2 of 2 run")
	scale := func(to string) { t.Helper(); p.do(chromedp.SetValue("#count", to)); p.press("Scale") }
	scale("3")
	p.sees("web gets 3 members.", "3 of 3 run", "web-2")
	seen("group")
	scale("1")
	p.sees("Scale web from 3 to 1?", "These members are deleted")
	seen("group-scale")
	p.press("Scale down")
	p.sees("web gets 1 member.", "1 of 1 run")
	if out := ctl("", "list", "--group", "web"); strings.Contains(out, "web-1") {
		t.Errorf("the group was not scaled:\n%s", out)
	}
	const web = "id: web\ncount: 2\nresources: {cpu: 100m, memory: 64Mi}\n"
	ctl(web+"container: {image: \"nginx:1.28\"}\n", "apply", "--wait", "-f", "-")
	ctl(web+"container: {image: \"nginx:1.30\"}\nupdate: {min_healthy_time: 1h, healthy_deadline: 2h}\n", "apply", "-f", "-")
	p.sees("Waiting", "At a time")
	p.press("Pause")
	p.sees("The update is paused.", "Paused")
	seen("group-update")
	p.press("Resume")
	p.sees("The update goes on.")
	p.press("Undo …")
	p.sees("Undo the update of web?")
	p.press("Undo")
	p.sees("The update is undone.")
	p.clean("group")
}

// TestConsoleShowsThatThereIsNoLeader: without a leader, the console says that its data is old.
func TestConsoleShowsThatThereIsNoLeader(t *testing.T) {
	p := browser(t)
	dir := t.TempDir()
	c := start(t, harness.Options{Binaries: shipped(t), Dir: dir, Schedulers: 3})
	g := gatewayOf(t, c)
	p.do(chromedp.Navigate("http://" + g + "/ui/"))
	p.sees("Overview", "0 of 0 ready")
	lead, err := c.WaitLeader(t.Context(), settle)
	must(t, err)
	left := 0
	for i, s := range c.Schedulers {
		if i == lead || left == 1 {
			continue
		}
		must(t, s.Kill())
		left++
	}
	must(t, c.Schedulers[lead].Kill())
	p.sees("There is no leader")
	p.shot("no-quorum")
}
