#!/usr/bin/env python3
"""Layer skip: the drafter runs the model without some of its layers (draft method layer-skip). Answers have the bytes of the model
alone, in chains and trees, for every kind of layer, with experts in slots that come and go, while processes are killed. In the models
here the skipped layers add nothing to the residual stream, so what drafts computes what the model does: every draft must be right."""
import itertools
import re
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import ROOT, SAMPLED, SANITIZED, Service, Tap, difference, program, reference, run, seeded, until

GOLDEN = ROOT / "tests" / "data" / "golden"
TOKENS = 12 if SANITIZED else 24
OUT = ("attn_output.weight", "attn_output.bias", "ffn_down.weight", "ffn_down.bias", "ffn_down_exps.weight", "ffn_down_exps.bias",
       "ffn_down_shexp.weight", "ssm_out.weight")
# Attention with and without experts; latent attention; delta nets beside attention; windows, sinks and biases.
MODELS = (("heads/target-llama", "2-4,6"), ("heads/nextn-glm4moe", "1"), ("heads/nextn-deepseek2", "1"), ("heads/nextn-qwen35moe", "1-2"),
          ("models/gpt-oss", "1-2"))
DEMO = ROOT / "models" / "outrider-demo-moe-q8_0.gguf"

tap = Tap()
random = seeded()
folder = tempfile.TemporaryDirectory()
ids = [[random.randrange(380) for _ in range(n)] for n in (1, 7, 40)]
modes = (None, SAMPLED)


def layers(text):
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [i for e in ends for i in range(e[0], e[-1] + 1)]


def without(model, skipped):
    """A copy in which these layers add nothing."""
    file = Gguf(model)
    for name, (ne, kind, data) in file.tensors.items():
        if name.endswith(OUT) and any(name.startswith(f"blk.{i}.") for i in layers(skipped)):
            file.tensors[name] = ne, kind, bytes(len(data))
    to = Path(folder.name) / model.name
    file.write(to)
    return to


def request(m, i, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 50 + i, "ignore_eos": True, "logits_hash": True, "draft_method": "layer-skip",
            **(modes[m] or {}), **more}


def details(service):
    return service.details("drafter")


def experts(service):
    """How many experts the drafter has read from the cache's slots, and from the file."""
    return [int(details(service).get(f"skip_experts_{where}", 0)) for where in ("cached", "file")]


def references(model):
    return {(m, i): reference(p, TOKENS, sampling, seed=50 + i, model=model, extra=("--ignore-eos",))
            for m, sampling in enumerate(modes) for i, p in enumerate(ids)}


def asked(service, expected, requests, concurrent=3):
    """What differs, and how many tokens were drafted and accepted. requests: of (mode, prompt, more)."""
    results = service.swarm([request(m, i, **more) for m, i, more in requests], concurrent=concurrent)
    wrong = [f"{m}, {i}, {more}: {what}" for (m, i, more), r in zip(requests, results) if (what := difference(r, expected[m, i]))]
    return wrong, *(sum(r.get("usage", {}).get(key, 0) for r in results) for key in ("drafted", "accepted"))


