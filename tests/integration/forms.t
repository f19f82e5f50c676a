#!/usr/bin/env python3
"""Files hold the same model in several forms: query, key and value in one tensor, gate and up in one, an expert's matrices in
tensors of their own, vectors in 16 bits, biases where the architecture may have them. Whatever the form, answers are the
same bytes; what cannot be read is refused by name."""
import json
import math
import shutil
import signal
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from forms import BF16, F16, F32, add_bias, all_in_up, bias_values, can_be_fused, equal_scales, gate_up, narrow_vectors, qkv, single, trimmed
from gguf_file import Gguf
from outrider_test import ROOT, SAMPLED, TARGET, TARGET_Q4, Service, Tap, difference, program, prompts, reference, run, run_json

GOLDEN = ROOT / "tests" / "data" / "golden"
DATAERR = 65
IDS = "1,2,3,17,200,5,9,300"
tool = program("outrider-model")
home = Path(tempfile.mkdtemp(prefix="outrider-forms-", dir="/var/tmp"))
tap = Tap()


def everything(g):
    return qkv(g) + gate_up(g, "") + gate_up(g, "_exps") + gate_up(g, "_shexp")


def fused_with_scales(g):
    """Everything fused, and the scales as they were: a file that was converted in two steps."""
    scales = {name: tensor for name, tensor in g.tensors.items() if name.endswith((".scale", ".input_scale"))}
    done = everything(g) if scales else 0
    g.tensors = {**{n: t for n, t in g.tensors.items() if not n.endswith((".scale", ".input_scale"))}, **scales}
    return done


FORMS = {"attn_qkv": qkv, "ffn_gate_up": lambda g: gate_up(g, ""), "ffn_gate_up_exps": lambda g: gate_up(g, "_exps"),
         "ffn_gate_up_shexp": lambda g: gate_up(g, "_shexp"), "gate rows in ffn_up": lambda g: all_in_up(g, ""),
         "gate rows in ffn_up_exps": lambda g: all_in_up(g, "_exps"), "gate rows in ffn_up_shexp": lambda g: all_in_up(g, "_shexp"),
         "single experts": single, "all fused": everything, "gate and up fused, down single": lambda g: gate_up(g, "_exps") and single(g),
         "gate and up fused, all single": lambda g: gate_up(g, "_exps") and single(g, "gate_up|down"),
         "fused, a scale for each part": fused_with_scales}


def logits(model, *more):
    """A hash for each position, or why there is none."""
    done = run(tool, "logits", "--model", model, "--tokens", IDS, "--all", "--logits-hash", "--format", "json", *more)
    return json.loads(done.stdout)["logits_hash"] if done.returncode == 0 else done.stderr


def written(g, name="model.gguf"):
    g.write(home / name)
    return home / name


def packed_is(model, expected):
    """Its packed copy: the same bytes, and the loader takes it."""
    copy = home / "packed.gguf"
    done = run(tool, "pack", model, copy, "--force", "--quiet")
    return done.returncode == 0 and logits(copy) == expected or f"packed: {done.stderr} {logits(copy)}"


def forms_of(model):
    """Each form of one file: the logits of the file itself, from rows and from tiles; sound; packed like any other."""
    plain = Gguf(model)
    if equal_scales(plain):
        model = home / "scaled.gguf"
        plain.write(model)
    expected, wrong, used = logits(model), [], set()
    assert isinstance(expected, list), expected
    info = run_json(tool, "info", "--model", model, "--format", "json")["model"]
    for name, change in FORMS.items():
        g = Gguf(model)
        if not change(g):
            continue
        used.add(name)
        copy = written(g)
        for more in ((), ("--pack", "--threads", "2")):
            got = logits(copy, *more)
            if got != expected:
                wrong.append(f"{name} {more}: {got}")
        checked = run(tool, "check", copy)
        if checked.returncode:
            wrong.append(f"{name}: check: {checked.stdout}")
        got = run_json(tool, "info", "--model", copy, "--format", "json")["model"]
        if [got[k] for k in ("expert_bytes", "experts", "layers")] != [info[k] for k in ("expert_bytes", "experts", "layers")]:
            wrong.append(f"{name}: info: {got}")
        if info["experts"] and packed_is(copy, expected) is not True:
            wrong.append(f"{name}: {packed_is(copy, expected)}")
    tap.ok(not wrong and (used or not can_be_fused(plain)), f"{model.name}: the same logits in {len(used)} other forms", "\n".join(wrong))
    return used


