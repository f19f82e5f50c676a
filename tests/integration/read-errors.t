#!/usr/bin/env python3
"""A disk that fails while experts are read from it, as faults.c makes it fail: what fails for a moment is read again, what
fails for good is reported with its offset and served from elsewhere; a file system without O_DIRECT, a sandbox without
io_uring. The bytes stay the same, nobody ends, and what came back is used again."""
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import WHY_NOT, Faults
from gguf_file import Gguf
from outrider_test import TARGET, Service, Tap, difference, prompts, reference, until

TOKENS, TIMES = 60, 3  # TIMES: fewer than how often a read is tried again
tap = Tap()
if not TARGET.exists():
    tap.skip("read errors", f"{TARGET.name} is not there")
    tap.done()
ids = prompts(4, longest=60)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]
FORBID_IO_URING = """
import ctypes, os, struct, sys
IO_URING_SETUP, EPERM, ALLOW = 425, 0x00050001, 0x7fff0000
code = [(0x20, 0, 0, 0), (0x15, 0, 1, IO_URING_SETUP), (0x06, 0, 0, EPERM), (0x06, 0, 0, ALLOW)]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
program = ctypes.create_string_buffer(struct.pack("H6xP", len(code), ctypes.addressof(filter)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def expert_bytes(layer):
    """Where in the file the experts' matrices of a layer lie."""
    data, places = TARGET.read_bytes(), []
    for name, (_, _, matrix) in Gguf(TARGET).tensors.items():
        if name.startswith(f"blk.{layer}.") and "_exps" in name:
            at = data.find(matrix)
            places.append(range(at, at + len(matrix)))
    return places


def stats(service):
    return service.ctl_json("cache", "stats")


def budget(size, service):
    service.ctl("cache", "set", f"budget={size}")


def link(service):
    """How the expert-cache says that it reads."""
    return stats(service)["link"]


def wrong(service):
    requests = [{"tokens": p, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "k": (0, 3)[i % 2]}
                for i, p in enumerate(ids)]
    return [f"{i}: {d}" for i, r in enumerate(service.swarm(requests, 2)) if (d := difference(r, expected[i]))]


def failures_logged(service):
    """[(bytes, offset)] of the reads that failed for good."""
    return [tuple(map(int, m)) for m in re.findall(r"reading (\d+) bytes at (\d+): Input/output error", service.whole_log())]


# As a disk's errors arrive: a bad sector is ENODATA, a command that took too long ETIMEDOUT or ETIME, a path that is down ENOLINK.
CODES = (errno.EIO, errno.ENODATA, errno.ETIMEDOUT, errno.ETIME, errno.ENOLINK, errno.EREMOTEIO)


def passing(service, faults, io, places):
    found = []
    for i, place in enumerate(places):
        before = faults.reads(range(place.start, place.stop), TIMES, CODES[i % len(CODES)])
        found += wrong(service)
        found += [] if faults.fields.failed == before + TIMES else [f"{faults.fields.failed - before} of {TIMES} reads failed"]
    tap.ok(not found, f"{io}: {len(places)} times {TIMES} reads fail for a moment: the same bytes", found)
    tap.ok(stats(service)["load_failures"] == 0 and not failures_logged(service),
           f"{io}: they were read again, which is nobody's concern", f"{stats(service)} {failures_logged(service)}")


