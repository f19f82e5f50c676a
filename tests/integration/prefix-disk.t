#!/usr/bin/env python3
"""Beginnings of prompts on disk, and sessions that sleep, with the real service. Answers are those without: after everything was stopped and
started again, after a session slept while the verifier was killed, with files that are truncated, scribbled over, of another model or gone,
on a disk that fails, and on one that is full."""
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import FOR_EVER, WHY_NOT, Faults
from outrider_test import SAMPLED, TARGET_Q4, Service, Tap, asleep, difference, prompts, reference, seeded, told_to_sleep, until

TOKENS = 60
tap = Tap()
random = seeded()
parts = prompts(6, longest=60)
ids = [[t for p in parts[i:] + parts[:i] for t in p][:150 + 10 * i] for i in range(5)]
expected = [reference(p, TOKENS, SAMPLED if i == 1 else None, seed=3 + i, extra=("--ignore-eos",)) for i, p in enumerate(ids)]


def request(i, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 3 + i, "k": (0, 3, 7)[i % 3], "ignore_eos": True, "draft_method": "ngram",
            "logits_hash": i == 2, **(SAMPLED if i == 1 else {}), **more}


def sets(where, *more):
    return ("verifier.context=512", "verifier.kv_tokens=4096", f"verifier.prefix_dir={where}", "verifier.sleep_after=100ms",
            "verifier.linger=100ms", "verifier.ahead_max=16", *more)


def details(service):
    return service.details("verifier")


def files(where):
    return sorted(Path(where).glob("*.kv"))


