#!/usr/bin/env python3
"""What becomes of the regions of a verifier that is killed: those that its successor has no use for are gone from every
process, and none is touched by a process that does not hold the lock."""
import contextlib
import fcntl
import os
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, Service, Tap, difference, prompts, reference, until

tap = Tap()
ids = prompts(1, longest=80)[0]
expected = reference(ids, 50, extra=("--ignore-eos",))
request = {"tokens": ids, "max_tokens": 50, "ignore_eos": True, "k": 3}
GENERATION = 24  # where it is in struct region_header
config = Path(tempfile.mkdtemp(prefix="outrider-regions-", dir="/tmp"))


def entries(folder):
    """None of a process that has just ended."""
    try:
        return list(Path(folder).iterdir())
    except OSError:
        return []


def files(service, name):
    """The files in memory of that name, whoever holds them: {inode: a path to it}."""
    found = {}
    for pid in (service.process.pid, *service.children()):
        for fd in entries(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(fd).startswith(f"/memfd:{name} "):
                    found[os.stat(fd).st_ino] = fd
    return found


def restart(service, settings):
    (config / "verifier.conf").write_text(settings)
    service.restart("verifier")


def one(service, name, other_than):
    """Whether there is one file of the name, and another than before."""
    return len(files(service, name)) == 1 and not set(files(service, name)) & set(other_than)


def lockable(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def take(service, lock):
    """Whether the lock is ours, once its holder was killed; where the next one was faster, that is killed too."""
    for _ in range(30):
        service.kill("verifier")
        if until(lambda: lockable(lock), 1, every=0.001):
            return True
    return False


try:
    (config / "verifier.conf").write_text("weights = packed\ncontext = 512\n")
    with Service(draft=DRAFTS["small"], options=("--config-dir", config)) as service:
        first = {name: files(service, name) for name in ("kv", "weights", "sessions")}
        tap.ok(all(len(f) == 1 for f in first.values()) and not difference(service.swarm([request])[0], expected),
               "a verifier has one region of each name", first)

        restart(service, "weights = packed\ncontext = 512\nkv_tokens = 8192\n")
        tap.ok(until(lambda: one(service, "kv", first["kv"])), "with other kv_tokens the old KV cache is nobody's any more",
               f"{first} {files(service, 'kv')}\n{service.log_text()}")
        tap.ok(files(service, "weights").keys() == first["weights"].keys() and
               files(service, "sessions").keys() == first["sessions"].keys(), "what fits is taken over")
        second = files(service, "kv")

        restart(service, "weights = mapped\ncontext = 256\nkv_tokens = 8192\n")
        tap.ok(until(lambda: not files(service, "weights")), "with weights in the file the packed ones are nobody's",
               f"{first} {files(service, 'weights')}\n{service.log_text()}")
        tap.ok(until(lambda: one(service, "sessions", first["sessions"]) and one(service, "kv", second)),
               "with another context sessions and KV cache are nobody's",
               f"{files(service, 'sessions')} {files(service, 'kv')}\n{service.log_text()}")
        tap.ok(not difference(service.swarm([request])[0], expected), "and the answer is the same")

        # The lock is ours while the verifier is started again and again.
        region = next(iter(files(service, "sessions").values()))
        file = os.open(region, os.O_RDONLY)

        def generation():
            return struct.unpack("Q", os.pread(file, 8, GENERATION))[0]

        with open(service.runtime / "verifier.lock") as lock:
            taken, before = take(service, lock), generation()
            refused = until(lambda: service.log_text().count("already runs in") >= 2)
            tap.ok(taken and refused and generation() == before, "who does not hold the lock changes no region",
                   f"{before} {generation()}\n{service.log_text()}")
        service.wait_ready()
        tap.ok(generation() == before + 1 and not difference(service.swarm([request])[0], expected),
               "who gets it then takes it over", f"{before} {generation()}")
        os.close(file)
finally:
    for path in config.iterdir():
        path.unlink()
    config.rmdir()
tap.done()
