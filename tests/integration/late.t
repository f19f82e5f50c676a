#!/usr/bin/env python3
"""The policy-controller stopped while answers go on: the same bytes, and the records it was too late for are counted and said."""
import contextlib
import os
import signal

from outrider_test import Service, Tap, difference, program, prompts, reference, run_json, until

RECORDS = 4096  # that the ring holds: one for each iteration of each session
TOKENS = 200
tap = Tap()
ids = prompts(4)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]


def policy(service):
    return run_json(program("outriderctl"), "--runtime-dir", service.runtime, "--json", "policy", "get")


def wrong(service, n):
    """What is wrong with so many answers."""
    results = service.swarm([{"tokens": ids[i % 4], "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "k": 0}
                             for i in range(n)], concurrent=4)
    return [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i % 4]))]


with Service() as service:
    problem = wrong(service, 4)
    tap.ok(not problem, "answers are the reference's", problem)
    tap.ok(policy(service)["records_lost"] == 0 and "found no room" not in service.log_text(), "no record is lost", policy(service))

    pid = service.pid("policy")
    os.kill(pid, signal.SIGSTOP)
    try:
        problem = wrong(service, RECORDS // TOKENS + 5)
        tap.ok(not problem, "the policy-controller stopped: the same bytes, and nobody waits for it", problem)
    finally:
        # On a slow machine the watchdog has ended it by now.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    service.wait_ready()
    lost = policy(service)["records_lost"]
    tap.ok(lost > 0, "the records that found no room are counted", policy(service))
    said = f"{lost} since it was made"
    tap.ok(until(lambda: said in service.log_text()), "and its log says so", service.log_text())
    tap.ok(service.log_text().count("found no room") <= 5, "once for a bunch of them, not for each", service.log_text())

tap.done()
