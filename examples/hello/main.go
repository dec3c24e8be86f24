// Command hello is the small web server that the demo and the quick start deploy. Its page shows the name
// of the container, so a user sees when the workload moves.
package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Hello from Persys</title>
<style>body{font:1.1rem/1.6 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .3em;border-radius:.2em}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}</style>
</head><body><h1>Hello from Persys</h1>
<p>%s</p><p>Answered by <code>%s</code>, up for %s.</p></body></html>
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	greeting := os.Getenv("GREETING")
	if greeting == "" {
		greeting = "This page is served by a container that survives its schedulers."
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	began := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("GET %q", r.URL.RequestURI()) // for persysctl logs -f
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, page, html.EscapeString(greeting), html.EscapeString(host), time.Since(began).Round(time.Second))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	lis, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	log.Printf("hello listens on %s", lis.Addr())
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // a secret or config with on_change: signal SIGHUP has changed
	defer signal.Stop(hangup)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	for ctx.Err() == nil {
		select {
		case err := <-done:
			return err
		case <-hangup:
			log.Print("SIGHUP: a program would read its files again now")
		case <-ctx.Done():
		}
	}
	stop, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		return err
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
