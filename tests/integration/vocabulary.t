#!/usr/bin/env python3
"""Draft models whose vocabulary has another size than the target's: the same bytes, with drafts from the model where both
have the tokens; a notice from `outrider up`. Other strings are refused."""
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import STRING, Gguf
from outrider_test import DRAFTS, TARGET, Service, Tap, difference, program, prompts, reference, run, until

tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-vocabulary-", dir="/tmp"))


def resized(path, n, source, change=None):
    """The model with n tokens: rows are cut off, or zeros and padding tokens are added."""
    model = Gguf(source)
    keys = model.keys
    old = len(keys["tokenizer.ggml.tokens"][1][1])
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        if name in keys:
            kind, (element, values) = keys[name]
            padding = [b"[PAD%d]" % i if element == STRING else 5 for i in range(old, n)]
            keys[name] = kind, (element, values[:n] + padding)
    tokens = keys["tokenizer.ggml.tokens"][1][1]
    if change is not None:
        tokens[change] = b"changed"
    known = set(tokens)
    kind, (element, merges) = keys["tokenizer.ggml.merges"]
    keys["tokenizer.ggml.merges"] = kind, (element, [m for m in merges if {*m.split(b" ", 1), m.replace(b" ", b"", 1)} <= known])
    for name in list(keys):
        if name.endswith(".vocab_size"):
            keys[name] = keys[name][0], n
        if name.endswith("_token_id") and keys[name][1] >= n:
            del keys[name]
    for name in ("token_embd.weight", "output.weight"):
        if name in model.tensors:
            ne, kind, data = model.tensors[name]
            row = len(data) // ne[1]
            model.tensors[name] = [ne[0], n], kind, data[:min(n, ne[1]) * row] + bytes(max(0, n - old) * row)
    model.write(path)
    return old


def serves(name, draft, ids, expected, accepts, notice):
    """Drafts by that model: the right bytes, some drafts accepted, and what `outrider up` says."""
    with Service(draft=draft, sets=("drafter.method=model", "verifier.draft_wait=10s")) as service:
        tap.ok(until(lambda: {p["name"]: p["state"] for p in service.status()}["drafter"] == "ready"), f"{name}: the drafter is ready",
               service.status())
        text = service.log_text()
        if notice:
            tap.ok(notice in text, f"{name}: a notice gives the numbers", text)
        else:
            tap.ok("are drafted" not in text, f"{name}: no notice without a reason", text)
        for k in (1, 4):
            results = service.swarm([{"tokens": p, "max_tokens": 30, "ignore_eos": True, "k": k, "draft_method": "model"}
                                     for p in ids], concurrent=4)
            wrong = [d for d in map(difference, results, expected) if d]
            tap.ok(not wrong, f"{name}: the right bytes at K = {k}", wrong)
            accepted = sum(r["usage"]["accepted"] for r in results)
            if accepts:
                tap.ok(accepted > 0, f"{name}: drafts are accepted at K = {k}", results[0]["usage"])
        tap.ok("degraded" not in service.log_text(), f"{name}: nothing is degraded", service.log_text())


def refuses(draft):
    result = run(program("outrider"), "up", "--model", TARGET, "--draft", draft, "--runtime-dir", folder / "up")
    words = (draft.name, TARGET.name, "tokenizer", "token 77 ", "changed")
    tap.ok(result.returncode == 65 and all(w in result.stderr for w in words),
           "another string in the shared part is refused with its number", f"{result.returncode}: {result.stderr}")


source = DRAFTS["aligned"]
if not source.exists() or not TARGET.exists():
    tap.skip("draft models with other vocabularies", f"{source} or {TARGET} is not here")
    tap.done()
try:
    larger, smaller, other = folder / "larger.gguf", folder / "smaller.gguf", folder / "other.gguf"
    n = resized(larger, 4096 + 64, source)
    resized(smaller, 3000, source)
    resized(other, 4096 + 64, source, change=77)
    ids = prompts(4, longest=80)
    expected = [reference(p, 30, extra=("--ignore-eos",)) for p in ids]
    serves("the same vocabulary", source, ids, expected, True, "")
    serves("a draft with more tokens", larger, ids, expected, True, f"{n + 64} tokens and the model {n}")
    # Prompts that the smaller vocabulary can spell: others get n-grams.
    few = [[t for t in p if t < 3000] for p in ids]
    serves("a draft with fewer tokens", smaller, few, [reference(p, 30, extra=("--ignore-eos",)) for p in few], True,
           f"3000 tokens and the model {n}")
    serves("prompts that the draft cannot read", smaller, [p + [3999] for p in ids],
           [reference(p + [3999], 30, extra=("--ignore-eos",)) for p in ids], False, f"3000 tokens and the model {n}")
    refuses(other)
finally:
    shutil.rmtree(folder, ignore_errors=True)
tap.done()
