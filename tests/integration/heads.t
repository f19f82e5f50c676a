#!/usr/bin/env python3
"""Draft heads, served: EAGLE-3 files and the layers for drafts of models' own files. Chains and trees give the bytes of
outrider-model, with every process killed at any moment; heads of other models are refused by name."""
import itertools
import json
import os
import re
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import ROOT, SAMPLED, SANITIZED, Service, Tap, difference, reference, run, program, seeded, until

HEADS = ROOT / "tests" / "data" / "golden" / "heads"
KILLS = int(os.environ.get("OUTRIDER_TEST_KILLS", 2 if SANITIZED else 6))
TOKENS = 16 if SANITIZED else 32
LONG = 60 if SANITIZED else 200
PAIRS = (("nextn-glm4moe", None), ("nextn-deepseek2", None), ("nextn-qwen3next", None), ("nextn-qwen35moe", None),
         ("target-llama", "eagle3-llama-own"), ("target-llama", "eagle3-llama-shared"),
         ("target-qwen3moe", "eagle3-qwen3moe-normfc"), ("target-qwen3moe", "eagle3-qwen3moe-full"))

tap = Tap()
random = seeded()
ids = [[random.randrange(380) for _ in range(n)] for n in (1, 7, 40, 90)]
modes = (None, SAMPLED)


def path(name):
    return HEADS / f"{name}.f32.gguf"


def references(model, n_tokens):
    return {(m, i): reference(p, n_tokens, sampling, seed=50 + i, model=model, extra=("--ignore-eos",))
            for m, sampling in enumerate(modes) for i, p in enumerate(ids)}


def request(m, i, n_tokens, **more):
    return {"tokens": ids[i], "max_tokens": n_tokens, "seed": 50 + i, "ignore_eos": True, "logits_hash": True,
            **(modes[m] or {}), **more}


def drafter(service):
    return next(p for p in service.status() if p["name"] == "drafter")


def details(service):
    return service.details("drafter")


def near(model, folder, scale=0.02):
    """A copy in which each token says nearly all about the next one, and the layer for drafts says the same: it is right
    now and then. Every block adds little to the residual stream, and eh_proj hands on the embedding."""
    file = Gguf(model)
    for name, (ne, kind, data) in file.tensors.items():
        values = list(struct.unpack(f"<{len(data) // 4}f", data)) if kind == 0 else None
        if name.endswith(("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight", "ssm_out.weight")):
            values = [v * scale for v in values]
        elif name.endswith("nextn.eh_proj.weight"):
            wide = ne[0]
            values = [float(column == row) for row in range(ne[1]) for column in range(wide)]
        elif name.endswith(("nextn.enorm.weight", "nextn.shared_head_norm.weight", "output_norm.weight")):
            values = [1.0] * len(values)
        elif name.endswith("nextn.embed_tokens.weight"):
            values = list(struct.unpack(f"<{len(data) // 4}f", file.tensors["token_embd.weight"][2]))
        elif name.endswith("nextn.shared_head_head.weight"):
            values = list(struct.unpack(f"<{len(data) // 4}f", file.tensors["output.weight"][2]))
        if values is not None:
            file.tensors[name] = ne, kind, struct.pack(f"<{len(values)}f", *values)
    to = Path(folder) / model.name
    file.write(to)
    return to


def states(service, n_taps, n_embd):
    """{(session, position): bytes} of the region of hidden states, as the drafter finds them (shared/spec/hidden.h)."""
    pid = service.processes()["verifier"]
    fd = next(f for f in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(f).startswith("/memfd:hidden"))
    data = fd.read_bytes()[128:]
    shape = struct.unpack_from("<QI3III", data)
    rows, (begin,), (end,) = shape[6], struct.unpack_from("<Q", data, 64), struct.unpack_from("<Q", data, 128)
    assert shape[1] == n_taps and shape[5] == n_embd, shape
    tags = 192
    first = tags + (24 * rows + 63) // 64 * 64
    found = {}
    for row in range(begin, end):
        session, _, position, _ = struct.unpack_from("<QIIQ", data, tags + row % rows * 24)
        if session:
            found[session, position] = b"".join(data[at:at + 4 * n_embd] for tap in range(n_taps)
                                                for at in [first + (tap * rows + row % rows) * 4 * n_embd])
    return found


