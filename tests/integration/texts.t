#!/usr/bin/env python3
"""A text that takes long to be read stalls nobody: neither streams, nor other clients' texts, nor what its client does with it."""
import json
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import WHY_NOT, Faults
from outrider_test import Service, Tap, difference, finish, prompts, reference, until

HUGE = "a word and another, " * (2 * 1024 * 1024 // 20 - 1)
TOKENS = 200
tap = Tap()
if WHY_NOT:
    tap.skip("long texts", WHY_NOT)
    tap.done()
    sys.exit()
ids = prompts(4, longest=40)
alone = [reference(i, TOKENS, extra=("--ignore-eos",)) for i in ids]


def ask(i, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "ignore_eos": True, "seed": 1, **more}


def huge(**more):
    return {"prompt": HUGE, "max_tokens": 4, "ignore_eos": True, **more}


def refused(results):
    """The text has more tokens than the context: it is read to its end to find that out."""
    return len(results) == 1 and "room for an answer" in results[0].get("error", "") and results[0]["code"] == 7


def while_it_is_read(service, faults):
    """A long text is read, and stays so; returns the function that gives its results."""
    waits = faults.fields.text_waits
    faults.fields.text_held = 1
    process, results = service.swarm_start([huge()])
    until(lambda: faults.fields.text_waits > waits, 60)
    return process, results


with Faults() as faults, Service(env=faults.env, sets=("verifier.client_requests=4",)) as service:
    process, long_results = while_it_is_read(service, faults)
    answers = service.swarm([ask(i) for i in range(4)], concurrent=4)
    why = "\n".join(filter(None, (difference({**r, "logits_hash": None}, a) for r, a in zip(answers, alone))))
    tap.ok(process.poll() is None and not why, "while a prompt of 2 MiB is read, other clients' texts are read and answered", why)
    # Longer than a client waits for a service that has never answered it.
    time.sleep(6)
    faults.none()
    got = long_results()
    tap.ok(refused(got), "the prompt is refused in the words that it always was", got)

    # A stream that is under way: its tokens go on while the text is read.
    stream, stream_results = service.swarm_start([ask(0, progress=True, window=8)])
    first = json.loads(stream.stderr.readline())["have"]
    process, long_results = while_it_is_read(service, faults)
    last = first
    while last < TOKENS:
        last = json.loads(stream.stderr.readline())["have"]
    tap.ok(process.poll() is None and last == TOKENS, "a stream goes on to its end meanwhile", f"{first} to {last}")
    stream_results()

    # The client that sent it goes, and one that is asked for in its place is read as soon as the thread is free.
    process.kill()
    finish(process, 60)
    tap.ok(difference({**service.swarm([ask(1)])[0], "logits_hash": None}, alone[1]) == "", "its client goes away, and nobody minds")
    process, long_results = service.swarm_start([huge()])
    faults.none()
    tap.ok(refused(long_results()), "what nobody wants any more is read to its end, and the next after it")

    # Texts of one client are read in order, and count as its requests.
    waits = faults.fields.text_waits
    faults.fields.text_held = 1
    process, results = service.swarm_start([huge(), ask(2), ask(3), ask(1), ask(0)], concurrent=5)
    until(lambda: faults.fields.text_waits > waits, 60)
    tap.ok(all(s["state"] == "done" for s in service.ctl_json("sessions")["sessions"]), "a client's short texts wait for its long one")
    faults.none()
    got = results()
    tap.ok(refused(got[:1]) and not any(difference({**got[i], "logits_hash": None}, alone[j]) for i, j in ((1, 2), (2, 3), (3, 1))),
           "and are answered when it was read")
    tap.ok(got[4].get("code") == 16 and "client_requests" in got[4]["error"], "all of them count as requests of the client", got[4])

    # The verifier dies over a text: its client asks its successor.
    process, long_results = while_it_is_read(service, faults)
    service.end("verifier", signal.SIGKILL)
    faults.none()
    tap.ok(refused(long_results()), "a verifier that is killed while it reads a text: the client asks again")
tap.done()
