"""The disk under a model: what it has read, what it can give, and how the kernel reads ahead."""
import contextlib
import mmap
import os
import random
import threading
import time
from pathlib import Path

from peers import Failure

PIECE = 1 << 20  # bytes of one read; of the order of an expert
READERS = 16     # reads under way at once
SECONDS = 0.7


def _number(path):
    number = path.stat().st_dev
    return os.major(number), os.minor(number)


@contextlib.contextmanager
def read_ahead(path, kib=128):
    """Of the device that holds path; put back afterwards."""
    device = Path("/sys/dev/block/{}:{}".format(*_number(path)))
    knob = next((k for k in (device / "queue/read_ahead_kb", device / "../queue/read_ahead_kb") if k.exists()), None)
    if knob is None:
        raise Failure(f"the device of {path} has no read-ahead to set")
    before = knob.read_text().strip()
    knob.write_text(str(kib))
    try:
        yield
    finally:
        knob.write_text(before)


def sectors(path):
    """Bytes that the device of path has read so far."""
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if (int(words[0]), int(words[1])) == _number(path):
            return 512 * int(words[5])
    return 0


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def _read(path, seed, end, out):
    """Pieces of the file from random places, past the page cache, until end; their bytes, or what went wrong, into out."""
    pieces, draw, done = path.stat().st_size // PIECE, random.Random(seed), 0
    buffer = mmap.mmap(-1, PIECE)  # aligned to a page, as O_DIRECT wants it
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            while time.monotonic() < end:
                done += os.preadv(file, [buffer], draw.randrange(pieces) * PIECE)
        finally:
            os.close(file)
        out.append(done)
    except OSError as problem:
        out.append(problem)


def gb_per_s(path):
    """10^9 bytes a second that the disk gives now to many direct reads of the file at once, by no means of Outrider's."""
    if path.stat().st_size < PIECE:
        raise Failure(f"{path} is smaller than one read of {PIECE} bytes")
    out, start = [], time.monotonic()
    threads = [threading.Thread(target=_read, args=(path, i, start + SECONDS, out)) for i in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problem = next((o for o in out if isinstance(o, OSError)), None)
    if problem:
        raise Failure(f"{path} cannot be read past the page cache: {problem.strerror}")
    return sum(out) / 1e9 / (time.monotonic() - start)
