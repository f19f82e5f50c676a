#!/usr/bin/env python3
"""What the four processes know of one another: whichever comes first, whichever dies, registered by messages, and refused by
name where they do not fit. No message and no call on their sockets is made for a token."""
import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rubbish
from outrider_test import DRAFTS, PATIENCE, PROCESSES, SANITIZED, TARGET, Service, Tap, ended, program, prompts, run, until

tap = Tap()
TOKENS = 600
PEERS = {"verifier": {"drafter", "expert-cache", "policy"}, "drafter": {"verifier", "expert-cache", "policy"},
         "expert-cache": {"verifier", "drafter"}, "policy": {"verifier", "drafter"}}
OPTIONS = {"verifier": ("--model", TARGET, "--set", "threads=1"), "drafter": (), "expert-cache": ("--model", TARGET), "policy": ()}


class Four:
    """The four processes, each started and ended by the test."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-peers-", dir="/tmp"))
        self.runtime = self.folder / "run"
        self.running = {}
        self.log = open(self.folder / "log", "w+")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.end(name)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name):
        self.running[name] = subprocess.Popen([program(f"outrider-{name}"), "-v", "--runtime-dir", self.runtime, *map(str, OPTIONS[name])],
                                              stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def end(self, name, sig=signal.SIGTERM):
        process = self.running.pop(name)
        process.send_signal(sig)
        return ended(process)

    def seen(self):
        """{process: {peer: state}}, of those that answer."""
        result = run(program("outrider"), "status", "--runtime-dir", self.runtime, "--format", "json")
        with contextlib.suppress(json.JSONDecodeError, KeyError):
            return {p["name"]: {key[5:]: value for key, value in p["details"].items() if key.startswith("peer_") and not key.endswith("_ns")}
                    for p in json.loads(result.stdout)["processes"] if p.get("details")}
        return {}

    def all_ready(self):
        seen = self.seen()
        return all(seen.get(name, {}).get(peer) == "ready" for name, peers in PEERS.items() for peer in peers)

    def show(self):
        self.log.flush()
        return f"{self.seen()}\n{(self.folder / 'log').read_text()[-3000:]}"


def orders():
    """Each start a moment after the one before: most meet peers that are still loading, or not there. Of every two processes each
    is first in some, and each of the four is first and last."""
    wrong = []
    for order in [names[i:] + names[:i] for names in (PROCESSES, PROCESSES[::-1]) for i in range(4)]:
        with Four() as four:
            for name in order:
                four.start(name)
                until(lambda: (four.runtime / f"{name}.ctl").exists(), 60 * PATIENCE, every=0.002)
            if not until(four.all_ready, 60 * PATIENCE, every=0.02):
                wrong.append((order, four.show()))
    tap.ok(not wrong, "in whatever order they start, each process ends up ready to all its peers", wrong)


def each_dies():
    with Four() as four:
        for name in PROCESSES:
            four.start(name)
        tap.ok(until(four.all_ready, 60 * PATIENCE), "the four are ready to one another", four.show())
        for name, sig in itertools.product(PROCESSES, (signal.SIGKILL, signal.SIGTERM)):
            four.end(name, sig)
            others = [p for p in PROCESSES if p != name and name in PEERS[p]]
            gone = until(lambda: all(four.seen().get(p, {}).get(name) == "gone" for p in others), 60 * PATIENCE)
            why = four.show()
            four.start(name)
            tap.ok(gone and until(four.all_ready, 60 * PATIENCE), f"{name} is gone after {sig.name} to {', '.join(others)}, and ready after its start",
                   f"{why}\nthen {four.show()}")
        text = (four.folder / "log").read_text()
        tap.ok("drafter (process" in text and "and verifier (process" in text, "the log names both sides of a registration", text[-3000:])


def card(name, layout, version="9.9"):
    return rubbish.message((1, 1), (2, name), (3, os.getpid()), (4, 5), (5, version),
                           (8, rubbish.message((1, "sessions"), (2, layout))), (9, rubbish.message((1, 2))))


def another_build_is_refused():
    """A drafter whose layouts are another version's: refused by name, shown, and forgotten when a right one comes."""
    with Four() as four:
        four.start("verifier")
        until(lambda: "verifier" in four.seen(), 60 * PATIENCE)
        peer = rubbish.Peer(four.runtime / "verifier.ctl", kind=b"ROUTER")
        answer = peer.ask(rubbish.envelope(80, rubbish.message((1, card("drafter", 1)))))
        words = rubbish.parse(answer.get(30, b"")).get(2, b"").decode()
        tap.ok(all(word in words for word in ("region sessions", "layout 1 in drafter 9.9", "in verifier ")), "the refusal names region and versions", answer)
        state = four.seen().get("verifier", {}).get("drafter", "")
        tap.ok(state.startswith("refused: region sessions"), "and status shows it", four.show())
        hello = struct.pack("<IIIiQ32s32s", 0x4c48524f, 1, 1, os.getpid(), 5, b"drafter", b"")
        broker = rubbish.connect(four.runtime / "verifier.sock", kind=5)
        broker.send(hello)
        tap.ok(b"has not registered" in broker.recv(4096), "nor does it get a region")
        broker.close()
        peer.close()
        for name in PROCESSES[1:]:
            four.start(name)
        tap.ok(until(four.all_ready, 60 * PATIENCE), "a drafter of this build is accepted afterwards", four.show())


