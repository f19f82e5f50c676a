#!/usr/bin/env python3
"""outriderctl drain: what runs comes to its end with its bytes, nothing new begins, and requests are accepted again."""
import json
import signal
import subprocess

from outrider_test import Service, Tap, difference, finish, program, prompts, reference, run, until

TOKENS = 700
tap = Tap()
ids = prompts(1)[0]
expected = reference(ids, TOKENS, extra=("--ignore-eos",))
request = {"tokens": ids, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True}


def answer(service):
    return run(program("outrider"), "run", "--runtime-dir", service.runtime, "--max-tokens", "4", "A")


def drain(service, *more):
    return subprocess.Popen([program("outriderctl"), "--runtime-dir", service.runtime, "drain", *more], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


with Service(options=("--budget", "20%",)) as service:
    running = service.swarm_start([request] * 3, concurrent=3)
    until(lambda: any(s["state"] == "running" for s in service.ctl_json("sessions")["sessions"]))
    waiting = drain(service)
    until(lambda: "draining: no new requests" in service.ctl("status", "--all").stdout)
    refused = answer(service)
    tap.ok(refused.returncode == 75 and "accepts no new requests" in refused.stderr, "a new request is refused, with the reason", refused.stderr)
    service.end("drafter")
    results = running[1]()
    tap.ok(not (problem := [d for r in results if (d := difference(r, expected))]), "what ran comes to its end with its bytes", problem)
    out, err = finish(waiting, 60)
    tap.ok(waiting.returncode == 0 and out.endswith("drained: no session runs or waits\n"), "drain ends when nothing runs", out + err)
    said = service.ctl("drain", "--json").stdout
    _, end = json.JSONDecoder().raw_decode(said)
    tap.ok(json.loads(said[end:]) == {"live": 0}, "a second time it ends at once, and says so in JSON", said)
    service.ctl("knob", "set", "verifier.admit=yes")
    tap.ok(answer(service).returncode == 0, "the knob accepts requests again")

    left = []

    def caught():
        """A quick machine may complete the answer first."""
        service.ctl("knob", "set", "verifier.admit=yes")
        running[:] = service.swarm_start([request])
        until(lambda: any(s["state"] == "running" for s in service.ctl_json("sessions")["sessions"]), 2, every=0.01)
        left[:] = [service.ctl("drain", "--once")]
        if "1 session still" not in left[0].stdout:
            running[1]()
        return "1 session still" in left[0].stdout
    running = []
    until(caught)
    tap.ok(left[0].returncode == 0 and "1 session still running or waiting" in left[0].stdout, "--once says what is left", left)
    waiting = drain(service)
    waiting.stdout.readline(), waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    out, err = finish(waiting, 60)
    tap.ok(waiting.returncode in (0, 75), "Ctrl-C leaves it", f"{waiting.returncode} {err}")
    running[1]()
    service.end("verifier")
    tap.ok(until(lambda: answer(service).returncode == 0), "a verifier that starts again accepts requests")
tap.done()