def by_position(service, n_taps, n_embd, asked):
    """The states of an answer, one for each position."""
    before = {session for session, _ in states(service, n_taps, n_embd)}
    result = service.swarm([asked])[0]
    return result, {p: h for (s, p), h in states(service, n_taps, n_embd).items() if s not in before}


def sweep(service, name, method, expected, shapes):
    wrong, drafted, accepted = [], 0, 0
    for m, (k, nodes, width), coupling in itertools.product((0, 1), shapes, ("gumbel", "maximal")):
        if m and coupling == "maximal":  # exact in distribution alone
            continue
        more = {"draft_nodes": nodes, "draft_width": width} if nodes else {}
        results = service.swarm([request(m, i, TOKENS, k=k, draft_method=method, coupling=coupling, **more)
                                 for i in range(len(ids))], concurrent=len(ids))
        for i, result in enumerate(results):
            what = difference(result, expected[m, i])
            if what:
                wrong.append(f"K = {k}, {nodes} nodes, {coupling}, session {i}: {what}")
            else:
                drafted += result["usage"]["drafted"]
                accepted += result["usage"]["accepted"]
    tap.ok(not wrong, f"{name}: chains and trees give the reference's bytes", "\n".join(wrong[:10]))
    return drafted, accepted


shapes = ((1, 0, 0), (3, 0, 0), (7, 0, 0), (4, 16, 4), (7, 40, 3))
folder = tempfile.TemporaryDirectory()
for target, head in PAIRS:
    name, method = head or target, "eagle3" if head else "mtp"
    model = path(target) if head else near(path(target), folder.name)
    expected = references(model, TOKENS)
    with Service(model=model, draft=path(head) if head else None, options=("--threads", 2),
                 sets=("verifier.prefill_chunk=16", "verifier.draft_wait=10s")) as service:
        tap.ok(until(lambda: details(service).get("head") == method), f"{name}: the drafter says that its head is of method {method}",
               drafter(service))
        before = int(details(service)["passes"])
        drafted, accepted = sweep(service, name, method, expected, shapes[1:] if SANITIZED else shapes)
        passes = int(details(service)["passes"]) - before
        tap.ok(passes > 50 and drafted > passes, f"{name}: the head drafts", (passes, drafted, accepted))
        if not head:
            tap.ok(accepted * 8 > drafted, f"{name}: drafts are accepted", (drafted, accepted))
        tap.note(f"{name}: {accepted} of {drafted} drafted tokens accepted")
        if name in ("nextn-glm4moe", "eagle3-llama-own"):
            automatic = service.swarm([request(0, 2, TOKENS, k=3)])[0]
            tap.ok(not difference(automatic, expected[0, 2]) and int(details(service)["passes"]) > before + passes,
                   f"{name}: a request that names no method is drafted for by it", automatic)

# Several layers for drafts in one file.
model = Path(folder.name) / "three-layers.gguf"
made = run(sys.executable, ROOT / "tests/tools/make_nextn_blocks.py", Path(folder.name) / "nextn-glm4moe.f32.gguf", model, 3)
expected = references(model, TOKENS)
with Service(model=model, options=("--threads", 2), sets=("verifier.prefill_chunk=16", "verifier.draft_wait=10s")) as service:
    until(lambda: details(service).get("head") == "mtp")
    drafted, accepted = sweep(service, "three layers", "mtp", expected, ((5, 0, 0), (4, 16, 4)))
    trees = service.swarm([request(0, 3, TOKENS, k=1, draft_method="mtp", draft_nodes=4, draft_width=4)])[0]["usage"]
    tap.ok(made.returncode == 0 and drafted > 50 and trees["drafted"] > TOKENS,
           "three layers: they draft, and trees where these are asked for", (made, drafted, accepted, trees))
    tap.note(f"three layers: {accepted} of {drafted} drafted tokens accepted")

