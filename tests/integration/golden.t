#!/usr/bin/env python3
"""The golden models and the demo models, through outrider-model and through the service: the references know nothing of
Outrider (Hugging Face transformers; the training code of the demo models). OUTRIDER_GOLDEN names a folder with the
complete golden data; without it ../shared/golden is tried, and what is not there is skipped."""
import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, MODELS, ROOT, SANITIZED, TARGET, Service, Tap, difference, program, reference, run, run_json, until

OURS = ROOT / "tests" / "data" / "golden"
ALL = Path(os.environ.get("OUTRIDER_GOLDEN", ROOT.parent / "shared" / "golden"))
SUPPORTED = {"llama-dense": "llama", "llama-rope3": "llama", "mixtral": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3moe",
             "olmoe": "olmoe", "qwen2moe": "qwen2moe", "phimoe": "phimoe", "gpt-oss": "gpt-oss", "glm4moe": "glm4moe",
             "deepseek2-lite": "deepseek2", "deepseek2-lite.legacy": "deepseek2", "deepseek2-v3": "deepseek2",
             "deepseek2-v3.legacy": "deepseek2", "qwen3next": "qwen3next", "qwen35moe": "qwen35moe"}
QUANTS = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
GREEDY = 48
tap = Tap()


def joined(ids):
    return ",".join(map(str, ids))


def engine(command, model, ids, *more):
    return run_json(program("outrider-model"), command, "--model", model, "--tokens", joined(ids), "--format", "json",
                    *more)


def context(prompt):
    """Longrope has other factors within the original context (96 tokens in the golden model) than for one beyond it."""
    return ("--context", 96) if prompt.get("rope_factors") == "short" else ()


def off(got, expected):
    """Largest and RMS difference of logits, in parts of the RMS of what is expected."""
    rms = math.sqrt(sum(x * x for x in expected) / len(expected))
    gaps = [abs(a - b) for a, b in zip(got, expected, strict=True)]
    return max(gaps) / rms, math.sqrt(sum(g * g for g in gaps) / len(gaps)) / rms


def find(*names):
    """The first that is there: in this repository, or in the complete data."""
    return next((p for n in names for p in (OURS / n, ALL / n) if p.exists()), None)


def same_routes(got, expected):
    for a, b in zip(got, expected, strict=True):
        if a["layer"] != b["layer"] or a["experts"] != b["experts"]:
            return False
        for x, y in zip(a["weights"], b.get("weights", [])):
            if max(abs(p - q) for p, q in zip(x, y, strict=True)) > 1e-5:
                return False
    return True


def engine_on(name, model, golden):
    wrong = []
    for prompt in golden["prompts"]:
        ids = prompt["ids"]
        rows = engine("logits", model, ids, "--all", *context(prompt))["logits"]
        gap = off(rows[-1], prompt["logits_last"])[0]
        if gap > 2e-4:
            wrong.append(f"{prompt['name']}: logits differ by {gap:.1e}")
        if [row.index(max(row)) for row in rows] != prompt["argmax_all"]:
            wrong.append(f"{prompt['name']}: another token is best somewhere")
        got = engine("generate", model, ids, "--max-tokens", GREEDY, "--ignore-eos", *context(prompt))["tokens"]
        if got != prompt["greedy"]["ids"]:
            wrong.append(f"{prompt['name']}: greedy {got[:8]} for {prompt['greedy']['ids'][:8]}")
        if "routing" in prompt and not same_routes(engine("routes", model, ids, *context(prompt))["routes"],
                                                          prompt["routing"]):
            wrong.append(f"{prompt['name']}: routes differ")
    tap.ok(not wrong and golden["prompts"], f"{name}: logits, greedy tokens and routes are the reference's",
           "\n".join(wrong))


