#!/usr/bin/env python3
"""Models with recurrent layers (gated delta nets), served: every K and drafter gives the bytes of outrider-model, drafts
accepted and rejected, sessions that take each other's place, the verifier killed at any moment."""
import itertools
import os
import re
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import ROOT, SAMPLED, SANITIZED, Service, Tap, difference, reference, seeded

GOLDEN = ROOT / "tests" / "data" / "golden" / "models"
MODELS = {name: GOLDEN / f"{name}.f32.gguf" for name in ("qwen3next", "qwen35moe")}
KS = (0, 1, 2, 3, 4, 5, 6, 7, 15)
KILLS = int(os.environ.get("OUTRIDER_TEST_KILLS", 5 if SANITIZED else 20))
TOKENS = 24 if SANITIZED else 48
LONG = 60 if SANITIZED else 300

tap = Tap()
random = seeded()
# The n-gram drafter finds what was there before, so some prompts repeat themselves.
ids = [[random.randrange(380) for _ in range(n)] for n in (1, 7, 40, 150)]
ids += [[random.randrange(380) for _ in range(9)] * 5, [17, 300] * 30]
modes = (None, SAMPLED)


def references(model, n_tokens):
    return {(m, i): reference(p, n_tokens, sampling, seed=50 + i, model=model, extra=("--ignore-eos",))
            for m, sampling in enumerate(modes) for i, p in enumerate(ids)}


def request(m, i, n_tokens, **more):
    return {"tokens": ids[i], "max_tokens": n_tokens, "seed": 50 + i, "ignore_eos": True, "logits_hash": True,
            **(modes[m] or {}), **more}


def nearly(model, folder):
    """A copy whose last norm is a little off: a draft model that is right now and then."""
    draft = Gguf(model)
    ne, kind, data = draft.tensors["output_norm.weight"]
    weights = struct.unpack(f"<{len(data) // 4}f", data)
    draft.tensors["output_norm.weight"] = ne, kind, struct.pack(f"<{len(weights)}f",
                                                                *(w * random.uniform(0.3, 1.7) for w in weights))
    path = Path(folder) / model.name
    draft.write(path)
    return path


def sweep(name, service, expected):
    for m, concurrent in itertools.product((0, 1), (1, len(ids))):
        wrong, drafted, accepted = [], 0, 0
        for k, method in itertools.product(KS, ("ngram", "model")):
            results = service.swarm([request(m, i, TOKENS, k=k, draft_method=method) for i in range(len(ids))],
                                    concurrent=concurrent)
            for i, result in enumerate(results):
                what = difference(result, expected[m, i])
                if what:
                    wrong.append(f"K = {k}, {method}, session {i}: {what}")
                else:
                    drafted += result["usage"]["drafted"]
                    accepted += result["usage"]["accepted"]
        kind = f"{name}, {'sampled' if m else 'greedy'}, {concurrent} at a time"
        tap.ok(not wrong, f"{kind}: all K and drafters give the reference's bytes", "\n".join(wrong))
        tap.ok(drafted > accepted > 0, f"{kind}: drafts were accepted and rejected",
               f"drafted {drafted}, accepted {accepted}")


drafts = tempfile.TemporaryDirectory()
for name, model in MODELS.items():
    expected = references(model, TOKENS)
    # The draft model has recurrent layers, too, and states of its own. Three slots for six sessions.
    with Service(model=model, draft=nearly(model, drafts.name), options=("--threads", 2),
                 sets=("verifier.prefill_chunk=16", "verifier.sessions_max=3")) as service:
        sweep(name, service, expected)

model = MODELS["qwen3next"]
expected = references(model, LONG)
with Service(model=model, draft=Path(drafts.name) / model.name, options=("-v",),
             sets=("verifier.prefill_chunk=32",)) as service:
    def pause():
        service.wait_ready()
        time.sleep(random.uniform(0, 0.3))

    for victim in ("verifier", "drafter"):
        service.wait_ready()
        wrong, kills, answers = [], 0, 0
        while kills < KILLS:
            keys = [(random.randrange(2), random.randrange(len(ids))) for _ in range(8)]
            # With hashes the states are not taken over: the logits of all the answer are computed again.
            batch = [request(m, i, LONG, k=random.choice((0, 3, 7)), draft_method=random.choice(("ngram", "model")),
                             logits_hash=random.random() < 0.5) for m, i in keys]
            results, killed = service.swarm_under_kills(batch, victim, KILLS - kills, pause, concurrent=4)
            kills += killed
            for key, result in zip(keys, results):
                answers += 1
                what = difference(result, expected[key])
                if what:
                    wrong.append(f"{key}: {what}")
        tap.ok(not wrong, f"{victim} killed {kills} times during {answers} answers: the same bytes",
               "\n".join(wrong[:10]) + "\n" + service.log_text()[-1500:] if wrong else "")
    service.wait_ready()
    log = service.whole_log()
    kept = [int(n) for n in re.findall(r"taken over with \d+ tokens, (\d+) of them in the KV cache", log)]
    tap.ok(any(kept), "a successor of the verifier went on from states it found", kept)
    tap.note(f"{sum(n > 0 for n in kept)} of {len(kept)} sessions taken over with their states")
tap.done()
