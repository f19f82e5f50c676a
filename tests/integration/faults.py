"""Faults that a test makes while the service runs: what tests/integration/faults.c does when it is told to."""
import contextlib
import ctypes
import mmap
import os
import tempfile

from outrider_test import SANITIZED, program

LIBRARY = program("tests/faults.so")
FOR_EVER = 1 << 62
WHY_NOT = "a sanitizer's runtime has to be loaded before everything else" if SANITIZED else ""


class Fields(ctypes.Structure):
    """As struct faults in faults.c."""
    _fields_ = [("read_from", ctypes.c_uint64), ("read_to", ctypes.c_uint64), ("left", ctypes.c_int64), ("failed", ctypes.c_uint64),
                ("code", ctypes.c_int64), ("no_direct", ctypes.c_uint64), ("wall_ns", ctypes.c_int64), ("text_held", ctypes.c_uint64),
                ("text_waits", ctypes.c_uint64), ("prefix_reads", ctypes.c_int64), ("prefix_writes", ctypes.c_int64),
                ("prefix_failed", ctypes.c_uint64), ("prefix_bytes", ctypes.c_uint64)]


class Faults:
    """A context manager; env: of the processes that are to have them; set: what they are from now on."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="outrider-faults-")
        self.file.truncate(mmap.PAGESIZE)
        self.map = mmap.mmap(self.file.fileno(), mmap.PAGESIZE)
        self.fields = Fields.from_buffer(self.map)
        self.env = {"LD_PRELOAD": LIBRARY, "OUTRIDER_FAULTS": self.file.name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.fields = None
        with contextlib.suppress(BufferError):
            self.map.close()
        self.file.close()

    def reads(self, where, times=FOR_EVER, code=0):
        """So many reads of the model fail that touch the bytes of range `where`, with an error number, 0: EIO (of io_uring any
        other is ETIME); returns how many have failed before."""
        self.fields.left = 0
        self.fields.code = code
        self.fields.read_from, self.fields.read_to = where.start, where.stop
        self.fields.left = times
        return self.fields.failed

    def none(self):
        self.fields.left = self.fields.no_direct = self.fields.wall_ns = self.fields.text_held = 0
        self.fields.prefix_reads = self.fields.prefix_writes = self.fields.prefix_bytes = 0
