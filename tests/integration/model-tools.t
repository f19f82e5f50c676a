#!/usr/bin/env python3
"""outrider-model: info, check, perplexity and synth; and files damaged at random, which no command may crash on."""
import json
import math
import os
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import BOOL, F32, I32, STRING, U32, ARRAY, Gguf
from outrider_test import TARGET_Q4, SANITIZED, Service, Tap, program, run, run_json, seeded, until

tap = Tap()
MODEL = program("outrider-model")
HOSTILE = "tests/data/hostile/llama.gguf"
directory = tempfile.TemporaryDirectory(prefix="outrider-tools-", dir="/var/tmp")
here = Path(directory.name)


def json_of(*arguments, **more):
    return run_json(MODEL, *arguments, "--format", "json", **more)


# ---- info ----
info = json_of("info", TARGET_Q4)
tensors, summary = info["tensors"], info["summary"]
experts = sum(t["bytes"] for t in tensors if "_exps" in t["name"])
embedding = next(t for t in tensors if t["name"] == "token_embd.weight")
tap.ok(summary["expert_bytes"] == experts == info["model"]["expert_bytes"] and
       summary["resident_bytes"] == sum(t["bytes"] for t in tensors) - experts, "info: what is expert, what resident")
tap.ok(summary["expert_bytes_per_token"] == experts * 4 // 32 and summary["resident_bytes_per_token"] ==
       summary["resident_bytes"] - embedding["bytes"] + embedding["bytes"] // 4096,
       "info: one token reads the used experts and one row of the embedding", summary)
tap.ok({t["name"] for t in tensors if t["expert"]} == {t["name"] for t in tensors if "_exps" in t["name"]},
       "info: every tensor says whether it is expert")
dense = json_of("info", "models/outrider-demo-draft-small-q8_0.gguf")["summary"]
tap.ok(dense["expert_bytes"] == 0 == dense["expert_bytes_per_token"], "info: a dense model has no experts")
tap.ok(run_json(MODEL, "info", "--json", TARGET_Q4) == info, "info: --json is --format json")
text = run(MODEL, "info", "--model", TARGET_Q4).stdout
tap.ok("one token    reads 2.8 MiB" in text and "4 of 32 used in each of 6 layers" in text, "info: the table says it", text[:800])

# ---- perplexity ----
words = Path("bench/workloads/prose.jsonl").read_text()[:6000]
(here / "text").write_text(words)
ids = run_json(MODEL, "tokenize", "--model", TARGET_Q4, stdin=words)["tokens"]
WINDOW = 64


def reference(windows):
    """llama.cpp's definition, from the logits: the second half of each window, without its last position."""
    losses = []
    for w in range(windows):
        tokens = ids[w * WINDOW:(w + 1) * WINDOW]
        rows = json_of("logits", "--model", TARGET_Q4, "--tokens", ",".join(map(str, tokens)), "--all")["logits"]
        for i in range(WINDOW // 2, WINDOW - 1):
            top = max(rows[i])
            losses.append(top + math.log(sum(math.exp(x - top) for x in rows[i])) - rows[i][tokens[i + 1]])
    mean = sum(losses) / len(losses)
    variance = sum(x * x for x in losses) / len(losses) - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(losses) - 1)), len(losses)


want, deviation, n = reference(3)
args = ("perplexity", "--model", TARGET_Q4, here / "text", "--context", WINDOW)
got = json_of(*args, "--windows", 3)
tap.ok(abs(got["perplexity"] - want) < 1e-4 * want and abs(got["error"] - deviation) < 1e-3 * deviation and got["tokens"] == n,
       "perplexity: as the logits have it", f"{got} for {want}, {deviation}, {n}")