def narrow(model):
    """Vectors of 16 bits are taken for what they are: as the same values in 32."""
    wrong = []
    for kind, name in ((F16, "F16"), (BF16, "BF16")):
        small, large, n = narrow_vectors(Gguf(model), kind)
        got, expected = logits(written(small)), logits(written(large, "wide.gguf"))
        if not n or got != expected or not isinstance(got, list) or got == logits(model):
            wrong.append(f"{n} vectors in {name}: {got} for {expected}")
        if run(tool, "check", home / "model.gguf").returncode:
            wrong.append(f"{name}: check: {run(tool, 'check', home / 'model.gguf').stdout}")
    tap.ok(not wrong, f"{model.name}: norms and biases in 16 bits", "\n".join(wrong))


def biased(name, model, golden):
    """Biases that Hugging Face's class may have, against what it says of them: single, fused, in 16 bits."""
    wrong = []
    for change in (None, qkv, everything):
        g = Gguf(model)
        for bias, n in golden["biases"].items():
            add_bias(g, bias, n)
        if change:
            change(g)
        copy = written(g)
        for prompt in golden["prompts"]:
            got = run_json(tool, "logits", "--model", copy, "--tokens", ",".join(map(str, prompt["ids"])), "--format", "json")
            expected = prompt["logits_last"]
            rms = (sum(x * x for x in expected) / len(expected)) ** 0.5
            gap = max(abs(a - b) for a, b in zip(got["logits"], expected, strict=True)) / rms
            if gap > (1e-3 if name == "qwen3next" else 2e-4):
                wrong.append(f"{len(prompt['ids'])} tokens, {change and change.__name__}: logits differ by {gap:.1e}")
    tap.ok(golden["biases"] and not wrong, f"{model.name}: {len(golden['biases'])} biases are added", "\n".join(wrong))


def refused(name, model, change, *words):
    """By check and by the loader, with these words; the loader says one sentence."""
    g = Gguf(model)
    change(g)
    bad = written(g, "bad.gguf")
    checked, loaded = run(tool, "check", bad), run(tool, "logits", "--model", bad, "--tokens", "1,2")
    tap.ok(checked.returncode == loaded.returncode == DATAERR and loaded.stderr.count("\n") == 1 and
           all(w in checked.stdout and w in loaded.stderr for w in words), f"refused: {name}",
           f"{checked.returncode} {checked.stdout}\n{loaded.returncode} {loaded.stderr}")


def put(name, tensor):
    return lambda g: g.tensors.update({name: tensor})


def after(form, change):
    def both(g):
        form(g)
        change(g)
    return both


def drop(name):
    return lambda g: g.tensors.pop(name)


def reshaped(name, *ne):
    def change(g):
        old, kind, data = g.tensors[name]
        g.tensors[name] = list(ne), kind, data + bytes(max(0, 4 * math.prod(ne) - len(data)))
    return change


def of_type(name, kind):
    """Any bytes: what is refused is the type."""
    def change(g):
        ne, _, data = g.tensors[name]
        g.tensors[name] = ne, kind, data
    return change


def kept(model, name):
    return trimmed(Gguf(model).tensors[name])


