"""What a submission's process may not do, and how it is held to that. Runs inside that process, before the submission.

Three layers, each where the system has it; `Confinement` says which took hold:

- limits (POSIX): memory, CPU time, size and number of open files, core dumps;
- namespaces (Linux, where users may make them): no network, no other process in sight, all files read-only but the
  working folder, which is a small one in memory, and the exercises' folder, which is empty;
- forbidden system calls (Linux on x86-64 and ARM64): starting processes or programs, opening connections, signals to
  others, raising the limits. A fork bomb is over at its first fork.

Windows and macOS lack the last two, and Windows the first: there the judge's clock is what ends a submission.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

if sys.platform != "win32":
    import resource

_WORK_BYTES = 32 << 20
"""What fits in the working folder, and in one file."""

COMPILING = 15
"""On a GPU a call may take so many times as long: Triton compiles each kernel, for each block size anew."""

_OPEN_FILES = 256
_MAX_PROCESSES = 512
"""Where processes must be allowed, for a GPU's compiler."""

_HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm")

_OF_THE_SYSTEM = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")
"""What in /proc is not about processes."""


@dataclass
class Confinement:
    """Which protections took hold.

    Attributes
    ----------
    memory, cpu : bool
        The limits on memory and on CPU time.
    network : bool
        It cannot open a connection.
    processes : bool
        It can start no process.
    files : bool
        It can write nothing outside its working folder.
    solutions : bool
        It cannot read the exercises' folder.
    """

    memory: bool = False
    cpu: bool = False
    network: bool = False
    processes: bool = False
    files: bool = False
    solutions: bool = False


# --- limits -------------------------------------------------------------------------------------------------------


def limit_resources(done: Confinement, memory_bytes: int, cpu_seconds: int) -> None:
    """Set the limits of this process, for good.

    Parameters
    ----------
    done : Confinement
    memory_bytes : int
        Beyond what the process has now; 0 for no limit.
    cpu_seconds : int
    """
    if sys.platform == "win32":
        return
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, _WORK_BYTES)
    done.cpu = _limit(resource.RLIMIT_CPU, cpu_seconds)
    if sys.platform == "darwin":  # where threads do not count
        done.processes = _limit(resource.RLIMIT_NPROC, 0)
    if sys.platform == "linux" and memory_bytes > 0:  # macOS accepts this limit, and does not keep it
        done.memory = _limit(resource.RLIMIT_AS, memory_bytes + _addresses_in_use())


def _addresses_in_use() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not loaded yet
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit(what: int, value: int) -> bool:
    try:
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    except (ValueError, OSError):
        return False
    return True


# --- namespaces ---------------------------------------------------------------------------------------------------

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID_NODEV, _MS_BIND, _MS_REC_PRIVATE = 2 | 4, 0x1000, 0x4000 | 1 << 18
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _SYS_MOUNT_SETATTR = -100, 0x8000, 1, 442
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22


def enter_namespaces(done: Confinement, hidden: Sequence[str], *, for_driver: bool = False) -> None:
    """Go on in a process of namespaces of its own, if the system lets us; the old one waits for it and ends like it.

    Parameters
    ----------
    done : Confinement
    hidden : sequence of str
        Folders and files to show as empty. One that is not there needs no hiding.
    for_driver : bool
        Whether a GPU's driver may run: it writes what it has to say of itself into /proc, and a compiler starts
        processes.
    """
    if sys.platform != "linux":
        return
    libc = _libc()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # whatever becomes of the judge, this process ends with it
    uid, gid = os.getuid(), os.getgid()
    spaces = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS
    if libc.unshare(spaces) != 0:
        return
    done.network = True  # a new network namespace has no way out
    with contextlib.suppress(OSError):
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    if child := os.fork():  # the first process of the namespace: with it, everything in there ends
        _end_like(child)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _arrange_files(libc, done, hidden, devices=for_driver)
    _arrange_processes(libc, writable=for_driver)


def _arrange_files(libc: Any, done: Confinement, hidden: Sequence[str], *, devices: bool) -> None:
    """Show all files read-only, what is hidden as empty, and the working folder as a small one in memory."""
    work = os.getcwd()  # noqa: PTH109 - pathlib is not loaded yet
    if libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) != 0:
        return
    options = f"size={_WORK_BYTES},mode=700".encode()
    done.solutions = all(_hide(libc, path) for path in hidden if os.path.exists(path))  # noqa: PTH110
    if not devices:
        for path in _useless_devices():
            _hide(libc, path)
    if _make_read_only(libc, b"/", _AT_RECURSIVE):
        done.files = libc.mount(b"tmpfs", os.fsencode(work), b"tmpfs", _MS_NOSUID_NODEV, options) == 0
    os.chdir("/")
    os.chdir(work)