class PeerCalls:
    """Calls of tests/integration/peer_calls.c, as struct calls there."""

    def __init__(self, folder):
        self.folder = folder

    def of(self, pids):
        return {name: struct.unpack("=QQQ", (Path(self.folder) / str(pid)).read_bytes()) for name, pid in pids.items()}


def nothing_per_token(k):
    request = {"tokens": prompts(1, longest=40)[0], "max_tokens": TOKENS, "ignore_eos": True, "k": k}
    with tempfile.TemporaryDirectory(prefix="outrider-calls-") as folder, \
            Service(draft=DRAFTS["small"], env={"LD_PRELOAD": program("tests/peer_calls.so"), "OUTRIDER_PEER_CALLS": folder},
                    sets=("verifier.stream_interval=0", "verifier.kernels=scalar")) as service:
        calls, pids = PeerCalls(folder), service.processes()
        # The memory that it takes is there afterwards: what the expert-cache is told of that is told for memory, not for tokens.
        service.swarm([request])
        seen = []

        def quiet():
            seen.append(calls.of(pids))
            time.sleep(1)
            return [c[:2] for c in calls.of(pids).values()] == [c[:2] for c in seen[-1].values()]
        until(quiet)
        start = calls.of(pids)
        tap.ok(all(ctl > 0 for ctl, _, _ in start.values()) and all(sock > 0 for _, sock, _ in start.values()),
               f"K = {k}: calls on the peers' sockets are counted", start)
        service.swarm([request])
        end = calls.of(pids)
        made = {name: (end[name][0] - start[name][0], end[name][1] - start[name][1]) for name in end}
        # The verifier tells of its memory when that has grown by a 64th, and when it grows no more: once, on a machine that is quick.
        told = {"verifier", "expert-cache"}
        tap.ok(all(sock == 0 and ctl <= TOKENS // 15 * (name in told) for name, (ctl, sock) in made.items()),
               f"K = {k}: {TOKENS} tokens make no call on any of them, but for a change of memory", made)
        tap.ok(end["verifier"][2] - start["verifier"][2] > 10, f"K = {k}: while the client is sent its tokens", (start, end))


orders()
each_dies()
another_build_is_refused()
if SANITIZED:
    tap.skip("no call per token", "a sanitizer is loaded before everything else")
else:
    for k in (0, 3):
        nothing_per_token(k)
tap.done()
