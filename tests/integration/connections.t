#!/usr/bin/env python3
"""Connections without number, handshakes and messages without an end: on every socket of every process, under a high and a low
limit of open files. Nobody aborts, spins or grows; the log says it once; others are served, before, meanwhile and after."""
import contextlib
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rubbish
from outrider_test import DRAFTS, PATIENCE, SANITIZED, TARGET, Service, Tap, difference, program, prompts, reference, run, until

LIMIT_DESCRIPTORS = 64  # this and those that follow are of shared/base/limits.h
MESSAGE_MAX, MESSAGE_CUT, CLIENTS = 4 << 20, 32 << 20, 1024
GROWTH_MAX = 64 << 20
IDLE_CPU_MAX = 0.5  # of a second in which nothing is asked
WAITS, ROOM = "others wait", "there is room for connections again"
tap = Tap()
PROMPT = prompts(1, longest=40)[0]
EXPECTED = reference(PROMPT, 20, extra=("--ignore-eos",))


def limited(descriptors, *command):
    return ("sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *map(str, command))


class Limited(Service):
    """A service that must go on: the same processes, and the right bytes."""

    def __init__(self, descriptors):
        super().__init__(draft=DRAFTS["small"], before=limited(descriptors))

    def __enter__(self):
        super().__enter__()
        # The verifier takes the experts' region a little after both are ready, and needs a descriptor for it.
        until(lambda: not difference(self.answer(PROMPT, 20), EXPECTED) and self.ctl_json("cache", "stats")["hits"] > 0)
        self.pids = self.processes()
        self.paths = sorted([*self.runtime.glob("*.ctl"), self.runtime / "client"])
        return self

    def unharmed(self, after):
        # A place is free once one that asks nothing is closed.
        wrong = difference(self.answer(PROMPT, 20, "--wait", "60"), EXPECTED)
        # Each look waits for half a second: where others wait too, it takes several.
        answered = until(lambda: all(p["state"].startswith(("ready", "idle")) for p in self.status()), 20 * PATIENCE)
        tap.ok(self.processes() == self.pids and not wrong and answered, f"unharmed: {after}",
               f"{self.processes()} after {self.pids}, {self.status()}, {wrong}\n{self.log_text()}")

    def said(self, words, before=0):
        """How often, for each socket, since the log was that long."""
        lines = [line for line in self.whole_log()[before:].splitlines() if words in line]
        return {path: sum(f"{path}:" in line for line in lines) for path in self.paths}


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connect_many(path, n, say):
    """Up to n connections, as fast as they can be made; what a full backlog does not take is left out."""
    found = []
    for _ in range(n):
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(str(path))
            s.send(say) if say else None
        except OSError:
            s.close()
            break
        found.append(s)
    return found


def close_all(connections):
    for s in connections:
        s.close()


KINDS = {"that say nothing": b"", "whose greeting stops half-way": rubbish.GREETING[:30],
         "that greet and never finish the handshake": rubbish.GREETING,
         "of clients that ask nothing": rubbish.GREETING + rubbish.ready(),
         "of clients that never finish their message": rubbish.GREETING + rubbish.ready() + b"\x02" + struct.pack(">Q", MESSAGE_MAX) + b"half"}


def crowds(services):
    """services: (service, connections to each of its sockets); what has to be waited for is waited for in all of them at once."""
    for what, say in KINDS.items():
        # A process that starts has its files open and may say that others wait: that is over first.
        until(lambda: all(service.said(WAITS) == service.said(ROOM) for service, _ in services), 20 * PATIENCE)
        marks = [len(service.whole_log()) for service, _ in services]
        made = [[s for path in service.paths for s in connect_many(path, n, say)] for service, n in services]

        def counts(words):
            return [service.said(words, mark) for (service, _), mark in zip(services, marks)]

        told = until(lambda: all(all(c.values()) for c in counts(WAITS)), 20 * PATIENCE)
        began = [{name: cpu_seconds(pid) for name, pid in service.pids.items()} for service, _ in services]
        time.sleep(1)
        busy = [{name: cpu_seconds(pid) - since[name] for name, pid in service.pids.items() if os.path.exists(f"/proc/{pid}")}
                for (service, _), since in zip(services, began)]
        for service, n in services:
            service.unharmed(f"{n} connections to each socket {what} are there")
        for crowd in made:
            close_all(crowd)
        # Of a crowd that is gone, some may still be in the backlog: others may wait again, on a busy machine several times.
        over = until(lambda: all(all(c.values()) for c in counts(ROOM)) and counts(WAITS) == counts(ROOM), 60 * PATIENCE)
        for (service, n), crowd, waits, room, used in zip(services, made, counts(WAITS), counts(ROOM), busy):
            tap.ok(told and over and 1 <= min(waits.values()) <= max(waits.values()) <= n // 4,
                   f"{n} {what}: each socket says that others wait, and that there is room again, not for each of them", f"{len(crowd)} were made\n{waits} {room}\n{service.log_text()}")
            if not SANITIZED:
                tap.ok(max(used.values()) < IDLE_CPU_MAX, f"{n} {what}: nobody spins", used)
    for service, n in services:
        service.unharmed(f"{n} connections to each socket came and went")


def bursts(service):
    """Thousands in a moment, some of them gone before they are seen."""
    for path in service.paths:
        for _ in range(3):
            crowd = connect_many(path, 2000, KINDS["of clients that ask nothing"])
            close_all(crowd[::2])
            close_all(crowd)
    service.unharmed("bursts of 2000 connections")
    before = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in service.pids.items()}
    tap.ok(max(before.values()) < LIMIT_DESCRIPTORS, "and no descriptor of theirs is kept", before)