def refusals():
    mixtral, llama, gpt = (GOLDEN / "models" / f"{n}.f32.gguf" for n in ("mixtral", "llama-dense", "gpt-oss"))
    exps = lambda g: gate_up(g, "_exps")
    dense = lambda g: gate_up(g, "")
    gate, up, both = "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_gate_up_exps.weight"
    for part in ("gate", "up"):
        refused(f"no {part} of experts in any form", mixtral, drop(f"blk.1.ffn_{part}_exps.weight"),
                f"blk.1.ffn_{part}_exps.weight is missing", both, f"blk.1.ffn_{part}.0.weight")
    refused("no down", mixtral, drop("blk.1.ffn_down_exps.weight"), "blk.1.ffn_down_exps.weight is missing", "blk.1.ffn_down.0.weight")
    refused("no value", llama, drop("blk.2.attn_v.weight"), "blk.2.attn_v.weight is missing", "blk.2.attn_qkv.weight")
    refused("no gate", llama, drop("blk.2.ffn_gate.weight"), "blk.2.ffn_gate.weight is missing", "blk.2.ffn_gate_up.weight",
            "blk.2.ffn_up.weight of 224 rows")
    refused("no gate of the shared expert", GOLDEN / "models" / "qwen2moe.f32.gguf", drop("blk.0.ffn_gate_shexp.weight"),
            "blk.0.ffn_gate_shexp.weight is missing", "blk.0.ffn_gate_up_shexp.weight")
    v3, old = (GOLDEN / "models" / f"deepseek2-v3{x}.f32.gguf" for x in ("", ".legacy"))
    refused("no compressed query", v3, drop("blk.0.attn_q_a.weight"), "blk.0.attn_q.weight is missing", "blk.0.attn_q_a.weight")
    refused("no keys of the latent", v3, drop("blk.0.attn_k_b.weight"), "blk.0.attn_k_b.weight is missing", "blk.0.attn_kv_b.weight")
    refused("no keys and values of the latent", old, drop("blk.0.attn_kv_b.weight"), "blk.0.attn_kv_b.weight is missing",
            "blk.0.attn_k_b.weight")
    refused("an expert of fused ones is missing", mixtral, after(lambda g: exps(g) and single(g, "gate_up|down"), drop("blk.1.ffn_gate_up.3.weight")),
            "blk.1.ffn_gate_up.3.weight is missing")
    refused("gate fused for each expert, and apart", mixtral, after(lambda g: exps(g) and single(g, "gate_up"), put(gate, kept(mixtral, gate))),
            gate, "blk.1.ffn_gate_up.0.weight", "one of them is too many")
    refused("no biases of experts", gpt, drop("blk.0.ffn_gate_exps.bias"), "blk.0.ffn_gate_exps.bias is missing",
            "blk.0.ffn_gate_up_exps.bias", "blk.0.ffn_gate.0.bias")
    refused("gate fused and single", mixtral, after(exps, put(gate, kept(mixtral, gate))), gate, both, "one of them is too many")
    refused("up fused and an expert's", mixtral, after(exps, put("blk.1.ffn_up.3.weight", ([64, 56], F32, bytes(4 * 64 * 56)))),
            "blk.1.ffn_up.3.weight", both, "one of them is too many")
    refused("experts together and single", mixtral, put("blk.1.ffn_down.7.weight", ([56, 64], F32, bytes(4 * 64 * 56))),
            "blk.1.ffn_down.7.weight", "blk.1.ffn_down_exps.weight", "one of them is too many")
    refused("query fused and single", llama, after(qkv, put("blk.0.attn_q.weight", kept(llama, "blk.0.attn_q.weight"))),
            "blk.0.attn_q.weight", "blk.0.attn_qkv.weight", "one of them is too many")
    refused("a bias fused and single", gpt, after(exps, put("blk.0.ffn_up_exps.bias", kept(gpt, "blk.0.ffn_up_exps.bias"))),
            "blk.0.ffn_up_exps.bias", "blk.0.ffn_gate_up_exps.bias", "one of them is too many")
    for e in (0, 3, 7):
        refused(f"expert {e} is missing", mixtral, after(single, drop(f"blk.2.ffn_up.{e}.weight")),
                f"blk.2.ffn_up.{e}.weight is missing", "blk.2.ffn_up_exps.weight", "blk.2.ffn_gate_up_exps.weight")
    refused("an expert too many", mixtral, after(single, put("blk.2.ffn_up.8.weight", ([64, 56], F32, bytes(4 * 64 * 56)))),
            "blk.2.ffn_up.8.weight")
    refused("an expert of another type", mixtral, after(single, put("blk.2.ffn_up.5.weight", ([64, 56], F16, bytes(2 * 64 * 56)))),
            "blk.2.ffn_up.5.weight", "F16", "F32")
    refused("a bias of one expert only", gpt, after(single, drop("blk.0.ffn_up.2.bias")), "blk.0.ffn_up.2.bias is missing",
            "blk.0.ffn_up_exps.bias")
    refused("an expert of another shape", mixtral, after(single, reshaped("blk.2.ffn_up.5.weight", 64, 55)), "blk.2.ffn_up.5.weight",
            "shape")
    refused("gate and up of odd rows", mixtral, after(exps, reshaped(both, 64, 111, 8)), both, "{64, 111, 8, 1}", "{64, 112, 8, 1}")
    refused("gate and up of too few experts", mixtral, after(exps, reshaped(both, 64, 112, 7)), both, "shape")
    refused("gate and up of one's rows", llama, after(dense, reshaped("blk.0.ffn_gate_up.weight", 64, 112)), "blk.0.ffn_gate_up.weight",
            "shape")
    refused("keys of as many heads as queries", llama, after(qkv, reshaped("blk.0.attn_qkv.weight", 64, 288)), "blk.0.attn_qkv.weight",
            "{64, 288, 1, 1}", "{64, 192, 1, 1}")
    refused("a fused bias of other rows", gpt, after(qkv, reshaped("blk.0.attn_qkv.bias", 127)), "blk.0.attn_qkv.bias", "shape")
    refused("fused attention where there is none to fuse", GOLDEN / "models" / "deepseek2-v3.f32.gguf",
            put("blk.0.attn_qkv.weight", ([64, 192], F32, bytes(4 * 64 * 192))), "blk.0.attn_qkv.weight")
    refused("a norm of integers", llama, of_type("blk.1.attn_norm.weight", 24), "blk.1.attn_norm.weight", "I8", "F32, F16 or BF16")
    refused("a quantised norm", llama, put("blk.1.attn_norm.weight", ([64], 8, bytes(68))), "blk.1.attn_norm.weight", "Q8_0",
            "F32, F16 or BF16")
    refused("a norm that is not finite", llama, put("blk.1.attn_norm.weight", ([64], F16, b"\0\x7e" + bytes(126))),
            "blk.1.attn_norm.weight", "nan")
    refused("a bias of a norm that has none", llama, put("blk.1.attn_norm.bias", ([64], F32, bytes(256))), "blk.1.attn_norm.bias")


