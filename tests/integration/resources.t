#!/usr/bin/env python3
"""A machine that has less than is asked for: no vector instructions, more threads than CPUs, CPUs that go away and come
back during a pass, limits of control groups. It is said what is short and what to set, and the bytes stay the same."""
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, PATIENCE, SANITIZED, TARGET, Service, Tap, difference, ended, grouped, program, prompts, reference, until

tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-resources-", dir="/tmp"))
ids = prompts(2, longest=60)
expected = [reference(p, 60, extra=("--ignore-eos",)) for p in ids]
requests = [{"tokens": p, "max_tokens": 60, "ignore_eos": True, "logits_hash": True, "k": 2} for p in ids]


def same(service, name):
    found = [difference(r, e) for r, e in zip(service.swarm(requests, 2), expected)]
    tap.ok(not any(found), name, found)


with Service(draft=DRAFTS["small"], sets=("verifier.kernels=scalar", "drafter.kernels=scalar")) as service:
    said = [line for line in service.whole_log().splitlines() if "kernels = scalar is set" in line]
    tap.ok(len(said) == 2 and all("kernels = auto" in line for line in said),
           "verifier and drafter say once that the kernels are scalar", service.whole_log())
    same(service, "scalar kernels give the same bytes")

with Service(sets=("verifier.threads=64",)) as service:
    cpus = len(os.sched_getaffinity(0))
    if cpus < 64:
        tap.ok(f"threads = 64, but this process has {cpus} CPU" in service.whole_log(),
               "more threads than CPUs are noticed", service.whole_log())
    same(service, "and give the same bytes")


def set_cpus(pid, cpus):
    """What taskset -ap does."""
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(task), cpus)
        except ProcessLookupError:
            pass


