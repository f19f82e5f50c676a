#!/usr/bin/env python3
"""What the service does with drafts, budgets, audits, grammars and prefixes, over the emulated GPU: with experts and the KV cache in its
memory, every answer has the CPU's bytes. Those that no setting makes lossy have the bytes of the model alone, too."""
import re
import tempfile

from gateway_test import Gateway
from outrider_test import DRAFTS, MODELS, SAMPLED, TARGET_Q4, Service, Tap, difference, prompts, reference, until

TOKENS, LONG = 8, 12
tap = Tap()
ids = prompts(2, longest=6)
same = [t for p in prompts(4, longest=24) for t in p][:40]  # more than a page of the KV cache
modes = {"greedy": {}, "sampled": SAMPLED}
SETS = ("verifier.draft_wait=10s", "verifier.prefill_chunk=16", "drafter.skip_layers=2-3", "policy.width=3", "policy.purse=1000")
DEVICE = ("verifier.device=simt", "expert-cache.device=simt", "expert-cache.device_budget=50%")


def alone(tokens, n, sampling=None, seed=1):
    return reference(tokens, n, sampling, seed=seed, model=TARGET_Q4, extra=("--ignore-eos",))


expected = {(m, i): alone(p, LONG, sampling, 100 + i) for m, sampling in modes.items() for i, p in enumerate(ids)}


def request(m, i, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 100 + i, "ignore_eos": True, "logits_hash": True, **modes[m], **more}


def replayed(m, i, **more):
    return request(m, i, draft_method="replay", replay=expected[m, i]["tokens"], **{"k": 7, "replay_error": 0.3, **more})


# Answers that have the model's bytes, by what is said of them.
EXACT = {
    "chains and trees of a draft model, with both couplings": [
        request("greedy", 0, k=3, draft_method="model"), request("sampled", 1, k=5, draft_method="model", draft_nodes=24, draft_width=4),
        request("greedy", 1, k=5, draft_method="model", draft_nodes=24, draft_width=4, coupling="maximal")],
    "trees of 63 nodes": [
        replayed(m, i, k=63, draft_nodes=63, draft_width=4, max_tokens=n, **more)
        for m, i, n, more in (("sampled", 1, 4, {}), ("greedy", 0, 3, {"coupling": "maximal"}))],
    "a part of the model's layers as drafter": [
        request("greedy", 0, k=3, draft_method="layer-skip"), request("sampled", 1, k=4, draft_method="layer-skip", draft_nodes=12, draft_width=3)],
    "drafts from masks": [request(m, i, k=3, draft_method="mtp-lora") for m, i in (("greedy", 0), ("sampled", 1))],
}
# Answers by settings of the policy: whatever it chooses.
POLICIES = {
    "goodput with masks": (("policy.policy=goodput",), [request(m, i, k=-1, draft_method="mtp-lora") for i, m in enumerate(modes)]),
    "a static shape": (("policy.policy=static:4x2x1",), [request(m, i, k=-1, draft_method=by) for by in ("model", "ngram") for i, m in enumerate(modes)]),
    "trees by the cost of their experts": (("policy.policy=yield", "policy.by_experts=yes"), [
        replayed(m, i, k=-1, replay_error=0.05, max_tokens=LONG) for i, m in enumerate(modes)]),
}
LOSSY = [replayed("greedy", 0, budget_experts="4"), replayed("sampled", 1, budget_experts="0:5,2-:8"), replayed("greedy", 1, budget_experts="all")]
GRAMMAR = ["regex", "(yes|no), [a-z]{3,9}( [a-z]{2,7}){1,2}\\."]


def swarm(service, requests):
    return service.swarm(requests, concurrent=4)


def part(answer, n):
    return {key: answer[key][:n] for key in ("tokens", "logits_hash")}


def wrong(requests, results):
    """Where exact answers differ from the model alone."""
    keys = [("sampled" if "temperature" in r else "greedy", ids.index(r["tokens"])) for r in requests]
    return [f"{m}, {i}, {r.get('draft_method')}: {what}" for (m, i), r, a in zip(keys, requests, results)
            if (what := difference(a, part(expected[m, i], r["max_tokens"])))]


def counted(results):
    return [sum(r.get("usage", {}).get(key, 0) for r in results) for key in ("drafted", "accepted")]


def exact(service):
    for name, (knobs, group) in POLICIES.items():
        done = service.ctl("knob", "set", *knobs)
        why = []

        def drafted():
            """A policy need not draft; one that is new tries it."""
            results = swarm(service, group)
            why.extend(wrong(group, results))
            if not why and not counted(results)[0]:
                service.restart("policy")
                return False
            return True
        tap.ok(done.returncode == 0 and until(drafted, 600) and not why, f"{name}: the model's bytes", f"{done.stderr} {why}")
    # The policy judges nodes once it knows what passes cost, if it drafts then.
    tap.note(f"the nodes of a tree {'were' if service.ctl_json('policy', 'explain')['tree'] else 'were not'} judged by their experts")
    for name, group in EXACT.items():
        results = swarm(service, group)
        drafted, accepted = counted(results)
        tap.ok(not (why := wrong(group, results)) and drafted >= accepted > 0, f"{name}: the model's bytes", f"{why} {drafted} {accepted}")


