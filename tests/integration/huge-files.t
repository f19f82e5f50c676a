#!/usr/bin/env python3
"""Files of many gigabytes (holes, on disk next to nothing): opening one takes little memory, and counts beyond 32 bits
are counts."""
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf, pack_string
from outrider_test import SANITIZED, Tap, program, run

MIB = 1 << 20
BASE = "tests/data/hostile/llama.gguf"
tap = Tap()


def peak(*command):
    """(exit status, most resident bytes, standard output, standard error) of a program."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        return process.returncode, usage.ru_maxrss * 1024, out.read().decode(), errors.read().decode(errors="replace")


def stretch(source, path, at, hole, change):
    """A copy of a file with a hole of so many bytes at an offset; change(bytes before the hole) first."""
    data = Path(source).read_bytes()
    with open(path, "wb") as f:
        f.write(change(bytearray(data[:at])))
        f.truncate(at + hole)
        f.seek(at + hole)
        f.write(data[at:])


def room(directory):
    """Whether the file system has holes of this size."""
    probe = directory / "probe"
    try:
        with open(probe, "wb") as f:
            f.truncate(200 << 30)
        return probe.stat().st_blocks < 1000
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


with tempfile.TemporaryDirectory(prefix="outrider-huge-", dir="/var/tmp") as name:
    directory = Path(name)
    if not room(directory):
        tap.skip("huge files", "the file system has no sparse files of 200 GB")
        tap.done()
    big = directory / "big.gguf"
    run(program("outrider-model"), "synth", "qwen3-30b-a3b", big, "--sparse", "--output-type", "q8_0")
    tap.ok(big.stat().st_size > 17 * 10**9 and big.stat().st_blocks < 40 * MIB // 512, "a sparse file of 17 GB")
    empty = peak(program("outrider-model"), "--version")[1]
    for what, command in (("outrider-model info", ("outrider-model", "info", big)),
                          ("outrider-expert-cache -n", ("outrider-expert-cache", "-n", "--model", big, "--budget", "min")),
                          ("outrider-verifier -n", ("outrider-verifier", "-n", "--model", big)),
                          ("outrider-model tokenize", ("outrider-model", "tokenize", "--model", big, "--text", "a b c"))):
        status, rss, out, errors = peak(program(command[0]), *command[1:])
        tap.note(f"{what}: {rss / MIB:.1f} MiB, of that the program itself {empty / MIB:.1f}")
        tap.ok(status == 0 and (SANITIZED or rss < 64 * MIB), f"{what} of 17 GB stays under 64 MiB, vocabulary included",
               f"status {status}, {rss} bytes: {errors}")

    # A vocabulary's token of more bytes than a 32-bit length says (CVE-2025-49847).
    data = Path(BASE).read_bytes()
    tokens = Gguf(BASE).keys["tokenizer.ggml.tokens"][1][1]
    at = data.index(pack_string("tokenizer.ggml.tokens"))
    at += len(pack_string("tokenizer.ggml.tokens")) + 4 + 12 + sum(8 + len(t) for t in tokens[:5])
    token_end = at + 8 + len(tokens[5])
    for length in (2**31, 2**32):
        length += len(tokens[5])  # so that the hole is a multiple of the alignment
        def longer(head):
            struct.pack_into("<Q", head, at, length)
            return head
        path = directory / "token.gguf"
        stretch(BASE, path, token_end, length - len(tokens[5]), longer)
        status, rss, out, errors = peak(program("outrider-model"), "tokenize", "--model", path, "--text", "ab")
        tap.ok(status == 65 and "tokenizer.ggml.tokens" in errors and (SANITIZED or rss < 64 * MIB),
               f"a token of {length} bytes is refused, without a copy of it", f"status {status}, {rss} bytes: {errors}")

    # Dimensions of more than 32 bits whose data are there (CVE-2026-53923).
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4
    for ne in ((32, 2**32 + 32), (2**32 + 32, 32)):
        def wider(head):
            struct.pack_into("<QQ", head, at, *ne)
            struct.pack_into("<Q", head, at + 20, -(-(len(data)) // 32) * 32)
            return head
        path = directory / "wide.gguf"
        stretch(BASE, path, len(data), ne[0] * ne[1] // 32 * 34 + 65536, wider)
        status, rss, out, errors = peak(program("outrider-model"), "logits", "--model", path, "--tokens", "1")
        tap.ok(status == 65 and name.decode() in errors and "shape" in errors, f"a matrix of {ne} is refused by its shape",
               f"status {status}: {errors}")

    # Arrays of so many strings that their index alone would be gigabytes.
    path = directory / "strings.gguf"
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pack_string("x.strings") + struct.pack("<IIQ", 9, 8, 1 << 29))
        f.truncate(6 << 30)
    status, rss, out, errors = peak(program("outrider-model"), "info", path)
    tap.ok(status == 65 and "x.strings" in errors and (SANITIZED or rss < 64 * MIB), "an index of strings is bounded",
           f"status {status}, {rss} bytes: {errors}")

    # More text than fits a prompt's tokens is counted, not cut (CVE-2025-52566).
    text = directory / "text"
    text.write_bytes(b"a b\xff" * (2 * MIB))
    with open(text) as f:
        result = subprocess.run([program("outrider-model"), "tokenize", "--model", BASE, "--format", "text"], stdin=f,
                                capture_output=True)
    tap.ok(result.returncode == 0 and result.stdout.count(b" ") + 1 >= 8 * MIB - 4 * MIB, "8 MiB of text are tokenized",
           f"status {result.returncode}: {result.stderr[-300:]}, {result.stdout.count(b' ')} tokens")
tap.done()
