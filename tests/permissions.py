"""Children that are bound by permissions, as root is not."""

import contextlib
import ctypes
import os
from collections.abc import Callable


def obey_permissions() -> None:
    """Give up root's right to read and write everything, for this process and for good."""
    version = (ctypes.c_uint32 * 2)(0x20080522, 0)  # of this process
    nothing = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities
    assert ctypes.CDLL(None).capset(version, nothing) == 0


def run_bound(work: Callable[[], int]) -> tuple[int, str]:
    """The exit code and the errors of some work in a child that is bound by permissions."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 99
        try:
            obey_permissions()
            with os.fdopen(write, "w") as told, contextlib.redirect_stderr(told):
                code = work()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text