def served_on(name, model, golden):
    """The same greedy tokens through four processes: as a person asks, and with drafts, in any number at once."""
    wrong, accepted = [], 0
    golden = dict(golden, prompts=[p for p in golden["prompts"] if not context(p)])
    alone = [reference(p["ids"], GREEDY, model=model, extra=("--ignore-eos",)) for p in golden["prompts"]]
    with Service(model=model, options=("--budget", "min")) as service:
        for prompt in golden["prompts"]:
            result = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", joined(prompt["ids"]),
                         "--max-tokens", GREEDY, "--format", "json", "--ignore-eos")
            got = json.loads(result.stdout)["tokens"] if result.returncode == 0 else result.stderr
            if got != prompt["greedy"]["ids"]:
                wrong.append(f"{prompt['name']}: outrider run: {got}")
        for k, method, kind in ((0, "none", {}), (3, "ngram", {}), (7, "replay", {"replay_error": 0.3})):
            requests = [{"tokens": p["ids"], "max_tokens": GREEDY, "ignore_eos": True, "k": k, "draft_method": method,
                         "logits_hash": True, **({"replay": p["greedy"]["ids"], **kind} if kind else {})}
                        for p in golden["prompts"]]
            for prompt, expected, result in zip(golden["prompts"], alone, service.swarm(requests, concurrent=5)):
                if result.get("tokens") != prompt["greedy"]["ids"] or difference(result, expected):
                    wrong.append(f"{prompt['name']}, K = {k}, {method}: {difference(result, expected)} {result}")
                elif method == "replay":
                    accepted += result["usage"]["accepted"]
        healthy = until(lambda: all(p["state"].startswith(("ready", "idle")) for p in service.status()))
        states = {p["name"]: p["state"] for p in service.status()}
    tap.ok(not wrong, f"{name}, served: the reference's greedy tokens, with and without drafts", "\n".join(wrong))
    tap.ok(accepted > 0, f"{name}, served: drafts were accepted", states)
    tap.ok(healthy, f"{name}, served: nothing is degraded", states)


def quantised(stem):
    """References on the dequantised weights: within what 8-bit activations make of them."""
    where = find(f"quants/{stem}.json")
    if not where:
        return tap.skip(f"{stem}: quantised files", "no golden data")
    golden = json.loads(where.read_text())
    prompts = {p["name"]: p["ids"] for p in golden["prompts"]}
    for variant in golden["variants"]:
        if variant["type"] not in QUANTS:
            continue
        model = find(f"quants/{variant['file']}")
        if not model:
            tap.skip(f"{variant['file']}", "no such file here")
            continue
        limit = {"F16": 0.002, "BF16": 0.01}.get(variant["type"], 0.04)
        wrong = []
        for prompt in variant["prompts"]:
            if prompt.get("routing_min_margin", 1) < 0.2:
                continue
            gap = off(engine("logits", model, prompts[prompt["name"]])["logits"], prompt["logits_last"])[1]
            if gap > limit:
                wrong.append(f"{prompt['name']}: RMS of the difference {gap:.4f}, allowed {limit}")
        tap.ok(not wrong, f"{variant['file']}: logits within {limit:.1%}", "\n".join(wrong))
        ids = next(iter(prompts.values()))
        expected = reference(ids, 24, model=model, extra=("--ignore-eos",))
        with Service(model=model) as service:
            results = service.swarm([{"tokens": ids, "max_tokens": 24, "ignore_eos": True, "k": k, "draft_method": "ngram",
                                      "logits_hash": True} for k in (0, 3)], concurrent=2)
        tap.ok(not (why := "".join(difference(r, expected) for r in results)), f"{variant['file']}: served, the same bytes",
               why)


def demo(model):
    """Against the training code, up to the first step at which two tokens were nearly equal."""
    golden = json.loads((MODELS / "golden" / f"{model.stem}.json").read_text())
    alone, wrong, compared = [], [], 0
    for prompt in golden["prompts"]:
        n = min(prompt["small_margin_steps"] or [len(prompt["output_ids"])])
        compared += n
        alone.append(reference(prompt["input_ids"], 64, model=model, extra=("--ignore-eos",)))
        if alone[-1]["tokens"][:n] != prompt["output_ids"][:n]:
            wrong.append(f"{prompt['id']}: {alone[-1]['tokens'][:n]} for {prompt['output_ids'][:n]}")
        top = dict(prompt["steps"][0]["top"])
        row = engine("logits", model, prompt["input_ids"])["logits"]
        if max(abs(row[t] - x) for t, x in top.items()) > 1.0:
            wrong.append(f"{prompt['id']}: the best logits {[(t, row[t], x) for t, x in top.items()]}")
    tap.ok(not wrong and compared > 100, f"{model.name}: {compared} greedy tokens are those of the training code",
           "\n".join(wrong))
    # A dense model is served like any other: the expert-cache has nothing to do.
    with Service(model=model) as service:
        results = service.swarm([{"tokens": p["input_ids"], "max_tokens": 64, "ignore_eos": True, "k": i % 4 * 2,
                                  "draft_method": "ngram", "logits_hash": True}
                                 for i, p in enumerate(golden["prompts"])], concurrent=6)
        text = json.loads(run(program("outrider"), "run", "--runtime-dir", service.runtime, "--chat", "--format", "json",
                              "--max-tokens", 30, "What is 12 + 30?").stdout)
    why = "\n".join(f"{p['id']}: {d}" for p, r, e in zip(golden["prompts"], results, alone) if (d := difference(r, e)))
    tap.ok(not why, f"{model.name}: served, the same bytes", why)
    chat = run_json(program("outrider-model"), "generate", "--model", model, "--prompt", "What is 12 + 30?", "--chat",
                    "--max-tokens", 30, "--format", "json")
    tap.ok(text["tokens"] == chat["tokens"] and text["text"] == chat["text"], f"{model.name}: a conversation too",
           f"{text} {chat}")