other = json_of(*args, "--windows", 3, "--threads", 2, "--prefill-chunk", 7, "--kernels", "scalar")
tap.ok(other == got, "perplexity: the same to the last digit with other kernels, threads and chunks", other)
whole = json_of(*args)
tap.ok(whole["windows"] == len(ids) // WINDOW, "perplexity: all whole windows of the text", whole)
piped = json_of("perplexity", "--model", TARGET_Q4, "-", "--context", WINDOW, stdin=words)
given = json_of("perplexity", "--model", TARGET_Q4, "--tokens", ",".join(map(str, ids)), "--context", WINDOW)
tap.ok(piped == given == whole, "perplexity: text on standard input and ids are the same")
for what, status, word, more in (("too short a text", 65, "two windows", ("--tokens", "1,2,3")),
                                 ("no text", 64, "FILE", ()), ("a missing file", 66, "gone", (here / "gone",)),
                                 ("a token out of range", 65, "4096", ("--tokens", "1,4096" + ",1" * 1200)),
                                 ("two texts", 64, "unexpected", (here / "text", here / "text"))):
    result = run(MODEL, "perplexity", "--model", TARGET_Q4, *more)
    tap.ok(result.returncode == status and word in result.stderr, f"perplexity: {what} is refused", result.stderr)

# ---- check ----
for good in (TARGET_Q4, HOSTILE, "tests/data/golden/models/mixtral.f32.gguf"):
    result = run(MODEL, "check", good)
    tap.ok(result.returncode == 0 and "0 problems" in result.stdout, f"check: nothing wrong with {Path(good).name}", result.stdout)


def spoil(name, change):
    g = Gguf(HOSTILE)
    change(g)
    path = here / name
    g.write(path)
    return path


def many(g):
    keys, tensors = g.keys, g.tensors
    tokens = keys["tokenizer.ggml.tokens"][1][1]
    keys["tokenizer.ggml.bos_token_id"] = U32, 9999
    keys["tokenizer.ggml.eos_token_id"] = U32, 12345
    keys["tokenizer.ggml.token_type"] = ARRAY, (I32, [1] * (len(tokens) - 5) + [77])
    keys["tokenizer.ggml.merges"] = ARRAY, (STRING, [b"nospace", b"a b"])
    keys["tokenizer.chat_template"] = STRING, b""
    del tensors["blk.0.ffn_norm.weight"]
    for name, at, value in (("blk.0.attn_q.weight", 34 * 2, b"\0\x7e"), ("blk.1.ffn_up.weight", 34 * 31, b"\0\xfc"),
                            ("output_norm.weight", 40, struct.pack("<f", math.inf))):
        ne, kind, data = tensors[name]
        tensors[name] = ne, kind, data[:at] + value + data[at + len(value):]
    ne, kind, data = tensors["blk.1.attn_v.weight"]
    tensors["blk.1.attn_v.weight"] = [32, 8], kind, data
    tensors["x.weight"] = [4], 0, bytes(16)


path = spoil("many.gguf", many)
report = json.loads(run(MODEL, "check", path, "--format", "json").stdout)
problems = "\n".join(report["problems"])
for what in ("bos_token_id is 9999", "eos_token_id is 12345", "token_type has", "is 77", "merges: element 0", "chat_template is empty",
             "blk.0.ffn_norm.weight is missing", "blk.0.attn_q.weight: the scale at column 0 of row 2 is nan",
             "blk.1.ffn_up.weight: the scale at column 0 of row 31 is inf", "output_norm.weight", "blk.1.attn_v.weight has shape",
             "x.weight"):
    tap.ok(what in problems, f"check: says {what}", problems)
result = run(MODEL, "check", path)
tap.ok(result.returncode == 65 and all(p in result.stdout for p in report["problems"]), "check: status 65, and as text the same",
       result.stdout)
result = run(MODEL, "logits", "--model", path, "--tokens", "1")
tap.ok(result.returncode == 65 and result.stderr.count("\n") == 1, "loading it says one of them", result.stderr)
result = run(MODEL, "check", here / "gone.gguf")
tap.ok(result.returncode == 66, "check: a file that is not there is not a problem of the file", result.stderr)


def hyperparameters(g):
    g.keys["llama.attention.head_count"] = U32, 0
    g.keys["llama.context_length"] = U32, 0
    g.keys["llama.rope.freq_base"] = F32, math.nan
    g.keys["llama.feed_forward_length"] = U32, 0
    g.keys["llama.attention.layer_norm_rms_epsilon"] = F32, -1.0
    g.keys["tokenizer.ggml.add_bos_token"] = BOOL, False


report = json.loads(run(MODEL, "check", spoil("keys.gguf", hyperparameters), "--format", "json").stdout)
said = [k for k in ("head_count", "context_length", "feed_forward_length", "epsilon")
        if any(k in p for p in report["problems"])]
tap.ok(len(said) == 4 and any("shapes" in n for n in report["notes"]), "check: each hyperparameter, and no guesses about shapes",
       report)
duplicates = spoil("duplicates.gguf", lambda g: g.keys["tokenizer.ggml.tokens"][1][1].__setitem__(
    100, g.keys["tokenizer.ggml.tokens"][1][1][101]))
result = run(MODEL, "check", duplicates)
tap.ok("1 strings occur more than once" in result.stdout, "check: duplicate tokens are a note", result.stdout)
broken = spoil("template.gguf", lambda g: g.keys.__setitem__("tokenizer.chat_template", (STRING, b"{{ 1\n}}{% include 'x' %}")))
result = run(MODEL, "check", broken)
tap.ok(result.returncode == 65 and "key tokenizer.chat_template: template line 2" in result.stdout,
       "check: a chat template with what is not supported is a problem, with line and column", result.stdout)

# A file too large to be scanned when it is loaded (a hole at its end makes it so): what is wrong shows when it is used.
def spoil_scale(g):
    ne, kind, data = g.tensors["blk.1.attn_q.weight"]
    g.tensors["blk.1.attn_q.weight"] = ne, kind, data[:34] + b"\0\x7e" + data[36:]


large = spoil("large.gguf", spoil_scale)
result = run(MODEL, "logits", "--model", large, "--tokens", "1")
tap.ok(result.returncode == 65 and "blk.1.attn_q.weight: the scale at column 0 of row 1 is nan" in result.stderr,
       "a scale that is NaN is refused at load", result.stderr)
os.truncate(large, 300 << 20)
result = run(MODEL, "perplexity", "--model", large, "--tokens", "1" + ",1" * 39, "--context", "8")
tap.ok(result.returncode == 65 and "not finite" in result.stderr and "blk.1.attn_q.weight" in result.stderr,
       "perplexity: logits that are not finite are explained by their tensor", result.stderr)
for sampling in ((), ("--temperature", "1")):
    result = run(MODEL, "generate", "--model", large, "--tokens", "1,2,3", "--max-tokens", "4", *sampling)
    tap.ok(result.returncode == 65 and not result.stdout and "after token 2 are not finite" in result.stderr and
           "blk.1.attn_q.weight" in result.stderr, f"generate{' sampled' if sampling else ''}: so are they there", result.stderr)
with Service(model=large) as service:
    requests = [{"tokens": [1, 2, 3] * 9, "max_tokens": 4, "k": k, "draft_method": "ngram", "temperature": t,
                 "logits_hash": bool(k)} for k in (0, 4) for t in (0, 1)]
    ends = service.swarm(requests, concurrent=2)
    tap.ok(all(e["end"] == "error" and not e["tokens"] and "not finite" in e["error"] for e in ends),
           "served, an answer ends with an error that says so", ends)
    tap.ok(until(lambda: service.status()[0]["state"].startswith("ready")), "and the verifier goes on", service.status())
result = run(MODEL, "check", large)
tap.ok(result.returncode == 65 and "blk.1.attn_q.weight: the scale at column 0 of row 1" in result.stdout,
       "check: scans a file of any size", result.stdout)
large.unlink()


# Finite weights whose products are not: of the logits, only the least is -inf.
def scale_norm(g, factor):
    ne, kind, data = g.tensors["output_norm.weight"]
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    g.tensors["output_norm.weight"] = ne, kind, struct.pack(f"<{len(numbers)}f", *(factor * x for x in numbers))


plain = json_of("logits", "--model", HOSTILE, "--tokens", "1,2,3")["logits"]
sign = 1 if -min(plain) > max(plain) else -1
limit = 3.4028e38 / ((max(plain) - min(plain)) / 2)
over = spoil("over.gguf", lambda g: scale_norm(g, sign * limit))
result = run(MODEL, "logits", "--model", over, "--tokens", "1,2,3")
row = json.loads(result.stdout)["logits"]
tap.ok(result.returncode == 0 and 0 < row.count(None) < len(row) // 2 and result.stderr.count("\n") == 1 and
       "warning: the logits after token 2 are not finite, though every weight is" in result.stderr,
       "logits: shows those that overflow as null, and warns once", f"{row.count(None)} {result.stderr}")
for sampling in ((), ("--temperature", "1")):
    result = run(MODEL, "generate", "--model", over, "--tokens", "1,2,3", "--max-tokens", "4", *sampling)
    tap.ok(result.returncode == 65 and not result.stdout and "after token 2 are not finite, though" in result.stderr,
           f"generate{' sampled' if sampling else ''}: does not choose among what is left", result.stderr)
with Service(model=over) as service:
    ends = service.swarm([{"tokens": [1, 2, 3], "max_tokens": 4, "k": k, "draft_method": "ngram", "temperature": t}
                          for k in (0, 4) for t in (0, 1)])
    tap.ok(all(e["end"] == "error" and not e["tokens"] and "not finite" in e["error"] for e in ends),
           "served, neither", ends)
over.unlink()

for what, status, word, arguments in (
        ("a window too small", 64, "--context: 1, allowed are 4..", ("perplexity", "--model", TARGET_Q4, here / "text", "--context", "1")),
        ("a text that is a directory", 66, "Is a directory", ("perplexity", "--model", TARGET_Q4, here)),
        ("messages that are", 66, "Is a directory", ("render", "--model", TARGET_Q4, "--messages", here)),
        ("a token that is missing", 65, "a comma without an id", ("generate", "--model", TARGET_Q4, "--tokens", "1,,2")),
        ("a comma at the end", 65, "a comma without an id", ("generate", "--model", TARGET_Q4, "--tokens", "1,2,")),
        ("a control character in a name", 66, "/no?pe", ("info", "/no\x1bpe"))):
    result = run(MODEL, *arguments)
    tap.ok(result.returncode == status and word in result.stderr and result.stderr.count("\n") == 1, f"{what} is refused",
           f"{result.returncode} {result.stderr}")

# ---- synth ----
small = ("--vocabulary", "700", "--layers", "1")
for where, word in (("/dev/full", "/dev/full exists already and is not a regular file"),
                    (here, f"{here} exists already and is a directory"),
                    (here / "no" / "x.gguf", f"{here}/no/x.gguf cannot be written: No such file"),
                    (here / "text" / "x.gguf", "Not a directory")):
    result = run(MODEL, "synth", "qwen3-0.6b", where, "--force", "--sparse", *small)
    tap.ok(result.returncode == 73 and word in result.stderr and ".part" not in result.stderr and result.stderr.count("\n") == 1,
           f"synth: does not write to {where}", f"{result.returncode} {result.stderr}")
os.mkfifo(here / "fifo.gguf.part")
result = run(MODEL, "synth", "qwen3-0.6b", here / "fifo.gguf", "--sparse", *small)
tap.ok(result.returncode == 73 and "fifo.gguf" in result.stderr, "synth: nor beside a pipe of the name it needs", result.stderr)
kinds = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3}
for kind in kinds:
    path = here / f"{kind}.gguf"
    result = run(MODEL, "synth", "qwen3-0.6b", path, "--type", kind, "--output-type", kind, *small)
    checked = run(MODEL, "check", path)
    out = run(MODEL, "generate", "--model", path, "--prompt", "a few words", "--max-tokens", "8", "--ignore-eos")
    tap.ok(result.returncode == 0 and checked.returncode == 0 and out.returncode == 0 and len(json.loads(out.stdout)["tokens"]) == 8,
           f"synth: a {kind} model checks, tokenizes and runs", result.stderr + checked.stdout + out.stderr)
    path.unlink()
