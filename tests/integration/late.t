#!/usr/bin/env python3
"""The expert-cache and the policy-controller stopped while answers go on: the same bytes, nobody waits for long, and what they
were too late for is counted and said."""
import os
import re
import shutil
import signal

from outrider_test import DRAFTS, Service, Tap, difference, prompts, reference, until

RING = 4096  # records of iterations, one for each session; activations, one or more for each layer
TOKENS = 200
SIDE_BY_SIDE = 16
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
    tap.ok(before == 0 and f"{what} were dropped" not in service.log_text(), f"{name}: nothing is lost while it runs", before)
    pid = service.end(name, signal.SIGSTOP)
    try:
        problem = wrong(service, answers)
        tap.ok(not problem, f"{name} stopped: the same bytes", problem)
    finally:
        os.kill(pid, signal.SIGCONT)
    n = lost()
    said = f"{n} {what} were dropped because this process was late; {n} in all; answers do not change"
    tap.ok(n > 0, f"{name}: {what} that were dropped are counted", n)
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


def plots(service, known=()):
    """What policy plot has of each session that the controller has seen, but for those known."""
    uids = [s["uid"] for s in service.ctl_json("policy", "get", "--all")["sessions"] if s["uid"] not in known]
    return {uid: service.ctl_json("policy", "plot", uid) for uid in uids}


def emitted(plot):
    return sum(r["emitted"] for r in plot["records"])


def lost_while_stopped(service, tokens, until_emitted):
    """Answers side by side, the controller stopped until so many tokens are out. How many records that lost."""
    def figure(command, name):
        return service.ctl_json(*command)[name]
    out = ("sessions",), "output_tokens_total"
    before, there = figure(*out), figure(("policy", "get"), "records_lost")
    pid = service.end("policy", signal.SIGSTOP)
    try:
        request = {"max_tokens": tokens, "ignore_eos": True, "k": 0}
        process, results = service.swarm_start([{**request, "tokens": ids[i % 4]} for i in range(SIDE_BY_SIDE)], SIDE_BY_SIDE)
        until(lambda: figure(*out) - before >= until_emitted, 600)
    finally:
        os.kill(pid, signal.SIGCONT)
    short = [r for r in results() if len(r["tokens"]) != tokens]
    assert not short, [(len(r["tokens"]), r) for r in short]
    return figure(("policy", "get"), "records_lost") - there


def plot_with_losses(service):
    """Whoever looks at a session afterwards is told what of it is missing, in its middle and at its end."""
    tokens = 800
    lost = lost_while_stopped(service, tokens, RING + 1000)
    found = {}

    def all_there():
        found.update(plots(service))
        return all(emitted(p) + sum(g["tokens"] for g in p["gaps"]) == tokens for p in found.values())
    tap.ok(until(all_there) and len(found) == SIDE_BY_SIDE, "what plots have and what they say is missing is all of each session",
           [(emitted(p), p["missing"], p["gaps"]) for p in found.values()])
    tap.ok(lost > 0 and sum(p["missing"] for p in found.values()) == lost and all(p["records_lost"] == lost for p in found.values()),
           "and is what policy get counts as lost", (lost, [(p["missing"], p["records_lost"]) for p in found.values()]))
    gaps = [(p, g) for p in found.values() for g in p["gaps"]]
    tap.ok(gaps and all(p["missing"] == sum(g["iterations"] for g in p["gaps"]) and not p["lost_behind"] for p in found.values()) and
           all(g["iterations"] == g["before"] - g["after"] - 1 for _, g in gaps), "by the numbers of iterations", [g for _, g in gaps])
    uid, plot = max(found.items(), key=lambda f: f[1]["missing"])
    text = service.ctl("policy", "plot", uid).stdout
    decoding = [r for r in plot["records"] if r["prefill_tokens"] == 0 and r["emitted"] > 0]
    axis = re.search(r"^ {10}1 .* (\d+)$", text, re.M)
    line = re.search(r"^ +0\.00 \+(-+ +-+)$", text, re.M)
    tap.ok(f": {len(decoding)} iterations, " in text and f"\n{plot['missing']} more were lost, where the curves have a gap\n" in text and
           axis and int(axis[1]) == len(decoding) + plot["missing"] and line, "as text the curves have a gap of as many", text)
    explained = service.ctl("policy", "explain", uid).stdout
    tap.ok(re.search(rf"^  iterations whose records were lost +{plot['missing']}$", explained, re.M) and
           re.search(rf"^  records lost, of all sessions +{lost}$", explained, re.M), "policy explain counts them", explained)
    if shutil.which("gnuplot"):
        path = service.directory / "lost.svg"
        service.ctl("policy", "plot", uid, path)
        picture = path.read_text()
        tap.ok(f">{plot['missing']} more were lost, where the curves have a gap<" in picture and
               any(len(re.findall("[0-9] M", d)) == 1 for d in re.findall(r" d='(M[^']+)'", picture)), "in a picture too", picture[-3000:])
    else:
        tap.skip("in a picture too", "no gnuplot")
    known = set(found)
    tokens = 700
    lost = lost_while_stopped(service, tokens, tokens * SIDE_BY_SIDE)
    found.clear()

    def seen():
        found.update(plots(service, known))
        return len(found) == SIDE_BY_SIDE and all(p["lost_behind"] for p in found.values())
    tap.ok(until(seen) and lost > 0 and all(p["lost_behind"] == lost and emitted(p) < tokens for p in found.values()),
           "of sessions that ended meanwhile it is said that their end may be missing",
           (lost, [(emitted(p), p["missing"], p["lost_behind"]) for p in found.values()]))
    text = service.ctl("policy", "plot", max(found)).stdout
    tap.ok(f"\nits end may be missing: {lost} iterations of all sessions were lost after the last one shown\n" in text, "in words", text)
    service.answer(ids[0], 40)
    newest = {}

    def whole():
        newest.update(service.ctl_json("policy", "plot"))
        return emitted(newest) == 40 and not newest["missing"] and not newest["lost_behind"]
    tap.ok(until(whole), "one that came afterwards is whole", newest)


def drafter_stopped():
    """Drafts that do not come are counted, and the sessions that had asked for them go on without."""
    with Service(draft=DRAFTS["small"], options=("--watchdog", "0")) as service:
        def late():
            return sum(int(service.details("verifier")[name]) for name in ("drafts_late_sat_out", "drafts_late_without"))

        def wrong_with_drafts(n):
            results = service.swarm([{"tokens": ids[i % 4], "max_tokens": TOKENS, "ignore_eos": True, "k": 4} for i in range(n)], n)
            return [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i % 4]))]
        problem = wrong_with_drafts(2)
        before = late()
        tap.ok(not problem, "with a drafter: the same bytes", problem)
        pid = service.end("drafter", signal.SIGSTOP)
        try:
            problem = wrong_with_drafts(3)
        finally:
            os.kill(pid, signal.SIGCONT)
        tap.ok(not problem, "drafter stopped: the same bytes", problem)
        tap.ok(late() > before, "drafts that did not come are counted", f"{before} {late()}")


with Service(options=("--watchdog", "0")) as service:
    plot_with_losses(service)
drafter_stopped()
without_controller()
tap.done()