def dense_with_draft():
    """A dense model drafted for by another, and by itself: then nearly every draft is what it says."""
    model = DRAFTS["aligned"]
    lines = json.loads((MODELS / "golden" / f"{model.stem}.json").read_text())["prompts"][:4]
    for draft, least in ((DRAFTS["small"], 0.05), (model, 0.9)):
        with Service(model=model, draft=draft, sets=("verifier.draft_wait=10s",)) as service:
            results = service.swarm([{"tokens": p["input_ids"], "max_tokens": 48, "ignore_eos": True, "k": 3,
                                      "draft_method": "model", "logits_hash": True} for p in lines], concurrent=1)
        why = "\n".join(d for p, r in zip(lines, results) if (d := difference(
            r, reference(p["input_ids"], 48, model=model, extra=("--ignore-eos",)))))
        tap.ok(not why, f"a dense model with {draft.stem} for a draft: the same bytes", why)
        drafted, accepted = (sum(r["usage"][key] for r in results) for key in ("drafted", "accepted"))
        tap.ok(drafted and accepted > least * drafted, f"{draft.stem}: more than {least:.0%} of the drafts are accepted",
               f"{accepted} of {drafted}")


def kernel_sets():
    """The same bytes from every kernel set, through the service, with a draft model that uses another."""
    ids = json.loads((MODELS / "golden" / f"{TARGET.stem}.json").read_text())["prompts"][1]["input_ids"]
    if SANITIZED:  # a drafter on scalar kernels has to have read the prompts within draft_wait, of which 10 s is the most
        ids = ids[:24]
    expected = reference(ids, 40, {"temperature": 0.8, "top_p": 0.95}, seed=5, extra=("--ignore-eos", "--kernels", "scalar"))
    for mine, other in (("scalar", "avx2"), ("avx2", "avx512"), ("avx512", "scalar")):
        if any(run(program("outrider-model"), "logits", "--model", TARGET, "--tokens", 1, "--kernels", k).returncode == 64
               for k in (mine, other)):
            tap.skip(f"kernels {mine}, drafts with {other}: the same bytes", "not on this CPU")
            continue
        with Service(draft=DRAFTS["aligned"], sets=(f"verifier.kernels={mine}", f"drafter.kernels={other}",
                                                    "verifier.draft_wait=10s")) as service:
            results = service.swarm([{"tokens": ids, "max_tokens": 40, "seed": 5, "temperature": 0.8, "top_p": 0.95, "k": k,
                                      "draft_method": "model", "logits_hash": True, "ignore_eos": True}
                                     for k in (0, 3, 7)], concurrent=3)
        why = "\n".join(filter(None, (difference(r, expected) for r in results)))
        tap.ok(not why and results[2]["usage"]["accepted"] > 0, f"kernels {mine}, drafts with {other}: the same bytes",
               why or results[2]["usage"])


def tokenizers():
    done = 0
    for cases in sorted({p.name: p for base in (ALL, OURS.parent) for p in (base / "tokenizers").glob("*.json")}.values()):
        model = cases.with_suffix(".gguf")
        golden = json.loads(cases.read_text())
        if not model.exists() or run(program("outrider-model"), "tokenize", "--model", model, "--text",
                                     "a").returncode:
            continue
        wrong = []
        for case in golden["cases"][:60]:
            right = next(case[k] for k in ("ids_hf", "ids_sentencepiece", "ids") if k in case)
            got = run(program("outrider-model"), "tokenize", "--model", model, "--format", "json", stdin=case["text"])
            if got.returncode or json.loads(got.stdout)["tokens"] != right:
                wrong.append(f"{case['text']!r}: {got.stdout[:100]} {got.stderr[:100]} for {right}")
        done += 1
        tap.ok(not wrong, f"tokenizer {model.stem}: the reference's ids", "\n".join(wrong))
    if not done:
        tap.skip("tokenizers", "no golden data that this tokenizer supports")


for name in SUPPORTED:
    model, data = find(f"models/{name}.f32.gguf"), find(f"models/{name.removesuffix('.legacy')}.json")
    if not model or not data:
        tap.skip(name, "no golden data")
        continue
    golden = json.loads(data.read_text())
    engine_on(name, model, golden)
    served_on(name, model, golden)
for stem in ("qwen3moe-256", "llama-dense-256"):
    quantised(stem)
for model in (*sorted(MODELS.glob("outrider-demo-moe-*.gguf")), *DRAFTS.values()):
    demo(model)
dense_with_draft()
kernel_sets()
tokenizers()
tap.done()
