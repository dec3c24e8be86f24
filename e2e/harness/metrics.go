package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxMetrics bounds the bytes of /metrics that are read.
const maxMetrics = 8 << 20

// Metrics returns the text of /metrics at addr (host:port).
func Metrics(ctx context.Context, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("http://%s/metrics: %s", addr, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	return string(text), err
}

// Metric returns the sum of the samples at addr (host:port) whose name and labels begin with series: a
// name ("up"), a name and its first labels (`up{job="x"`), or a whole series (`up{job="x"}`). It returns an
// error if there is no such sample.
func Metric(ctx context.Context, addr, series string) (float64, error) {
	text, err := Metrics(ctx, addr)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, series)
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], " {,}") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:]), 64)
		if err != nil {
			return 0, fmt.Errorf("http://%s/metrics: %q: %w", addr, line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("http://%s/metrics has no %s", addr, series)
	}
	return sum, nil
}