class CpuSet:
    """A control group of that process, whose CPUs the machine's owner changes; a context manager. group: None, with why, where
    none can be made."""

    def __init__(self, pid):
        self.group, self.why = None, "no control group has the cpuset controller"
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            old = "cpuset" in controllers.split(",")
            if old or not controllers:
                mount = "/sys/fs/cgroup/cpuset" if old else "/sys/fs/cgroup"
                for home in (Path(mount + path), Path(mount)):
                    self.group = self.group or self.make(home, old, pid)

    def make(self, home, old, pid):
        group, self.home = home / f"outrider-test-{os.getpid()}", home
        try:
            group.mkdir()
        except OSError as e:
            self.why = str(e)
            return None
        try:
            if old:
                (group / "cpuset.mems").write_text((home / "cpuset.mems").read_text())
            (group / "cpuset.cpus").write_text(listed(os.sched_getaffinity(0)))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as e:
            self.why = str(e)
            group.rmdir()
            return None
        return group

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.group:
            for pid in (self.group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (self.home / "cgroup.procs").write_text(pid)
            until(lambda: not (self.group / "cgroup.procs").read_text().strip())
            self.group.rmdir()

    def set(self, cpus):
        (self.group / "cpuset.cpus").write_text(listed(cpus))


def listed(cpus):
    return ",".join(map(str, sorted(cpus)))


def lose_cpus(service, how, pin, change):
    """change(cpus): what the verifier may use from now on."""
    every, pid, changes = os.sched_getaffinity(0), service.processes()["verifier"], 0
    process, results = service.swarm_start([{**r, "max_tokens": 400} for r in requests], 2)
    while process.poll() is None and changes < 1000:
        change({sorted(every)[changes % 2]} if changes % 3 else every)
        changes += 1
        time.sleep(0.02)
    found = results()
    wanted = [reference(p, 400, extra=("--ignore-eos",)) for p in ids]
    differences = [difference(r, e) for r, e in zip(found, wanted)]
    tap.ok(not any(differences), f"CPUs that go away during a pass change no byte, {how}, pin {pin}", differences)
    tap.note(f"{changes} changes")
    change(every)
    same(service, f"and the service goes on when they are back, {how}, pin {pin}")
    tap.ok(service.processes().get("verifier") == pid, f"it is still the same process, {how}, pin {pin}")


def alone(name, said, limits, options):
    """Starts the process alone with limits; ends it when it has said that. (ended by itself with, log)."""
    log = open(folder / "log", "w+")
    process = subprocess.Popen(grouped(folder, limits, program(name), "--model", TARGET, "--runtime-dir", folder / "alone", *options),
                               stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or said in (folder / "log").read_text())
    status = process.poll()
    if status is None:
        process.terminate()
        ended(process)
    log.close()
    return status, (folder / "log").read_text()


def verifier(limits, *options):
    return alone("outrider-verifier", "serving", limits, options)


def cache(limits, *options):
    return alone("outrider-expert-cache", "experts fit", limits, options)


def default_budget():
    """Without --budget: what fits beside the rest, as said; with one that does not: the largest that does."""
    status, log = cache({"memory.max": f"{1 << 50}\n"})
    all_bytes = re.search(r"budget auto: all experts, ([\d.]+) MiB", log)
    tap.ok(status is None and all_bytes, "no limit: the default budget is all experts, and that is said", f"{status}: {log}")
    everything = float(all_bytes[1]) if all_bytes else 0
    number = r"([\d.]+) MiB"
    shared_out = re.compile(f"budget auto: {number} of {number} of experts(, which is the least and more than there is room for)?: the {number} of "
                            rf"(\S+) less {number} for other weights, {number} for the KV cache at its default size, {number} for "
                            f"sessions and drafts, {number} in reserve; --budget SIZE changes it")
    status, log = cache({"memory.max": f"{1 << 20}\n"})
    named = re.search(r"/sys/fs/cgroup/test/memory.max has at most 1.0 MiB: .* about (\d+) MiB: give it that much", log)
    tap.ok(status == 71 and named, "a limit below the least budget is refused with one that is not", f"{status}: {log}")
    status, log = cache({"memory.max": f"{int(named[1]) << 20 if named else 0}\n"})
    tap.ok(status is None, "which is taken", f"{status}: {log}")
    status, log = cache({"memory.max": f"{64 << 20}\n"})
    least = shared_out.search(log)
    tap.ok(status is None and least and least[3] and least[5] == "/sys/fs/cgroup/test/memory.max",
           "a limit below what the rest needs: the least budget, and it serves", f"{status}: {log}")
    if not least:
        return
    rest = sum(map(float, least.group(6, 7, 8, 9)))
    limit = int((rest + everything / 2) * (1 << 20))
    status, log = cache({"memory.max": f"{limit}\n"})
    half = shared_out.search(log)
    tap.ok(status is None and half and not half[3] and 0.4 * everything < float(half[1]) <= everything / 2 + 0.1,
           "a limit with room for half of the experts: as many as fit", f"{status}: {log}")
    status, log = cache({"memory.max": f"{limit}\n"}, "--budget", "900G")
    most = re.search(r"budget (\d+M) is the largest allowed; budget auto takes ([\d.]+) MiB", log)
    tap.ok(status == 71 and most and half and most[2] == half[1] and "/sys/fs/cgroup/test/memory.max has at most" in log,
           "a named budget beyond the limit is refused with the largest", f"{status}: {log}")
    status, log = cache({"memory.max": f"{limit}\n"}, "--budget", most[1] if most else "all")
    tap.ok(status is None, "which is taken", f"{status}: {log}")


def limits():
    probe = subprocess.run(grouped(folder, {"memory.max": "1\n"}, "cat", "/sys/fs/cgroup/test/memory.max", "/proc/self/cgroup"),
                           capture_output=True, text=True)
    if "1\n" not in probe.stdout:
        tap.skip("limits of control groups", f"no mount namespace: {probe.stderr.strip()}")
        return
    status, log = verifier({"memory.max": "1048576\n"})
    takes = re.search(r"at least (\d+) MiB are needed, .*the KV cache takes ([\d.]+) MiB", log)
    tap.ok(status == 71 and takes and "/sys/fs/cgroup/test/memory.max has 1.0 MiB" in log and "kv_tokens" in log,
           "a limit below what it takes is refused with the least, the file that sets it and what to set", f"{status}: {log}")
    least, kv = (int(takes[1]) << 20, int(float(takes[2]))) if takes else (1 << 30, 100)
    status, log = verifier({"memory.max": f"{(kv - 1) << 20}\n"})
    tap.ok(status == 71, "so is one that the KV cache alone would fill", f"{status}: {log}")
    # Others in the group leave it so much of that.
    status, log = verifier({"memory.max": f"{least}\n", "memory.current": f"{least - ((kv + 1) << 20)}\n"})
    tap.ok(status is None and "do not fit in the free" in log and "read from the disk" in log,
           "the least serves, and it is noticed when KV cache and weights have no room", f"{status}: {log}")
    dense = re.search(r"weights of every token \(([\d.]+) MiB\)", log)
    free = (kv + int(float(dense[1])) + 2 if dense else 0) << 20
    most = max(least, free)
    status, log = verifier({"memory.max": f"{most}\n", "memory.current": f"{most - free}\n"})
    tap.ok(status is None and "outrider-expert-cache" in log and "budget" in log,
           "one below the experts names the budget to set", f"{status}: {log}")
    default_budget()
    status, log = verifier({"cpu.max": "100000 100000\n"})
    tap.ok(status is None and ", 1 thread, " in log, "a CPU quota of one CPU makes one thread", f"{status}: {log}")
    status, log = verifier({"cpu.max": "100000 100000\n"}, "--set", "threads=2")
    tap.ok(status is None and ("1.00 CPUs" in log or len(os.sched_getaffinity(0)) < 2),
           "more threads than the quota are noticed", f"{status}: {log}")


def joins_pages():
    """Whether the kernel joins small pages of shared memory to huge ones."""
    switch = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return switch.exists() and not re.search(r"\[(never|deny)\]", switch.read_text())


def pool(name, free, said, *more):
    """A machine whose pool of huge pages says that it has so many, and has none."""
    lines = [line for line in Path("/proc/meminfo").read_text().splitlines() if not line.startswith("HugePages_")]
    if not any(line.startswith("Hugepagesize:") for line in lines):
        lines.append("Hugepagesize:       2048 kB")
    (folder / "meminfo").write_text("\n".join([*lines, f"HugePages_Total: {free}", f"HugePages_Free: {free}", "HugePages_Rsvd: 0", ""]))
    script = f'mount --bind {folder}/meminfo /proc/meminfo && exec "$@"'
    start = ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", script, "sh"]
    probe = subprocess.run([*start, "grep", "HugePages_Free", "/proc/meminfo"], capture_output=True, text=True)
    if f" {free}\n" not in probe.stdout:
        tap.skip(name, f"no mount namespace: {probe.stderr.strip()}")
        return
    log = open(folder / "log", "w+")
    process = subprocess.Popen([*start, program("outrider-verifier"), "--model", TARGET, "--runtime-dir", folder / "alone", *more, "--set",
                                "weights=packed"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or "serving" in (folder / "log").read_text())
    text = (folder / "log").read_text()
    tap.ok(process.poll() is None and said in text and ("are used" in text or "are asked for instead" in text), name, text)
    if process.poll() is None:
        process.terminate()
    tap.ok(ended(process) == 0, "and it serves", text)
    log.close()


def small_pages():
    """outrider-model where the kernel joins no pages, and has none in its pool: once, and only with --pack."""
    name, switch = "outrider-model says that packed weights lie in small pages", "/sys/kernel/mm/transparent_hugepage/enabled"
    (folder / "never").write_text("always madvise [never]\n")
    start = ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", f'mount --bind {folder}/never {switch} && exec "$@"', "sh"]
    probe = subprocess.run([*start, "cat", switch], capture_output=True, text=True)
    if "[never]" not in probe.stdout:
        tap.skip(name, f"no mount namespace, or no such switch: {probe.stderr.strip()}")
        return
    said = [subprocess.run([*start, program("outrider-model"), "generate", "--model", str(TARGET), "--tokens", "1,2", "--max-tokens", "1", *more],
                           capture_output=True, text=True) for more in ((), ("--pack",))]
    tap.ok(not any(s.returncode for s in said) and [s.stderr.count("packed weights: the huge-page pool has") for s in said] == [0, 1] and
           "small pages are used" in said[1].stderr, name, said)


def pools():
    real = re.search(r"HugePages_Total:\s+(\d+)", Path("/proc/meminfo").read_text())
    if real and int(real[1]) > 0:
        tap.skip("a pool without pages", f"this machine's has {real[1]}")
        return
    pool("an empty pool of huge pages: others are used, and it is said how many are needed", 0, "the huge-page pool has 0 free pages",
         *(["-v"] if joins_pages() else []))
    small_pages()
    pool("a pool that gives none of its pages: others are used, and it is said", 100000, "but the kernel did not give")


def address_space():
    """RLIMIT_AS below what the process needs: what limits it and what to set, not only that there is no memory."""
    if SANITIZED:
        tap.skip("limits of the address space", "a sanitizer takes all of it")
        return
    large = folder / "large.gguf"
    shutil.copy(TARGET, large)
    os.truncate(large, 64 << 30)
    kv = ("--model", TARGET, "--set", "context=512", "--set", "kv_tokens=700000")
    for name, what, arguments in (("outrider-verifier", "the model", ("--model", large)), ("outrider-expert-cache", "the model", ("--model", large)),
                                  ("outrider-drafter", "the draft model", ("--draft", large)), ("outrider-verifier", "its KV cache", kv)):
        refused = subprocess.run(["prlimit", f"--as={1 << 30}", program(name), *map(str, arguments), "--runtime-dir", str(folder / "alone")],
                                 capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1500 * PATIENCE)
        tap.ok(refused.returncode == 71 and "may address 1024 MiB" in refused.stderr and "RLIMIT_AS" in refused.stderr,
               f"{name} in less address space than {what} takes says what limits it", refused)


if len(os.sched_getaffinity(0)) < 2:
    tap.skip("CPUs that go away", "there is one CPU")
else:
    for how_pinned in ("yes", "no"):
        with Service(sets=(f"verifier.pin={how_pinned}",)) as one:
            lose_cpus(one, "affinity", how_pinned, functools.partial(set_cpus, one.processes()["verifier"]))
    with Service(sets=("verifier.pin=yes",)) as one, CpuSet(one.processes()["verifier"]) as cpuset:
        if cpuset.group:
            lose_cpus(one, "cpuset", "yes", cpuset.set)
        else:
            tap.skip("CPUs that a cpuset takes away", cpuset.why)
limits()
pools()
address_space()


def tool(limits, name, *arguments):
    """One of the programs without services, in a control group with these limits."""
    return subprocess.run(grouped(folder, limits, program(name), *arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1500 * PATIENCE)


def tools():
    """outrider-model and outrider-bench: a limit that would end them is said, and threads follow the time that the group has."""
    generate = ("generate", "--model", TARGET, "--tokens", "1,2,3", "--max-tokens", "4", "--ignore-eos")
    measure = ("model", "--batch", "1", "--prefill", "8", "--tokens", "2", "--passes", "1", "--rounds", "1", "--model")
    probe = subprocess.run(grouped(folder, {"memory.max": "1\n"}, "cat", "/sys/fs/cgroup/test/memory.max"), capture_output=True, text=True)
    if probe.stdout != "1\n":
        tap.skip("limits of outrider-model and outrider-bench", f"no mount namespace: {probe.stderr.strip()}")
        return
    small, where = {"memory.max": f"{20 << 20}\n"}, "/sys/fs/cgroup/test/memory.max has 20.0 MiB, of which 20.0 MiB are free"
    packed = tool(small, "outrider-model", *generate, "--pack")
    tap.ok(packed.returncode == 71 and "packed weights" in packed.stderr and f"{where}: leave out --pack, or make room for" in packed.stderr,
           "outrider-model --pack beyond a memory limit says what to do", packed)
    mapped = tool(small, "outrider-model", *generate)
    tap.ok(mapped.returncode == 0, "and without --pack it runs there", mapped)
    tight = tool({"memory.max": f"{1 << 20}\n"}, "outrider-model", "generate", "--model", TARGET, "--tokens", "1,2,3", "--max-tokens", "1000", "--kv", "f32")
    tap.ok(tight.returncode == 71 and "KV cache and buffers take" in tight.stderr and "smaller --context" in tight.stderr,
           "a KV cache beyond the limit is refused", tight)
    for words in (("kernels", "--rounds", "1", "--types", "Q8_0"), ("attention", "--rounds", "1", "--depths", "300"), ("pool", "--rounds", "1"), (*measure, TARGET)):
        short = tool(small, "outrider-bench", *words)
        tap.ok(short.returncode == 71 and f"take 256.0 MiB, but {where}: make room for 236.0 MiB more" in short.stderr.replace("takes", "take"),
               f"outrider-bench {words[0]} in less memory than it reads says so", short)
    large = folder / "packed.gguf"
    made = subprocess.run([program("outrider-model"), "synth", "qwen3-0.6b", str(large), "--layers", "8", "--type", "q8_0", "--quiet"],
                          capture_output=True, text=True, timeout=1500 * PATIENCE)
    refused = tool({"memory.max": f"{270 << 20}\n"}, "outrider-bench", *measure, large)
    tap.ok(refused.returncode == 71 and "packed weights" in refused.stderr and "with --mapped, or make room for" in refused.stderr,
           "outrider-bench model names --mapped where the packed weights do not fit", (made, refused))
    large.unlink(missing_ok=True)
    one = tool({"cpu.max": "100000 100000\n"}, "outrider-model", *generate)
    tap.ok(one.returncode == 0 and '"threads": 1}' in one.stdout and one.stderr == "", "a CPU quota of one CPU makes one thread of outrider-model", one)
    for words in (("kernels", "--rounds", "1", "--types", "Q8_0", "--tokens", "1"), ("attention", "--rounds", "1", "--depths", "300", "--tokens", "1"),
                  ("pool", "--rounds", "1"), (*measure, TARGET)):
        one = tool({"cpu.max": "100000 100000\n"}, "outrider-bench", *words)
        tap.ok(one.returncode == 0 and ", 1 thread" in one.stdout.splitlines()[0] and one.stderr == "",
               f"and of outrider-bench {words[0]}", one)
    two = tool({"cpu.max": "100000 100000\n"}, "outrider-bench", "kernels", "--rounds", "1", "--types", "Q8_0", "--tokens", "1", "--threads", "2")
    tap.ok("outrider-bench: threads = 2, but" in two.stderr, "which says when it is given more", two)


tools()
for name in ("verifier", "drafter"):
    for given in ("reference", "mmx"):
        refused = subprocess.run([program(f"outrider-{name}"), "-n", "--set", f"kernels={given}", *(("--model", TARGET) if name == "verifier" else ())],
                                 capture_output=True, text=True, timeout=1500 * PATIENCE)
        tap.ok(refused.returncode == 78 and f"kernels = {given} is not allowed; kernels takes auto, scalar, avx2, avx512" in refused.stderr,
               f"{name}: kernels = {given} is refused", refused)
shutil.rmtree(folder, ignore_errors=True)
tap.done()
