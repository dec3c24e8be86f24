//go:build !linux

package arpsnoop

import (
	"errors"
	"io"
)

func listenARP() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