def drafts(answer):
    """What was drafted: a draft that is late is not verified, and no budget is applied to its pass."""
    return [answer["usage"][key] for key in ("iterations", "k_used", "drafted_at")]


def budgets(service):
    """Answers with budgets, one after the other."""
    answers = service.swarm(LOSSY)
    return [drafts(a) for a in answers], [(a["tokens"], a["logits_hash"], a["usage"]["lossy_tokens"]) for a in answers]


def audits(service, answers):
    """What the model picks in the places of their tokens."""
    return [(a["picked"], a["logits_hash"], a["logprobs"]) for a in swarm(service, [
        {**{key: value for key, value in r.items() if key in ("tokens", "seed", "ignore_eos", "logits_hash", "temperature", "top_p")},
         "audit": answer[0], "logprobs": 1} for r, answer in zip(LOSSY, answers)])]


def over_http(service):
    """An answer with a budget that is set while the service runs, and its audit."""
    service.ctl("knob", "set", "budget_experts=4", "budget_coverage=truncation")
    gateway = Gateway(service)
    status, answer = gateway.post("/v1/completions", {"prompt": ids[0], "max_tokens": TOKENS, "temperature": 0,
                                                      "outrider": {"draft_method": "layer-skip", "k": 3, "audit": True}})
    gateway.stop()
    service.ctl("knob", "set", "budget_experts=0")
    if status != 200:
        return None, answer
    own = answer["outrider"]
    return (own["iterations"], own["drafted"]), (answer["choices"], own["lossy"], own["audit"])


def both(ask):
    """What the CPU and the emulated GPU answer, once the same was drafted for both."""
    pair = []

    def same():
        pair[:] = ask(cpu), ask(gpu)
        return pair[0][0] == pair[1][0]
    until(same, 900)
    return pair[0][1], pair[1][1]


def constrained(service, *more):
    asked = [{**request(m, i, **kind), "grammar": GRAMMAR, "ignore_eos": False, "max_tokens": 16} for kind in more for i, m in enumerate(modes)]
    return [(r["tokens"], r["text"], r["end"], r["logits_hash"]) for r in swarm(service, asked)]


def found(service):
    return [int(n) for n in re.findall(r"finds its first (\d+) tokens in the KV cache", service.whole_log())]


def on_disk(service, what):
    return next(p for p in service.status() if p["name"] == "verifier")["details"][f"disk_{what}_tokens"]


def shared(service):
    """Sessions that begin alike, one after the other and side by side."""
    asked = [{"tokens": same + tail, "max_tokens": 3, "seed": 7, "ignore_eos": True, "logits_hash": True, **modes[m]}
             for m, tail in (("greedy", ids[0]), ("sampled", ids[1]), ("greedy", ids[1]))]
    results = swarm(service, asked[:1]) + swarm(service, asked[1:])
    return [what for r, a in zip(asked, results) if (what := difference(a, alone(r["tokens"], 3, SAMPLED if "temperature" in r else None, 7)))]


OPTIONS = ("--adapter", MODELS / "outrider-demo-mtp-lora.gguf", "-v")
with (tempfile.TemporaryDirectory(prefix="outrider-simt-prefixes-") as where, Service(TARGET_Q4, DRAFTS["small"], SETS, OPTIONS) as cpu,
      Service(TARGET_Q4, DRAFTS["small"], (*SETS, *DEVICE, f"verifier.prefix_dir={where}", "verifier.sleep_after=100ms"), OPTIONS) as gpu):
    exact(gpu)
    one, other = both(budgets)
    tap.ok(one == other and [n > 0 for _, _, n in other] == [True, True, False], "budgets change the same tokens", f"{one}\n{other}")
    one, other = audits(cpu, one), audits(gpu, one)
    tap.ok(one == other and other[2][0] == expected["greedy", 1]["tokens"][:TOKENS], "audits find the same", f"{one}\n{other}")
    one, other = both(over_http)
    tap.ok(one == other and other[1] and other[2][0]["tokens"] == TOKENS, "over HTTP, too", f"{one}\n{other}")
    one = constrained(cpu, {"k": 0})
    other = constrained(gpu, {"k": 0}, {"k": 3, "draft_method": "model"})
    tap.ok(one * 2 == other and all(re.fullmatch(GRAMMAR[1], text) for _, text, end, _ in other if end == "eos"), "grammars: the CPU's bytes",
           f"{one}\n{other}")
    why = shared(gpu)
    tap.ok(not why and found(gpu) == [32, 32], "sessions share the beginning of their prompts: the model's bytes", f"{why} {found(gpu)}")
    gpu.kill("verifier")
    gpu.wait_ready()
    why = shared(gpu)
    tap.ok(not why and found(gpu)[2:] == [32] * 3 and on_disk(gpu, "found") == 0, "and a successor finds it in the device's memory", f"{why} {found(gpu)}")
    until(lambda: on_disk(gpu, "saved") >= 32)
    gpu.ctl("knob", "set", "prefix_tokens=0")
    gpu.ctl("knob", "reset", "prefix_tokens")
    why = shared(gpu)
    tap.ok(not why and on_disk(gpu, "found") >= 32, "and on disk, once the device has it no longer", f"{why} {on_disk(gpu, 'found')}\n{gpu.log_text()[-1500:]}")
tap.done()
