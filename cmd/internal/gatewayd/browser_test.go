package gatewayd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/persys/compute/testbed"
)

// TestLoginInABrowser signs in and out of the console in a real browser, which applies the rules of cookies.
func TestLoginInABrowser(t *testing.T) {
	// The test needs a network namespace of its own: the browser fails to load a page (ERR_NETWORK_CHANGED) when other
	// tests add networks to the machine.
	if !testbed.OwnNetwork(t) {
		return
	}
	w, _ := startLoginWorldOf(t, startScheduler)
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(testbed.Program(t, "chromium")),
		chromedp.Flag("ignore-certificate-errors", true), chromedp.WSURLReadTimeout(time.Minute))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	defer stop()
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // the library reports events of newer Chromium versions as errors; drop them
	defer cancel()
	if err := chromedp.Run(ctx); err != nil { // the browser runs as long as the context of this first run
		t.Fatal(err)
	}
	do := func(actions ...chromedp.Action) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return chromedp.Run(ctx, actions...)
	}
	sees := func(script, want string) {
		t.Helper()
		testbed.Within(t, 20*time.Second, script, func() error {
			var got string
			if err := do(chromedp.Evaluate(`String(`+script+`)`, &got)); err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("the script returned %q, want %q", got, want)
			}
			return nil
		})
	}
	press := func(button string) {
		t.Helper()
		sees(fmt.Sprintf(`(() => { const el = [...document.querySelectorAll("main button, header button")].find((b) => b.textContent === %q && b.offsetParent); if (el) el.click(); return !!el; })()`, button), "true")
	}
	if err := do(chromedp.Navigate(w.api + "/ui/#/nodes")); err != nil {
		t.Fatal(err)
	}
	sees(`document.querySelector("h1")?.textContent`, "You are not signed in")
	press("Sign in")
	sees(`document.getElementById("user")?.textContent`, "ada.l")
	sees(`location.href`, w.api+"/ui/#/nodes")
	sees(`document.querySelector("h1")?.textContent`, "Nodes")
	// A script in the page must be able to read neither the token nor a cookie.
	var kept string
	if err := do(chromedp.Evaluate(`document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage) + location.href`, &kept)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(kept, "eyJ") || strings.Contains(kept, "persys-session") {
		t.Errorf("scripts of the page can read the token or cookie in %s", kept)
	}
	// The session continues after the page is reloaded, and the gateway accepts a change from the console's page.
	if err := do(chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	sees(`document.getElementById("user")?.textContent`, "ada.l")
	if err := do(chromedp.Evaluate(`window.changed = ""; fetch("../v1/mode", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"mode":"normal","reason":"x"}'}).then((r) => { window.changed = r.status; }); ""`, nil)); err != nil {
		t.Fatal(err)
	}
	sees(`window.changed`, "200")
	press("Sign out")
	sees(`document.querySelector("h1")?.textContent`, "You are not signed in")
	sees(`document.getElementById("sign-out").hidden`, "true")

	// A one-time link signs in the user who made it. Its code is then neither in the address bar nor in the
	// history of the browser.
	code, _ := w.link("user/olga")
	if err := do(chromedp.Navigate("about:blank"), chromedp.Navigate(w.api+"/ui/#/link/"+code)); err != nil {
		t.Fatal(err)
	}
	sees(`document.getElementById("user")?.textContent`, "olga")
	sees(`location.href`, w.api+"/ui/#/")
	press("olga")
	sees(`document.querySelector("dialog td")?.textContent`, "operator")
	press("Sign out")
	sees(`document.querySelector("h1")?.textContent`, "You are not signed in")
	if err := do(chromedp.Navigate(w.api + "/ui/#/link/" + code)); err != nil {
		t.Fatal(err)
	}
	sees(`document.getElementById("toasts")?.textContent.includes("ended")`, "true")
}
