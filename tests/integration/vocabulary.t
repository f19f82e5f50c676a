#!/usr/bin/env python3
"""Draft models whose vocabulary has another size than the target's: the same bytes, with drafts from the model where both
have the tokens; a notice from `outrider up`. Other strings are refused."""
import shutil
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, TARGET, Service, Tap, difference, program, prompts, reference, run

STRING, ARRAY = 8, 9
WIDTH = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 30: (1, 2)}
tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-vocabulary-", dir="/tmp"))


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def bytes(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def string(self):
        return self.bytes(self.take("Q"))

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, n = self.take("I"), self.take("Q")
            return element, [self.value(element) for _ in range(n)]
        return self.bytes(WIDTH[kind])


def string(s):
    return struct.pack("<Q", len(s)) + s


def encoded(kind, value):
    if kind == STRING:
        return string(value)
    if kind == ARRAY:
        return struct.pack("<IQ", value[0], len(value[1])) + b"".join(encoded(value[0], v) for v in value[1])
    return value


def read(path):
    """(keys: name -> (type, value), tensors: [name, ne, type, bytes])"""
    r = Reader(path.read_bytes())
    assert r.bytes(4) == b"GGUF" and r.take("I") == 3
    n_tensors, n_keys = r.take("Q"), r.take("Q")
    keys, tensors = {}, []
    for _ in range(n_keys):
        name, kind = r.string(), r.take("I")
        keys[name] = (kind, r.value(kind))
    for _ in range(n_tensors):
        name = r.string()
        ne = [r.take("Q") for _ in range(r.take("I"))]
        tensors.append([name, ne, r.take("I"), r.take("Q")])
    start = (r.at + 31) // 32 * 32
    for t in tensors:
        elements, size = BLOCKS[t[2]]
        n = 1
        for e in t[1]:
            n *= e
        t[3] = r.data[start + t[3]:start + t[3] + n // elements * size]
    return keys, tensors


def write(path, keys, tensors):
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
    for name, (kind, value) in keys.items():
        out += string(name) + struct.pack("<I", kind) + encoded(kind, value)
    data = bytearray()
    for name, ne, kind, blocks in tensors:
        out += string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, len(data))
        data += blocks + bytes(-len(blocks) % 32)
    out += bytes(-len(out) % 32)
    path.write_bytes(out + data)


def resized(path, n, source, change=None):
    """The model with n tokens: rows are cut off, or zeros and padding tokens are added."""
    keys, tensors = read(source)
    old = len(keys[b"tokenizer.ggml.tokens"][1][1])
    for name in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type", b"tokenizer.ggml.scores"):
        if name in keys:
            kind, (element, values) = keys[name]
            padding = [b"[PAD%d]" % i if element == STRING else struct.pack("<i", 5) for i in range(old, n)]
            keys[name] = kind, (element, values[:n] + padding)
    tokens = keys[b"tokenizer.ggml.tokens"][1][1]
    if change is not None:
        tokens[change] = b"changed"
    known = set(tokens)
    kind, (element, merges) = keys[b"tokenizer.ggml.merges"]
    keys[b"tokenizer.ggml.merges"] = kind, (element, [m for m in merges if {*m.split(b" ", 1), m.replace(b" ", b"", 1)} <= known])
    for name in list(keys):
        if name.endswith(b".vocab_size"):
            keys[name] = keys[name][0], struct.pack("<I", n)
        if name.endswith(b"_token_id") and int.from_bytes(keys[name][1], "little") >= n:
            del keys[name]
    for t in tensors:
        if t[0] in (b"token_embd.weight", b"output.weight"):
            row = len(t[3]) // t[1][1]
            t[1][1], t[3] = n, t[3][:n * row] + bytes(max(0, n - old) * row)
    write(path, keys, tensors)
    return old


def serves(name, draft, ids, expected, accepts, notice):
    """Drafts by that model: the right bytes, some drafts accepted, and what `outrider up` says."""
    with Service(draft=draft, sets=("drafter.method=model",)) as service:
        states = {p["name"]: p["state"] for p in service.status()}
        tap.ok(states["drafter"] == "ready", f"{name}: the drafter is ready", states)
        text = service.log_text()
        if notice:
            tap.ok(notice in text, f"{name}: a notice gives the numbers", text)
        else:
            tap.ok("not drafted" not in text, f"{name}: no notice without a reason", text)
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
    result = run(program("outrider"), "up", "--model", TARGET, "--draft", draft, "--runtime-dir", folder / "up", timeout=60)
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
    serves("a draft with more tokens", larger, ids, expected, True, f"{n + 64} tokens, the model {n}")
    # Prompts that the smaller vocabulary can spell: others get n-grams.
    few = [[t for t in p if t < 3000] for p in ids]
    serves("a draft with fewer tokens", smaller, few, [reference(p, 30, extra=("--ignore-eos",)) for p in few], True,
           f"3000 tokens, the model {n}")
    serves("prompts that the draft cannot read", smaller, [p + [3999] for p in ids],
           [reference(p + [3999], 30, extra=("--ignore-eos",)) for p in ids], False, f"3000 tokens, the model {n}")
    refuses(other)
finally:
    shutil.rmtree(folder, ignore_errors=True)
tap.done()