def streams(service):
    """A client whose answer is on its way keeps its connection, however many others want its place."""
    peer = rubbish.Peer(service.runtime / "client", timeout=60 * PATIENCE)
    # No credit: nothing is sent to it for longer than others may be idle.
    peer.send(rubbish.envelope(10, rubbish.message((1, 77), (3, PROMPT), (6, 20), (7, 1))))
    peer.receive()
    crowd = connect_many(service.runtime / "client", 2 * CLIENTS, KINDS["of clients that ask nothing"])
    time.sleep(4)
    service.unharmed("a crowd beside one that waits for its answer")
    peer.send(rubbish.envelope(12, rubbish.message((1, 77), (2, 1000))))
    with contextlib.suppress(OSError):
        answers = rubbish.parse(peer.receive())
        tap.ok(21 in answers or 22 in answers, "which still gets it", answers)
        close_all(crowd)
        peer.close()
        return
    tap.ok(False, "which still gets it", service.log_text())


def exhausted(service):
    """No descriptor at all is left to any process, for a while."""
    old = [(path, rubbish.Peer(path)) for path in service.paths]

    def asked(path, peer):
        """Its status of an admin socket; of the clients' socket, a session that it does not have."""
        return peer.ask(rubbish.envelope(40 if path.suffix else 11, rubbish.message((1, 5))))

    mark = len(service.whole_log())
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in service.pids.values()}
    for pid in limits:
        # As many as a poll may have, and fewer than are open.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (12, limits[pid][1]))
    for path, peer in old:
        asked(path, peer)  # one that has never asked is the first to be closed
    crowd = [s for path in service.paths for s in connect_many(path, 5, KINDS["of clients that ask nothing"])]
    for path in service.runtime.glob("*.sock"):
        crowd += [rubbish.connect(path, socket.SOCK_SEQPACKET) for _ in range(3)]
    began, silent = {pid: cpu_seconds(pid) for pid in limits}, set()
    for _ in range(10):
        silent |= {path.name for path, peer in old if not asked(path, peer)}
        time.sleep(0.1)
    busy = {pid: cpu_seconds(pid) - began[pid] for pid in limits}
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    close_all(crowd)
    close_all(peer for _, peer in old)
    service.unharmed("no descriptor was left to any process")
    lines = [line for line in service.whole_log()[mark:].splitlines() if "LimitNOFILE" in line]
    told = {path.name: sum(f"{path}:" in line for line in lines) for path in (*service.paths, *service.runtime.glob("*.sock"))}
    tap.ok(not silent, "who was connected was answered meanwhile", silent)
    tap.ok(set(told.values()) == {1}, "each socket said once why others wait", f"{told}\n{service.log_text()}")
    if not SANITIZED:
        tap.ok(max(busy.values()) < IDLE_CPU_MAX, "and nobody spun", busy)


