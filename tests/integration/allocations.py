"""Heap allocations of processes by thread, while they run: what tests/integration/allocations.c counts in them."""
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from outrider_test import SANITIZED, program

LIBRARY = program("tests/allocations.so")
WHY_NOT = "a sanitizer has an allocator of its own" if SANITIZED else ""


class Counts(NamedTuple):
    """Of a thread: allocations for its own work, those for messages of the control plane, and how many of these there were."""
    own: int
    of_messages: int
    messages: int


class Allocations:
    """A context manager; env: of the processes that are to be counted."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="outrider-allocations-")
        self.env = {"LD_PRELOAD": LIBRARY, "OUTRIDER_ALLOCATIONS": self.folder.name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def of(self, pid):
        """{thread: Counts} of a process since it began."""
        rows = struct.iter_unpack("=QQQQ", (Path(self.folder.name) / str(pid)).read_bytes())  # as struct thread_count
        return {thread: Counts(*counts) for thread, *counts in rows if thread}

    def since(self, pid, before):
        """The same since of(pid) gave `before`."""
        none = Counts(0, 0, 0)
        return {thread: Counts(*(b - a for a, b in zip(before.get(thread, none), now))) for thread, now in self.of(pid).items()}