def _useless_devices() -> list[str]:
    """Return what lies in /dev and is of no use to a submission: terminals, disks and the like."""
    paths = [f"/dev/{name}" for name in os.listdir("/dev") if name not in _HARMLESS_DEVICES]  # noqa: PTH208
    return [path for path in paths if not os.path.islink(path)]  # noqa: PTH114


def _hide(libc: Any, path: str) -> bool:
    target = os.fsencode(path)
    if os.path.isdir(path):  # noqa: PTH112
        return bool(libc.mount(b"tmpfs", target, b"tmpfs", _MS_NOSUID_NODEV, b"size=4096,mode=555") == 0)
    return bool(libc.mount(b"/dev/null", target, None, _MS_BIND, None) == 0)


def _arrange_processes(libc: Any, *, writable: bool) -> None:
    """Show the processes of this namespace in place of everybody's.

    What in /proc is the whole system's must not be written: a superuser's submission could.
    """
    if libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV, None) != 0:
        return
    if not writable:
        _make_read_only(libc, b"/proc")
        return
    if _kernel_version() >= (6, 14):  # since when it is the namespace's own, and no longer the whole system's
        with contextlib.suppress(OSError):
            _write("/proc/sys/kernel/pid_max", str(_MAX_PROCESSES))
    for name in _OF_THE_SYSTEM:
        path = f"/proc/{name}".encode()
        if libc.mount(path, path, None, _MS_BIND, None) == 0:
            _make_read_only(libc, path)


def _make_read_only(libc: Any, path: bytes, flags: int = 0) -> bool:
    attributes = struct.pack("<QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = _AT_FDCWD, path, ctypes.c_uint(flags), attributes, ctypes.c_size_t(len(attributes))
    done: int = libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments)
    return done == 0


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def _end_like(child: int) -> NoReturn:
    """Wait for ``child`` and end with its exit code, or by the signal that killed it."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)  # Python ignores some
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not loaded yet
        file.write(text)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


# --- forbidden system calls ---------------------------------------------------------------------------------------
# A filter of the kernel (seccomp), written by hand: it is thirty instructions, and the library for it (libseccomp)
# would be the only thing in the course that pip cannot install.

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {  # on x86-64, on ARM64
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "setrlimit": (160, 164), "setsid": (112, 157), "setpgid": (109, 154), "sched_setaffinity": (203, 122),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "reboot": (169, 142),
}  # fmt: skip
_CLONE, _CLONE3, _PRCTL, _PRLIMIT = (56, 220), (435, 435), (157, 167), (302, 261)
_KILLS = ((62, 129), (234, 131))  # kill and tgkill: their first argument is a process
_CLONE_THREAD = 0x00010000

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where they lie in struct seccomp_data
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000

Instruction = tuple[int, int, int, int]
"""An operation, how far to jump if true and if false, and its operand: struct sock_filter."""


def forbid_system_calls(done: Confinement) -> None:
    """Forbid this process, for good, what no exercise needs. Threads stay allowed."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = _filter(column, architecture, os.getpid())
    packed = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    description = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    libc = _libc()
    _drop_capabilities(libc)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.prctl(_PR_SET_SECCOMP, 2, description) == 0:
        done.processes = done.network = True


def _filter(column: int, architecture: int, pid: int) -> list[Instruction]:
    refuse, not_there, allow = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS, _ALLOW

    def returns(value: int) -> Instruction:
        return (_RETURN, 0, 0, value)

    def load_argument(index: int) -> Instruction:
        return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)  # its lower half

    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), returns(_KILL), (_LOAD, 0, 0, _NUMBER)]
    program += [(_GREATER_EQUAL, 0, 1, _X32), returns(refuse)]
    for numbers in _FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), returns(refuse)]
    program += [(_EQUAL, 0, 1, _CLONE3[column]), returns(not_there)]  # the C library then uses clone
    program += [(_EQUAL, 0, 4, _CLONE[column]), load_argument(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), returns(refuse)]
    program += [returns(allow)]
    for kill in _KILLS:
        program += [(_EQUAL, 0, 4, kill[column]), load_argument(0), (_EQUAL, 1, 0, pid), returns(refuse)]
        program += [returns(allow)]
    program += [(_EQUAL, 0, 4, _PRCTL[column]), load_argument(0), (_EQUAL, 0, 1, _PR_SET_PDEATHSIG), returns(refuse)]
    program += [returns(allow)]
    program += [(_EQUAL, 0, 4, _PRLIMIT[column]), load_argument(2), (_EQUAL, 1, 0, 0), returns(refuse), returns(allow)]
    return [*program, returns(allow)]


def _drop_capabilities(libc: Any) -> None:
    """Give up what a superuser may do, here or in the namespace."""
    version_3 = 0x20080522
    libc.capset(struct.pack("<Ii", version_3, 0), struct.pack("<6I", *[0] * 6))
