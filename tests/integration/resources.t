#!/usr/bin/env python3
"""A machine that has less than is asked for: no vector instructions, more threads than CPUs, CPUs that go away and come
back during a pass, limits of control groups. It is said what is short and what to set, and the bytes stay the same."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, PATIENCE, TARGET, Service, Tap, difference, program, prompts, reference, until

tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-resources-", dir="/tmp"))
ids = prompts(2, longest=60)
expected = [reference(p, 60, extra=("--ignore-eos",)) for p in ids]
requests = [{"tokens": p, "max_tokens": 60, "ignore_eos": True, "logits_hash": True, "k": 2} for p in ids]


def same(service, name):
    found = [difference(r, e) for r, e in zip(service.swarm(requests, 2), expected)]
    tap.ok(not any(found), name, found)


def log_of(service):
    return (service.directory / "log").read_text(errors="replace")


with Service(draft=DRAFTS["small"], sets=("verifier.kernels=scalar", "drafter.kernels=scalar")) as service:
    said = [line for line in log_of(service).splitlines() if "without vector instructions" in line]
    tap.ok(len(said) == 2 and all("kernels = auto" in line for line in said),
           "verifier and drafter say once that the kernels are scalar", log_of(service))
    same(service, "scalar kernels give the same bytes")

with Service(sets=("verifier.threads=64",)) as service:
    cpus = len(os.sched_getaffinity(0))
    if cpus < 64:
        tap.ok(f"threads = 64, but this process has {cpus} CPU" in log_of(service),
               "more threads than CPUs are noticed", log_of(service))
    same(service, "and give the same bytes")


def set_cpus(pid, cpus):
    """What taskset -ap does."""
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(task), cpus)
        except ProcessLookupError:
            pass


def cpus_go_away(pin):
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        tap.skip(f"CPUs that go away, pin {pin}", "there is one CPU")
        return
    with Service(sets=(f"verifier.pin={pin}",)) as service:
        pid = service.pid("verifier")
        many = [{**r, "max_tokens": 400} for r in requests]
        process, results = service.swarm_start(many, 2)
        changes = 0
        while process.poll() is None and changes < 1000:
            set_cpus(pid, {sorted(every)[changes % 2]} if changes % 3 else every)
            changes += 1
            time.sleep(0.02)
        found = results()
        wanted = [reference(p, 400, extra=("--ignore-eos",)) for p in ids]
        differences = [difference(r, e) for r, e in zip(found, wanted)]
        tap.ok(not any(differences), f"CPUs that go away during a pass change no byte, pin {pin}", differences)
        tap.note(f"{changes} changes")
        set_cpus(pid, every)
        same(service, f"and the service goes on when they are back, pin {pin}")
        tap.ok(service.pid("verifier") == pid, f"it is still the same process, pin {pin}")


def grouped(limits, *command):
    """The command in a namespace where its control group has these files; it is not moved into any."""
    mount = folder / "group"
    shutil.rmtree(mount, ignore_errors=True)
    (mount / "test").mkdir(parents=True)
    for name, text in limits.items():
        (mount / "test" / name).write_text(text)
    (folder / "membership").write_text("0::/test\n")
    script = f'mount --bind {mount} /sys/fs/cgroup && mount --bind {folder}/membership /proc/$$/cgroup && exec "$@"'
    return ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", script, "sh", *map(str, command)]


def alone(name, said, limits, options):
    """Starts the process alone with limits; ends it when it has said that. (ended by itself with, log)."""
    log = open(folder / "log", "w+")
    process = subprocess.Popen(grouped(limits, program(name), "--model", TARGET, "--runtime-dir", folder / "alone", *options),
                               stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or said in (folder / "log").read_text(), 30)
    status = process.poll()
    if status is None:
        process.terminate()
        process.wait(20 * PATIENCE)
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
    shared_out = re.compile(r"budget auto: ([\d.]+) of [\d.]+ MiB of experts(, the least, more than there is room for)?: the "
                            r"([\d.]+) MiB of (\S+) less ([\d.]+) for other weights, ([\d.]+) for the KV cache, "
                            r"([\d.]+) in reserve; --budget SIZE changes it")
    status, log = cache({"memory.max": f"{64 << 20}\n"})
    least = shared_out.search(log)
    tap.ok(status is None and least and least[2] and least[4] == "/sys/fs/cgroup/test/memory.max",
           "a limit below what the rest needs: the least budget, and it serves", f"{status}: {log}")
    if not least:
        return
    rest = sum(map(float, least.group(5, 6, 7)))
    limit = int((rest + everything / 2) * (1 << 20))
    status, log = cache({"memory.max": f"{limit}\n"})
    half = shared_out.search(log)
    tap.ok(status is None and half and not half[2] and 0.4 * everything < float(half[1]) <= everything / 2 + 0.1,
           "a limit with room for half of the experts: as many as fit", f"{status}: {log}")
    status, log = cache({"memory.max": f"{limit}\n"}, "--budget", "900G")
    most = re.search(r"--budget (\d+M) is the most that is taken, --budget auto takes ([\d.]+) MiB", log)
    tap.ok(status == 71 and most and half and most[2] == half[1] and "/sys/fs/cgroup/test/memory.max has at most" in log,
           "a named budget beyond the limit is refused with the largest", f"{status}: {log}")
    status, log = cache({"memory.max": f"{limit}\n"}, "--budget", most[1] if most else "all")
    tap.ok(status is None, "which is taken", f"{status}: {log}")


def limits():
    probe = subprocess.run(grouped({"memory.max": "1\n"}, "cat", "/sys/fs/cgroup/test/memory.max", "/proc/self/cgroup"),
                           capture_output=True, text=True)
    if "1\n" not in probe.stdout:
        tap.skip("limits of control groups", f"no mount namespace: {probe.stderr.strip()}")
        return
    status, log = verifier({"memory.max": "1048576\n"})
    takes = re.search(r"the KV cache takes (\d+) MiB", log)
    tap.ok(status == 71 and takes and "/sys/fs/cgroup/test/memory.max has 1 MiB" in log and "kv_tokens" in log,
           "a limit below the KV cache is refused with the file that sets it and what to set", f"{status}: {log}")
    kv = int(takes[1]) if takes else 100
    status, log = verifier({"memory.max": f"{(kv + 1) << 20}\n"})
    tap.ok(status is None and "do not fit in the" in log and "read from the disk" in log,
           "one below KV cache and weights is noticed, and it serves", f"{status}: {log}")
    dense = re.search(r"weights of every token \((\d+) MiB\)", log)
    status, log = verifier({"memory.max": f"{(kv + int(dense[1]) + 2 if dense else 0) << 20}\n"})
    tap.ok(status is None and "outrider-expert-cache" in log and "budget" in log,
           "one below the experts names the budget to set", f"{status}: {log}")
    default_budget()
    status, log = verifier({"cpu.max": "100000 100000\n"})
    tap.ok(status is None and ", 1 thread, " in log, "a CPU quota of one CPU makes one thread", f"{status}: {log}")
    status, log = verifier({"cpu.max": "100000 100000\n"}, "--set", "threads=2")
    tap.ok(status is None and ("1.00 CPUs" in log or len(os.sched_getaffinity(0)) < 2),
           "more threads than the quota are noticed", f"{status}: {log}")


cpus_go_away("yes")
cpus_go_away("no")
limits()
shutil.rmtree(folder, ignore_errors=True)
tap.done()
