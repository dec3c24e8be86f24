package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

const firstViews = 5

// consoleFirstView opens the console's list of 10,000 workloads in a browser with an empty cache. It
// measures the bytes until the list is shown and a search among all workloads has its result.
func consoleFirstView(ctx context.Context, e *env) (result, error) {
	path, err := exec.LookPath(string(chromium))
	if err != nil {
		return result{}, err
	}
	return withGateway(ctx, e, func(g *group, addr string) (result, error) {
		if err := g.tenThousand(ctx); err != nil {
			return result{}, err
		}
		var kib []float64
		var shown, usable []time.Duration
		for range firstViews {
			v, err := firstView(ctx, path, "http://"+addr+"/ui/#/workloads")
			if err != nil {
				return result{}, err
			}
			kib, shown, usable = append(kib, float64(v.bytes)/1024), append(shown, v.shown), append(usable, v.usable)
		}
		slices.Sort(kib)
		return result{ours: kib[len(kib)/2], unit: "KiB", goal: 100, lower: true,
			note: fmt.Sprintf("median of %d new browsers: rows after %s, the result of a search among all 10,000 after %s", firstViews, ms(median(shown)), ms(median(usable)))}, nil
	})
}

type view struct {
	bytes         int64 // bytes received until the page can be used, headers included
	shown, usable time.Duration
}

func firstView(ctx context.Context, path, url string) (view, error) {
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(time.Minute))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	alloc, stop := chromedp.NewExecAllocator(ctx, opts...)
	defer stop()
	tab, closeTab := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {}))
	defer closeTab()
	var mu sync.Mutex
	var v view
	chromedp.ListenTarget(tab, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		// The page's stream of events never finishes, so its bytes are counted as they arrive and not at the end of
		// the response.
		switch ev := ev.(type) {
		case *network.EventDataReceived:
			v.bytes += ev.EncodedDataLength
		case *network.EventResponseReceived:
			v.bytes += int64(ev.Response.EncodedDataLength) // add the bytes of the headers
		}
	})
	if err := chromedp.Run(tab, network.Enable(), network.SetCacheDisabled(true)); err != nil {
		return v, err
	}
	began := time.Now()
	if err := chromedp.Run(tab, chromedp.Navigate(url), chromedp.WaitVisible(".row", chromedp.ByQuery)); err != nil {
		return v, err
	}
	shown := time.Since(began)
	if err := chromedp.Run(tab, chromedp.SendKeys("#search", "w-09877"),
		chromedp.Poll(`document.querySelectorAll(".row").length === 1 && document.querySelector(".row").innerText.includes("w-09877")`, nil, chromedp.WithPollingTimeout(time.Minute))); err != nil {
		return v, fmt.Errorf("the page did not show the result of a search among 10,000 workloads: %w", err)
	}
	mu.Lock()
	defer mu.Unlock()
	v.shown, v.usable = shown, time.Since(began)
	return v, nil
}