def memory(pid, key):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(key + ":"))


def send_some(s, pieces):
    """What the other end takes within a moment."""
    s.settimeout(2)
    with contextlib.suppress(OSError):
        for piece in pieces:
            s.sendall(piece)


def long_frame(size, flags):
    return bytes([flags | 2]) + struct.pack(">Q", size)


def unfinished_messages(service):
    part, nothing, megabyte = 31 << 20, bytes(1 << 16), bytes(1 << 20)
    filled = [megabyte] * 31
    questions = rubbish.frame(rubbish.envelope(40, b"")) * 2000

    def frames():
        for _ in range(40):
            yield long_frame(part, 1)
            yield from filled

    # Of how many connections each, and what they send.
    cases = {"40 frames of 31 MiB of a message without an end": (1, frames),
             "the same from each of several": (4, frames),
             "frames of 31 MiB, all but the last byte": (12, lambda: [long_frame(part + 1, 0), *filled]),
             "messages of the largest size, all but the last byte":
                 (40, lambda: [long_frame(MESSAGE_MAX, 0), *[megabyte] * 3, megabyte[1:]]),
             "empty frames without an end": (2, lambda: (b"\1\0" * (1 << 19) for _ in range(40))),
             "frames of a kilobyte without an end": (2, lambda: ((long_frame(1024, 1) + nothing[:1024]) * 1024 for _ in range(80))),
             "frames of impossible size": (40, lambda: [long_frame((1 << 63) + 5, 1), megabyte]),
             "a long command": (40, lambda: [long_frame(part, 4), *filled]),
             "questions whose answers nobody reads": (40, lambda: [questions])}
    for what, (n, pieces) in cases.items():
        for path in service.paths:
            name = path.stem if path.suffix else "verifier"
            pid = service.pids[name]
            before = memory(pid, "VmRSS")
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak begins anew
            peers = []
            for _ in range(n):
                with contextlib.suppress(OSError):
                    peers.append(rubbish.Peer(path))
                    send_some(peers[-1].socket, pieces())
            others = rubbish.Peer(path)
            answer = others.ask(bytes(MESSAGE_MAX - 5))
            others.close()
            grown = memory(pid, "VmHWM") - before
            tap.ok(len(peers) == n and 30 in answer and (SANITIZED or grown < GROWTH_MAX),
                   f"{path.name}: {what}, from {n}: bounded, and others are answered", f"{grown >> 20} MiB, {len(peers)}, {answer}")
            for peer in peers:
                peer.close()
    service.unharmed("messages without an end")


def too_low():
    folder = Path(tempfile.mkdtemp(prefix="outrider-low-", dir="/tmp"))
    model = ("--model", TARGET)

    def refused(what, words, descriptors, name, *options):
        runtime = folder / name
        result = run(*limited(descriptors, program(name), *options, "--runtime-dir", runtime), timeout=60 * PATIENCE)
        made = [p.name for p in runtime.glob("*")] if runtime.exists() else []
        tap.ok(result.returncode == 71 and all(w in result.stderr for w in words) and not {"client", "verifier.ctl"} & set(made),
               what, (result, made))

    refused("up says which limit of open files it needs, and starts nothing", ("64", "32", "open files", "ulimit -n"), 32, "outrider", "up",
            *model)
    for name, options in (("verifier", model), ("expert-cache", model), ("drafter", ()), ("policy", ())):
        refused(f"so does {name}", (name, "64", "48", "open files"), 48, f"outrider-{name}", *options)
    refused("threads count", ("verifier", str(LIMIT_DESCRIPTORS + 192), "open files"), 100, "outrider-verifier", *model, "--set", "threads=200")
    refused("and up sees that before it starts", (str(LIMIT_DESCRIPTORS + 192), "open files"), 100, "outrider", "up", *model, "--threads", "200")
    shutil.rmtree(folder, ignore_errors=True)


too_low()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if 0 <= hard < 8192:
    tap.skip("crowds", f"this test itself may open {hard} files")
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Limited(LIMIT_DESCRIPTORS) as low, Limited(1024) as usual:
        crowds([(low, 24), (usual, 1100)])
        bursts(low)
    with Limited(4096) as high:
        exhausted(high)
        bursts(high)
        streams(high)
        unfinished_messages(high)
tap.done()
