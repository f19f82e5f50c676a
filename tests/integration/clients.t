#!/usr/bin/env python3
"""What the verifier owes its clients: many at once, those who come late, stall, cancel, vanish or ask too much; and that
what a request says about sampling is what it gets."""
import concurrent.futures
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import (DRAFTS, PATIENCE, SAMPLED, SANITIZED, TARGET, Service, Tap, chi_square_limit, difference, differences,
                           finish, probabilities, program, prompts, reference, run, run_json, until)

TOKENS = 24 if SANITIZED else 120
MANY = 90 if SANITIZED else 600
tap = Tap()
ids = prompts(16, longest=100)
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    greedy = list(pool.map(lambda p: reference(p, TOKENS, extra=("--ignore-eos",)), ids))
    sampled = list(pool.map(lambda p: reference(p, TOKENS, SAMPLED, seed=11, extra=("--ignore-eos",)), ids))


def ask(i, sampling=None, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 11, "ignore_eos": True, **(sampling or {}), **more}


def sessions(service):
    return service.ctl_json("sessions")


def progress(process):
    """The next line of progress of a swarm that was started with stderr unread."""
    return json.loads(process.stderr.readline())


def several_at_once(service):
    before = sessions(service)["iterations_total"]
    results = service.swarm([ask(i, k=i % 4, draft_method="ngram", logits_hash=True) for i in range(16)], concurrent=16)
    tap.ok(not (why := differences(results, greedy)), "16 sessions at once: each has the bytes it has alone", why)
    passes, steps = sessions(service)["iterations_total"] - before, sum(r["usage"]["iterations"] for r in results)
    tap.ok(0 < passes < steps / 4, "they share the passes of the model", f"{passes} passes, {steps} steps of sessions")


def late_joiners(service):
    """Four begin; others join when those are under way, and leave at different times."""
    process, early = service.swarm_start([ask(i, SAMPLED, progress=True, k=3) for i in range(4)], concurrent=4)
    progress(process)
    lengths = [min(TOKENS, 5 + 7 * i) for i in range(4, 12)]
    late = service.swarm([{**ask(i, SAMPLED), "max_tokens": n} for i, n in zip(range(4, 12), lengths)], concurrent=8)
    why = differences(early(), sampled[:4]) + "".join(
        f"{i}: {r} " for i, r, n in zip(range(4, 12), late, lengths) if r["tokens"] != sampled[i]["tokens"][:n])
    tap.ok(not why, "sessions that join a running batch, and those they join, have the same bytes", why)


def long_prompt(service):
    """900 tokens are read in pieces of the chunk; the others go on meanwhile."""
    long = (sum(ids, []) * 3)[:900]
    expected = reference(long, 8)
    few = 16 if SANITIZED else 40
    requests = [{**ask(i, progress=True, k=0), "max_tokens": few + 20} for i in range(3)]
    requests.append({"tokens": long, "max_tokens": 8, "k": 0, "progress": True, "logits_hash": True})
    process, results = service.swarm_start(requests, concurrent=4)
    have = [0] * 4
    while not have[3]:
        line = progress(process)
        have[line["job"]] = line["have"]
    results = results()
    tap.ok(min(have[:3]) >= few, "while a long prompt is read in chunks, the others decode", have)
    tap.ok(not (why := difference(results[3], expected)), "the long prompt's answer is the reference's, to the bit", why)
    tap.ok(all(r["tokens"] == (e := greedy[i]["tokens"])[:len(r["tokens"])] or len(r["tokens"]) > len(e)
               for i, r in enumerate(results[:3])), "and so are the others'", results)


