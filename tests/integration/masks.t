#!/usr/bin/env python3
"""Drafts from masks of a gated adapter (draft method mtp-lora): answers have the bytes of the model alone for every K, greedy and
sampled, with both couplings, while the verifier is killed, and without any drafter. Golden model and adapter, of random weights: where
drafts are to be accepted, a bias leaves few tokens to choose from."""
import itertools
import os
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import ROOT, SAMPLED, Service, Tap, difference, program, prompts, reference, run, until

HEADS = ROOT / "tests" / "data" / "golden" / "heads"
MODEL, ADAPTER = HEADS / "target-qwen3moe.f32.gguf", HEADS / "mtp-qwen3moe.f32.gguf"
TOKENS = 24
FEW = {str(t): 9 for t in (7, 11, 30, 50)}  # biases: almost always one of these

tap = Tap()
ids = [[t % 380 for t in p] for p in prompts(4, longest=48)]
brief = [p[:8] for p in ids[:2]]
modes = {"greedy": None, "sampled": SAMPLED}


def request(mode, i, k, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 100 + i, "k": k, "draft_method": "mtp-lora", "ignore_eos": True,
            "logits_hash": True, **(modes[mode] or {}), **more}


def verifier(service):
    """What the verifier says of itself."""
    return service.details("verifier")


def plain(service, mode, **more):
    return service.swarm([request(mode, i, 0, **{"draft_method": "none", **more}) for i in range(len(ids))], concurrent=len(ids))


