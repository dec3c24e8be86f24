// Command lanes runs the end-to-end tests of package e2e. Most of them wait for leases, elections and
// retries, so several run at the same time:
//
//	go run ./e2e/lanes                 all tests but those of the lane "full"
//	go run ./e2e/lanes -full           all tests (make test-full)
//	go run ./e2e/lanes -run TestVault  the tests whose name matches
//
// It builds the programs and the test binary once. A test is one process. By default the process gets a
// network namespace of its own, so that ports of two tests never clash. Tests that stop no program share one
// cluster in one process (lane "shared"). The file lanes.txt names the tests that need another lane, each with
// its reason.
//
// Without the right to make network namespaces, which takes root, all tests run one after another in
// the network of the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/persys/compute/testbed"
)

func main() {
	opt := options{}
	flag.BoolVar(&opt.full, "full", false, `run the tests of the lane "full" too`)
	flag.IntVar(&opt.workers, "workers", 0, "number of tests that run at the same time in namespaces of their own (default: the number of CPUs, from 2 to 8)")
	match := flag.String("run", "", "regular expression: run only tests whose name matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if opt.match, err = regexp.Compile(*match); err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q: name tests with -run", flag.Arg(0))
	}
	if err == nil {
		err = run(ctx, opt)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanes:", err)
		os.Exit(1)
	}
}

type options struct {
	full    bool
	workers int
	match   *regexp.Regexp
}

func run(ctx context.Context, opt options) (err error) {
	root, err := testbed.Root(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "persys-e2e-builds-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	binary, err := build(ctx, root, dir, opt.full)
	if err != nil {
		return err
	}
	fmt.Printf("e2e: built the programs and the tests in %s\n", seconds(time.Since(began)))

	names, err := list(ctx, binary)
	if err != nil {
		return err
	}
	rules, err := readRules(filepath.Join(root, "e2e", "lanes.txt"), names)
	if err != nil {
		return err
	}
	r := &runner{binary: binary, dir: filepath.Join(root, "e2e"), builds: dir, namespaces: canUnshare(ctx), out: os.Stdout}
	p := arrange(names, rules, opt)
	if !r.namespaces {
		fmt.Println("e2e: this process may not make network namespaces (that takes root): the tests run one after another in the network of this machine")
		p = p.inOrder()
	}
	for _, name := range p.left {
		fmt.Printf("e2e: %s is left to make test-full: %s\n", name, rules[name].reason)
	}
	return r.all(ctx, p, opt.workers)
}