def size(path):
    """0: the file has given way since its folder was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def answers(service):
    """What is wrong with them, and how many of their tokens came from disk."""
    before = details(service).get("disk_found_tokens", 0)
    results = service.swarm([request(i) for i in range(len(ids))], concurrent=3)
    wrong = [f"{i}: {what}" for i, (r, e) in enumerate(zip(results, expected)) if (what := difference(r, e))]
    return wrong, details(service).get("disk_found_tokens", 0) - before


def sleep_and_wake(service):
    """A session sleeps in the middle of its answer; the verifier is killed; it sleeps still, and goes on when it is woken."""
    long = reference(ids[0], 300, None, seed=9, extra=("--ignore-eos",))
    before, _, results = told_to_sleep(service, {**request(0), "max_tokens": 300, "seed": 9, "logits_hash": False})
    saved = lambda: [int(n) for n in re.findall(r"sleeps: (\d+) of its", service.whole_log())]
    until(lambda: max(saved(), default=0) >= 128)
    service.restart("verifier")
    after = asleep(service)
    time.sleep(0.3)
    still = asleep(service)
    woken = [service.ctl("session", "wake", uid) for uid in before]
    wrong = [what for result in results() if (what := difference(result, long))]
    tap.ok(not wrong and not any(w.returncode for w in woken) and before.keys() == after.keys() == still.keys()
           and all(after[uid]["output_tokens"] == still[uid]["output_tokens"] < 300 for uid in after) and max(saved(), default=0) >= 128,
           f"a session sleeps through the verifier's death and goes on when it is woken: the same bytes ({saved()} tokens saved)",
           f"{wrong}\n{woken}\n{before}\n{after}\n{still}\n{service.log_text()[-2000:]}")
    unknown = service.ctl("session", "sleep", "12345")
    tap.ok(unknown.returncode == os.EX_DATAERR and "session 12345: no such session here" in unknown.stderr, "a session that is not there is named",
           unknown)


def sleep_alone(service):
    """A session that was told to sleep outlives client_timeout without its client, and ends after sleep_timeout."""
    live = lambda: [s for s in service.ctl_json("sessions")["sessions"] if s["state"] != "done"]
    _, process, _ = told_to_sleep(service, {**request(0), "max_tokens": 300, "seed": 10, "logits_hash": False})
    service.ctl("knob", "set", "client_timeout=200ms")
    process.kill()
    process.wait()
    # The others have no client either, and none is told to sleep.
    until(lambda: {s["state"] for s in live()} == {"asleep"})
    time.sleep(1)
    still = {s["state"] for s in live()}
    service.ctl("knob", "set", "sleep_timeout=300ms")
    until(lambda: not live())
    tap.ok(still == {"asleep"} and not live() and "cancelled: its client has accepted nothing" in service.whole_log(),
           "a session that sleeps is kept without its client for sleep_timeout, not for client_timeout",
           f"{still} {live()}\n{service.log_text()[-1500:]}")
    service.ctl("knob", "reset", "client_timeout", "sleep_timeout")


def failing_disk(service, faults):
    """Every read fails, then a write: what cannot be had is computed."""
    service.ctl("knob", "set", "prefix_tokens=0")
    faults.fields.prefix_reads = FOR_EVER
    again, found = answers(service)
    failed = faults.fields.prefix_failed
    tap.ok(not again and found == 0 and failed > 0 and is_told(service, "is not used: Input/output error; its tokens are computed again")
           and details(service)["disk_failures"] >= failed, f"{failed} reads that fail: the tokens are computed, the same bytes, and the log says so",
           f"{again} {found} {details(service)}\n{service.log_text()[-1500:]}")
    faults.none()
    service.ctl("knob", "reset", "prefix_tokens")
    answers(service)
    until(lambda: len(files(where)) >= 10)
    faults.fields.prefix_writes = 1
    (result,) = service.swarm([{**request(0), "tokens": list(reversed(ids[0]))}])
    until(lambda: faults.fields.prefix_failed > failed)
    want = reference(list(reversed(ids[0])), TOKENS, None, seed=3, extra=("--ignore-eos",))
    tap.ok(not difference(result, want) and is_told(service, "cannot be written: Input/output error; such pages are not on disk"),
           "a write that fails: the same bytes, and the log says so", f"{details(service)}\n{service.log_text()[-1500:]}")
    faults.none()


def damage(where):
    """Each kind of damage to some file; returns their names."""
    all_of_them = files(where)
    chosen = random.sample(all_of_them, 6)
    os.truncate(chosen[0], 700)
    os.truncate(chosen[1], 3)
    for path, at in ((chosen[2], 40), (chosen[3], 600)):
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(b"rubbish")
    chosen[4].unlink()
    os.rename(chosen[5], chosen[5].with_name("0123456789abcdef.kv"))
    return len(all_of_them)


def is_told(service, *words):
    """The disk is looked at by a thread of its own."""
    until(lambda: all(w in service.whole_log() for w in words))
    return all(w in service.whole_log() for w in words)


with tempfile.TemporaryDirectory(prefix="outrider-prefixes-") as where:
    with Service(sets=sets(where), options=("-v",)) as service:
        wrong, _ = answers(service)
        sleep_and_wake(service)
        until(lambda: len(files(where)) >= 26)
    with Service(sets=sets(where), options=("-v",)) as service:
        again, found = answers(service)
        tap.ok(not wrong and not again and found >= 5 * 96, f"after everything was started again, {found} tokens are found on disk: the same bytes",
               f"{wrong} {again} {details(service)}\n{service.log_text()[-2000:]}")
        # Two at a time: the second begins while the first is read.
        for process in service.children():
            os.kill(process, 9)
        service.wait_ready()
        again, _ = answers(service)
        tap.ok(not again, "and after every process was killed at once", again)
    n = damage(where)
    with Service(sets=sets(where), options=("-v",)) as service:
        told = is_told(service, "is removed: it is truncated", "is removed: the checksum of its header is wrong", "is removed: it has another name")
        # After the look at the directory, so that it is found when it is read.
        for path in files(where):
            with open(path, "r+b") as f:
                f.seek(900)
                f.write(random.randbytes(64))
        again, found = answers(service)
        tap.ok(not again and told and is_told(service, "is not used: the checksum of its keys and values is wrong"),
               f"of {n} files that were damaged in every way none is used: the same bytes, and the log names them",
               f"{again} {found}\n{service.log_text()[-3000:]}")
    with Faults() as faults, Service(sets=sets(where), options=("-v",), env={} if WHY_NOT else faults.env) as service:
        answers(service)
        until(lambda: len(files(where)) >= 10)
        if WHY_NOT:
            tap.skip("reads and writes that fail: the same bytes", WHY_NOT)
        else:
            failing_disk(service, faults)
        sleep_alone(service)
    before = len(files(where))
    with Service(model=TARGET_Q4, sets=sets(where, "verifier.prefix_disk=600K"), options=("-v",)) as service:
        told = is_told(service, f"{before} files are not used, and give way first: another model computed it")
        answers(service)
        until(lambda: details(service)["disk_bytes"] <= 600 << 10 and details(service)["disk_saved_tokens"] > 0)
        bytes_there = sum(map(size, files(where)))
        tap.ok(told and bytes_there <= 600 << 10 and details(service)["disk_found_tokens"] == 0,
               "files of another model are refused by their fingerprint and give way; the budget is kept", f"{before} {bytes_there} {details(service)}")

with tempfile.TemporaryDirectory(prefix="outrider-full-") as where:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", where], capture_output=True).returncode == 0
    if not mounted:
        tap.skip("a disk that is full: the same bytes", "tmpfs cannot be mounted here")
    else:
        try:
            with Service(sets=sets(where), options=("-v",)) as service:
                first, _ = answers(service)
                until(lambda: details(service)["disk_failures"] > 0)
                again, _ = answers(service)
                tap.ok(not first and not again and is_told(service, "cannot be written: No space left on device")
                       and not list(Path(where).glob("*.part")), "a disk that is full: the same bytes, and the log says so",
                       f"{first} {again} {details(service)} {os.listdir(where)}\n{service.log_text()[-1500:]}")
        finally:
            subprocess.run(["umount", where], check=False)

with Service(sets=sets("/proc/no/such")) as service:
    again, _ = answers(service)
    tap.ok(not again and is_told(service, "prefix_dir /proc/no/such: "), "a directory that cannot be made is named, and the service goes on without",
           f"{again}\n{service.log_text()[-1500:]}")
tap.done()
