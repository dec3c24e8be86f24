package libvirt

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

// maxConsoleLine is the maximum length of a line in bytes. A longer line is split, because a guest may never write a
// line end.
const maxConsoleLine = 64 << 10

// copyConsole writes the lines of the file in which virtlogd stores the output of a guest's serial port.
// With Follow it also writes the lines that are added later, until the function over reports that the
// guest has ended. The file contains no times, so existing lines get the modification time of the file,
// and followed lines the time of their arrival.
func copyConsole(ctx context.Context, file string, options driver.LogOptions, over func(context.Context) (bool, error), w io.Writer) error {
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	emit := func(line []byte, at time.Time) error {
		line = bytes.TrimRight(line, "\r\n")
		if options.Seen != nil {
			options.Seen(at)
		}
		if options.Timestamps {
			line = append([]byte(at.UTC().Format(time.RFC3339Nano)+" "), line...)
		}
		_, err := w.Write(append(slices.Clip(line), '\n'))
		return err
	}
	var err error
	f, err = os.Open(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskfile.Failed(err)
	}
	var offset int64
	var partial []byte
	if f != nil {
		info, err := f.Stat()
		if err != nil {
			return diskfile.Failed(err)
		}
		last := info.ModTime()
		lines, rest, n, err := readLines(f, options.Tail)
		if err != nil {
			return diskfile.Failed(err)
		}
		offset = n
		if options.Since.IsZero() || !last.Before(options.Since) {
			for _, l := range lines {
				if err := emit(l, last); err != nil {
					return err
				}
			}
			partial = rest
		}
	}
	flush := func() error {
		if len(partial) == 0 {
			return nil
		}
		return emit(partial, time.Now())
	}
	if !options.Follow {
		return flush()
	}
	buf := make([]byte, 32<<10)
	for {
		// Call over before reading the file: what the guest wrote before its end is then in the file, and no
		// output is missed.
		ended, err := over(ctx)
		if err != nil {
			return err
		}
		if f == nil {
			f, _ = os.Open(file)
		}
		for f != nil {
			n, err := f.ReadAt(buf, offset)
			offset += int64(n)
			partial = append(partial, buf[:n]...)
			for {
				i := bytes.IndexByte(partial, '\n')
				if i < 0 && len(partial) > maxConsoleLine {
					i = maxConsoleLine - 1
				}
				if i < 0 {
					break
				}
				if err := emit(partial[:i+1], time.Now()); err != nil {
					return err
				}
				partial = partial[i+1:]
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return diskfile.Failed(err)
			}
		}
		if f != nil && rotated(f, file, offset) {
			f.Close()
			f, offset = nil, 0
			continue
		}
		if ended {
			return flush()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return flush()
		}
	}
}

// rotated reports whether virtlogd has moved the open file f away and started a new file at path, or has
// truncated f.
func rotated(f *os.File, path string, offset int64) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	was, err := f.Stat()
	return err == nil && (!os.SameFile(was, now) || now.Size() < offset)
}

// readLines returns the last lines of a file (as many as tail says, all if tail ≤ 0), the unfinished line after
// them, and the offset up to which it read.
func readLines(f *os.File, tail int) (lines [][]byte, rest []byte, offset int64, err error) {
	in := bufio.NewReaderSize(f, maxConsoleLine)
	for {
		line, err := in.ReadSlice('\n')
		offset += int64(len(line))
		if errors.Is(err, io.EOF) {
			return lines, bytes.Clone(line), offset, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, nil, 0, err
		}
		lines = append(lines, bytes.Clone(line))
		if tail > 0 && len(lines) > tail {
			lines = lines[1:]
		}
	}
}