shapes = ({"k": 1}, {"k": 3}, {"k": 7}, {"k": 4, "draft_nodes": 16, "draft_width": 4})
for name, skipped in MODELS:
    model = without(GOLDEN / f"{name}.f32.gguf", skipped)
    expected = references(model)
    with Service(model=model, options=("--threads", 2), sets=(f"drafter.skip_layers={skipped}", "verifier.prefill_chunk=16",
                                                              "verifier.draft_wait=10s")) as service:
        chains = [(m, i, shape) for m, shape in itertools.product((0, 1), shapes[:3]) for i in range(len(ids))]
        wrong, drafted, accepted = asked(service, expected, chains)
        said = details(service)
        tap.ok(not wrong, f"{name}: chains give the reference's bytes", "\n".join(wrong[:10]))
        tap.ok(drafted > 100 and accepted == drafted and int(said["passes"]) > 50,
               f"{name}: without layers that add nothing every draft is right", (drafted, accepted, said))
        wrong, drafted, accepted = asked(service, expected, [(m, i, shapes[3]) for m in (0, 1) for i in range(len(ids))])
        tap.ok(not wrong and accepted > 0, f"{name}: trees give the reference's bytes", "\n".join(wrong[:10]) + f"{drafted} {accepted}")
        wrong, drafted, accepted = asked(service, expected, [(0, i, {"k": 3, "coupling": "maximal"}) for i in range(len(ids))])
        tap.ok(not wrong and accepted == drafted > 0, f"{name}: so it is with maximal coupling", "\n".join(wrong[:10]) + f"{drafted} {accepted}")
        if name != "heads/target-llama":
            continue
        # Settings: changed while it runs, refused with the reason, and used by requests that name no method.
        tap.ok(re.fullmatch(r"4 of 8 layers draft", said["layer_skip"]), "status says how many layers draft", said)
        for value, message in (("8", "layer 8 cannot be skipped: the model has layers 0 to 7"), ("0-7", "all 8 layers of the model would be skipped"),
                               ("auto:7", "6 of them can be skipped")):
            changed = service.ctl("knob", "set", f"drafter.skip_layers={value}")
            tap.ok(changed.returncode != 0 and message in changed.stderr and details(service)["layer_skip"] == "4 of 8 layers draft",
                   f"skip_layers = {value} is refused with the reason, and nothing changes", (changed, details(service)))
        with Service(model=model, sets=("drafter.skip_layers=8",)) as other:
            until(lambda: details(other).get("head"))
            refused = run(program("outrider"), "run", "--runtime-dir", other.runtime, "--tokens", "1,2,3", "--draft-method", "layer-skip")
            tap.ok(refused.returncode == 65 and "layer 8 cannot be skipped" in refused.stderr,
                   "of a service that was started so the first request is told why", refused)
            wrong, drafted, accepted = asked(other, expected, [(0, 1, {"k": 3})])
            said = details(other)
            tap.ok(not wrong and "layer 8 cannot be skipped" in said["layer_skip"] and "n-grams" in said["layer_skip"],
                   "it says why, and goes on", (wrong, said))
        for value in ("4-", "3-1", "256", "auto:0", "", "1,,2", "some"):
            changed = service.ctl("knob", "set", f"drafter.skip_layers={value}")
            tap.ok(changed.returncode != 0 and "layers to skip are auto, auto:N" in changed.stderr, f"skip_layers = \"{value}\" is refused", changed)
        service.ctl("knob", "set", f"drafter.skip_layers={skipped}", "drafter.method=layer-skip")
        wrong, drafted, accepted = asked(service, expected, [(0, 2, {"k": 3, "draft_method": "auto"})])
        tap.ok(not wrong and accepted == drafted > 0, "requests that name no method are drafted for by the method of the settings", (wrong, drafted, accepted))
        shown = service.ctl("status").stdout
        tap.ok("drafts    from a part of the model's layers (layer-skip); " in shown, "the status says so", shown)

# Packed weights in the verifier's memory, and experts in slots, few of them; the cache, the drafter and the verifier killed at any moment.
model = without(DEMO, "1,3")
expected = references(model)
for budget in ("all", "min"):
    with Service(model=model, options=("--threads", 2, "--budget", budget), sets=("drafter.skip_layers=1,3", "verifier.weights=packed")) as service:
        many = [(t % 2, t % len(ids), shapes[t % 4]) for t in range(12)]
        found = []

        def drafted():
            """The drafter is ready before the verifier has heard of it."""
            found.append(asked(service, expected, [(0, i, {"k": 3}) for i in range(len(ids))]))
            return found[-1][0] or found[-1][1] > 0
        tap.ok(until(drafted) and all(not wrong and n == accepted for wrong, n, accepted in found), f"budget {budget}: every draft is right", found)
        # The drafter learns of the slots a moment after the service is ready.
        until(lambda: (budget != "all" or service.all_resident()) and not asked(service, expected, [(0, 2, {"k": 3})])[0] and experts(service)[0] > 0)
        before = experts(service)
        wrong, drafted, accepted = asked(service, expected, many, 4)
        cached, file = (now - then for now, then in zip(experts(service), before))
        tap.ok(not wrong and cached > 0 and (file == 0 if budget == "all" else file > 0),
               f"budget {budget}: experts are read where they are", (wrong, cached, file))
        there = [line for line in Path(f"/proc/{service.processes()['drafter']}/maps").read_text().splitlines() if "memfd:weights" in line]
        tap.ok(there and all("w" not in line.split()[1] for line in there), f"budget {budget}: the drafter reads the verifier's weights, and cannot write", there)
        kills = 0
        for victim in ("drafter", "expert-cache", "verifier") if budget == "min" else ():
            process, results = service.swarm_start([request(m, i, **more) for m, i, more in many * 2], concurrent=4)
            service.restart(victim)
            kills += 1
            wrong += [f"{victim}: {m}, {i}: {what}" for (m, i, _), r in zip(many * 2, results()) if (what := difference(r, expected[m, i]))]
        tap.ok(not wrong, f"budget {budget}, processes killed {kills} times: the same bytes", "\n".join(wrong[:5]))
        before = int(details(service).get("passes", 0))
        tap.ok(until(lambda: not asked(service, expected, [(0, 2, {"k": 3})])[0] and int(details(service).get("passes", 0)) > before),
               f"budget {budget}: and it drafts afterwards", details(service))
tap.done()
