#!/usr/bin/env python3
"""Who may write to which region: every descriptor and every mapping of every region in every process. And that who cannot write
is enough of a keeper: with nothing in the fd store the owner's successor gets each region back from a descriptor for reading,
and writes to it again."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import BUILD, DRAFTS, PROCESSES, TARGET, Service, Tap, difference, ended, program, prompts, reference, until

tap = Tap()
OWNER = {"sessions": "verifier", "draft": "verifier", "supports": "verifier", "kv": "verifier", "weights": "verifier", "experts": "expert-cache",
         "hints": "expert-cache", "policy": "policy"}
WRITERS = {"draft": {"drafter"}, "supports": {"drafter"}, "experts": {"verifier"}, "hints": {"drafter", "verifier"}, "policy": {"verifier"}}
ids = prompts(1, longest=80)[0]
expected = reference(ids, 120, extra=("--ignore-eos",))
request = {"tokens": ids, "max_tokens": 120, "ignore_eos": True, "k": 3}


def region_of(link):
    match = re.match(r"/memfd:([a-z]+)\b", link)
    return match.group(1) if match and match.group(1) in OWNER else None


def descriptors(pid):
    """[(region, inode, whether it can be written to)] of a process."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            region = region_of(os.readlink(fd))
            if region:
                flags = int(re.search(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text()).group(1), 8)
                found.append((region, os.stat(fd).st_ino, flags & os.O_ACCMODE != os.O_RDONLY))
    return found


def mappings(pid):
    """[(region, inode, permissions, bytes)]"""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(None, 5)
        region = region_of(words[5]) if len(words) > 5 else None
        if region:
            low, high = (int(n, 16) for n in words[0].split("-"))
            found.append((region, int(words[4]), words[1], high - low))
    return found


def may_write(process, region):
    return process == OWNER[region] or process in WRITERS.get(region, ())


def wrong_rights(service):
    """What a process could write to, and should not; and the regions that each process holds."""
    wrong, held = [], {}
    for pid, name in [*service.children().items(), *([(service.process.pid, "up")] if service.process else [])]:
        for region, _, writable in descriptors(pid):
            held.setdefault(name, set()).add(region)
            if writable and not may_write(name, region):
                wrong.append(f"{name} has a descriptor of {region} that it can write to")
        for region, _, permissions, size in mappings(pid):
            if "w" in permissions and not may_write(name, region):
                wrong.append(f"{name} has {region} mapped {permissions}")
            # The slots are by far the most of it.
            if name == "verifier" and region == "experts" and "w" in permissions and size > 8 << 20:
                wrong.append(f"the verifier has {size} bytes of {region} mapped {permissions}")
    return wrong, held


def inode(service, region):
    """That of the owner's, or None."""
    pid = service.processes().get(OWNER[region])
    found = {number for name, number, _ in descriptors(pid) if name == region} if pid else set()
    return found.pop() if len(found) == 1 else None


def same_everywhere(service):
    return all(len({number for pid in service.children() for name, number, _ in descriptors(pid) if name == region}) == 1
               for region in OWNER)


def forward(service, what):
    found, held = wrong_rights(service)
    tap.ok(not found, f"{what}: nobody can write to what is another's", "\n".join(found))
    return held


class Bare(Service):
    """The four processes without a service manager: nobody has a store of descriptors, and what a successor gets it gets from its
    peers, which hold no descriptor for writing."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-", dir="/tmp"))
        self.runtime = self.directory / "run"
        self.log = open(self.directory / "log", "w+")
        self.environment = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "LISTEN_FDS")}
        self.commands = {"verifier": ["--model", TARGET, "--set", "weights=packed"], "drafter": ["--draft", DRAFTS["small"]],
                         "expert-cache": ["--model", TARGET, "--budget", "50%"], "policy": []}
        self.process, self.daemons = None, {}
        for name in self.commands:
            self.start(name)

    def start(self, name):
        command = [program(f"outrider-{name}"), "--runtime-dir", self.runtime, *self.commands[name]]
        self.daemons[name] = subprocess.Popen([str(c) for c in command], env=self.environment, stdin=subprocess.DEVNULL,
                                              stdout=self.log, stderr=self.log)

    def wait_ready(self):
        if not until(lambda: all(p["state"].startswith(("ready", "idle")) for p in self.status()), 90):
            raise RuntimeError(f"not ready: {self.status()}\n{self.log_text()}")

    def children(self):
        return {process.pid: name for name, process in self.daemons.items()}

    def restart(self, name, sig=signal.SIGKILL):
        self.daemons[name].send_signal(sig)
        self.daemons[name].wait()
        self.start(name)
        self.renewed(name, None)
        self.wait_ready()

    def stop(self):
        for process in self.daemons.values():
            process.terminate()
        for process in self.daemons.values():
            ended(process)
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def taken_over(service, victim, what):
    """Kills it while answers are made: every region stays the same file, and every answer the same."""
    before = {region: inode(service, region) for region in OWNER}
    process, results = service.swarm_start([request] * 3, concurrent=3)
    time.sleep(0.1)
    service.restart(victim)
    until(lambda: same_everywhere(service))
    after = {region: inode(service, region) for region in OWNER}
    tap.ok(before == after and None not in after.values(), f"{what}: every region is taken over",
           f"{before} {after}\n{service.log_text()}")
    different = [difference(r, expected) for r in results()]
    tap.ok(not any(different), f"{what}: the answers go on", different)
    forward(service, what)


with Service(draft=DRAFTS["small"], options=("--budget", "50%"), sets=("verifier.weights=packed",)) as service:
    tap.ok(until(lambda: same_everywhere(service)), "every region is there, one file of each name")
    tap.ok(not difference(service.swarm([request])[0], expected), "the reference's answer")
    held = forward(service, "at work")
    tap.ok(held.get("drafter") == set(OWNER) and held.get("up") == set(OWNER), "the drafter and `up` keep all regions", held)
    for victim in PROCESSES:
        taken_over(service, victim, f"{victim} killed")

with Bare() as service:
    tap.ok(until(lambda: same_everywhere(service)), "every region is there without a service manager")
    forward(service, "without a store")
    for victim in PROCESSES:
        taken_over(service, victim, f"{victim} killed without a store")

# A sandbox may hide other processes, or all of /proc.
for what, mount in (("only its own processes", "mount -t proc -o hidepid=2,subset=pid proc /proc"), ("no /proc", "mount -t tmpfs none /proc")):
    if os.getuid():
        tap.skip(f"a service that sees {what}", "it takes root to hide it")
        continue
    with Service(draft=DRAFTS["small"], options=("--budget", "50%"), env={"PATH": f"{BUILD}:{os.environ['PATH']}"},
                 before=("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")) as service:
        found, _ = wrong_rights(service)
        said = service.whole_log().count("processes that only read it could write to it")
        tap.ok(bool(found) == bool(said) == (what == "no /proc"), f"a service that sees {what} says whether others could write",
               f"{found}\n{service.log_text()}")
        service.swarm([request])
        service.restart("verifier")
        service.restart("expert-cache")
        tap.ok(not difference(service.swarm([request])[0], expected) and re.search(r"took over [1-9]\d* experts", service.whole_log())
               and "took over 1 sessions" in service.whole_log(),
               f"a service that sees {what} takes over what was left", service.log_text())
tap.done()
