#!/usr/bin/env python3
"""arithmetic = fast: whole chunks of prompts with F16 and BF16 weights are multiplied by the GPU's own library, here by a stand-in that
sums in an order of its own, which depends on each row's place. The bits are others than the exact ones, and still the same for every K,
drafter, neighbour, chunk of a pass and beginning that was found, and after kill -9. Answers of one arithmetic do not go on in the other. A drafter's GPU reads prompts so by itself: answers stay exact."""
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from forms import BF16, F16, F32, is_vector, narrowed, trimmed
from gguf_file import Gguf
from outrider_test import (ROOT, SAMPLED, TARGET_Q4, Service, Tap, asleep, difference, differences, program, reference, run, seeded,
                           told_to_sleep, until)

GOLDEN = ROOT / "tests" / "data" / "golden" / "models"
TOKENS = 6
LONGER = 40
LONG = bool(os.environ.get("OUTRIDER_TEST_LONG"))
FAST = ("--backend", "simt", "--arithmetic", "fast")
tap = Tap()
random = seeded()
folder = tempfile.TemporaryDirectory(prefix="outrider-fast-")


def narrow(name, kind):
    """A golden model with the matrices that are not routers in 16 bits."""
    g = Gguf(GOLDEN / f"{name}.f32.gguf")
    for tensor, whole in g.tensors.items():
        if whole[1] == F32 and len(whole[0]) > 1 and not is_vector(tensor, whole) and "ffn_gate_inp" not in tensor:
            ne, _, data = trimmed(whole)
            g.tensors[tensor] = ne, kind, narrowed(kind, data)
    path = Path(folder.name) / f"{name}.{kind}.gguf"
    g.write(path)
    return path


def logits(model, ids, *more):
    done = run(program("outrider-model"), "logits", "--model", model, "--tokens", ",".join(map(str, ids)), "--logits-hash", "--all",
               "--quiet", *more)
    return done.stdout if done.returncode == 0 else done.stderr


def words(n):
    return [random.randrange(3, 60) for _ in range(n)]


models = {"dense, F16": narrow("llama-dense", F16), "experts, BF16": narrow("qwen3moe", BF16), "recurrent, F16": narrow("qwen3next", F16),
          "latent, BF16": narrow("deepseek2-v3", BF16)}
long = words(140)
for name, model in list(models.items())[:None if LONG else 2]:
    exact, fast = (json.loads(logits(model, long, *a))["logits_hash"] for a in ((), FAST))
    tap.ok(exact[0] != fast[0] and sum(a != b for a, b in zip(exact, fast)) > 128, f"{name}: other bits than exact", (exact[:2], fast[:2]))
wide, short = (logits(models["dense, F16"], ids, *FAST, *more) for ids, more in ((long + long, ("--prefill-chunk", "256")), (long[:128], ())))
tap.ok(wide == logits(models["dense, F16"], long + long, *FAST), "the same in passes of 128 and 256 tokens", wide[:300])
tap.ok(short == logits(models["dense, F16"], long[:128]), "a prompt without a whole chunk is exact", short[:300])

refused = run(program("outrider-model"), "logits", "--model", TARGET_Q4, "--tokens", "1", "--arithmetic", "fast")
tap.ok(refused.returncode == 64 and "the CPU computes in the exact arithmetic alone" in refused.stderr, "the CPU has it not", refused.stderr)
same = logits(TARGET_Q4, [5, 6], *FAST)
tap.ok("fast changes nothing" in run(program("outrider-model"), "logits", "--model", TARGET_Q4, "--tokens", "5,6", *FAST).stderr
       and same == logits(TARGET_Q4, [5, 6]), "of a quantised model it says that nothing changes", same)


def check(*sets, env=None, model=models["dense, F16"]):
    done = run(program("outrider-verifier"), "-n", "--model", model, *(w for s in ("arithmetic=fast", *sets) for w in ("--set", s)), env=env)
    return done.returncode, done.stderr


for what, (rc, said), word in (
        ("device = cpu", check("device=cpu"), "arithmetic = fast needs a GPU (device)"),
        ("a small prefill_chunk", check("device=simt", "prefill_chunk=127"), "prefill_chunk 127: arithmetic = fast needs 128 or more"),
        ("no library", check("device=simt", env={"OUTRIDER_SIMT_LIBRARY": "missing"}), "arithmetic = fast: the library of the emulated GPU is missing")):
    tap.ok(rc not in (0, 75) and word in said, f"{what} is refused", f"{rc} {said}")

# Prompts that begin alike, of lengths around chunks and pages; and what a chat asks next: a prompt with the answer in it. The last token of a
# prompt is in no chunk.
same = words(257)
ids = [same, same[:140], same[:129], same[:128], same[:160] + words(1), same[:256], same[:127]]
SETS = ("verifier.device=simt", "verifier.context=512", "verifier.kv_tokens=2048", "verifier.prefill_chunk=200",
        "verifier.sleep_after=100ms", "verifier.linger=100ms", "verifier.ahead_max=16")


