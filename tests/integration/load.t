#!/usr/bin/env python3
"""outrider-bench load against a real service: every request is accounted for, whatever became of it, and the service is as before."""
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from outrider_test import Service, Tap, program, run, until  # noqa: E402

tap = Tap()
ok = tap.ok


def load(service, *options, **more):
    return run(program("outrider-bench"), "load", "--runtime-dir", service.runtime, *options, **more)


def load_json(service, *options):
    result = load(service, *options, "--json")
    return json.loads(result.stdout) if result.returncode == 0 else {"error": result.stderr}


with Service(sets=("verifier.sessions_max=8", "verifier.queue_max=100", "verifier.linger=2s")) as service, tempfile.TemporaryDirectory() as folder:
    picture = Path(folder) / "load.svg"
    said = load(service, "--rate", 40, "--requests", 40, "--prompt-tokens", "20-40", "--output-tokens", "4-12", "--ttft", 100000,
                "--plot", picture)
    ok(said.returncode == 0 and "40 answered, 0 failed, 0 left early" in said.stdout and "100.0 % of the requests" in said.stdout,
       "requests that arrive at random are all answered", said)
    ok(picture.exists() and "<svg" in picture.read_text(), "their waits are drawn", said.stderr)

    figures = load_json(service, "--arrivals", "closed", "--clients", 6, "--requests", 24, "--shared", 48, "--output-tokens", 8)
    ok(figures.get("answered") == 24 and figures["in_progress_most"] <= 6 and figures["cached_share"] > 0.3 and
       all(figures[m]["n"] == 24 and 0 < figures[m]["p50"] <= figures[m]["p99"] <= figures[m]["most"] for m in ("ttft_ms", "tpot_ms", "whole_ms")),
       "clients that wait for each answer have at most one request each; beginnings are shared", figures)

    figures = load_json(service, "--arrivals", "bursts:0.2,0.3", "--rate", 60, "--requests", 60, "--leave", 50, "--output-tokens", 20)
    ok(0 < figures.get("left", 0) < 60 and figures["left"] + figures["answered"] == 60, "clients that leave are told from those that stay", figures)

    trace = Path(folder) / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.99,396,109\n")
    figures = load_json(service, "--trace", trace, "--speed", 20, "--scale", 0.1, "--ttft", 0.0001)
    ok(figures.get("answered") == 2 and figures["good"] == 0 and figures["goodput_requests_per_s"] == 0,
       "a trace is replayed; answers beyond a target are no goodput", figures)

    figures = load_json(service, "--arrivals", "closed", "--clients", 60, "--requests", 120, "--output-tokens", 4, "--prompt-tokens", 8)
    ok(figures.get("answered", 0) + figures.get("failed", 0) == 120 and
       sum(f["n"] for f in figures["failures"]) == figures["failed"] > 0 and "client_requests" in figures["failures"][0]["reason"],
       "what the service refuses has failed, with its reason", figures)
    figures = load_json(service, "--arrivals", "closed", "--clients", 60, "--requests", 120, "--output-tokens", 4, "--prompt-tokens", 8, "--retry", 5)
    ok(figures.get("answered") == 120 and figures["refused"] > 0, "sent again, it is answered", figures)
    figures = load_json(service, "--requests", 2, "--rate", 50, "--prompt-tokens", 1000000)
    ok(figures.get("failed") == 2 and figures["failures"][0]["n"] == 2 and figures["tpot_ms"]["n"] == 0,
       "prompts beyond the context fail, alike and together", figures)
    ok(until(lambda: not service.ctl_json("sessions")["sessions"]), "nothing is left of all this", service.ctl_json("sessions"))

    for options, says in ((("--arrivals", "poison"), "--arrivals poison: takes"), (("--clients", 1001), "1000"), (("--plot", "x.txt"), ".svg"),
                          (("--workload", "a", "--shared", 3), "excludes"), (("--rate", 0), "--rate takes")):
        said = load(service, *options)
        ok(said.returncode == os.EX_USAGE and says in said.stderr, f"{' '.join(map(str, options))} is refused", said)
    said = load(service, "--trace", "/etc/hostname")
    ok(said.returncode not in (0, os.EX_USAGE) and "/etc/hostname:1: " in said.stderr, "what is no trace is refused, with the line", said)
    said = load(service, "--workload", "/nowhere.jsonl")
    ok(said.returncode != 0 and "/nowhere.jsonl: No such file" in said.stderr, "and a workload that is not there", said)
tap.done()
