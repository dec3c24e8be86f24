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
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/e2e/harness"
)

// audit holds a page to rules of accessibility; it returns what breaks one.
//
//go:embed testdata/audit.js
var audit string

// dev runs `persys dev` with simulated workloads and returns the address of its
// first scheduler, of its gateway, and its folder.
func dev(t *testing.T) (grpc, http, dir string) {
	t.Helper()
	dir = t.TempDir()
	p := &harness.Process{
		Name: "persys dev", Path: faces(t).Dev, Args: []string{"dev", "--simulate", "--port", "0", "--http-port", "0"},
		Env: append(os.Environ(), "TMPDIR="+dir), Log: filepath.Join(dir, "dev.log"),
	}
	must(t, p.Start())
	t.Cleanup(func() {
		if err := p.Terminate(endsWithin); err != nil {
			t.Errorf("stopping persys dev: %v", err)
		}
		for _, a := range p.Alarms() {
			t.Errorf("persys dev is broken: %s", a)
		}
	})
	addrs := regexp.MustCompile(`http://(\S+)/ in a browser[\s\S]*PERSYS_SCHEDULER_ADDR=(\S+)`)
	must(t, harness.Poll(t.Context(), settle, "persys dev to be up", func(context.Context) error {
		m := addrs.FindStringSubmatch(p.Tail(200))
		if m == nil {
			return fmt.Errorf("it says:\n%s", p.Tail(5))
		}
		http, grpc = m[1], m[2]
		return nil
	}))
	return grpc, http, dir
}

// browser opens a real one.
func browser(t *testing.T) *page {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("chromium is needed: %v (hack/install-test-deps.sh)", err)
		}
		t.Skipf("SKIPPED, NOTHING TESTED: chromium is needed: %v", err)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(settle))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(format string, args ...any) {
		if !strings.HasPrefix(format, "unhandled node event") { // newer than the library
			t.Logf(format, args...)
		}
	}))
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("closing the browser: %v", err)
		}
		cancel()
	})
	must(t, chromedp.Run(ctx)) // the browser lives as long as the context of the first run
	p := &page{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, p.listen)
	p.do(network.Enable(), log.Enable(), runtime.Enable())
	return p
}

// page is a tab, and all that went wrong in it.
type page struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string
	bytes  float64 // transferred
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

// clean fails the test for what went wrong since the last time.
func (p *page) clean(where string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		p.t.Errorf("%s: the browser's console says: %s", where, f)
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

// sees waits until the text is in the page's main part.
func (p *page) sees(want ...string) {
	p.t.Helper()
	var text string
	err := harness.Poll(p.ctx, settle, "the page to show "+strings.Join(want, ", "), func(ctx context.Context) error {
		if err := chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &text)); err != nil {
			return err
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is not in it", w)
			}
		}
		return nil
	})
	if err != nil {
		p.shot("failed")
		p.t.Fatalf("%v; it shows:\n%s", err, text)
	}
}

// press clicks a button or link by its text, in the open dialog if there is one.
func (p *page) press(name string) {
	p.t.Helper()
	script := fmt.Sprintf(`(() => { const root = document.querySelector("dialog[open]") || document;
		const el = [...root.querySelectorAll("button, a")].find((b) => b.textContent.trim() === %q && !b.disabled);
		if (el) el.click(); return !!el; })()`, name)
	must(p.t, harness.Poll(p.ctx, settle, "a button "+name, func(ctx context.Context) error {
		var found bool
		if err := chromedp.Run(ctx, chromedp.Evaluate(script, &found)); err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("there is none")
		}
		return nil
	}))
}

// shot keeps a picture in artifacts.
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

// accessible holds what is shown to the rules, in light and in dark.
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

// stray makes something run on the engine of `persys dev` that nobody asked for.
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

// TestConsole goes through every page of the console in a real browser, does
// every action, and looks at the results from outside.
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

	open("/", "of 4 run", "1 of 1 ready", "huge", "leader", "Latest events", "WorkloadState")
	t.Logf("the first view took %.0f KiB over the wire", p.bytes/1024)
	if p.bytes > 100*1024 {
		t.Errorf("the first view took %.0f bytes, at most 100 KiB are wanted", p.bytes)
	}
	seen("overview")

	open("/nodes", "dev-1", "Ready")
	seen("nodes")
	p.press("Map")
	p.sees("dev-1")
	seen("nodes-map")
	p.press("List")
	open("/nodes/dev-1", "Reserved against capacity", "web-0")
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
	must(t, harness.Poll(p.ctx, settle, "the search to narrow the list", func(ctx context.Context) error {
		var rows int
		if err := chromedp.Run(ctx, chromedp.Evaluate(`document.querySelectorAll(".row").length`, &rows)); err != nil || rows != 1 {
			return fmt.Errorf("%d rows: %v", rows, err)
		}
		return nil
	}))

	open("/workloads/web-0", "Running", "nginx:1.27", "Attempts")
	seen("workload")
	for tab, want := range map[string]string{"Timeline": "WorkloadCreated", "Placement": "here", "Logs": "", "Specification": `"image": "nginx:1.27"`} {
		p.press(tab)
		p.sees(want)
		seen("workload-" + strings.ToLower(tab))
	}
	open("/workloads/huge", "Pending")
	p.press("Placement")
	p.sees("CPU", "No node takes it.")
	seen("placement")
	open("/workloads/web-1", "Running")
	p.press("Stop")
	p.sees("web-1 stops.", "Stopped")
	p.press("Start")
	p.sees("web-1 starts.")
	p.press("Retry")
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
	p.faults = slices.DeleteFunc(p.faults, func(f string) bool { return strings.Contains(f, "400") }) // the browser logs every 400
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

	open("/drifts", "stray", "runs there and is not known here", "operator investigation")
	seen("drifts")
	p.press("Delete …")
	p.sees("Delete stray on dev-1?")
	p.press("Delete")
	p.sees("Every machine has what was asked for.")
	open("/audit", "anonymous")
	seen("audit")
	open("/events", "WorkloadCreated")
	ctl("", "delete", "huge")
	p.sees("WorkloadDeleted") // live: nobody asked for the page again
	seen("events")

	// A phone, and keys alone.
	p.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	for path, want := range map[string]string{"/": "Needs attention", "/workloads": "web-0", "/nodes": "dev-1", "/workloads/web-0": "Attempts"} {
		open(path, want)
		var wide bool
		p.do(chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth + 1`, &wide))
		if wide {
			t.Errorf("%s is wider than a phone", path)
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

// TestConsoleIsHonest: what is shown is said to be old.
func TestConsoleIsHonest(t *testing.T) {
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
