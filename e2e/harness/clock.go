package harness

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"
)

// The functions of this file give a program a wrong clock without a change to its code. It is stopped after
// the kernel has loaded it. Go reads the time from clock_gettime in the program's copy of the vDSO. This
// function is replaced by code that makes the system call and adds the offset to CLOCK_REALTIME. Timers and
// durations use other clocks and stay correct. (faketime does the same by LD_PRELOAD, which static Go
// programs ignore.)

// CanShiftClock returns the reason why Process.Clock does not work here, or nil.
func CanShiftClock() error {
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		return fmt.Errorf("the clock of a program can be shifted on linux/amd64 only, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	return nil
}

// shiftClock shifts the clock of a program that SysProcAttr.Ptrace has stopped at its
// start, and resumes the program. Call it on the thread that started the program.
func shiftClock(pid int, by time.Duration) error {
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || !ws.Stopped() {
		return fmt.Errorf("the program did not stop at its start: %v, status %#x", err, uint32(ws))
	}
	return errors.Join(patchClock(pid, by), syscall.PtraceDetach(pid))
}

func patchClock(pid int, by time.Duration) error {
	seconds := by / time.Second
	if seconds != time.Duration(int32(seconds)) {
		return fmt.Errorf("the clock cannot be shifted by %s", by)
	}
	base, err := vdsoBase(pid)
	if err != nil {
		return err
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	image := make([]byte, 4*os.Getpagesize())
	n, err := mem.ReadAt(image, int64(base))
	if n < os.Getpagesize() {
		return fmt.Errorf("reading the vDSO: %w", err)
	}
	f, err := elf.NewFile(bytes.NewReader(image[:n]))
	if err != nil {
		return fmt.Errorf("vDSO: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("vDSO: %w", err)
	}
	code := []byte{
		0xb8, 0xe4, 0, 0, 0, // mov eax, 228 (clock_gettime)
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi (CLOCK_REALTIME is 0)
		0x75, 0x07, // jne over the addition
		0x48, 0x81, 0x06, // add qword [rsi], …
	}
	code = binary.LittleEndian.AppendUint32(code, uint32(int32(seconds)))
	code = append(code, 0xc3) // ret
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		if s.Size < uint64(len(code)) {
			return fmt.Errorf("clock_gettime of this kernel's vDSO has %d bytes, but the new code needs %d", s.Size, len(code))
		}
		_, err := mem.WriteAt(code, int64(base+s.Value))
		return err
	}
	return errors.New("this kernel's vDSO has no clock_gettime")
}

// vdsoBase returns the address of the vDSO in a program.
func vdsoBase(pid int) (uint64, error) {
	const atSysinfoEhdr = 33
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0, err
	}
	r := bytes.NewReader(raw)
	for {
		var pair [2]uint64
		if err := binary.Read(r, binary.LittleEndian, &pair); errors.Is(err, io.EOF) {
			return 0, errors.New("this kernel gives programs no vDSO")
		} else if err != nil {
			return 0, err
		}
		if pair[0] == atSysinfoEhdr {
			return pair[1], nil
		}
	}
}
