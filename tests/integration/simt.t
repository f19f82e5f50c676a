#!/usr/bin/env python3
"""The kernels for GPUs, emulated on the CPU, give the CPU's bytes: tokens, hashes of logits, log probabilities, and the
experts of each token, for every architecture and type of weights of the golden models; and under the real service.
OUTRIDER_TEST_LONG=1: also those of the complete golden data that are not in this repository; OUTRIDER_GOLDEN names its folder, by
default ../shared/golden."""
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import BUILD, DRAFTS, MODELS, ROOT, SAMPLED, TARGET_Q4, Service, Tap, difference, prompts, reference

GOLDEN = ROOT / "tests" / "data" / "golden"
ALL = Path(os.environ.get("OUTRIDER_GOLDEN", ROOT.parent / "shared" / "golden"))
SAMPLING = ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "7", "--repeat-penalty", "1.1"]
TOKENS = "1,5,9,20,31,7,7,3"

tap = Tap()


def run(backend, command, model, *extra, env=None):
    done = subprocess.run([str(BUILD / "outrider-model"), command, "--model", str(model), "--tokens", TOKENS, "--quiet",
                           "--backend", backend, *extra], capture_output=True, text=True, env={**os.environ, **(env or {})})
    return done.stdout if done.returncode == 0 else f"{backend} ended with {done.returncode}: {done.stderr}"


def compare(model, command, *extra):
    cpu, simt = run("cpu", command, model, *extra), run("simt", command, model, *extra)
    return "" if cpu == simt and cpu.startswith("{") else f"{' '.join(extra)}\ncpu {cpu[:300]}\nsimt {simt[:300]}"


def golden(folder):
    return {model.name: model for part in ("models", "quants") for model in sorted(folder.glob(f"{part}/*.gguf"))}


models = golden(GOLDEN)
if os.environ.get("OUTRIDER_TEST_LONG"):
    if not ALL.is_dir():
        tap.skip("the complete golden data", f"{ALL} is not there; OUTRIDER_GOLDEN names the folder")
    models = {**golden(ALL), **models}
generate = ("generate", "--max-tokens", "4", "--ignore-eos", "--logits-hash", "--logprobs", "3")
for model in models.values():
    refused = run("cpu", *generate[:1], model, *generate[1:])
    if "is not supported" in refused:
        tap.skip(f"{model.name}: the CPU's bytes", refused.strip().splitlines()[-1])
        continue
    wrong = compare(model, *generate) + compare(model, *generate, "--prefill-chunk", "3", *SAMPLING)
    tap.ok(not wrong, f"{model.name}: the CPU's bytes, greedy and sampled", wrong)
generate = ("generate", TARGET_Q4, "--max-tokens", "8", "--ignore-eos", "--logits-hash")
on, off = run("simt", *generate), run("simt", *generate, env={"OUTRIDER_GRAPHS": "off"})
tap.ok(on == off and on.startswith("{"), "the same bytes with graphs and without", f"{on[:300]}\n{off[:300]}")
wrong = compare(TARGET_Q4, "generate", "--max-tokens", "4", "--logits-hash", "--pack")
tap.ok(not wrong, "packed weights: the CPU's bytes", wrong)
adapter = ("--adapter", str(MODELS / "outrider-demo-mtp-lora.gguf"))
wrong = compare(TARGET_Q4, "generate", "--max-tokens", "6", "--ignore-eos", "--logits-hash", *adapter)
wrong += compare(TARGET_Q4, "generate", "--max-tokens", "6", "--ignore-eos", "--logits-hash", *adapter, *SAMPLING)
tap.ok(not wrong, "a gated adapter: the CPU's bytes, and as many drafts", wrong)
wrong = compare(TARGET_Q4, "logits")
tap.ok(not wrong, "logits of a prompt: the CPU's bytes", wrong)

ids = prompts(3, longest=16)
with Service(TARGET_Q4, DRAFTS["small"], ["verifier.device=simt"]) as service:
    for mode, sampling in (("greedy", None), ("sampled", SAMPLED)):
        asked = [{"tokens": p, "max_tokens": 6, "seed": 100 + i, "k": 3, "draft_method": "ngram", "logits_hash": True,
                  **(sampling or {})} for i, p in enumerate(ids)]
        expected = [reference(p, 6, sampling, seed=100 + i, model=TARGET_Q4) for i, p in enumerate(ids)]
        results = service.swarm(asked, concurrent=3)
        wrong = [f"session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, expected[i]))]
        tap.ok(not wrong, f"the service over simt, {mode}: the CPU's bytes", "\n".join(wrong))
tap.done()
