"""The service's directory of sockets, who listens there, and time that does not count while this machine stood still."""
import errno
import fcntl
import os
import socket
import stat
import struct
import time

from ._errors import OutriderError, Unavailable

PROCESSES = ("verifier", "drafter", "expert-cache", "policy")
GATEWAY = "gateway"

# Who is silent for less than this after its socket was made may still be starting.
START_S = 90
# The longest name of a socket in the directory; a Unix socket's whole path has at most 107 bytes.
_LONGEST = len("/expert-cache.sock")
_PATH_BYTES = 108 - 1 - _LONGEST


def _chosen(given: str | None) -> str:
    for path in (given, os.environ.get("OUTRIDER_RUNTIME_DIR"), os.environ.get("RUNTIME_DIRECTORY")):
        if path:
            return path
    if os.environ.get("XDG_RUNTIME_DIR"):
        return os.environ["XDG_RUNTIME_DIR"] + "/outrider"
    return "/run/outrider" if os.geteuid() == 0 else f"/tmp/outrider-{os.geteuid()}"


def runtime_dir(given: str | os.PathLike[str] | None) -> str:
    """The directory, absolute, found as outrider(3) says. Raises Unavailable where there is none, and OutriderError where
    another user could have put his own sockets there."""
    path = os.path.join(os.getcwd(), _chosen(os.fspath(given) if given is not None else None)).rstrip("/") or "/"
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise OutriderError(errno.ENAMETOOLONG, f"runtime directory {path[:128]}: its path has {len(os.fsencode(path))} bytes, "
                            f"sockets in it allow {_PATH_BYTES}")
    try:
        link, there = os.lstat(path), os.stat(path)
    except FileNotFoundError as e:
        raise Unavailable(errno.ECONNREFUSED, f"no service: runtime directory {path}: {e.strerror}") from None
    except OSError as e:
        raise OutriderError(e.errno or errno.EIO, f"runtime directory {path}: {e.strerror}") from None
    _check(path, link, there)
    return path


def _check(path: str, link: os.stat_result, there: os.stat_result) -> None:
    user = os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, user):
        raise OutriderError(errno.EPERM, f"runtime directory {path}: a link that belongs to user {link.st_uid}")
    if not stat.S_ISDIR(there.st_mode):
        raise OutriderError(errno.ENOTDIR, f"runtime directory {path}: not a directory")
    if user not in (there.st_uid, 0):
        raise OutriderError(errno.EPERM, f"runtime directory {path}: belongs to user {there.st_uid}, not to {user}")
    if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "anybody" if there.st_mode & stat.S_IWOTH else "its group"
        raise OutriderError(errno.EPERM, f"runtime directory {path}: {who} may write to it "
                            f"(mode {stat.S_IMODE(there.st_mode):o}): chmod go-w")


def listener(path: str) -> int | None:
    """The pid of who listens on this Unix socket, 0 where the kernel does not say; None: nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # its backlog is full, so there is one
        except OSError:
            return None
        try:
            return max(0, int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]))
        except OSError:
            return 0


def holder(path: str) -> int | None:
    """The pid of who holds this file locked, 0 where it does not say; None: nobody."""
    try:
        with open(path, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = file.read(32).strip()
                return int(pid) if pid.isdigit() else 0
    except OSError:
        pass
    return None


def processes(directory: str) -> tuple[str, ...]:
    """Those of every service, and the gateway where one runs."""
    return PROCESSES if listener(f"{directory}/{GATEWAY}.ctl") is None else (*PROCESSES, GATEWAY)


def is_starting(path: str) -> bool:
    """Whether who listens at this path may be silent because it is starting."""
    try:
        return 0 <= time.time() - os.stat(path).st_mtime < START_S
    except OSError:
        return False


def given_up(directory: str, since: float) -> tuple[str, bool] | None:
    """Why `outrider up` ended and will not start the processes again, and whether that was after `since` (as time.time() has it);
    None: it did not, or somebody has started a verifier after that."""
    try:
        with open(os.open(f"{directory}/given-up", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            there = os.fstat(file.fileno())
            if not stat.S_ISREG(there.st_mode):
                return None
            why = file.read(383).decode(errors="replace").partition("\n")[0]
        written = there.st_mtime
    except OSError:
        return None
    try:
        if os.stat(f"{directory}/verifier.sock").st_mtime > written:
            return None
    except OSError:
        pass
    return (why, written > since) if why else None


# A step that was to take a while and took so much longer: the process was stopped, or its machine stood still.
_STILL_S = 1.0
_STEP_S = 0.1


def stood_still(step_s: float, took_s: float) -> bool:
    """Whether this process did not run in a step that was to take step_s."""
    return took_s > step_s + _STILL_S


class Patience:
    """How long to wait for another process, in time in which this one ran."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = self.left_s = max(0.0, limit_s)
        self._at = time.monotonic()

    def step_s(self) -> float:
        """How long to wait until the next look; 0: the time is over."""
        now = time.monotonic()
        took = now - self._at
        self._at = now
        self.left_s = self.limit_s if stood_still(_STEP_S, took) else max(0.0, self.left_s - took)
        return min(self.left_s, _STEP_S)
