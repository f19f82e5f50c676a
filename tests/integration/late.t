#!/usr/bin/env python3
"""The expert-cache and the policy-controller stopped while answers go on: the same bytes, nobody waits for long, and what they
were too late for is counted and said."""
import os
import signal

from outrider_test import DRAFTS, Service, Tap, difference, prompts, reference, until

RING = 4096  # records of iterations, one for each session; activations, one or more for each layer
TOKENS = 200
tap = Tap()
ids = prompts(4)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]


def wrong(service, n):
    """What is wrong with so many answers."""
    results = service.swarm([{"tokens": ids[i % 4], "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "k": 0}
                             for i in range(n)], concurrent=2)
    return [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i % 4]))]


def stopped(service, name, what, lost, answers):
    """lost: how many its admin reply says. What was stopped without a watchdog stays the same process."""
    before = lost()
    tap.ok(before == 0 and f"{what} found no room" not in service.log_text(), f"{name}: nothing is lost while it runs", before)
    pid = service.end(name, signal.SIGSTOP)
    try:
        problem = wrong(service, answers)
        tap.ok(not problem, f"{name} stopped: the same bytes", problem)
    finally:
        os.kill(pid, signal.SIGCONT)
    n = lost()
    said = f"{n} {what} found no room in their ring; {n} since it was made"
    tap.ok(n > 0, f"{name}: {what} that found no room are counted", n)
    tap.ok(until(lambda: said in service.log_text()), "and its log says so, once", f"{said}\n{service.log_text()}")
    problem = wrong(service, 4)
    tap.ok(not problem and lost() == n, "it goes on, and loses no more", f"{problem} {lost()} {n}")


with Service(options=("--budget", "50%", "--watchdog", "0")) as service:
    stopped(service, "expert-cache", "activations", lambda: service.ctl_json("cache", "stats")["activations_lost"],
            RING // 6 // TOKENS * 2 + 4)
    text = service.ctl("cache", "stats").stdout
    tap.ok(f"lost       {service.ctl_json('cache', 'stats')['activations_lost']} activations" in text, "cache stats shows them", text)
    stopped(service, "policy", "records of iterations", lambda: service.ctl_json("policy", "get")["records_lost"], RING // TOKENS + 6)


def as_it_was_told(service):
    """Answers for which the controller chooses K: (what is wrong with their bytes, how many passes drafted how many tokens)."""
    results = [service.answer(p, TOKENS) for p in ids]
    passes = [sum(sum(r["usage"]["k_used"][k:k + 1]) for r in results) for k in range(16)]
    return [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i]))], passes


def without_controller():
    """It is stopped while sessions run, killed as it stands, and started again: the others go on with the K that was in force."""
    with Service(draft=DRAFTS["small"], options=("--watchdog", "0")) as service:
        service.ctl("policy", "set", "static:3")
        before = service.processes()
        pid = before["policy"]
        as_it_was_told(service)
        os.kill(pid, signal.SIGSTOP)
        problem, passes = as_it_was_told(service)
        tap.ok(not problem and sum(passes[1:]) > 10 and not any(passes[4:]), "policy stopped: the same bytes with the K that was in force",
               f"{problem} {passes}")
        os.kill(pid, signal.SIGKILL)
        problem, passes = as_it_was_told(service)
        tap.ok(not problem, "policy killed as it stands: the same bytes", f"{problem} {passes}")
        tap.ok(service.renewed("policy", pid), "it is started again", service.log_text())
        service.wait_ready()
        problem, passes = as_it_was_told(service)
        tap.ok(not problem and sum(passes) > 10, "policy started again: the same bytes", f"{problem} {passes}")
        tap.ok(service.processes()["verifier"] == before["verifier"], "by the verifier that was there", service.log_text())


without_controller()
tap.done()