with Service(model=MODEL, options=("--adapter", ADAPTER, "--threads", 2, "--budget", "30%"), sets=("verifier.prefill_chunk=16",)) as service:
    said = verifier(service)
    tap.ok(str(said.get("adapter_masks")) == "3" and str(said.get("adapter", "")).endswith(ADAPTER.name), "status names the adapter", said)
    shown = service.ctl("status").stdout
    tap.ok(f", or for requests of method mtp-lora from {ADAPTER.name}; " in shown and "trouble   none" in shown, "so does the summary", shown)
    alone = {(mode, i): reference(p, TOKENS, sampling, seed=100 + i, model=MODEL, extra=("--ignore-eos",))
             for mode, sampling in modes.items() for i, p in enumerate(ids)}
    one = {(mode, i): reference(p, TOKENS, modes[mode], seed=100 + i, model=MODEL, extra=("--ignore-eos", "--adapter", ADAPTER))
           for mode in modes for i, p in enumerate(ids)}
    tap.ok(all(difference(one[key], alone[key]) == "" and one[key]["drafts"]["drafted"] > TOKENS for key in one),
           "outrider-model drafts with the adapter, too: the same bytes", [r["drafts"] for r in one.values()])
    biased = {mode: plain(service, mode, logit_bias=FEW) for mode in modes}
    few = {mode: service.swarm([request(mode, i, 0, draft_method="none", tokens=p, max_tokens=8, logit_bias=FEW) for i, p in enumerate(brief)])
           for mode in modes}
    for mode in modes:
        wrong, drafted, accepted = [], 0, 0
        for k, n, bias in itertools.product((-1, 0, 1, 2, 3, 7), (1, 4), (None, FEW)):
            asked = [request(mode, i, k, **({"logit_bias": bias} if bias else {})) for i in range(n)]
            for i, result in enumerate(service.swarm(asked, concurrent=n)):
                what = difference(result, biased[mode][i] if bias else alone[mode, i])
                wrong += [f"K = {k}, {n} sessions, session {i}, {'biased' if bias else 'plain'}: {what}"] if what else []
                drafted, accepted = (a + result.get("usage", {}).get(key, 0) for a, key in ((drafted, "drafted"), (accepted, "accepted")))
        tap.ok(not wrong, f"{mode}: every K gives the bytes of the model alone", "\n".join(wrong[:10]))
        tap.ok(drafted > accepted > 0, f"{mode}: drafts were verified, accepted and rejected", (drafted, accepted))
    result = service.swarm([request("greedy", i, 3, coupling="maximal") for i in range(len(ids))], concurrent=2)
    tap.ok(not any(difference(r, alone["greedy", i]) for i, r in enumerate(result)), "maximal coupling: greedy answers are the same")
    result = service.swarm([request("sampled", i, 3, coupling="maximal", logit_bias=FEW) for i in range(len(ids))], concurrent=2)
    tap.ok(all(len(r["tokens"]) == TOKENS and r["usage"]["accepted"] > 0 for r in result), "maximal coupling: sampled answers are drafted for", result)
    said = verifier(service)
    counts = [tuple(map(int, c.split("/"))) for c in str(said["mask_drafts"]).split()]
    tap.ok(len(counts) == 3 and all(d >= a for a, d in counts) and counts[0][1] > counts[2][1] > 0 and counts[0][0] > 0
           and int(said["mask_rows"]) > sum(d for _, d in counts), "status counts drafts by position, and the rows with masks", said)

    def hints():
        return int(service.details("drafter")["history_hints"])

    before = hints()
    service.swarm([request("greedy", i, 3, logit_bias=FEW) for i in range(len(ids))])
    tap.ok(until(lambda: hints() > before), "the drafter hints which experts they need", (before, hints()))
    stopped = service.end("drafter", signal.SIGSTOP)
    result = service.swarm([request("greedy", i, 3, logit_bias=FEW) for i in range(len(ids))], concurrent=2)
    os.kill(stopped, signal.SIGCONT)
    tap.ok(not any(difference(r, biased["greedy"][i]) for i, r in enumerate(result)) and all(r["usage"]["accepted"] > 0 for r in result),
           "while the drafter stands still, drafts are made and accepted", result)

    wrong, kills = [], 0
    for round in range(3):
        bias = FEW if round % 2 else None
        long = [request(mode, i, 3, **({"logit_bias": bias} if bias else {})) for mode in modes for i in range(len(ids))]
        process, results = service.swarm_start(long * 3, concurrent=4)
        service.restart("verifier")
        kills += 1
        for at, result in enumerate(results()):
            asked = at % len(long)
            mode, i = list(modes)[asked // len(ids)], asked % len(ids)
            what = difference(result, biased[mode][i] if bias else alone[mode, i])
            wrong += [f"{mode}, {i}: {what}"] if what else []
    tap.ok(kills > 0 and not wrong, f"the verifier killed {kills} times: the same bytes", "\n".join(wrong[:10]))

# The GPU's kernels, emulated, with half of the experts in its memory: all computed there, and some by the CPU beside it.
short = {mode: [reference(p, 8, sampling, seed=100 + i, model=MODEL, extra=("--ignore-eos",)) for i, p in enumerate(brief)]
         for mode, sampling in modes.items()}
with Service(model=MODEL, options=("--adapter", ADAPTER), sets=("verifier.device=simt", "expert-cache.device=simt",
             "expert-cache.device_budget=50%", "verifier.prefill_chunk=16")) as service:
    said = verifier(service)
    tap.ok(str(said.get("adapter_masks")) == "3", "the emulated GPU takes the adapter", said)
    for rule in ("off", "greedy"):
        done = service.ctl("knob", "set", f"hybrid={rule}")
        wrong, drafted, accepted = [done.stderr] if done.returncode else [], 0, 0
        for mode, (k, bias) in itertools.product(modes, ((1, None), (3, None), (3, FEW), (-1, FEW))):
            asked = [request(mode, i, k, tokens=p, max_tokens=8, **({"logit_bias": bias} if bias else {})) for i, p in enumerate(brief)]
            for i, result in enumerate(service.swarm(asked, concurrent=len(brief))):
                what = difference(result, few[mode][i] if bias else short[mode][i])
                wrong += [f"{mode}, K = {k}, session {i}, {'biased' if bias else 'plain'}: {what}"] if what else []
                drafted, accepted = (a + result.get("usage", {}).get(key, 0) for a, key in ((drafted, "drafted"), (accepted, "accepted")))
        tap.ok(not wrong and drafted > accepted > 0, f"on the emulated GPU, hybrid = {rule}: the bytes of the model alone",
               "\n".join(wrong) + f" drafted {drafted}, accepted {accepted}")

# An adapter that does not fit: the service says so, and goes on without it.
for what, model, adapter, message in (("of another architecture", HEADS / "target-llama.f32.gguf", ADAPTER, '"llama" is wanted'),
                                      ("that is no adapter", MODEL, HEADS / "eagle3-llama-own.f32.gguf",
                                       "this is not an adapter but an EAGLE-3 head; give it as --draft"),
                                      ("that does not exist", MODEL, HEADS / "nothing.gguf", "nothing.gguf")):
    with Service(model=model, options=("--adapter", adapter)) as service:
        said = verifier(service)
        result = service.swarm([{"tokens": ids[0][:4], "max_tokens": 4, "k": 3, "ignore_eos": True, "draft_method": "mtp-lora"}])[0]
        tap.ok(message in str(said.get("adapter")) and "adapter_masks" not in said and len(result.get("tokens", ())) == 4,
               f"an adapter {what}: the service goes on without it", (said, result))
        refused = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2,3", "--draft-method", "mtp-lora")
        tap.ok(refused.returncode == 65 and "has no adapter" in refused.stderr and message in refused.stderr,
               f"an adapter {what}: a request for mtp-lora is told why", refused)
        shown = run(program("outrider"), "status", "--runtime-dir", service.runtime)
        tap.ok(re.search(f"^trouble   the adapter is not used: .*{re.escape(message)}", shown.stdout, re.M), f"an adapter {what}: so does the summary", shown)
tap.done()