def other_forms_of_delta_nets():
    """Beta and alpha of Qwen3-Next together by key head, as files have them, and apart."""
    model = GOLDEN / "models" / "qwen3next.f32.gguf"
    g, out, n = Gguf(model), {}, 0
    for name, tensor in g.tensors.items():
        if not name.endswith("ssm_ba.weight"):
            out[name] = tensor
            continue
        (cols, rows), kind, data = trimmed(tensor)
        row = [data[i * 4 * cols:(i + 1) * 4 * cols] for i in range(rows)]
        group = rows // 2 // 2  # value heads of each of its two key heads
        for at, kind_of in ((0, "beta"), (group, "alpha")):
            picked = [row[h * 2 * group + at + i] for h in range(2) for i in range(group)]
            out[name.replace("ssm_ba", f"ssm_{kind_of}")] = [cols, rows // 2], kind, b"".join(picked)
        n += 1
    g.tensors = out
    tap.ok(n == 3 and logits(written(g)) == logits(model), "qwen3next: beta and alpha apart", logits(home / "model.gguf"))
    refused("no beta and alpha in any form", model, drop("blk.0.ssm_ba.weight"), "blk.0.ssm_ba.weight is missing",
            "blk.0.ssm_beta.weight", "blk.0.ssm_alpha.weight")


def other_biases():
    """What no class of Hugging Face's has, but a file may: what a bias does is known all the same."""
    model = GOLDEN / "models" / "mixtral.f32.gguf"
    g = Gguf(model)
    g.tensors["blk.0.ffn_gate_inp.bias"] = [8], F32, struct.pack("<8f", 0, 1e3, 0, 0, 0, 1e3, 0, 0)
    routes = run_json(tool, "routes", "--model", written(g), "--tokens", IDS, "--format", "json")["routes"]
    tap.ok(all(sorted(e) == [1, 5] for e in routes[0]["experts"]) and
           not all(sorted(e) == [1, 5] for e in routes[1]["experts"]), "a router's bias decides", routes)
    g = Gguf(model)
    add_bias(g, "output.bias", 401)
    before, got = (run_json(tool, "logits", "--model", m, "--tokens", IDS, "--format", "json")["logits"]
                   for m in (model, written(g)))
    tap.ok(all(abs(y - x - b) < 1e-5 for x, y, b in zip(before, got, bias_values("output.bias", 401), strict=True)),
           "a bias of the output is added to the logits")
    # The chosen weights sum to 1: the same bias of every expert of the last layer is one of what comes before them, where
    # nothing else of the layer looks at that.
    values = struct.pack("<64f", *bias_values("x", 64))
    last = "blk.3."
    rows = []
    for bias in ((last + "ffn_down_exps.bias", ([64, 8], F32, values * 8)), (last + "attn_output.bias", ([64], F32, values))):
        g = Gguf(model)
        for matrix in ("attn_output.weight", "ffn_down_exps.weight"):
            ne, kind, data = trimmed(g.tensors[last + matrix])
            g.tensors[last + matrix] = ne, kind, bytes(len(data))
        before = run_json(tool, "logits", "--model", written(g), "--tokens", IDS, "--format", "json")["logits"]
        put(*bias)(g)
        rows.append(run_json(tool, "logits", "--model", written(g), "--tokens", IDS, "--format", "json")["logits"])
    gap, effect = (max(abs(x - y) for x, y in zip(rows[0], other, strict=True)) for other in (rows[1], before))
    tap.ok(gap < 1e-4 < 1e-1 < effect, "a bias of experts is weighted as they are", f"{gap} {effect}")


def served():
    """Through four processes, with few slots, drafts, and deaths of those who read."""
    ids = prompts(3, longest=48)
    requests = [{"tokens": p, "max_tokens": 32, "ignore_eos": True, "logits_hash": True, "k": 3, "seed": 7, **SAMPLED} for p in ids]

    def serve(name, original, paths, options=("--budget", "min"), sets=()):
        expected = [reference(p, 32, sampling=SAMPLED, seed=7, model=original, extra=("--ignore-eos",)) for p in ids]
        with Service(model=paths[0], options=options, sets=sets) as service:
            found = [difference(r, e) for r, e in zip(service.swarm(requests, 3), expected, strict=True)]
            service.end("expert-cache", signal.SIGKILL)
            found += [difference(r, e) for r, e in zip(service.swarm(requests, 3), expected, strict=True)]
        tap.ok(not any(found), f"served: {name}", found)

    fused, singles = Gguf(TARGET), Gguf(TARGET_Q4)
    everything(fused)
    single(singles)
    a, b = written(fused, "fused.gguf"), written(singles, "single.gguf")
    serve("fused tensors", TARGET, [a])
    serve("fused tensors, read with pread", TARGET, [a], ("--budget", "30%"), ("expert-cache.io=pread", "expert-cache.pack=no"))
    serve("fused tensors, from the mapping", TARGET, [a], (), ("verifier.experts=mapped", "verifier.weights=packed"))
    serve("single experts", TARGET_Q4, [b])
    serve("single experts, from the mapping", TARGET_Q4, [b], (), ("verifier.experts=mapped", "verifier.weights=packed"))
    parts = singles.split(home / "single", 3)
    serve("single experts, in three files", TARGET_Q4, parts)
    serve("fused tensors, in two files", TARGET, fused.split(home / "fused", 2))
    for original, model in ((TARGET, a), (TARGET_Q4, parts[0])):
        done = run(tool, "pack", model, home / "packed.gguf", "--force", "--quiet")
        tap.ok(done.returncode == 0, f"{model.name} is packed", done.stderr)
        serve(f"{model.name}, packed", original, [home / "packed.gguf"])


try:
    models = sorted(GOLDEN.glob("models/*.gguf")) + sorted(GOLDEN.glob("quants/*.gguf"))
    applied = [forms_of(m) for m in models]
    for name in FORMS:
        n = sum(name in used for used in applied)
        tap.ok(n >= (1 if "scale" in name else 6), f"{name}: seen in {n} files")
    for model in models:
        if model.parent.name == "models":
            narrow(model)
    biases = json.loads((GOLDEN / "biases.json").read_text())["models"]
    for name, golden in biases.items():
        for file in sorted(GOLDEN.glob(f"models/{name}.f32.gguf")) + sorted(GOLDEN.glob(f"models/{name}.legacy.f32.gguf")):
            biased(name, file, golden)
    other_biases()
    other_forms_of_delta_nets()
    refusals()
    if TARGET.exists() and TARGET_Q4.exists():
        served()
    else:
        tap.skip("served", "the demo models are not there")
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