def stalled(service):
    """Two clients stop taking: a swarm that is stopped by SIGSTOP, an `outrider run` too. Both asked for much more than
    may be sent ahead."""
    n = 60 if SANITIZED else 800
    expected = reference(ids[0], n, extra=("--ignore-eos",))
    window = 8 if SANITIZED else 32
    slow, results = service.swarm_start([{**ask(0, progress=True, window=window), "max_tokens": n}])
    progress(slow)
    slow.send_signal(signal.SIGSTOP)
    cli = subprocess.Popen([program("outrider"), "run", "--runtime-dir", str(service.runtime), "--tokens",
                            ",".join(map(str, ids[0])), "--max-tokens", str(n), "--ignore-eos"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
    first = cli.stdout.read(1)
    cli.send_signal(signal.SIGSTOP)

    def standing():
        before = sessions(service)["sessions"]
        time.sleep(0.5 * PATIENCE)
        return before and [s["output_tokens"] for s in before] == [s["output_tokens"] for s in sessions(service)["sessions"]]

    tap.ok(until(standing), "what is computed for clients who do not read comes to a stand")
    tap.ok(min(s["output_tokens"] for s in sessions(service)["sessions"]) < n, "before their answers are complete",
           sessions(service))
    others = service.swarm([ask(i, k=3) for i in range(8)], concurrent=8)
    tap.ok(not (why := differences(others, greedy)), "others go on meanwhile", why)
    slow.send_signal(signal.SIGCONT)
    cli.send_signal(signal.SIGCONT)
    tap.ok(not (why := difference(results()[0], expected)), "the client that goes on reading gets the right tokens", why)
    text = first + finish(cli, 120)[0]
    tap.ok(cli.returncode == 0 and text.decode(errors="replace") == expected["text"], "and so does `outrider run`",
           f"status {cli.returncode}: {len(text)} bytes")


def killed_client(service):
    """SIGKILL in mid-stream: another process goes on with the session, from any token."""
    process, _ = service.swarm_start([ask(0, SAMPLED, progress=True, window=4)])
    line = progress(process)
    process.kill()
    process.communicate()
    have = line["have"]
    others = service.swarm([ask(i, k=2) for i in range(1, 5)], concurrent=4)
    tap.ok(not (why := differences(others, greedy[1:5])), "a client killed in mid-stream disturbs nobody", why)
    rest = service.swarm([{"resume": line["uid"], "have": have}])[0]
    tap.ok(line["tokens"] + rest["tokens"] == sampled[0]["tokens"] and rest["end"] == "length",
           "another process resumes its session: no token lost or changed", f"{have}: {rest}")
    again = service.swarm([{"resume": line["uid"], "have": 0}])[0]
    tap.ok(again["tokens"] == sampled[0]["tokens"] and again["text"] == sampled[0]["text"],
           "and, asked from the start, gets all of it again", again)
    nobody = service.swarm([{"resume": "12345", "have": 0}])[0]
    tap.ok(nobody.get("code") == 2 and "session" in nobody["error"], "a session nobody has is ENOENT", nobody)


def cancelled(service):
    # A small window, so that no answer is complete before its client has had the tokens after which it cancels.
    results = service.swarm([ask(i, cancel_after=3 + i, window=8) if i % 2 else ask(i, window=8) for i in range(8)], concurrent=8)
    wrong = [i for i, r in enumerate(results) if r["end"] != ("cancelled" if i % 2 else "length")
             or r["tokens"] != greedy[i]["tokens"][:len(r["tokens"])]]
    tap.ok(not wrong, "a cancelled request ends as cancelled, with a true beginning; the others go on",
           [results[i] for i in wrong])
    # The whole answer may be there before the signal is sent, on a machine that does something else just then.
    for _ in range(10):
        cli = subprocess.Popen([program("outrider"), "run", "--runtime-dir", str(service.runtime), "--tokens",
                                ",".join(map(str, ids[0])), "--ignore-eos", "--max-tokens", "900"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        text = cli.stdout.read(1)
        cli.send_signal(signal.SIGINT)
        text += finish(cli, 60)[0]
        if cli.returncode != 0:
            break
    begun = min(len(text), len(greedy[0]["text"]))
    tap.ok(cli.returncode == 130 and begun and text.decode()[:begun] == greedy[0]["text"][:begun],
           "Ctrl-C ends `outrider run` with 130 and what there is", f"status {cli.returncode}: {text}")
    tap.ok(until(lambda: not [s for s in sessions(service)["sessions"] if s["state"] != "done"]),
           "and its session in the service", sessions(service))


def deadlines(service):
    late, fine = service.swarm([{**ask(0, deadline_ms=1), "max_tokens": 900}, ask(1, deadline_ms=3600000)], concurrent=2)
    tap.ok(late["end"] == "deadline" and len(late["tokens"]) < 900, "a request ends at its deadline", late)
    tap.ok(not (why := difference(fine, greedy[1])), "one with time left is whole", why)
    result = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2,3", "--ignore-eos",
                 "--max-tokens", 900, "--timeout", "0.001")
    tap.ok(result.returncode == 75 and "the time limit was reached" in result.stderr, "`outrider run --timeout` says so, status 75",
           result)


def stops(service):
    """Strings taken from the middle of the answer, of every length, so that they span tokens and messages."""
    expected = next(e for e in greedy if e["text"].isascii() and len(e["text"]) > 60)
    which, text = greedy.index(expected), expected["text"]
    cases = [text[at:at + n] for at, n in ((20, 1), (23, 2), (25, 5), (30, 9), (33, 14), (40, 20))]
    requests = [ask(which, stop=["never in it \x01", s], k=k, draft_method="model") for s in cases for k in (0, 7)]
    wrong = []
    for request, result in zip(requests, service.swarm(requests, concurrent=6)):
        stop = request["stop"][1]
        if (result["end"] != "stop" or result["text"] != text[:text.find(stop)] or result["stop"] != stop
                or result["tokens"] != expected["tokens"][:len(result["tokens"])]):
            wrong.append(f"{stop!r}: {result}")
    tap.ok(not wrong, "a stop string ends the answer before it, wherever tokens divide it", "\n".join(wrong))
    # All but its last byte comes at the end of the answer: it was held back, and must be given after all.
    almost = service.swarm([ask(which, stop=[text[-4:] + "\x01"])])[0]
    tap.ok(almost["end"] == "length" and almost["text"] == text, "what began like a stop string and was none is given",
           almost)


def sampling(service):
    first = greedy[0]["tokens"][0]
    up, down = service.swarm([ask(0, logit_bias={"77": 1000}, k=3), ask(0, logit_bias={str(first): -1000}, k=3)])
    tap.ok(up["tokens"] == [77] * TOKENS, "a logit bias makes a token certain", up)
    row = run_json(program("outrider-model"), "logits", "--model", TARGET, "--tokens", ",".join(map(str, ids[0])),
                   "--format", "json")["logits"]
    second = max((t for t in range(len(row)) if t != first), key=row.__getitem__)
    tap.ok(down["tokens"][0] == second and first not in down["tokens"], "or impossible", down)

    for name, window in (("all", 0), ("the last 8", 8)):
        extra = ("--ignore-eos", "--repeat-penalty", 1.3, "--repeat-window", window)
        expected = [reference(ids[i], TOKENS, extra=extra) for i in (1, 2)]
        results = service.swarm([ask(i, repeat_penalty=1.3, repeat_window=window, k=k, draft_method="ngram")
                                 for k in (0, 5) for i in (1, 2)], concurrent=4)
        why = differences(results, expected * 2)
        tap.ok(not why and (SANITIZED or expected[0]["tokens"] != greedy[1]["tokens"]),
               f"the repetition penalty over {name} tokens is the reference's, drafted or not", why)

    for params in ({"temperature": 1.0, "top_k": 5}, {"temperature": 1.3, "min_p": 0.05},
                   {"temperature": 0.7, "top_p": 0.6}):
        expected = reference(ids[3], TOKENS, params, seed=11, extra=("--ignore-eos",))
        results = service.swarm([ask(3, params, k=k, draft_method="model") for k in (0, 3)], concurrent=2)
        tap.ok(not (why := differences(results, [expected] * 2)), f"{params}: the reference's tokens", why)
    a, b, c = service.swarm([ask(0, SAMPLED), ask(0, SAMPLED, k=7), {**ask(0, SAMPLED), "seed": 12}], concurrent=3)
    tap.ok(a["tokens"] == b["tokens"] == sampled[0]["tokens"] != c["tokens"], "same seed, same answer; another, another")


def exact(prompt, n, temperature, top_k):
    """The probability of each continuation of n tokens."""
    out = {(): 1.0}
    for _ in range(n):
        out = {path + (token,): p * q for path, p in out.items()
               for token, q in probabilities(prompt + list(path), temperature, top_k).items()}
    return out


def misfit(counts, expected, n):
    """Pearson's statistic with continuations that are expected less than five times put together; its limit."""
    rare = [path for path, p in expected.items() if p * n < 5]
    groups = [(counts.get(path, 0), p * n) for path, p in expected.items() if p * n >= 5]
    if sum(expected[path] for path in rare) * n >= 1:
        groups.append((sum(counts.get(path, 0) for path in rare), sum(expected[path] for path in rare) * n))
    return sum((o - e) ** 2 / e for o, e in groups), chi_square_limit(len(groups) - 1)


def maximal(service):
    results = service.swarm([ask(i, coupling="maximal", k=k, draft_method="model") for i in range(4) for k in (1, 3, 7)],
                            concurrent=6)
    why = differences(results, [greedy[i] for i in range(4) for _ in range(3)])
    tap.ok(not why, "maximal coupling at temperature 0 is the reference", why)
    # Of three tokens, the second and third are drafted and verified. The prompt is one whose continuation is open.
    prompt = ids[3][:40]
    # So few answers as a sanitizer has time for tell only what is farther away.
    truth, other = exact(prompt, 3, 1.0, 3), exact(prompt, 3, 0.3 if SANITIZED else 0.6, 3)
    for coupling in ("maximal", "gumbel"):
        results = service.swarm([{"tokens": prompt, "max_tokens": 5, "ignore_eos": True, "seed": 1000 + i, "k": 3,
                                  "temperature": 1.0, "top_k": 3, "coupling": coupling, "draft_method": "model"}
                                 for i in range(MANY)], concurrent=8, timeout=300)
        counts = {}
        for result in results:
            path = tuple(result["tokens"][:3])
            counts[path] = counts.get(path, 0) + 1
        drafted, accepted = (sum(r["usage"][key] for r in results) for key in ("drafted", "accepted"))
        tap.ok(set(counts) <= set(truth), f"{coupling}: nothing comes that has no probability", set(counts) - set(truth))
        value, limit = misfit(counts, truth, MANY)
        tap.ok(value < limit, f"{coupling}: three tokens are distributed as the model says",
               f"{value:.1f}, the limit is {limit:.1f}: {counts}")
        value, limit = misfit(counts, other, MANY)
        tap.ok(value > limit, f"{coupling}: and not as at another temperature (the test can tell)", f"{value:.1f}")
        tap.ok(drafted > accepted > 0, f"{coupling}: drafts were accepted and rejected", f"{accepted} of {drafted}")


def bounded_queue():
    with Service(sets=("verifier.sessions_max=2", "verifier.queue_max=2", "verifier.client_timeout=3s",
                       "verifier.threads=1")) as service:
        for _ in range(20):  # a quick machine may answer some before the last has come
            results = service.swarm([ask(i) for i in range(16)], concurrent=16)
            taken = [i for i, r in enumerate(results) if "error" not in r]
            refused = [r for r in results if "error" in r]
            if refused:
                break
        tap.ok(len(taken) >= 4 and len(refused) > 0 and not differences([results[i] for i in taken], [greedy[i] for i in taken]),
               "with places for 2 and a queue for 2, four of 16 are answered", results)
        tap.ok(all(r["code"] == 16 and "2" in r["error"] and "queue" in r["error"] for r in refused),
               "the others are refused as busy, and told of the queue's bound", refused)
        # Both places taken by clients that stopped reading: they lose them, and whoever waits is served.
        held = [service.swarm_start([{**ask(i, progress=True, window=4), "max_tokens": 800}]) for i in (0, 1)]
        for process, _ in held:
            progress(process)
            process.send_signal(signal.SIGSTOP)
        result = service.swarm([ask(2)])[0]
        tap.ok(not (why := difference(result, greedy[2])), "clients who take nothing lose their places to those who wait",
               why)
        until(lambda: all(s["state"] == "done" for s in sessions(service)["sessions"]))
        for process, results in held:
            process.send_signal(signal.SIGCONT)
            ended = results()[0]
            tap.ok(ended.get("end") == "cancelled", "and are told when they come back", ended)


with Service(draft=DRAFTS["small"], sets=("verifier.prefill_chunk=16", "verifier.client_timeout=1h",
                                          "verifier.ahead_max=16")) as service:
    for test in (several_at_once, late_joiners, long_prompt, stalled, killed_client, cancelled, deadlines, stops, sampling,
                 maximal):
        test(service)
    tap.ok(until(lambda: all(p["state"].startswith("ready") for p in service.status())), "all processes are ready at the end",
           service.status())
bounded_queue()
tap.done()
