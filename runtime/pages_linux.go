package runtime

import "golang.org/x/sys/unix"

func adviseLarge(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
