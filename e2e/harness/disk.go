package harness

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed disk.sh
var diskScript string

const (
	diskMiB = 512
	// ThawLimit is the longest time for which a Disk stays frozen; then it is thawed, even if the test does
	// nothing. A limit is needed, because a program that is writing to a frozen file system cannot end, not even
	// by SIGKILL.
	ThawLimit = 60 * time.Second
)

// Disk is an ext4 file system in a file. It can be frozen, and then writes and syncs hang. A separate process mounts
// it, thaws it when it was frozen for ThawLimit, and thaws and unmounts it when the test process dies. The methods are
// safe for concurrent use.
type Disk struct {
	Dir string // path where the disk is mounted

	mu      sync.Mutex
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan struct{} // receives a value for each answer to a request; closed when the process ends
	log     string
	open    bool
}

// CanOpenDisk returns an error that names a prerequisite of OpenDisk that this machine lacks.
func CanOpenDisk() error {
	if os.Geteuid() != 0 {
		return errors.New("mounting a file system needs root")
	}
	_, err := os.Stat("/dev/loop-control")
	return err
}

// OpenDisk makes a file system and mounts it in dir/disk. It needs root, loop devices, mkfs.ext4 and fsfreeze.
func OpenDisk(dir string) (*Disk, error) { return openDisk(dir, ThawLimit) }

func openDisk(dir string, limit time.Duration) (*Disk, error) {
	d := &Disk{Dir: filepath.Join(dir, "disk"), log: filepath.Join(dir, "disk.log"), answers: make(chan struct{}), open: true}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = exec.Command("bash", "-euc", diskScript, "bash", filepath.Join(dir, "disk.img"), d.Dir, strconv.Itoa(diskMiB), strconv.Itoa(int(limit/time.Second)))
	d.cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	d.cmd.Stderr = log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the process gets a session of its own, because it must outlive this process
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	d.in = in
	go func() {
		defer close(d.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d.answers <- struct{}{}
		}
	}()
	if err := d.answer(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// answer waits until the process that holds the mount has carried out the last request. It returns an error
// if that process has ended, or does not answer in time.
func (d *Disk) answer() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	select {
	case _, ok := <-d.answers:
		if ok {
			return nil
		}
		text, _ := os.ReadFile(d.log)
		return fmt.Errorf("the file system at %s: %s", d.Dir, strings.TrimSpace(string(text)))
	case <-ctx.Done():
		return fmt.Errorf("the file system at %s: no answer", d.Dir)
	}
}

func (d *Disk) ask(word string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return fmt.Errorf("%s: the file system at %s is closed", word, d.Dir)
	}
	if _, err := io.WriteString(d.in, word+"\n"); err != nil {
		return fmt.Errorf("%s the file system at %s: %w", word, d.Dir, err)
	}
	return d.answer()
}

// Freeze makes writes and syncs hang, for ThawLimit at most. Reads still work.
func (d *Disk) Freeze() error { return d.ask("freeze") }

// Thaw ends Freeze. It does nothing if the file system is not frozen.
func (d *Disk) Thaw() error { return d.ask("thaw") }

// Close thaws and unmounts the file system. It may be called more than once.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return nil
	}
	d.open = false
	err := d.in.Close()
	for range d.answers { // the channel is closed when the process has ended
	}
	return errors.Join(err, d.cmd.Wait())
}