# The demo model's heads, on prompts of each kind: drafts are accepted, and the answers are the model's own.
prompts = [json.loads(line)["input_ids"] for line in (ROOT / "models/golden/workload-outputs.jsonl").read_text().splitlines()[::32]]
plain = None
for name, method in (("outrider-demo-eagle3-q8_0.gguf", "eagle3"), ("outrider-demo-mtp-q8_0.gguf", "mtp")):
    file = ROOT / "models" / name
    with Service(model=ROOT / "models/outrider-demo-moe-q8_0.gguf" if method == "eagle3" else file,
                 draft=file if method == "eagle3" else None, sets=("verifier.draft_wait=10s",)) as service:
        found = until(lambda: details(service).get("head") == method)
        asked = [{"tokens": p, "max_tokens": TOKENS, "seed": 5, "logits_hash": True} for p in prompts]
        plain = plain or service.swarm([{**a, "k": 0} for a in asked], concurrent=4)
        drafted = service.swarm([{**a, "k": 3, "draft_method": method, **shape} for a in asked
                                 for shape in ({}, {"draft_nodes": 12, "draft_width": 4})], concurrent=4)
        wrong = [what for i, r in enumerate(drafted) if (what := difference(r, plain[i // 2]))]
        at = [sum(r["usage"][which][0] for r in drafted[::2]) for which in ("drafted_at", "accepted_at")]
        tap.ok(found and not wrong and at[1] * 5 > at[0] > 20, f"{name}: tokens that it drafts are accepted, in answers of the model's own bytes",
               (wrong, at))
        said, source = service.ctl("status").stdout, name if method == "eagle3" else "the model's own layer"
        tap.ok(f"drafts    from {source}; " in said, "the status says where drafts come from", said)
        if method == "eagle3":
            refused = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2,3", "--draft-method", "model")
            tap.ok(refused.returncode == 65 and "no draft model but an EAGLE-3 head" in refused.stderr, "a head is no draft model", refused)

# The states that the verifier publishes: those of the reference, and the same to the bit, however a token was computed.
for target, head, taps in (("target-llama", "eagle3-llama-own", 3), ("nextn-qwen3next", None, 1)):
    golden = json.loads((HEADS / f"{head or target}.json").read_text())["prompts"]
    with Service(model=path(target), draft=path(head) if head else None, sets=("verifier.prefill_chunk=16",)) as service:
        until(lambda: details(service).get("head"))
        width = 64 if head else len(golden[0]["hidden"]["h"])
        for prompt in golden if head else ():
            asked = {"tokens": prompt["ids"], "max_tokens": 1, "k": 3, "ignore_eos": True, "draft_method": "eagle3"}
            _, found = by_position(service, taps, width, asked)
            at = len(prompt["ids"]) - 1
            got = struct.unpack(f"<{taps * width}f", found[at])
            want = [v for h in prompt["taps"]["h"] for v in h]
            rms = (sum(v * v for v in want) / len(want)) ** 0.5
            worst = max(abs(a - b) for a, b in zip(got, want)) / rms
            tap.ok(sorted(found) == list(range(at + 1)) and worst < 2e-4, f"{head}, {prompt['name']}: the states are the golden ones", (sorted(found), worst))
        answers = [by_position(service, taps, width, {**request(0, 2, TOKENS, k=k, draft_method="eagle3" if head else "mtp", **shape)})
                   for k, shape in ((1, {}), (7, {}), (5, {"draft_nodes": 30, "draft_width": 4}))]
        # A later answer finds the first tokens in the KV cache; the last token of each is never computed.
        same = [sorted(set(answers[0][1]) & set(found)) for _, found in answers]
        tap.ok(all(len(s) >= TOKENS - 1 and all(answers[0][1][p] == found[p] for p in s) for s, (_, found) in zip(same, answers)) and
               len({tuple(r["tokens"]) for r, _ in answers}) == 1,
               f"{head or target}: chains, trees and no drafts publish the same states", [len(s) for s in same])

def experts(service):
    """How many experts the head has read from the cache's slots, and from the file."""
    return [int(details(service).get(f"head_experts_{where}", 0)) for where in ("cached", "file")]


# The experts of a model's own layers are slots of the expert-cache, under its budget; what it lacks is read from the file.
one_layer = Path(folder.name) / "nextn-glm4moe.f32.gguf"
for budget, model in (("all", Path(folder.name) / "three-layers.gguf"), ("60%", Path(folder.name) / "three-layers.gguf"), ("min", one_layer)):
    if budget != "60%":
        expected = references(model, TOKENS)
    with Service(model=model, options=("--threads", 2, "--budget", budget)) as service:
        one = lambda: difference(service.swarm([request(0, 2, TOKENS, k=3)])[0], expected[0, 2])
        # The drafter learns of the slots a moment after the service is ready.
        until(lambda: details(service).get("head") and (budget != "all" or service.all_resident()) and not one() and experts(service)[0] > 0)
        wrong, kills, before = [], 0, experts(service)
        for round in range(4):
            process, results = service.swarm_start([request(i % 2, i % len(ids), TOKENS, k=3, **({"draft_nodes": 16, "draft_width": 4} if round % 2 else {}))
                                                    for i in range(12)], concurrent=4)
            if budget == "60%" and round > 1:
                time.sleep(0.1)
                service.end("expert-cache")
                kills += 1
            wrong += [f"{i}: {what}" for i, r in enumerate(results()) if (what := difference(r, expected[i % 2, i % len(ids)]))]
            if round == 1:
                cached, file = (now - then for now, then in zip(experts(service), before))
                tap.ok(cached > 0 and (file == 0 if budget == "all" else file > 0),
                       f"budget {budget}: the head reads experts where they are", (cached, file))
            service.wait_ready()
        tap.ok(not wrong, f"budget {budget}, the expert-cache killed {kills} times: the same bytes", "\n".join(wrong[:5]))
        if budget == "min":
            # The target's routers on the head's state: all that this policy takes, and noted with history beside it under others.
            service.ctl("knob", "set", "expert-cache.policy=sp-moe")
            hinted = lambda: [int(details(service)[f"{source}_hints"]) for source in ("draft", "history")]
            until(lambda: not one() and hinted()[0] > 0)
            before = hinted()
            grown = lambda: [now - then for now, then in zip(hinted(), before)]
            until(lambda: wrong.append(one()) or wrong[-1] or grown()[0] > 0)
            routed, history = grown()
            tap.ok(not any(wrong) and routed > 0 and history == 0, "a policy that takes no history has its hints from the routers", (wrong, routed, history))
            service.ctl("knob", "set", "expert-cache.policy=outrider")
            recall = lambda: [details(service).get(f"head_recall_{source}", "").split() for source in ("routers", "history")]
            n_moe = Gguf(model).keys["glm4moe.block_count"][1] - 2  # a dense layer first, and the layer for drafts
            found = until(lambda: not one() and all(len(r) == n_moe and all(float(share) > 0 for share in r) for r in recall()))
            tap.ok(found, "the status says how often the routers and history were right, for each layer", (recall(), n_moe))
        if kills:
            before = int(details(service)["head_experts_cached"])
            found = until(lambda: not one() and int(details(service)["head_experts_cached"]) > before)
            tap.ok(found, f"budget {budget}: the head finds the slots of the cache's successor", details(service))

# Verifier and drafter on a device, emulated: the states are copied from the device's memory, and drafts and answers are those of the CPU.
for model, head, method, taps in ((path("target-llama"), path("eagle3-llama-own"), "eagle3", 3), (Path(folder.name) / "nextn-glm4moe.f32.gguf", None, "mtp", 1)):
    few = 8
    expected = {(m, i): reference(ids[i], few, sampling, seed=50 + i, model=model, extra=("--ignore-eos",))
                for m, sampling in enumerate(modes) for i in (1, 2)}
    seen = {}
    for device in ("cpu", "simt"):
        with Service(model=model, draft=head, options=("--threads", 2),
                     sets=(f"verifier.device={device}", f"drafter.device={device}", "verifier.prefill_chunk=16", "verifier.draft_wait=10s")) as service:
            there = until(lambda: details(service).get("head") == method and details(service).get("device", "cpu") == device)
            answers = {(m, i, bool(shape)): by_position(service, taps, 64, request(m, i, few, k=3, draft_method=method, **shape))
                       for m, i in expected for shape in ({}, {"draft_nodes": 8, "draft_width": 3})}
            seen[device] = answers
            wrong = [f"{key}: {what}" for key, (r, _) in answers.items() if (what := difference(r, expected[key[:2]]))]
            drafted = [sum(r["usage"][key] for r, _ in answers.values()) for key in ("drafted", "accepted")]
            kernels = service.details("verifier")["kernels"]
            tap.ok(there and not wrong and drafted[0] > 0 and details(service).get("device", "cpu") == device and ("the emulated GPU" in kernels) == (device == "simt"), f"{method}, device {device}: the reference's bytes",
                   "\n".join(wrong[:5]) + str(drafted))
    same = {key: [(r["usage"]["drafted"], r["usage"]["accepted"], found) for r, found in (seen[device][key] for device in seen)] for key in seen["cpu"]}
    tap.ok(all(a[2] and a == b for a, b in same.values()), f"{method}: on the device the same states, and the same drafts accepted",
           {key: [(d, a, sorted(f)) for d, a, f in pair] for key, pair in same.items() if pair[0] != pair[1]})

# Nobody but the verifier may write to the region. Rubbish in it costs speed only, and the next drafter reads what is good.
model, head = path("target-llama"), path("eagle3-llama-own")
expected = references(model, TOKENS)
with Service(model=model, draft=head) as service:
    until(lambda: details(service).get("head"))
    service.swarm([request(0, 2, TOKENS, k=3)])
    fds = {name: [f for f in Path(f"/proc/{service.processes()[name]}/fd").iterdir() if os.readlink(f).startswith("/memfd:hidden")]
           for name in ("verifier", "drafter")}
    flags = {name: [int(re.search(r"flags:\s*(\d+)", Path(f"/proc/{service.processes()[name]}/fdinfo/{f.name}").read_text()).group(1), 8) & 3 for f in found]
             for name, found in fds.items()}
    mapped = [line.split()[1] for line in Path(f"/proc/{service.processes()['drafter']}/maps").read_text().splitlines() if "memfd:hidden" in line]
    tap.ok(flags["drafter"] and not any(flags["drafter"]) and 2 in flags["verifier"] and mapped and all("w" not in m for m in mapped),
           "the drafter can only read the hidden states", (flags, mapped))
    writable = next(f for f, flag in zip(fds["verifier"], flags["verifier"]) if flag == 2)
    wrong = []
    for round in range(4):
        process, results = service.swarm_start([request(i % 2, i % len(ids), TOKENS, k=3, **({"draft_nodes": 16, "draft_width": 4} if i % 3 else {}))
                                                for i in range(24)], concurrent=4)
        with open(writable, "r+b") as region:
            size = os.fstat(region.fileno()).st_size
            while process.poll() is None:
                region.seek(random.randrange(128, 1 << 14) if random.random() < 0.5 else random.randrange(128, size - 4096))
                region.write(random.randbytes(random.choice((1, 8, 4096))))
                region.flush()
                time.sleep(0.001)
        wrong += [f"{i}: {what}" for i, r in enumerate(results()) if (what := difference(r, expected[i % 2, i % len(ids)]))]
    tap.ok(not wrong and service.processes().get("drafter"), "rubbish in the region changes no byte", "\n".join(wrong[:5]))
    service.restart("verifier")  # it makes a new region if it cannot use the old one
    until(lambda: details(service).get("head"))
    before = int(details(service).get("passes", 0))
    found = until(lambda: not difference(service.swarm([request(0, 2, TOKENS, k=3)])[0], expected[0, 2]) and int(details(service).get("passes", 0)) > before)
    tap.ok(found, "after the verifier was started anew, the head drafts again", details(service))

# Killed at any moment. The successor of the drafter finds the states of the last tokens.
for model, head, method in ((Path(folder.name) / "nextn-qwen3next.f32.gguf", None, "mtp"), (path("target-qwen3moe"), path("eagle3-qwen3moe-full"), "eagle3")):
    expected = references(model, LONG)
    with Service(model=model, draft=head, options=("-v",),
                 sets=("verifier.prefill_chunk=32", "policy.by_experts=yes", "policy.width=4")) as service:
        for victim in ("drafter", "verifier"):
            wrong, kills, answers, passes = [], 0, 0, 0
            service.wait_ready()
            before = int(details(service).get("passes", 0))
            while kills < KILLS:
                service.wait_ready()
                # All kills may fall into one batch. The policy's own K may be 0, and then the head drafts nothing.
                keys = [(random.randrange(2), random.randrange(len(ids))) for _ in range(6)]
                asked = ({"k": 5, "draft_nodes": 24, "draft_width": 4}, {"k": 3}, {"k": -1})
                batch = [request(m, i, LONG, draft_method=method, **asked[at % 3]) for at, (m, i) in enumerate(keys)]
                results, killed = service.swarm_under_kills(batch, victim, KILLS - kills, lambda: time.sleep(random.uniform(0, 0.3)),
                                                            concurrent=3)
                kills += killed
                for key, result in zip(keys, results):
                    answers += 1
                    what = difference(result, expected[key])
                    if what:
                        wrong.append(f"{key}: {what}")
            tap.ok(not wrong, f"{method}, {victim} killed {kills} times during {answers} answers: the same bytes", "\n".join(wrong[:10]))
            service.wait_ready()
            if victim != "drafter":  # whose successor counts anew
                passes = int(details(service).get("passes", 0))
                tap.ok(passes > before, f"{method}, {victim}: the head drafted meanwhile", (before, passes))
        service.wait_ready()
        before = int(details(service).get("passes", 0))

        def drafts():
            """The drafter is ready before the verifier has heard of it, so it is asked again."""
            again = service.swarm([request(0, 3, TOKENS, k=3, draft_method=method, logits_hash=False)])[0]
            wrong.extend([again] if again["tokens"] != expected[0, 3]["tokens"][:TOKENS] else [])
            return wrong or int(details(service).get("passes", 0)) > before
        wrong = []
        tap.ok(until(drafts) and not wrong, f"{method}: and it goes on drafting afterwards", (wrong, details(service)))

# Heads that are not for this model, and what cannot be asked for.
target, good = path("target-llama"), path("eagle3-llama-own")
expected = reference(ids[1], TOKENS, model=target, extra=("--ignore-eos",))


def changed(name, change):
    file = Gguf(good)
    change(file)
    to = Path(folder.name) / f"{name}.gguf"
    file.write(to)
    return to


def key(name, value):
    def change(file):
        kind = file.keys[name][0]
        file.keys[name] = (kind, (file.keys[name][1][0], value)) if isinstance(value, list) else (kind, value)
    return change


def map_to(index, token):
    def change(file):
        ne, kind, data = file.tensors["d2t"]
        file.tensors["d2t"] = ne, kind, data[:8 * index] + struct.pack("<q", token) + data[8 * index + 8:]
    return change


bad = (("hidden size", changed("width", key("eagle3.target_hidden_size", 65)), "eagle3.target_hidden_size is 65"),
       ("a layer that the model lacks", changed("layer", key("eagle3.target_layers", [1, 2, 99])), "has layer 99 at index 2"),
       ("vocabulary", changed("vocabulary", key("eagle3.vocab_size", 400)), "eagle3.vocab_size is 400"),
       ("a map out of range", changed("outside", map_to(1, 401)), "element 1 is 401"),
       ("a map that repeats", changed("twice", map_to(10, struct.unpack("<q", Gguf(good).tensors["d2t"][2][:8])[0])), "elements 0 and 10 are both"))
for what, head, message in bad:
    service = Service(model=target, draft=head)
    try:
        found = until(lambda: message in drafter(service)["state"])
        state = drafter(service)["state"]
        tap.ok(found and state.startswith("degraded") and head.name in state, f"{what}: the drafter says what is wrong with which file", state)
        result = service.swarm([request(0, 1, TOKENS, k=3, seed=1)])[0]
        tap.ok(not difference(result, expected), f"{what}: answers go on", result)
    finally:
        service.stop()

for head, message in ((good, "an EAGLE-3 head for the model"), (bad[0][1], "eagle3.target_hidden_size is 65")):
    said = run(program("outrider"), "doctor", "--model", target, "--draft", head, timeout=300)
    tap.ok(message in " ".join(said.stdout.split()), f"doctor says of {head.name}: {message}", said.stdout[-2000:] + said.stderr)

with tempfile.TemporaryDirectory() as runtime:
    for what, arguments, message in (("an EAGLE-3 head as a draft model", ("--draft", good, "--set", "method=model"), "is an EAGLE-3 head: method = eagle3"),
                                     ("a model as a head", ("--draft", target, "--set", "method=eagle3"), "needs an EAGLE-3 head"),
                                     ("no head at all", ("--set", "method=eagle3"), "method = eagle3 needs a head"),
                                     ("masks, which only a request chooses,", ("--set", "method=mtp-lora"), "outrider run --draft-method mtp-lora")):
        refused = run(program("outrider-drafter"), "--runtime-dir", runtime, "-d", *arguments)
        tap.ok(refused.returncode == 78 and message in refused.stderr, f"{what} is refused", (refused.returncode, refused.stderr))
with Service(model=target, options=("--draft-method", "auto")) as service:
    tap.ok(until(lambda: details(service).get("head") == "none"), "a model without such a layer has no head", details(service))
    for method, message in (("mtp", "has no layer for drafts"), ("eagle3", "has no EAGLE-3 head")):
        refused = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2,3", "--draft-method", method)
        tap.ok(refused.returncode == 65 and message in refused.stderr, f"and a request for {method} is refused", refused)
tap.done()