def expect(model, prompt, i, *more):
    return reference(prompt, TOKENS, SAMPLED if i % 2 else None, seed=3 + i, model=model, extra=("--ignore-eos", *more))


def request(i, prompt, **more):
    return {"tokens": prompt, "max_tokens": TOKENS, "seed": 3 + i, "k": random.choice((0, 2, 5)), "ignore_eos": True, "draft_method": "ngram",
            "logits_hash": random.random() < 0.7, **(SAMPLED if i % 2 else {}), **more}


def wrong(results, keys, expected):
    return "\n".join(f"{i}: {what}" for i, r in zip(keys, results) if (what := difference(r, expected[i])))


def detail(service, key):
    return service.details("verifier").get(key)


def served(name, model):
    """The same bytes for every K, neighbour, found beginning and kill; for the first model also what a change of the setting does."""
    asked = list(ids)
    expected = [expect(model, prompt, i, *FAST) for i, prompt in enumerate(asked)]
    other = [p["logits_hash"] != expect(model, prompt, i)["logits_hash"] for i, (prompt, p) in enumerate(zip(asked, expected))]
    tap.ok(other == [len(prompt) > 128 for prompt in asked], f"{name}: only prompts of more than a chunk have other bits", other)
    asked.append(asked[1] + expected[1]["tokens"] + words(120))
    expected.append(expect(model, asked[-1], len(ids), *FAST))
    home = Path(folder.name) / model.stem
    home.mkdir()
    (home / "verifier.conf").write_text("arithmetic = fast\n")
    with Service(model, sets=(*SETS, f"verifier.prefix_dir={home / 'kv'}"), options=("-v", "--config-dir", home)) as service:
        keys = list(range(len(asked)))
        found = wrong(service.swarm([request(i, asked[i]) for i in keys], concurrent=3), keys, expected)
        keys = random.sample(keys, len(keys) if LONG else 5)
        found += wrong(service.swarm([request(i, asked[i]) for i in keys]), keys, expected)
        shared = [int(n) for n in re.findall(r"finds its first (\d+) tokens", service.whole_log())]
        tap.ok(not found and any(n >= 128 for n in shared), f"{name}: the same bytes for every K, neighbour and beginning that is found",
               f"{found}\n{shared}\n{service.log_text()[-1500:]}")
        kills, answers, found = 0, 0, ""
        while kills < (10 if LONG else 2):
            keys = [random.randrange(len(asked)) for _ in range(4)]
            results, killed = service.swarm_under_kills([request(i, asked[i]) for i in keys], "verifier", 2,
                                                        lambda: time.sleep(random.uniform(0.05, 0.4)), concurrent=3)
            kills, answers, found = kills + killed, answers + len(keys), found + wrong(results, keys, expected)
        tap.ok(not found, f"{name}: verifier killed {kills} times during {answers} answers: the same bytes", f"{found}\n{service.log_text()[-1500:]}")
        service.wait_ready()
        slept(service, name, model, asked[2])
        if model == models["dense, F16"]:
            changed(service, model, asked, expected)


def longer(i, prompt):
    """A request whose answer lasts for a while."""
    return request(i, prompt, max_tokens=LONGER, k=0)


def slept(service, name, model, prompt):
    """An answer sleeps while the verifier is killed, and is woken by the next one."""
    whole = reference(prompt, LONGER, seed=5, model=model, extra=("--ignore-eos", *FAST))
    sleepers, _, results = told_to_sleep(service, longer(2, prompt), 1)
    service.restart("verifier")
    still = asleep(service)
    woken = [service.ctl("session", "wake", uid) for uid in sleepers]
    found = differences(results(), [whole])
    tap.ok(not found and still.keys() == sleepers.keys() and not any(w.returncode for w in woken),
           f"{name}: an answer that slept while the verifier was killed goes on: the same bytes", f"{found}\n{still} {woken}\n{service.log_text()[-1500:]}")


def changed(service, model, asked, expected):
    """The next verifier is exact, while an answer sleeps and another is being made."""
    number = detail(service, "arithmetic")
    done = service.ctl("knob", "set", "verifier.arithmetic=exact", "--next-start")
    sleepers, _, slept = told_to_sleep(service, longer(2, asked[2]), 1)
    _, results = service.swarm_held([request(0, asked[0], max_tokens=200, k=0)])
    service.end("verifier")
    ends = [r.get("error") or "" for r in (*results(), *slept())]
    said = service.whole_log()
    tap.ok(re.fullmatch(r"fast-[0-9a-f]{8}", number or "") and all(f"begun with arithmetic {number}" in e and "arithmetic 3" in e for e in ends),
           "an answer does not go on in another arithmetic, nor does one that sleeps",
           f"{done.stdout} {done.stderr} {number} {sleepers}\n{ends}\n{said[-1500:]}")
    tap.ok(f"sessions were computed with arithmetic {number}, but this verifier computes with arithmetic 3" in said, "nor does a predecessor's", said[-1500:])
    exact = [expect(model, p, i) for i, p in enumerate(asked[:2])]
    found = wrong(service.swarm([request(i, asked[i], logits_hash=True) for i in range(2)], concurrent=2), range(2), exact)
    tap.ok(not found and all(e["logits_hash"] != x["logits_hash"] for e, x in zip(expected, exact)),
           "what the fast one left in memory and on disk is not used", found)