for kind in ("q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q4_k_m", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "iq1_s", "iq1_m",
             "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "tq1_0", "tq2_0", "nvfp4"):
    path = here / f"{kind}.gguf"
    run(MODEL, "synth", "qwen3-0.6b", path, "--type", kind, *small)
    stated = json.loads(run(MODEL, "check", path, "--format", "json").stdout)
    wrong = [p for p in stated["problems"] if "does not compute with" not in p]
    tap.ok(not wrong and stated["tensors"] == 13, f"synth: {kind} has finite scales and the right shapes", stated)
    path.unlink()


def bytes_of(*more):
    path = here / "synth.gguf"
    run(MODEL, "synth", "qwen3-30b-a3b", path, "--force", "--vocabulary", "300", "--layers", "1", "--output-type", "q8_0", *more)
    data = path.read_bytes()
    return data, run_json(MODEL, "info", path, "--format", "json")


first, shape = bytes_of()
tap.ok(bytes_of()[0] == first != bytes_of("--seed", "2")[0], "synth: the same seed, the same bytes")
tap.ok(shape["model"]["experts"] == 128 and shape["model"]["layers"] == 1 and shape["summary"]["expert_bytes"] == 128 * 3 * 768 * 2048 // 32 * 18,
       "synth: the published shape", shape["summary"])
tokens = ",".join(str(i * 7919 % 297) for i in range(200))


def share(*more):
    """Of the choices of 200 tokens, how much goes to the 16 most popular of 128 experts."""
    bytes_of(*more)
    layer = run_json(MODEL, "routes", "--model", here / "synth.gguf", "--tokens", tokens)["routes"][0]["experts"]
    counts = sorted((sum(e in row for row in layer) for e in range(128)), reverse=True)
    return sum(counts[:16]) / sum(counts)


even, skewed = share(), share("--router-skew", "1.5")
tap.ok(even < 0.45 < 0.75 < skewed, "synth: router skew makes some experts popular", f"{even:.2f}, {skewed:.2f}")
run(MODEL, "synth", "olmoe-1b-7b", here / "down.gguf", "--layers", "2", "--vocabulary", "300", "--countdown")
down = run_json(MODEL, "generate", "--model", here / "down.gguf", "--tokens", "7,2", "--max-tokens", "5", "--ignore-eos")["tokens"]
tap.ok(down == [1, 0, 299, 298, 297], "synth: --countdown gives the tokens backwards", down)
(here / "down.gguf").unlink()
tied = run(MODEL, "synth", "qwen3-0.6b", here / "x", "--countdown")
tap.ok(tied.returncode == 64 and "--countdown" in tied.stderr, "synth: --countdown needs an output matrix", tied.stderr)
for name in ("mixtral-8x7b", "olmoe-1b-7b", "gpt-oss-20b", "deepseek-v2-lite", "phi-3.5-moe", "glm-4.5-air", "qwen1.5-moe"):
    path = here / "shape.gguf"
    result = run(MODEL, "synth", name, path, "--sparse", "--force")
    stated = run_json(MODEL, "info", path, "--format", "json")
    tap.ok(result.returncode == 0 and stated["summary"]["expert_bytes"] > 3 << 30, f"synth: {name}", stated["summary"])
    if name == "gpt-oss-20b":  # whose experts have biases
        tap.ok(stated["summary"]["expert_bytes"] == stated["model"]["expert_bytes"] == sum(
            t["bytes"] for t in stated["tensors"] if t["expert"]), "info: what is expert is what the engine may stream",
            (stated["summary"], stated["model"]))
    tokens_back = run_json(MODEL, "tokenize", "--model", path, "--text", "some words of a vocabulary 12") \
        if stated["keys"]["tokenizer.ggml.pre"] in ("qwen2", "gpt-2", "olmo", "gpt-4o") else None
    if tokens_back:
        listed = ",".join(map(str, tokens_back["tokens"]))
        back = run_json(MODEL, "tokenize", "--model", path, "--tokens", listed)["text"]
        tap.ok(back == "some words of a vocabulary 12", f"synth: {name}'s vocabulary gives the text back", back)
    path.unlink()
for what, status, more in (("an unknown shape", 64, ("nothing", here / "x")), ("no file", 64, ("qwen3-0.6b",)),
                           ("an unknown type", 64, ("qwen3-0.6b", here / "x", "--type", "q9")),
                           ("a file that is there", 73, ("qwen3-0.6b", HOSTILE)),
                           ("no such directory", 73, ("qwen3-0.6b", here / "none" / "x", "--sparse"))):
    result = run(MODEL, "synth", *more)
    tap.ok(result.returncode == status and not (here / "x").exists(), f"synth: {what} is refused",
           f"{result.returncode}: {result.stderr}")

# ---- damage ----
rng = seeded()
rounds = 30 if SANITIZED else 40
goldens = [HOSTILE, "tests/data/hostile/qwen3moe.gguf", *map(str, sorted(Path("tests/data/golden/models").glob("*.gguf")))]
# And the second part of a split one, opened by its first.
parts = Gguf(HOSTILE).split(here / "parts", 2)
crashed = []
for source in (*goldens, parts[1]):
    data = Path(source).read_bytes()
    path = here / "damaged.gguf" if source in goldens else parts[0]
    target = path if source in goldens else parts[1]
    for i in range(rounds // 4 if "golden" in str(source) else rounds):
        damaged = bytearray(data)
        if i % 4 == 0:
            del damaged[rng.randrange(len(data)):]
        for _ in range(rng.choice((1, 3, 40))):
            # Mostly in the metadata.
            at = rng.randrange(min(len(damaged), 8192) if i % 3 else len(damaged)) if damaged else None
            if at is not None:
                damaged[at] = rng.choice((0, 1, 0x7f, 0x80, 0xff, rng.randrange(256)))
        target.write_bytes(damaged)
        for command in (("info", path), ("check", path), ("logits", "--model", path, "--tokens", "1,2,3", "--context", "8")):
            result = run(MODEL, *command)
            if result.returncode not in (0, 65, 66, 70) or "Sanitizer" in result.stderr or "runtime error" in result.stderr:
                crashed.append(f"{source} round {i} {command[0]}: status {result.returncode}: {result.stderr[-1500:]}")
tap.ok(not crashed, f"damaged copies of {len(goldens) + 1} files: info, check and logits end well", "\n".join(crashed))
directory.cleanup()
tap.done()
