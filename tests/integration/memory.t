#!/usr/bin/env python3
"""Budget auto as memory changes under it: what the verifier has filled by now counts once, also behind one that died twice within
an answer; a control group's limit that falls or rises is followed; memory that others take or give back is not. A limit below what is needed
is refused, above it the kernel ends nothing, and what it ends nevertheless is told from what an operator does."""
import contextlib
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import Service, Tap, difference, program, prompts, reference, run, until

MIB = 1 << 20
tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-memory-", dir="/tmp"))
prompt = prompts(1, longest=120)[0]
request = {"tokens": prompt, "max_tokens": 400, "seed": 1, "ignore_eos": True}
expected = reference(prompt, 400, extra=("--ignore-eos",))


def membership():
    """Where the memory controller has this process's group, and so a service's: (below /sys/fs/cgroup, its limit, what it uses)."""
    second = "/"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("memory") / path.lstrip("/"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        second = second if controllers else path
    return Path(second.lstrip("/")), "memory.max", "memory.current"


place, MOST, USED = membership()
files = folder / "group" / place
files.mkdir(parents=True)
# All of a service, in a namespace where its group has the files that lie there.
made_up = ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c",
           f'mount --bind {folder}/group /sys/fs/cgroup && exec "$@"', "sh"]


def memory_of(pid, *regions):
    """Bytes that the process's regions of these names have, each counted once."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name, of = os.readlink(entry), os.stat(entry)
        except FileNotFoundError:
            continue
        if name.removeprefix("/memfd:").split(" ")[0] in regions:
            found[of.st_ino] = of.st_blocks * 512
    return sum(found.values())


@contextlib.contextmanager
def writable(pid, region):
    """The bytes of a process's region, as a peer that has gone mad could write them."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(entry).startswith(f"/memfd:{region} "):
            with open(entry, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                yield memory
            return
    raise RuntimeError(f"process {pid} has no region {region}")


class Cache:
    """What the expert-cache of a service says of itself, and is told."""

    def __init__(self, service):
        self.service = service

    def stats(self):
        return self.service.ctl_json("cache", "stats")

    def set(self, budget):
        return self.service.ctl("cache", "set", f"budget={budget}")

    def has(self):
        return memory_of(self.service.processes()["expert-cache"], "experts")

    def others(self):
        return memory_of(self.service.processes()["verifier"], "kv", "sessions", "draft", "supports", "hidden", "weights")

    def settled(self):
        """What it shares out when its budget is set to auto now, beside what it and the verifier have had until then."""
        self.set("50%")
        until(lambda: self.has() == (time.sleep(0.3), self.has())[1], 10)
        had = self.has(), self.others()
        self.set("auto")
        return (self.stats(), *had)


def limit(name, bytes):
    (files / name).write_text(f"{bytes}\n")


def changes():
    with Service(options=("--budget", "auto")) as service:
        free = Cache(service).stats()
    slot, everything = free["slot_bytes"], free["slots"] * free["slot_bytes"]
    rest = free["weights_bytes"] + free["kv_bytes"] + free["sessions_bytes"] + 256 * MIB
    whole = rest + everything
    limit(MOST, whole)
    with Service(options=("--budget", "auto"), before=made_up) as service:
        cache = Cache(service)
        tap.ok(cache.stats()["slots"] == free["slots"], "a limit with room for all experts: all", cache.stats())

        # So much is free of it beside what both have that this is what is shared out.
        beside = whole - 64 * MIB
        limit(USED, whole - beside + cache.has() + cache.others())

        def counts_once():
            now, had, there = cache.settled()
            limit(USED, whole - beside + had + there)
            now, had, there = cache.settled()
            counts_once.why = f"{now['memory_bytes']} of {beside}: {had} {there} {now['room']}"
            return now["memory_bytes"] == beside
        first = cache.others()
        tap.ok(until(counts_once), "what the verifier had when it came counts as taken, once", counts_once.why)
        result, = service.swarm([request])
        tap.ok(not difference(result, expected) and cache.others() > first, "an answer fills more of the KV cache",
               f"{difference(result, expected)} {first} {cache.others()}")
        tap.ok(until(counts_once), "which is taken once, too", counts_once.why)

        process, results = service.swarm_start([request])
        for _ in range(2):
            victim = service.end("verifier")
            service.renewed("verifier", victim)
        result, = results()
        service.wait_ready()
        tap.ok(not difference(result, expected), "a verifier that dies, returns and dies again within an answer: the same bytes",
               difference(result, expected))
        tap.ok(until(counts_once), "what the third has counts once", counts_once.why)

        # What the verifier says lies in memory that it shares: the cache counts with whatever stands there.
        before, wrong = cache.stats(), []
        said = struct.pack("3Q", *(before[f"{name}_bytes"] for name in ("weights", "kv", "sessions")))
        with writable(service.processes()["expert-cache"], "experts") as memory:
            at = memory.find(said, 0, 1 << 16)
            for needs in (4 * [2**64 - 1], [2**63, 2**63, 1, 0], [0, 0, 0, 2**64 - 1], [2**60, 1, 2**60 + 1, 2**61], [0, 0, 0, 0]):
                memory[at:at + 32] = struct.pack("4Q", *needs)
                until(lambda: cache.stats()["kv_bytes"] == min(needs[1], 2**60))
                now = cache.stats()
                room = max(0, now["memory_bytes"] - 256 * MIB - sum(min(n, 2**60) for n in needs[:3]))
                if not (now["room_bytes"] == room and now["memory_bytes"] <= whole and
                        now["budget_bytes"] == min(max(room // slot * slot, now["budget_min_bytes"]), everything)):
                    wrong.append(f"{needs}: {now}")
            # Said by one who died within, for ever.
            memory[at - 8:at - 4] = struct.pack("I", 7)
            memory[at:at + 32] = struct.pack("4Q", 1, 2, 3, 4)
            time.sleep(1)
            if cache.stats()["kv_bytes"] == 2:
                wrong.append("half of a statement is taken for all of it")
        tap.ok(at > 0 and not wrong, "any numbers in place of what the verifier says: a budget within its bounds", "\n".join(wrong))
        victim = service.end("verifier")
        service.renewed("verifier", victim)
        tap.ok(until(lambda: (now := cache.stats())["slots"] == before["slots"] and now["kv_bytes"] == before["kv_bytes"]),
               "the next verifier says it anew", cache.stats())

        # Others take everything, then nothing.
        slots = cache.stats()["slots"]
        limit(USED, whole)
        time.sleep(3)
        tap.ok(cache.stats()["slots"] == slots, "what others take later changes nothing", cache.stats())
        limit(USED, 0)
        cache.set("50%")
        cache.set("auto")
        tap.ok(cache.stats()["slots"] == free["slots"], "until it is set to auto again: then it takes what is free now", cache.stats())

        limit(USED, whole)
        for most, what in ((whole + whole // 16, "rises"), (whole, "falls to where it was")):
            limit(MOST, most)
            time.sleep(3)
            tap.ok(cache.stats()["slots"] == free["slots"], f"nor does what others take when the limit {what}", cache.stats())

        # While there is no verifier what it has is nobody's: its KV cache is kept, and not free.
        _, had, there = cache.settled()
        used = whole - rest - everything // 2
        limit(USED, used + had + there)
        slots = cache.settled()[0]["slots"]
        service.process.send_signal(signal.SIGSTOP)
        victim = service.end("verifier")

        def fewer():
            """Found as soon as the cache knows that the verifier has gone."""
            cache.set("50%")
            cache.set("auto")
            return cache.stats()["slots"] < slots - 1
        fell = until(fewer)
        until(lambda: cache.has() < had)
        limit(USED, used + cache.has() + there)
        service.process.send_signal(signal.SIGCONT)
        # What the next verifier has filled by then can differ by some pages, which are less than a slot.
        tap.ok(service.renewed("verifier", victim) and until(lambda: abs(cache.stats()["slots"] - slots) <= 1) and fell,
               "a budget that was found without a verifier is found anew when one is there", f"{fell} {slots} {cache.stats()}")
        limit(USED, 0)

        small = rest + everything // 4
        limit(MOST, small)
        tap.ok(until(lambda: (now := cache.stats())["slots"] <= everything // 4 // slot and now["in_use"] <= now["slots"]),
               "a limit that falls: so does the budget, and what is in use", cache.stats())
        now = cache.stats()
        tap.ok(now["budget_bytes"] <= now["room_bytes"] < now["budget_bytes"] + slot and now["memory_bytes"] == small,
               "to what there is room for", now)
        tap.ok(f"{MOST} has {small / MIB:.1f} MiB, had {whole / MIB:.1f} MiB: {now['slots']} expert slots, were" in
               service.log_text(), "which is said", service.log_text())
        result, = service.swarm([request])
        tap.ok(not difference(result, expected), "with the same bytes", difference(result, expected))
        limit(MOST, 1)
        tap.ok(until(lambda: (now := cache.stats())["budget_bytes"] == now["budget_min_bytes"]),
               "one that leaves nothing: the least budget", cache.stats())
        limit(MOST, whole)
        tap.ok(until(lambda: cache.stats()["slots"] == free["slots"]), "one that rises: so does the budget", cache.stats())

        cache.set("50%")
        half = cache.stats()["slots"]
        limit(MOST, small)
        tap.ok(until(lambda: "budget 50%: " in service.log_text()) and cache.stats()["slots"] == half,
               "a named one stays, and it is said that it leaves too little", service.log_text())


def group():
    """A control group of our own whose memory can be limited, or why there is none."""
    top = Path("/sys/fs/cgroup")
    made = (top / place if (top / place).is_dir() else top / place.parts[0]) / f"outrider-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as e:
        return str(e)
    if (made / MOST).exists():
        return made
    made.rmdir()
    return f"{made.parent}: no memory controller"


def real(made):
    """The same with a group of the kernel's, which all processes of a service are in."""
    def used():
        return int((made / USED).read_text())

    (made / MOST).write_text(f"{8 << 30}\n")
    before = ["sh", "-c", f'echo $$ > {made}/cgroup.procs && exec "$@"', "sh"]
    with Service(options=("--budget", "auto"), sets=("verifier.context=512", "verifier.kv_tokens=1024"), before=before) as service:
        cache = Cache(service)
        until(lambda: cache.stats()["needs_said"])
        now = cache.stats()
        everything = now["budget_bytes"]
        tap.ok(now["slots"] == now["resident"] or until(lambda: (s := cache.stats())["slots"] == s["resident"]),
               "in a group of the kernel's with room: all experts", cache.stats())
        full = cache.has()
        small = now["weights_bytes"] + now["kv_bytes"] + now["sessions_bytes"] + 256 * MIB + everything // 4
        (made / MOST).write_text(f"{small}\n")
        tap.ok(until(lambda: cache.stats()["slots"] < now["slots"] // 2 and cache.has() < full - everything // 2),
               "its limit falls: memory goes back to the kernel", f"{cache.stats()} {full} {cache.has()}")
        tap.ok(used() < small, "and all is within the limit", f"{used()} {small}")
        result, = service.swarm([request])
        tap.ok(not difference(result, expected), "with the same bytes", difference(result, expected))
        (made / MOST).write_text(f"{8 << 30}\n")
        tap.ok(until(lambda: cache.stats()["slots"] == now["slots"]), "it rises: all experts again", cache.stats())


def starved():
    """Ends by the kernel for lack of memory, as it counts them, are told from an operator's: after a few in a row that is said, to
    clients too, and nothing is started again."""
    events, text = ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n") if MOST.startswith("memory.limit") else ("memory.events", "oom 0\n")

    def count(kills):
        (files / f"{events}.new").write_text(f"{text}oom_kill {kills}\n")
        (files / f"{events}.new").rename(files / events)

    def end_all(kills, name):
        def over():
            return service.process.poll() is not None or f"{name} ended by the kernel for lack of memory 5 times" in service.whole_log()

        for i in range(1, 8):
            if over():
                break
            count(kills and kills + i)
            pid = service.processes().get(name)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: over() or service.processes().get(name) not in (None, pid))

    limit(MOST, 2 << 30)
    for name, others_go_on in (("expert-cache", False), ("verifier", False), ("drafter", True)):
        count(3)
        with Service(before=made_up) as service:
            end_all(0, name)
            tap.ok(service.process.poll() is None and "lack of memory" not in service.whole_log() and
                   service.whole_log().count(f"{name} killed by signal 9") == 7, f"{name}: what an operator kills is started again, always",
                   service.log_text())
            service.wait_ready()
            count(3)
            end_all(3, name)
            said = f"{name} ended by the kernel for lack of memory: /sys/fs/cgroup/{place / MOST} has 2048.0 MiB; it restarts"
            last = f"{name} ended by the kernel for lack of memory 5 times in a row"
            until(lambda: last in service.whole_log())
            log = service.whole_log()
            tap.ok(log.count(said) == 4 and f"{last}, giving up" in log, f"{name}: what the kernel kills is, four times", log[-3000:])
            if others_go_on:
                tap.ok(service.process.poll() is None, "without it the others go on", log[-3000:])
                continue
            tap.ok(until(lambda: service.process.poll() == 71), "then all end", service.log_text())
            status = service.ctl("status")
            client = subprocess.run([program("outrider"), "run", "--runtime-dir", str(service.runtime), "--wait", "0.2", "--max-tokens", "1", "x"],
                                    capture_output=True, text=True)
            tap.ok(client.returncode != 0 and all(last in t and "give it more" in t for t in (status.stdout + status.stderr, client.stderr)),
                   "and status and clients say why", f"{status}\n{client}")


def told_apart():
    """What the kernel counted once may be about several that end one by one; what it counted long before is about none of them, and so is
    a count that could not be read in between."""
    events = "memory.oom_control" if MOST.startswith("memory.limit") else "memory.events"

    def count(kills):
        (files / f"{events}.new").write_text(f"oom_kill {kills}\n")
        (files / f"{events}.new").rename(files / events)

    def end(*names):
        """What is said of each; one ends as soon as something was said of the one before."""
        said, pids = [], {}
        for name in names:
            before = len(service.whole_log())
            pids[name] = service.end(name)
            until(lambda: re.search(rf"{name} .*; it restarts", service.whole_log()[before:]), every=0.01)
            said.append(service.whole_log()[before:])
        for name, pid in pids.items():
            service.renewed(name, pid)
        return said

    by_kernel, by_operator = "{} ended by the kernel for lack of memory", "{} killed by signal 9"
    limit(MOST, 2 << 30)
    count(3)
    with Service(before=made_up) as service:
        (files / events).unlink()
        said, = end("drafter")
        tap.ok(by_operator.format("drafter") in said, "without a count nothing is the kernel's", said)
        count(3)
        said, = end("drafter")
        tap.ok(by_operator.format("drafter") in said, "a count that is there again is none that rose", said)

        for kills in (5, 7, 9):  # again where the machine stood still between the two
            count(kills)
            first, second = end("verifier", "expert-cache")
            if by_kernel.format("expert-cache") in second:
                break
        tap.ok(by_kernel.format("verifier") in first, "two are killed at once: the first that is found dead was by the kernel", first)
        tap.ok(by_kernel.format("expert-cache") in second, "so was the second, which is found later", second)
        service.wait_ready()

        count(kills + 1)
        # Renamed, it was never read: that it was is seen where that is noted.
        fresh = os.stat(files / events).st_atime_ns
        until(lambda: os.stat(files / events).st_atime_ns > fresh)
        time.sleep(6)
        said, = end("drafter")
        tap.ok(by_operator.format("drafter") in said, "another of the group was killed long before: the next end is an operator's", said)


def fits(made):
    """Limits of a group of the kernel's, from one that is refused to one with room for everything: nothing is ended for lack of
    memory, at the one that the refusal names either. Of a model with as much of other weights as there are of experts, nearly:
    there is room for a copy of them, or for experts."""
    model = folder / "model.gguf"
    run(program("outrider-model"), "synth", "qwen3-30b-a3b", model, "--layers", 1, "--vocabulary", 100000, "--quiet")
    sets = ("verifier.context=512", "verifier.kv_tokens=1024", "verifier.sessions_max=1", "verifier.prefill_chunk=32")
    before = ["sh", "-c", f'echo $$ > {made}/cgroup.procs && exec "$@"', "sh"]
    ids = list(range(100, 160))
    wanted = reference(ids, 20, model=model, extra=("--ignore-eos",))

    def ended_by_the_kernel():
        counts = (made / ("memory.oom_control" if MOST.startswith("memory.limit") else "memory.events")).read_text()
        return int(counts.split("oom_kill ")[1].split()[0])

    (made / MOST).write_text(f"{100 * MIB}\n")
    command = [*before, program("outrider"), "up", "--model", model, "--runtime-dir", folder / "refused"]
    for pair in sets:
        command += ["--set", pair]
    refused = run(*command)
    least = re.search(rf"memory: at least (\d+) MiB are needed, but {re.escape(str(made / MOST))} has 100.0 MiB: give it more, set a", refused.stderr)
    tap.ok(refused.returncode == 71 and least and "the fewest experts that one layer may need" in refused.stderr,
           "a limit that the fewest experts and the rest have no room in is refused before anything starts", refused)
    if not least:
        return
    (made / MOST).write_text(f"{int(least[1]) * MIB - 32 * MIB}\n")
    tap.ok(run(*command).returncode == 71, "so is one that is a little less than the one that is named")
    weights = set()
    for more in (0, 20, 40, 70, 100, 400):
        (made / MOST).write_text(f"{(int(least[1]) + more) * MIB}\n")
        with Service(model=model, sets=sets, before=before) as service:
            result, = service.swarm([{"tokens": ids, "max_tokens": 20, "ignore_eos": True}])
            weights.add("of weights in" in service.whole_log())
            tap.ok(not difference(result, wanted) and ended_by_the_kernel() == 0 and "lack of memory" not in service.whole_log(),
                   f"the least that is named and {more} MiB: it serves, and the kernel ends nothing",
                   f"{difference(result, wanted)} {ended_by_the_kernel()}\n{service.log_text()}")
    tap.ok(weights == {False, True}, "with the other weights in the file and as a copy", weights)


probe = subprocess.run([*made_up, "true"], capture_output=True, text=True)
try:
    if probe.returncode == 0:
        changes()
        starved()
        told_apart()
    else:
        tap.skip("budget auto as limits change, ends for lack of memory", f"no mount namespace: {probe.stderr.strip()}")
    made = group()
    if isinstance(made, Path):
        try:
            real(made)
            fits(made)
        finally:
            until(lambda: not (made / "cgroup.procs").read_text(), 10)
            made.rmdir()
    else:
        tap.skip("limits in a control group of the kernel's", made)
finally:
    shutil.rmtree(folder, ignore_errors=True)
tap.done()