def lasting(service, faults, io, place):
    """A quarter of the experts of a layer, more than stay in the smallest cache."""
    budget("min", service)
    bad = range(place.start + len(place) // 2, place.start + len(place) * 3 // 4)
    faults.reads(bad)
    found = wrong(service)
    tap.ok(not found, f"{io}: a place that cannot be read: the same bytes", found)
    failed = until(lambda: stats(service)["load_failures"] > 0 or wrong(service))
    said = failures_logged(service)
    tap.ok(said and all(o < bad.stop and o + n > bad.start for n, o in said) and str(TARGET) in service.whole_log(),
           f"{io}: what cannot be read is said with file and offset", f"{said}, not {bad}\n{service.log_text()}")
    tap.ok(failed and stats(service)["load_failures"] > 0, f"{io}: and counted", stats(service))
    budget("30%", service)


def everything(service, faults, io, places):
    lines, before = len(failures_logged(service)), stats(service)["self_served"]
    faults.reads(range(min(p.start for p in places), max(p.stop for p in places)))
    found = wrong(service)
    tap.ok(not found and stats(service)["self_served"] > before,
           f"{io}: no expert can be read: the verifier reads them itself, the same bytes", f"{found} {stats(service)}")
    failed, lines = stats(service)["load_failures"], len(failures_logged(service)) - lines
    tap.ok(lines < failed / 4, f"{io}: {failed} loads failed and {lines} lines name the place", service.log_text())


def well_again(service, faults, io):
    faults.none()
    until(lambda: stats(service)["queue_depth"] == 0)
    before, found = stats(service), wrong(service)
    now = stats(service)
    tap.ok(not found and now["load_failures"] == before["load_failures"] and now["loads"] > before["loads"],
           f"{io}: the disk is well again, and so is everything else", f"{found} {before} {now}")


def all_told(service, io):
    """A burst of failures is over: after the few that are logged one by one a line tells how many more there were."""
    def untold():
        said = re.findall(r"reading \d+ bytes at \d+: Input/output error|\d+ more reads failed", service.whole_log())
        return next((n for n, line in enumerate(reversed(said)) if "more" in line), len(said))
    tap.ok(until(lambda: untold() < 4), f"{io}: the end of {stats(service)['load_failures']} failures is told, most as a number",
           service.log_text())


def failing_disk(io):
    places = [p for layer in range(6) for p in expert_bytes(layer)]
    with Faults() as faults, Service(options=("--budget", "30%"), sets=(f"expert-cache.io={io}",), env=faults.env) as service:
        if not link(service).startswith(io if io != "auto" else "io_uring"):
            tap.skip("a failing disk read by io_uring", f"here experts are read with {link(service)}")
            return
        name, pids = link(service), service.processes()
        passing(service, faults, name, places[::3])
        lasting(service, faults, name, places[7])
        everything(service, faults, name, places)
        well_again(service, faults, name)
        all_told(service, name)
        now = service.processes()
        tap.ok(pids == now, f"{name}: all processes are those that were there", f"{pids} {now}")


def without_direct():
    with Faults() as faults:
        faults.fields.no_direct = 1
        with Service(options=("--budget", "30%"), env=faults.env) as service:
            found = wrong(service)
            tap.ok(not found and "O_DIRECT" not in link(service) and link(service) != "unknown",
                   "a file system without O_DIRECT: the same bytes through the page cache", f"{found} {link(service)}")
            tap.ok(service.whole_log().count("cannot be read past the page cache (Invalid argument): reading through it") == 1,
                   "which is said once", service.log_text())
        faults.fields.no_direct = 2
        try:
            os.close(os.open(TARGET, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            tap.skip("a file system that opens with O_DIRECT and does not read so", "here it does not even open so")
            return
        with Service(options=("--budget", "30%"), sets=("expert-cache.io=pread",), env=faults.env) as service:
            found = wrong(service)
            tap.ok(not found and link(service) == "pread", "one that opens so and refuses to read: the same bytes, and no word of it",
                   f"{found} {link(service)}")
            tap.ok(service.whole_log().count("O_DIRECT reads are refused: reading through the page cache") == 1,
                   "which is said once too", service.log_text())


def without_io_uring():
    before = (sys.executable, "-c", FORBID_IO_URING)
    probe = subprocess.run([*before, "true"], capture_output=True, text=True)
    if probe.returncode:
        tap.skip("without io_uring", f"no filter of system calls can be set: {probe.stderr.strip()}")
        return
    with Service(options=("--budget", "30%"), before=before) as service:
        found = wrong(service)
        tap.ok(not found and link(service).startswith("pread"), "io_uring forbidden: threads read the same bytes",
               f"{found} {link(service)}")
        tap.ok(service.whole_log().count("reading with threads instead") == 1, "which is said once", service.log_text())


if WHY_NOT:
    tap.skip("read errors", WHY_NOT)
else:
    failing_disk("auto")
    failing_disk("pread")
    without_direct()
without_io_uring()
tap.done()
