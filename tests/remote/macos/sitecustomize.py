"""Make Python believe that it runs on macOS, in tests that put this directory on PYTHONPATH.

What only Linux has is removed from the standard library, as its documentation says ("Availability:
Linux").
"""

from __future__ import annotations

import fcntl
import os
import platform
import select
import signal
import socket
import sys
from types import ModuleType

_LINUX_NAMES: dict[ModuleType, str] = {
    fcntl: "F_ADD_SEALS F_GETPIPE_SZ F_OFD_SETLK F_SETPIPE_SZ",
    os: "O_DIRECT O_NOATIME O_PATH O_TMPFILE XATTR_CREATE XATTR_REPLACE copy_file_range eventfd "
    "getresgid getresuid getxattr listxattr memfd_create pidfd_open pipe2 posix_fadvise "
    "posix_fallocate removexattr sched_getaffinity sched_setaffinity sched_setscheduler setns "
    "setresgid setresuid setxattr splice unshare",
    select: "epoll",
    signal: "SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK AF_PACKET AF_VSOCK MSG_CMSG_CLOEXEC SCM_CREDENTIALS SOCK_CLOEXEC "
    "SOCK_NONBLOCK SO_PEERCRED TCP_KEEPIDLE",
}

for module, names in _LINUX_NAMES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
setattr(sys, "platform", "darwin")  # noqa: B010 (to a type checker it is a constant)
setattr(platform, "system", lambda: "Darwin")  # noqa: B010
setattr(platform, "libc_ver", lambda: ("", ""))  # noqa: B010
