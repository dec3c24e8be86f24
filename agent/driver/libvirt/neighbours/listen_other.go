//go:build !linux

package neighbours

import (
	"errors"
	"io"
)

func listenARP() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
