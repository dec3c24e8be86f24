package libvirt

import "errors"

func isAbsent(err error) bool { return errors.Is(err, errAbsent) }