for name, model in models.items():
    if LONG or name == "dense, F16":
        served(name, model)



def lost(model):
    """The GPU is lost: in the prompt, where the answer begins again on the CPU, and behind some tokens, where it ends with the reason."""
    prompt = same[:140]
    fast, exact = (reference(prompt, LONGER, seed=5, model=model, extra=("--ignore-eos", *more)) for more in (FAST, ()))
    named = f"begun with arithmetic fast-[0-9a-f]{{8}}, but this verifier computes with arithmetic 3: the answer cannot go on after ([0-9]+) tokens"
    found, ended = [], 0
    for launch in (20, 250, 350, 450):  # a quick machine may have sent nothing when it is lost
        with Service(model, sets=("verifier.device=simt", "verifier.arithmetic=fast", "verifier.context=512"),
                     env={"OUTRIDER_SIMT_LOST": str(launch)}) as service:
            result = service.swarm([longer(2, prompt)])[0]
            end = re.search(named, result.get("error") or "")
            ended += bool(end and 0 < len(result["tokens"]) == int(end[1]) and result["tokens"] == fast["tokens"][:int(end[1])])
            wrong = difference(service.swarm([request(2, prompt, logits_hash=True)])[0], expect(model, prompt, 2))
            said = service.log_text()
            if wrong or (not end or launch == 20) and difference(result, exact) or str(detail(service, "arithmetic")) != "3" or \
                    "arithmetic = fast: the CPU computes, and has the exact arithmetic alone" not in said:
                found.append(f"lost at launch {launch}: {wrong} {result} {said[-1500:]}")
        if found or ended:
            break
    tap.ok(not found and ended, "the GPU is lost: an answer with fast tokens ends with the reason, others are exact", found)


def drafts():
    """Texts that the drafter's GPU reads with its library: the answers' bytes are the exact ones."""
    model = models["experts, BF16"]
    prompts = [words(n) for n in (34, 40, 46)]
    expected = [expect(model, p, i) for i, p in enumerate(prompts)]
    # The emulation is slow; every draft is worth waiting for here.
    with Service(model, draft=models["dense, F16"], sets=("drafter.device=simt", "drafter.kv_tokens=4200", "drafter.context=1024",
                                                          "expert-cache.device=simt", "verifier.draft_wait=10s")) as service:
        def said(key):
            return service.details("drafter").get(key)
        there = until(lambda: said("device") == "simt")
        for _ in range(10):  # a pass does not wait for every draft
            result = service.swarm([request(1, prompts[1], draft_method="model", k=3, coupling="maximal")])[0]
            if result["usage"]["drafted"]:
                break
        tap.ok(there and result["usage"]["drafted"] and int(said("fast_tokens")) == 0,
               "an answer that depends on what is drafted gets exact drafts", f"{result} {said('fast_tokens')}\n{service.log_text()[-1500:]}")
        found, drafted, tries = "", 0, 0
        while not found and not drafted and tries < 10:
            keys = random.sample(range(3), 3)
            results = service.swarm([request(i, prompts[i], draft_method="model", k=3, **({"draft_nodes": 6, "draft_width": 2} if n % 2 else {}))
                                     for n, i in enumerate(keys)], concurrent=2)
            found, drafted, tries = wrong(results, keys, expected), sum(r["usage"]["drafted"] for r in results), tries + 1
        read = int(said("fast_tokens"))
        tap.ok(not found and drafted and read > 32 and re.fullmatch("fast-[0-9a-f]{8}", said("arithmetic")),
               "the drafter reads prompts with the library, and the answers are exact", f"{found} {drafted} {read}\n{service.log_text()[-1500:]}")

lost(models["dense, F16"])
drafts()
with Service(TARGET_Q4, sets=("verifier.device=simt", "verifier.arithmetic=fast")) as service:
    said = service.log_text()
    result = service.swarm([{"tokens": [5, 6, 7], "max_tokens": 4, "logits_hash": True}])[0]
    tap.ok("arithmetic = fast changes nothing for this model" in said and not difference(result, reference([5, 6, 7], 4, model=TARGET_Q4))
           and str(detail(service, "arithmetic")) == "3", "a quantised model: the log says that nothing changes", said[-1500:])
tap.done()
