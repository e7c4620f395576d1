"""What a machine does to any line of code: limits that are reached, disks that fail, names that cannot be."""

from __future__ import annotations

import errno
import os
import resource
import traceback
from typing import Final

from xectool.errors import DiskError, OutOfMemory, UsageError, WorldError, XecError, in_shell
from xectool.errors.compiler_place import no_compiler_place

_ENOUGH_FILES: Final = 4096
# A file system that fails, mostly one of another machine; what is absent or forbidden has been said where it was asked.
_FAILING: Final = (errno.EIO, errno.ESTALE, errno.EROFS, errno.ETIMEDOUT, errno.EREMOTEIO)


def failure_of_machine(error: Exception) -> XecError | None:
    """Return what to say of an error that nobody foresaw where it arose, None where it is a defect of ours."""
    for look in (_damaged_byte_code, _bad_name, _no_compiler_cache, _failing_disk, _reached_limit, _no_memory):
        if (found := look(error)) is not None:
            return found
    return None


def _damaged_byte_code(error: Exception) -> DiskError | None:
    """Return what to say where Python stumbled over its own byte code: it keeps what a full disk cut short."""
    last = list(traceback.walk_tb(error.__traceback__))[-1][0]
    if last.f_code.co_name != "_compile_bytecode" or "bytecode_path" not in last.f_locals:
        return None
    path = str(last.f_locals["bytecode_path"])
    problem = f"the byte code that Python keeps of {last.f_locals['name']} is damaged ({error})"
    fix = f"a disk was full when it was written; remove it, Python writes it anew: rm {in_shell(path)}"
    return DiskError(problem, where=path, fix=fix)


def _bad_name(error: Exception) -> UsageError | None:
    """Return what to say of a name that no file can have, or that begins with nobody's home, wherever it was given."""
    if isinstance(error, RuntimeError) and "determine home directory" in str(error):
        problem = "a path begins with ~ and the name of a user who has no home directory here"
        return UsageError(
            problem, where="command line or configuration", fix="ls -d ~   # yours; or give the whole path"
        )
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None
    size = len(os.fsencode(os.path.basename(str(error.filename or ""))))
    problem = f"no file can have a name of {size} bytes: a name has 255 at most, a whole path 4095"
    return UsageError(problem, where=f"{str(error.filename or 'a name')[:60]}…", fix="ls   # and give a shorter name")


def _no_compiler_cache(error: Exception) -> DiskError | None:
    """Return what to say where torch's compiler has no place to write: every optimizer loads it."""
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
    if not isinstance(error, OSError) or "torch._inductor.runtime.cache_dir_utils" not in modules:
        return None
    return no_compiler_place(error)


def _failing_disk(error: Exception) -> DiskError | None:
    """Return what to say of a disk that is full, mostly that of the file stdout goes to, or that fails."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = str(error.filename or "stdout, or a file of the command")
        return DiskError(
            f"what was to be written finds no room: {error.strerror}", where=where, fix="df -h   # free space"
        )
    if error.errno in _FAILING and isinstance(error.filename, str):  # without a file it is a connection or a terminal
        look = f"ls -la {in_shell(os.path.dirname(error.filename) or '.')}   # does it answer?"
        return DiskError(f"the file system fails: {error.strerror}", where=error.filename, fix=look)
    return None


def _reached_limit(error: Exception) -> WorldError | None:
    """Return what to say where no more files may be opened, or no more processes and threads be started."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENFILE:
        problem = "no more files, sockets and pipes can be opened: all processes together have what this machine allows"
        look = "cat /proc/sys/fs/file-nr   # open, free, and the most: an administrator may raise fs.file-max"
        return WorldError(problem, where="fs.file-max", fix=look, code="XT-ENV-FILES")
    if number == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
        return WorldError(
            f"no more files, sockets and pipes can be opened: this process may have {soft}",
            where="ulimit -n",
            fix=f"ulimit -n {most}" if most > soft else "ulimit -Hn   # the most an administrator gives: ask for more",
            code="XT-ENV-FILES",
        )
    if (number == errno.EAGAIN and _was_starting(error)) or "can't start new thread" in str(error):
        allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limit = "" if allowed == resource.RLIM_INFINITY else f", of which this user may have {allowed}"
        return WorldError(
            f"no more processes or threads can be started{limit}: {error}",
            where="ulimit -u",
            fix="export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1   # and --set data.num_workers=0",
            code="XT-ENV-PROCESSES",
        )
    return None


def _was_starting(error: Exception) -> bool:
    """Return whether a process was being started: a stream that does not wait gives the same error number."""
    modules = {str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)}
    return any(name.partition(".")[0] in ("subprocess", "multiprocessing", "threading") for name in modules)


def _no_memory(error: Exception) -> OutOfMemory | None:
    """Return what to say where the system refuses memory."""
    if not isinstance(error, MemoryError) and not (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limit = "" if soft == resource.RLIM_INFINITY else f"; ulimit -v allows {soft / 1e9:.3g} GB of addresses"
    return OutOfMemory(
        f"the host gives no more memory: {str(error) or type(error).__name__}{limit}",
        where="host memory",
        fix="xectool diagnose environment   # what this process may take",
        code="XT-OOM-HOST",
    )
