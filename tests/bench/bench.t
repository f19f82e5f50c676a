#!/usr/bin/env python3
"""outrider-bench: what needs no service runs, says what it measured, and refuses what it cannot."""
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "integration"), str(Path(__file__).resolve().parents[2] / "bench")]
sys.dont_write_bytecode = True
import facts  # noqa: E402
import outrider_test  # noqa: E402
from outrider_test import Tap  # noqa: E402

PROGRAM = os.path.join(os.environ.get("B", "build"), "outrider-bench")
DEMO = "models/outrider-demo-moe-q8_0.gguf"
tap = Tap()
ok = tap.ok


def run(*args):
    return outrider_test.run(PROGRAM, *args, timeout=1500)


def bench(*args, **environment):
    """bench/run.py"""
    return outrider_test.run(sys.executable, "bench/run.py", *args, timeout=1500, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"})


result = run("kernels", "--types", "Q8_0,F32", "--tokens", "1,3", "--rounds", "1", "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {"rows": [], "peaks": {}}
ok([(r["type"], r["tokens"]) for r in figures["rows"]] == [("Q8_0", 1), ("Q8_0", 3), ("F32", 1), ("F32", 3)],
   "kernels measures every type with every count", result.stderr)
ok(all(r["gb_s"] > 0 and r["floor_share"] > 0 for r in figures["rows"]) and figures["peaks"].get("read_gb_s", 0) > 0,
   "each beside the peaks of the machine", result.stdout)
emulated = run("kernels", "--backend", "simt", "--types", "Q8_0,F16", "--tokens", "1,9", "--rounds", "1", "--format", "json")
gpu = json.loads(emulated.stdout) if emulated.returncode == 0 else {"rows": [], "peaks": {}}
ok([(r["type"], r["tokens"]) for r in gpu["rows"]] == [("Q8_0", 1), ("Q8_0", 9), ("F16", 1), ("F16", 9)] and
   all(r["gb_s"] > 0 and r["copy_share"] > 0 for r in gpu["rows"]) and len(gpu["peaks"]) == 3 and all(p > 0 for p in gpu["peaks"].values()),
   "kernels --backend simt: the products of a GPU's kernels, beside the copies of the same run", emulated.stderr + emulated.stdout)
emulated = run("model", "--backend", "simt", "--model", DEMO, "--mapped", "--batch", "1", "--depth", "4", "--prefill", "4", "--tokens", "1",
               "--passes", "1", "--rounds", "1", "--format", "json")
gpu = json.loads(emulated.stdout) if emulated.returncode == 0 else {}
ok(gpu.get("backend") == "simt" and gpu["decode"]["tokens_per_s"] > 0 and gpu["peaks"]["read_gb_s"] > 0 and gpu["peaks"]["int8_gop_s"] is None,
   "model --backend simt", emulated.stderr + emulated.stdout)
ways = {"cpu": ["cpu"], "simt": ["cpu", "resident", "copied"]}
for backend, names in ways.items():
    emulated = run("price", "--backend", backend, "--model", DEMO, "--layer", "1", "--tokens", "1,3", "--rounds", "1", "--format", "json")
    costs = json.loads(emulated.stdout) if emulated.returncode == 0 else {"rows": []}
    ok([r["tokens"] for r in costs["rows"]] == [1, 3] and all([k for k in r if k != "tokens"] == names for r in costs["rows"]) and
       all(r[way]["us"] > 0 and r[way]["share"] > 0 for r in costs["rows"] for way in names) and costs["expert_bytes"] > 0 and
       costs["layer"] == 1 and costs["emulated"] == (backend == "simt"), f"price --backend {backend}: what an expert costs, by its tokens",
       emulated.stderr + emulated.stdout)
said = run("price", "--backend", "simt", "--model", DEMO, "--tokens", "1", "--rounds", "1").stdout
ok("This is an emulation on the CPU: its speeds say nothing of a GPU." in said, "and a text says that the emulation was measured", said)
emulated = run("cache", "copy", "--backend", "simt", "--model", DEMO, "--batch", "1,4", "--rounds", "1", "--format", "json")
copies = json.loads(emulated.stdout) if emulated.returncode == 0 else {"rows": []}
ok([r["batch"] for r in copies["rows"]] == [1, 4] and copies["emulated"] and
   all(r[way]["gb_s"] > 0 and r[way]["link_share"] > 0 for r in copies["rows"] for way in ("copied", "packed_and_copied")),
   "cache copy --backend simt: experts come into a device's slots, beside the link's peak", emulated.stderr + emulated.stdout)
emulated = run("ipc", "--backend", "simt", "--seconds", "0.1", "--format", "json")
crossed = json.loads(emulated.stdout) if emulated.returncode == 0 else {"results": [], "copies": []}
ok([r["name"] for r in crossed["results"]] == ["export", "import", "flag_round_trip"] and crossed["emulated"] and
   all(r["p50_us"] > 0 and r["samples"] == crossed["rounds"] for r in crossed["results"]) and len(crossed["copies"]) == 3 and
   all(r["to_device_share"] > 0 and r["from_device_share"] > 0 for r in crossed["copies"]),
   "ipc --backend simt: what crosses two processes that share a device", emulated.stderr + emulated.stdout)
refused = run("cache", "copy", "--backend", "cpu", "--model", DEMO)
ok(refused.returncode == os.EX_USAGE and '--backend is "cpu", allowed are simt and cuda' in refused.stderr, "the CPU has no slots to copy to", refused)
for command, more in (("kernels", ()), ("ipc", ()), ("price", ("--model", DEMO))):
    refused = run(command, "--backend", "gpu", *more)
    ok(refused.returncode == os.EX_USAGE and '--backend is "gpu", allowed are cpu, simt and cuda' in refused.stderr, f"{command} refuses other back ends", refused)
refused = run("price", "--model", DEMO, "--layer", "6")
ok(refused.returncode != 0 and "--layer 6: the model has layers 0 to 5" in refused.stderr, "price refuses a layer that is not there", refused)
result = run("skip", "--model", DEMO, "--limit", "2", "--tokens", "24", "--most", "2", "--format", "json")
found = json.loads(result.stdout) if result.returncode == 0 else {"rows": []}
left_out = [set(r["skip_layers"].split(",")) for r in found["rows"]]
ok([len(s) for s in left_out] == [1, 2] and left_out[0] < left_out[1] and
   all(0 <= r["right"] <= 1 and 1 <= r["tokens_per_pass"] <= 5 and r["cost"] > 0 for r in found["rows"]),
   "skip leaves out a layer more at a time", result.stderr + result.stdout)
result = run("skip", "--model", DEMO, "--limit", "2", "--tokens", "24", "--skip", found["rows"][0]["skip_layers"] if left_out else "1", "--json")
same = json.loads(result.stdout)["rows"] if result.returncode == 0 else []
ok(len(same) == 1 and all(same[0][k] == found["rows"][0][k] for k in ("skip_layers", "right", "tokens_per_pass")),
   "skip --skip looks at one choice, with the same result", result.stderr + result.stdout)
result = run("skip", "--model", DEMO, "--skip", "2,6")
ok(result.returncode != 0 and "layer 6 cannot be skipped: the model has layers 0 to 5" in result.stderr, "skip refuses a layer that is not there", result)
if not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "outrider-backend-cuda.so")):
    nothing = bench("gpu")
    ok(nothing.returncode == 77 and "nothing was measured" in nothing.stderr, "without a GPU bench/run.py gpu says so", nothing.stderr)
bf16 = "avx512_bf16" in open("/proc/cpuinfo").read()
ok((figures["peaks"].get("bf16_gop_s", -1) > 0) == bf16, "bfloat16 has a peak where the processor has its products",
   figures["peaks"])

bf16_row = run("kernels", "--types", "BF16", "--tokens", "16", "--rounds", "1", "--json")
held = json.loads(bf16_row.stdout) if bf16_row.returncode == 0 else {"rows": [{"op_share": 0, "gop_s": 1}], "peaks": {"f32_gop_s": 1}}
ok(abs(held["rows"][0]["op_share"] * held["peaks"]["f32_gop_s"] / held["rows"][0]["gop_s"] - 1) < 1e-3,
   "weights in bfloat16 are held against float32, which is the arithmetic in use", held)

masks = outrider_test.run_json(PROGRAM, "grammar", "--model", "models/outrider-demo-moe-q4_0.gguf", "--json")
ok({r["name"] for r in masks["rows"]} == {"object", "record", "tree", "limits", "regex", "gbnf"} and
   all(r["tokens"] > 0 and r["first_us_most"] > 0 and r["dead_ends"] == 0 for r in masks["rows"]), "grammar makes masks, and no text comes to a dead end", masks)
bad_grammar = run("grammar", "--model", "models/outrider-demo-moe-q4_0.gguf", "--kind", "gbnf", "--source", "root ::=\n (")
ok(bad_grammar.returncode != 0 and "line 2, column 2: ( without )" in bad_grammar.stderr, "and says what is wrong with a grammar", bad_grammar)

cpuinfo = open("/proc/cpuinfo").read()
numbers = [re.search(rf"^{name}\s*:\s*(\d+)", cpuinfo, re.M) for name in ("cpu family", "model")]
named, machine = run("machine"), outrider_test.run_json(PROGRAM, "machine", "--json")
if all(numbers):
    ok(re.search(rf"\((.+, )?family {numbers[0][1]} model {numbers[1][1]}\)$", machine["cpu"]), "machine names the CPU with family and model", machine)
else:
    tap.skip("machine names the CPU with family and model", "the kernel does not tell")
ok(named.stdout == f"{machine['cpu']}, {machine['cpus']} CPU{'s' * (machine['cpus'] != 1)}, {machine['instructions']}\n" and
   machine["cpus"] == len(os.sched_getaffinity(0)) and figures.get("cpu") == machine["cpu"], "as every result does", (named, machine, figures))
ok(facts.cpu() == named.stdout.strip() and facts.cpu_name(os.path.dirname(PROGRAM)) == machine["cpu"], "those of bench/*.py too", facts.cpu())

few = len(os.sched_getaffinity(0))
for command, more in (("kernels", ("--types", "Q8_0", "--tokens", "1")), ("attention", ("--shapes", "gqa", "--types", "q8_0", "--depths", "300", "--tokens", "1")),
                      ("model", ("--model", DEMO, "--batch", "1", "--prefill", "8")), ("pool", ())):
    short = run(command, *more, "--threads", few + 1, "--rounds", "1")
    ok(short.returncode == 0 and f"outrider-bench: threads = {few + 1}, but this process has {few} CPU" in short.stderr and
       f", {few + 1} threads ({few} active)" in short.stdout.splitlines()[0], f"{command} says that it has fewer CPUs than threads, and how many take part",
       short.stderr + short.stdout)
plain = run("kernels", "--types", "Q8_0", "--tokens", "1", "--threads", "1", "--rounds", "1", "--json")
ok(plain.stderr == "" and json.loads(plain.stdout)["active_threads"] == json.loads(plain.stdout)["threads"] == 1, "with enough it says nothing", plain)

result = run("attention", "--shapes", "gqa,mla-16", "--types", "q8_0", "--depths", "300", "--tokens", "1,3", "--rounds", "1",
             "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {"rows": []}
ok([(r["shape"], r["depth"], r["tokens"]) for r in figures["rows"]]
   == [("gqa", 300, 1), ("gqa", 300, 3), ("mla-16", 300, 1), ("mla-16", 300, 3)]
   and all(r["gb_s"] > 0 and r["cells_per_s"] > 0 and r["floor_share"] > 0 for r in figures["rows"]),
   "attention measures every shape with every count", result.stderr + result.stdout)

result = run("model", "--model", DEMO, "--batch", "1,4,16", "--depth", "32,320", "--prefill", "32", "--rounds", "1",
             "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {}
batch, decode = figures.get("batch", []), figures.get("decode", {})
ok([r["n"] for r in batch] == [1, 4, 16], "model measures every batch", result.stderr)
experts = [r["distinct_experts"] for r in batch]
ok(experts[:1] == [24] and experts == sorted(experts), "one token reads 4 experts in each of 6 layers, more read more",
   str(experts))
ok(decode.get("tokens_per_s", 0) > 0 and "bandwidth_share" in decode and
   all(r["tokens_per_s"] > 0 and r["floor_share"] > 0 for r in batch), "every figure has its share of the floor",
   result.stdout)
info = outrider_test.run_json(outrider_test.program("outrider-model"), "info", DEMO, "--format", "json")
per_expert = info["summary"]["expert_bytes_per_token"] / 24
ok(abs((decode["bytes"] - decode["kv_bytes"]) / info["summary"]["bytes_per_token"] - 1) < 0.01 and
   all(abs(r["expert_bytes"] / (r["distinct_experts"] * per_expert) - 1) < 1e-3 for r in batch),
   "its bytes are those of the matrices and experts a pass reads", (decode, batch))
ok(batch and all(abs(r["expert_ms"] * 1e6 * r["read_gb_s"] / r["expert_bytes"] - 1) < 1e-3 and 0 < r["expert_ms"] < r["bytes_ms"] for r in batch),
   "and of the experts alone, with the time they take at the measured bandwidth", batch)
ok(all(r["roofline_ms"] >= 0.999 * r["bytes_ms"] for r in batch), "what has to be computed only raises a floor", batch)
# Per token and layer keys and values of two heads of 64, in 16-bit integers with a scale for each 32. Figures have six digits.
deeper = figures.get("depths", [{}])[0]
cell = info["model"]["layers"] * 2 * info["model"]["kv_heads"] * info["model"]["head_length"] * 66 // 32
ok(abs(decode["kv_bytes"] / (33 * cell) - 1) < 1e-5 and abs(deeper.get("kv_bytes", 0) / (321 * cell) - 1) < 1e-5 and
   "kv_cost" in deeper,
   "decoding deeper in the context reads so many more keys and values", (cell, decode, deeper))
memory = figures["memory"]
sanitized = bool(os.environ.get("SAN"))  # whose shadow memory counts too
ok(0 < memory["beyond_bytes"] < (200e6 if not sanitized else 20e9) and memory["kv_bytes"] > 321 * cell and
   memory["mapped_weight_bytes"] <= os.path.getsize(DEMO) + 65536, "memory beyond weights and KV is told", memory)
with tempfile.TemporaryDirectory() as folder:
    picture = os.path.join(folder, "tau.svg")
    result = run("tolerance", "--model", DEMO, "--draft", "models/outrider-demo-draft-small-q8_0.gguf", "--batch", "1,4,64", "--gamma", "1,3", "--context",
                 "32,512", "--kv", "q8_0,q16_0", "--acceptance", "100,0", "--slice-ms", "1", "--memory", "60", "--plot", picture, "--json")
    grid = json.loads(result.stdout) if result.returncode == 0 else {"series": []}
    ok([s["kv"] for s in grid["series"]] == ["q8_0", "q16_0"] and all(len(s["cells"]) == 18 for s in grid["series"]),
       "tolerance measures each type of KV", result.stderr + result.stdout)
    cells = [{(c["context"], c["batch"], c["gamma"]): c for c in s["cells"]} for s in grid["series"]]
    there = [c for s in cells for c in s.values() if c["state"] == "measured"]
    ok(all(c["passes"] >= 3 and c["experts"] >= 24 and abs(c["tau"] * c["pass_ms"] / s[c["context"], c["batch"], 0]["pass_ms"] - 1) < 1e-3
           for s in cells for c in s.values() if c["state"] == "measured"), "tau is the time of a pass without drafts by that of one with them", there)
    ok(all(s[32, 1, 0]["experts"] == 24 < s[32, 1, 3]["experts"] < s[32, 4, 3]["experts"] for s in cells),
       "more rows choose more experts, so they are not alike", there)
    drafted = [c for c in there if c["gamma"] > 0 and (c["context"], c["batch"]) != (32, 1)]
    ok(drafted and all(abs(c["lambda"] - 2) < 1e-3 and abs(c["needed_tau"] - 0.5) < 1e-3 and c["delta"] > 0 and c["expected"] > 0 and c["measured"] > 0 and
                       c["held_out_error"] is not None and abs(c["error"] - (c["expected"] / c["measured"] - 1)) < 1e-3 for c in drafted),
       "the expected speed-up stands beside the measured one", drafted)
    large = [c for s in cells for c in s.values() if c["state"] == "too large"]
    ok({(c["context"], c["batch"]) for c in large} == {(512, 64)} and all(c["bytes"] > 60 << 20 and c["tau"] is None and c["error"] is None for c in large) and
       all(c["extrapolated"] and c["model_tau"] > 0 for c in large), "what is too large is not measured, and what is said of it marked", large)
    ok(all(s["measured"] == 10 and s["median_error"] >= 0 for s in grid["series"]), "and no part of the error", grid)
    ok("<svg" in open(picture).read() and "batch 64, extrapolated" in open(picture).read(), "and as a picture")
    text = run("tolerance", "--model", DEMO, "--batch", "1,64", "--gamma", "1", "--context", "512", "--slice-ms", "1", "--memory", "120", "--layers", "12")
    ok(text.returncode == 0 and re.search(r"^   64  not measured: weights and KV need \d+\.\d MiB; tau by extrapolation: 0\.\d+$", text.stdout, re.M) and
       "scaled to 12" in text.stdout and "held out" in text.stdout and "line's own passes" in text.stdout, "as text", text.stdout + text.stderr)
    for more, status, words in ((("--batch", "4,1"), 64, "does not ascend"), (("--gamma", "17"), 64, "--gamma takes"), (("--kv", "q9"), 64, "--kv"),
                                (("--kernels", "mmx"), 64, "mmx"), (("--plot", "a.txt"), 64, ".svg"), (("--rounds", "2"), 64, "rounds"),
                                (("--draft", "/none.gguf"), 66, "/none.gguf")):
        result = run("tolerance", "--model", DEMO, "--batch", "1", *more)
        ok(result.returncode == status and words in result.stderr, f"tolerance {' '.join(more)} is refused", result)

result = run("model", "--model", DEMO, "--batch", "1", "--depth", "32", "--prefill", "32", "--rounds", "1")
ok(f"; {decode['bytes'] / 2**20:.1f} MiB need " in result.stdout and " MB" not in result.stdout,
   "as text, sizes are in MiB", result.stderr + result.stdout)
head, one = (line for line in result.stdout.splitlines() if re.match(r" +(n|1) ", line))
columns = dict(zip(re.split(r"  +", head.strip()), one.split()))
ok(abs(float(columns["experts"]) - 24) < 1 and 0 < float(columns["their ms"]) < float(columns["bytes ms"]) <= float(columns["floor ms"]),
   "with the time of the experts' bytes in its column", (head, one))

result = run("pool", "--rounds", "1", "--json")
figures = json.loads(result.stdout) if result.returncode == 0 else {"reads": []}
ok([r["items_per_thread"] for r in figures["reads"]] == [1, 4, 16] and
   all(r["gb_s"] > 0 and r["gb_s_busy"] > 0 for r in figures["reads"]) and figures["hand_over_us"] > 0,
   "pool measures hand-overs, and reads alone and beside a busy process", result.stderr + result.stdout)

traces = [f"tests/data/traces/mixed-{t}.trace" for t in ("none-0", "model-3")]
result = run("device", *traces, "--machine", "4090-x4", "--model", "olmoe-1b-7b", "--policy", "outrider", "--passes", "40", "--shares", "17,100", "--json")
simulated = json.loads(result.stdout) if result.returncode == 0 else {"cases": [], "simulated": False}
ok(simulated["simulated"] and [(c["k"], c["recorded"], len(c["rows"])) for c in simulated["cases"]] == [(0, True, 8), (3, True, 8)],
   "device simulates every way with every share, and says that it is simulated", result.stderr)
fastest = [{(r["hybrid"], r["blocking"], r["share_percent"]): r for r in c["rows"]} for c in simulated["cases"]]
ok(all(of["greedy", False, 17]["tokens_per_s"] > c["cpu_tokens_per_s"] > of["off", True, 17]["tokens_per_s"] and
       of["greedy", False, 100]["loads"] == 0 and abs(of["off", False, 100]["tokens_per_s"] / c["resident_tokens_per_s"] - 1) < 1e-5
       for c, of in zip(simulated["cases"], fastest)), "a link that is too slow costs no more than the CPU does", simulated)
text = run("device", traces[1], "--machine", "3060", "--model", "demo", "--routing", "recorded", "--policy", "spac", "--shares", "50").stdout
ok(text.startswith("Simulated: no figure here was measured on a GPU.") and "equation 17" in text and "mean tau" in text and
   "llama.cpp's cache" in text, "as text it begins so, and has the paper's condition and other programs' figures", text)


def cells(*arguments):
    result = run("policy", "--format", "json", "--sessions", "12", "--tokens", "200", *arguments)
    return (json.loads(result.stdout) if result.returncode == 0 else {"cells": []}), result


figures, result = cells("--curve", "mixtral-math", "--process", "ngram-math,ngram-code")
rows = [{r["policy"]: r for r in c["rows"]} for c in figures["cells"]]
ok(len(rows) == 2 and figures.get("mix", {}).get("cells") == 2, "policy simulates every cell and all of them", result.stderr)
ok(all(abs(r["static:0"]["to_k0"] - 1) < 1e-6 for r in rows) and
   all(max(p["to_optimum"] for p in r.values()) < 1.05 for r in rows), "K = 0 is the measure, and hindsight is beyond reach",
   [{n: p["to_optimum"] for n, p in r.items()} for r in rows])
ok(rows[0]["static:3"]["to_k0"] < 0.8 < 0.9 < rows[0]["yield"]["to_k0"] and
   rows[1]["yield"]["to_k0"] > 1.05, "where a fixed K loses yield does not, and it wins where drafts pay",
   [{n: p["to_k0"] for n, p in r.items()} for r in rows])
again, _ = cells("--curve", "mixtral-math", "--process", "ngram-math,ngram-code")
for cell in figures["cells"] + again["cells"]:
    for row in cell["rows"]:
        row.pop("controller_ns_per_iteration")
ok(figures == again, "the same seed gives the same figures")
late = {n: cells("--curve", "dense", "--process", "ngram-math", "--policy", "static:1", *n)[0]["about"] for n in ((), ("--lag", "7"))}
ok("seen 2 passes late" in late[()] and "seen 7 passes late" in late["--lag", "7"], "how late records are is said as it is given", late)
figures, result = cells("--process", "random", "--batch", "4", "--noise", "0")
rows = figures["cells"][0]["rows"] if figures["cells"] else []
ok(len(figures["cells"]) == 1 and not any("to_optimum" in r or "regret_mean" in r for r in rows), "sessions side by side", result.stderr)
ok(len(rows) > 10 and all(0.1 < r["to_bound"] < 1 and 0 < r["regret_mean_at_most"] <= r["regret_worst_at_most"] < 1 for r in rows) and
   max(r["to_bound"] for r in rows) > 0.5, "beside a bound, which none exceeds", rows)
figures, result = cells("--process", "prose", "--curve", "dense", "--policy", "static:7,yield")
ok([r["policy"] for r in figures["cells"][0]["rows"]] == ["static:0", "static:7", "yield"] and
   figures["cells"][0]["rows"][1]["to_k0"] > 1.5, "recorded outputs are drafted for", result.stderr)
with tempfile.NamedTemporaryFile("w", suffix=".json") as curve:
    json.dump({"batch": [{"n": 1, "ms": 2, "distinct_experts": 24}, {"n": 8, "ms": 16, "distinct_experts": 90}]}, curve)
    curve.flush()
    figures, result = cells("--curve", curve.name, "--process", "eagle-math", "--policy", "static:1,static:7")
    ok(figures["cells"][0]["rows"][2]["to_k0"] < 0.6, "a measured curve is what passes cost", result.stdout + result.stderr)
    curve.seek(0)
    curve.truncate()
    curve.write('{"batch": [{"n": 8, "ms": 1}]}')
    curve.flush()
    result = run("policy", "--curve", curve.name)
    ok(result.returncode != 0 and "batch" in result.stderr, "a file without a curve is refused", result.stderr)


def journal(iterations, sure=()):
    """A journal as outrider-policy keeps one (journal.h): (session, k, drafted, accepted, batch_tokens, us) each, and behind them
    (foreseen, of them drafted, right) where a draft was kept back. sure: confidences of every draft, in 255ths; those behind are 255."""
    file = struct.pack("<QIIQ", 0x4c4e524a5452554f, 3, 192, len(iterations)).ljust(4096, b"\0")
    for i, (session, k, drafted, accepted, tokens, us, *foreseen) in enumerate(iterations):
        number = i or len(iterations)  # number n lies in place n modulo the capacity
        foreseen = foreseen or (0, 0, 0)
        confidence = [*sure, *[255] * 15][:drafted or foreseen[1]]
        entry = struct.pack("<QQQQI8B5IQ4I3f4BHH63B13x", number, 0, session, i, 0, k, drafted, accepted, accepted + 1, 2, 0, 0, 2,
                            tokens, 0, 24, 0, 0, 0, 5 if k else 0, us, 0, us + (5 if k else 0), 0, 0, 0, *foreseen,
                            2 if foreseen[0] else 0, 1, drafted, *confidence, *[0] * (63 - len(confidence)))
        h = 0xcbf29ce484222325
        for word in struct.unpack(f"<{len(entry) // 8}Q", entry):
            h = (h ^ word) * 0x100000001b3 % 2**64
            h ^= h >> 32
        file += (struct.pack("<Q", h) + entry).ljust(192, b"\0")
    return file


with tempfile.NamedTemporaryFile(suffix=".journal") as served:
    # One session whose drafts of 3 were always right and one whose were never; a pass costs 1 + 0.5 a token.
    served.write(journal([(7 + i % 2, 3, 3, 3 * (i % 2), 4, 250) for i in range(200)] + [(9, 0, 0, 0, 1, 100)] * 32))
    served.flush()
    rows = {}
    for curve in ("dense", served.name):
        figures, result = cells("--process", served.name, "--curve", curve, "--policy", "static:3", "--noise", "0",
                                "--sessions", "2")
        rows[curve] = figures["cells"][0]["rows"][1] if figures["cells"] else result.stderr
    ok(abs(rows["dense"]["tokens_per_iteration"] - (100 + 400) / 200) < 0.05, "a journal's sessions are replayed",
       (rows, result.stderr))
    # K = 0: 500 tokens of 100 us; K = 3: 200 passes of 255 us.
    ok(abs(rows[served.name]["to_k0"] / (500 * 100 / (200 * 255)) - 1) < 0.05, "and its passes cost what they did", rows)
    # Nothing was drafted, but what would have been is known: right in one session, wrong in the other.
    served.seek(0)
    served.truncate()
    served.write(journal([(7 + i % 2, 0, 0, 0, 1, 100, 8, 8, 8 * (i % 2)) for i in range(400)]))
    served.flush()
    figures, result = cells("--process", served.name, "--curve", "dense", "--policy", "static:3", "--noise", "0", "--sessions", "2")
    foreseen = figures["cells"][0]["rows"][1]["tokens_per_iteration"] if figures["cells"] else result.stderr
    # 200 tokens one at a time, 200 by fours.
    ok(foreseen != result.stderr and abs(foreseen - 400 / 250) < 0.05, "drafts that were kept back say what drafts would have been",
       (figures, result.stderr))
    # Drafts of 7 whose third token was wrong, and the drafter less sure of it: what llama.cpp's 0.75 leaves off, and yield's cut.
    served.seek(0)
    served.truncate()
    served.write(journal([(7, 7, 7, 2, 8, 250)] * 200, sure=(230, 230, 128)))
    served.flush()
    figures, result = cells("--process", served.name, "--curve", "mixtral-math", "--policy", "llama.cpp,yield", "--noise", "0",
                            "--sessions", "2", "--set", "k_max=7")
    rows = {r["policy"]: r for r in figures["cells"][0]["rows"]} if figures["cells"] else {}
    ok(rows and abs(rows["llama.cpp"]["mean_k"] - 7) < 0.1 and abs(rows["llama.cpp"]["mean_drafted"] - 2) < 0.05 and
       abs(rows["llama.cpp"]["tokens_per_iteration"] - 3) < 0.05, "a journal's confidences are the drafts': p-min cuts them", (rows, result.stderr))
    ok(rows and rows["yield"]["mean_drafted"] < rows["yield"]["mean_k"] - 0.5, "and so does yield", rows)
    # Nothing was drafted: tokens that are drawn are as sure as those that were compared, the right and the wrong ones apart.
    served.seek(0)
    served.truncate()
    served.write(journal([(7, 0, 0, 0, 1, 100, 8, 8, 3)] * 400, sure=(230, 230, 230, 51)))
    served.flush()
    figures, result = cells("--process", served.name, "--curve", "dense", "--policy", "llama.cpp", "--noise", "0", "--sessions", "2")
    row = figures["cells"][0]["rows"][1] if figures["cells"] else {}
    ok(row and 1.5 < row["mean_drafted"] < 5 < row["mean_k"] and abs(row["tokens_per_iteration"] - 1 - row["mean_drafted"]) < 0.01,
       "drawn tokens have confidences that tell the right ones as those of the journal do", (row, result.stderr))
    served.seek(4096 + 20)
    served.write(b"x" * 3000)
    served.flush()
    figures, result = cells("--process", served.name, "--curve", "dense", "--policy", "static:3", "--sessions", "2")
    ok(result.returncode == 0, "damaged entries are left out", result.stderr)
    served.truncate(2000)
    result = run("policy", "--process", served.name)
    ok(result.returncode == 65 and "not a journal" in result.stderr, "a file that is none is refused", result.stderr)
    served.seek(0)
    served.truncate()
    served.write(journal([(7, 0, 0, 0, 1, 100)] * 32).replace(struct.pack("<II", 3, 192), struct.pack("<II", 1, 128), 1))
    served.flush()
    result = run("policy", "--process", served.name)
    ok(result.returncode == 65 and "a journal of version 1; only those of version 3 are read" in result.stderr,
       "so is one that an earlier version wrote", result.stderr)
result = run("policy", "--published", "--sessions", "4")
ok(result.returncode == 0 and "57% faster" in result.stdout and "predictions are closer than K = 0; skill" in result.stdout,
   "published figures beside simulated ones", result.stderr)


def published(*more):
    """The report, and (predictions that tell something, those closer than K = 0, skill) of fixed K and cascade, worked out again."""
    report = cells("--published", "--sessions", "100", *more)[0].get("published", {"rows": []})
    out = []
    for cascade in (False, True):
        rows = [r for r in report["rows"] if r["kind"] == "prediction" and abs(1 / r["published"] - 1) > 0.05 and
                ("static" not in r["policy"] or r["where"].startswith(CASCADES)) == cascade]
        errors = [(abs(math.log(r["simulated"] / r["published"])), abs(math.log(r["published"]))) for r in rows]
        out.append((len(rows), sum(e < k - 1e-6 for e, k in errors), 1 - sum(e for e, _ in errors) / sum(k for _, k in errors)))
    return report, out


# What the paper says of cascade itself, among the predictions.
CASCADES = ("7: 57%", "5.5: 5%", "7: 29%", "7.5: 20%", "7.5: t = ")
report, (fixed, cascade) = published()
kinds = [r["kind"] for r in report["rows"]]
ok(kinds.count("fit") >= 5 and kinds.count("prediction") >= 10 and kinds.count("at most") + kinds.count("at least") >= 5,
   "fits, predictions and bounds are kept apart", kinds)
wrong = [name for name, own in (("fixed_k", fixed), ("cascade", cascade)) if
         (report[name]["predictions"], report[name]["closer_than_k0"]) != own[:2] or abs(report[name]["skill"] - own[2]) > 1e-3]
ok(not wrong and fixed[0] >= 5 and cascade[0] >= 5, "what is said of the predictions follows from them, and from no fit", (wrong, report))
ok(fixed[2] > 0.5 and cascade[2] > 0.5, "the simulator is much closer to them than K = 0 would be", (fixed, cascade))
broken = [r["name"] for r in report["rows"] if "holds" in r and
          r["holds"] != (r["simulated"] <= r["published"] if r["kind"] == "at most" else r["simulated"] >= r["published"])]
held = sum(r.get("holds", False) for r in report["rows"])
ok(not broken and held == report["bounds"]["held"] and "FAILS" in run("policy", "--published", "--sessions", "100").stdout,
   "a bound that does not hold is said to fail", (broken, report["bounds"]))
none, full = (published("--in-place-of-cascade", policy)[1] for policy in ("static:0", "static:7"))
ok(abs(none[1][2]) < 1e-3 and none[1][1] == 0 and full[1][2] < cascade[2] - 0.3 and none[0] == full[0] == fixed,
   "another policy in cascade's place is told from it: none at all has no skill", (none, full))
result = run("policy", "--in-place-of-cascade", "static:0")
ok(result.returncode == 64 and "--in-place-of-cascade needs --published" in result.stderr, "without --published there is no such place", result.stderr)
figures, result = cells("--sessions", "200", "--policy", "static:0,static:1,cascade,yield,sglang,vllm,llama.cpp")
rows = figures["cells"][0]["rows"] if figures["cells"] else []
ok(len(rows) == 7 and figures["cells"][0]["sessions"] == 200 and
   all(0 < r["regret_mean"] <= r["regret_worst"] < 1 and r["to_k0_worst"] <= r["to_k0_mean"] for r in rows),
   "200 random sessions: mean, worst and regret against hindsight of every policy", rows)
result = run("policy", "--sessions", "4", "--tokens", "64", "--policy", "static:1,sglang")
ok("of hindsight   regret, %" in result.stdout, "as text too", result.stdout)
result = run("policy", "--sessions", "4", "--tokens", "64", "--policy", "static:1,sglang", "--batch", "2")
ok("of its bound   regret <=, %" in result.stdout, "where a bound is named as one", result.stdout)

def replay_kept_traces():
    """What was recorded of a real run, under every policy and budget, beside Belady's bound, which nobody goes below."""
    traces = [f"tests/data/traces/mixed-{name}.trace" for name in ("none-0", "model-3")]
    budgets = (17, 25, 33, 50, 75, 100)
    with tempfile.TemporaryDirectory() as folder:
        picture = f"{folder}/hits.svg"
        plot = ("--plot", picture) if shutil.which("gnuplot") else ()
        result = run("cache", "replay", *traces, "--budget", ",".join(f"{b}%" for b in budgets), "--format", "json", *plot)
        rows = json.loads(result.stdout)["rows"] if result.returncode == 0 else []
        drawn = open(picture).read() if plot and os.path.exists(picture) else ""
    seen = {(r["trace"], r["budget_percent"], r["policy"]): {n: r["decode"][n] + r["prefill"][n] for n in r["decode"]} for r in rows}
    named = run("cache", "replay", traces[0], "--policy", "none-such").stderr
    policies = [p for p in ("static", "lru", "lfu-trace", "gate-next", "sp-moe", "spac", "outrider") if p in named]
    ok(len(policies) == 7 and set(seen) == {(t, b, p) for t in traces for b in budgets for p in (*policies, "belady")},
       "real routing is replayed under every policy and budget", f"{named} {len(seen)} {result.stderr}")
    below = [key for key, d in seen.items() if d["bytes"] < seen[*key[:2], "belady"]["bytes"]]
    ok(not below, "no policy reads less than Belady's", below)
    odd = [key for key, d in seen.items() if d["hits"] + d["late"] + d["misses"] != d["uses"] or d["uses"] != seen[key[0], 100, "lru"]["uses"]]
    ok(not odd, "every use is a hit, late or a miss, and all policies see the same uses", odd)
    rising = [[seen[t, b, "belady"]["hits"] for b in budgets] for t in traces]
    ok(all(r == sorted(r) and r[0] < r[-1] for r in rising), "Belady's hits rise with the budget", rising)
    if plot:
        ok("<svg" in drawn and all(f"<title>{p}</title>" in drawn for p in (*policies, "belady")), "and a picture shows hits over it",
           drawn[:300])
    else:
        tap.skip("and a picture shows hits over it", "no gnuplot")


replay_kept_traces()
with tempfile.TemporaryDirectory() as folder:
    result = run("cache", "record", "--model", DEMO, "--draft", "models/outrider-demo-draft-aligned-q8_0.gguf", "--drafter", "model", "--k", "1",
                 "--workload", "bench/workloads/mixed.jsonl", "--limit", "1", "--max-tokens", "4", "--out", f"{folder}/short.trace", "--threads", few + 1)
    ok(result.returncode == 0 and result.stderr.count("\n") == 1 and f"threads = {few + 1}, but" in result.stderr,
       "cache record says once that it has fewer CPUs than threads", result.stderr)
    for drafter, k, source in (("none", 0, "history"), ("ngram", 3, "history"), ("model", 3, "draft")):
        trace = f"{folder}/{drafter}.trace"
        result = run("cache", "record", "--model", DEMO, "--draft", "models/outrider-demo-draft-aligned-q8_0.gguf", "--drafter",
                     drafter, "--k", str(k), "--workload", "bench/workloads/mixed.jsonl", "--limit", "4", "--max-tokens", "48",
                     "--out", trace)
        ok(result.returncode == 0, f"routing is recorded, drafter {drafter}", result.stderr)
        result = run("cache", "replay", trace, "--policy", "outrider", "--budget", "33%", "--format", "json")
        replayed = json.loads(result.stdout) if result.returncode == 0 else {"hints": [], "rows": []}
        hints = {h["source"]: h for h in replayed["hints"]}
        ok({source, "gate", "history", "any"} == set(hints), f"with the hints that the service makes, drafter {drafter}",
           (result.stderr, sorted(hints)))
        h = hints.get(source, {"found": 0, "used": 1, "hinted": 1, "passes": 1})
        ok(h["found"] / h["used"] > 1.5 * h["hinted"] / h["passes"] / 32 and h["found"] / h["hinted"] > 1.5 * h["used"] / h["passes"] / 32,
           f"which are better than chance, drafter {drafter}", h)
        bare = run("cache", "replay", trace, "--policy", "outrider", "--budget", "33%", "--hints", "none", "--format", "json")
        stalls = [json.loads(r)["rows"][0]["decode"]["stall_ns"] for r in (result.stdout, bare.stdout)]
        ok(stalls[0] < stalls[1], f"and spare waiting, drafter {drafter}", stalls)


def record_stopped_often():
    """The times of a trace are of one thread's computing: no more than the process had, however often it was stopped."""
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/stopped.trace"
        process = subprocess.Popen([PROGRAM, "cache", "record", "--model", DEMO, "--workload", "bench/workloads/mixed.jsonl", "--limit",
                                    "4", "--max-tokens", "48", "--out", trace], stdout=subprocess.DEVNULL)
        begun = time.monotonic()
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            # A fifth of the time is left to it, and all of it in the end.
            if time.monotonic() - begun < 60:
                # Not send_signal, which takes an exit status that wait4 is to have.
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(0.08)
                os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        result = run("cache", "replay", trace, "--policy", "lru", "--budget", "100%", "--format", "json")
        rows = json.loads(result.stdout)["rows"] if result.returncode == 0 else []
    computed_s = sum(r["decode"]["time_ns"] - r["decode"]["stall_ns"] for r in rows[:1]) / 1e9
    had_s = ended[2].ru_utime + ended[2].ru_stime
    ok(0 < computed_s <= had_s, "a layer takes in a trace what its thread computed, not what the machine did meanwhile",
       (process.returncode, computed_s, had_s, result.stderr))


record_stopped_often()

# What a budget does to layers: all experts change nothing, and the oracle is nowhere far behind the router's scores.
result = run("budget", "--model", DEMO, "--workload", "bench/workloads/math.jsonl", "--limit", "1", "--max-tokens", "18", "--nodes", "15", "--budgets", "4,8,16,32", "--json")
said = json.loads(result.stdout) if result.returncode == 0 else {"budgets": []}
at = {b["experts"]: b for b in said["budgets"]}
ok(list(at) == [4, 8, 16, 32] and said["accepted"] == 9 and said["trees"] == 2 and 4 < said["used"] < 32 and
   all("static" not in b["share"] for b in at.values()), "budget grows trees with the model itself, which accepts all it can", result.stderr or said)
if at:
    ways = [(r, c) for r in ("router", "oracle") for c in ("substitution", "truncation")]
    ok(all(at[32]["error"][r][c] == 0 for r, c in ways) and all(abs(at[32]["share"][r] - 1) < 1e-12 for r in at[32]["share"]) and
       all(at[4]["error"][r][c] > at[8]["error"][r][c] > at[16]["error"][r][c] >= 0 for r, c in ways) and
       at[4]["error"]["oracle"]["truncation"] < at[4]["error"]["router"]["truncation"] and
       all(at[b]["share"]["router"] >= at[b]["share"]["oracle"] > at[b]["experts"] / 64 for b in at),
       "errors fall with the experts, to none with all; the oracle's are smaller, and the router's experts hold the most weight", at)

for arguments, status, words in (
        (("device", "--machine", "abacus"), 64, "4090-x4"), (("device", "--model", "gpt-2"), 64, "olmoe-1b-7b"),
        (("device", "--routing", "recorded"), 64, "needs a trace"), (("device", "--routing", "round"), 64, "uniform"),
        (("device", "--shares", "0"), 64, "--shares"), (("device", "--policy", "none-such"), 64, "gate-next"),
        (("device", "--link-bandwidth", "0"), 64, "--link-bandwidth"), (("device", "--draft-mb", "-1"), 64, "--draft-mb"),
        (("device", "/none.trace"), 66, "/none.trace"), (("device", DEMO), 65, "trace"),
        (("device", "tests/data/traces/mixed-model-3.trace", "--routing", "recorded"), 64, "4 of 32 experts"),
        (("cache", "record", "--model", DEMO, "--workload", "none", "--out", "none", "--drafter", "magic"), 64, "ngram"),
        (("budget", "--model", DEMO), 64, "--workload"), (("budget", "--model", DEMO, "--workload", "none", "--budgets", "33"), 64, "32 experts"),
        (("budget", "--model", DEMO, "--workload", "none"), 66, "none"), (("budget", "--model", DEMO, "--workload", "none", "--budgets", "0"), 64, "--budgets"),
        (("policy", "--policy", "magic"), 64, "sglang, vllm and llama.cpp"), (("policy", "--lag", "0"), 64, "1..65"), (("policy", "--curve", "none"), 66, "none"),
        (("policy", "--process", "none"), 65, "random, a file that ends in .journal, or ngram-code"), (("policy", "--sessions", "0"), 64, "--sessions"),
        (("policy", "--noise", "2"), 64, "--noise"), (("policy", "--set", "k_max=99"), 64, "k_max"),
        (("kernels", "--types", "Q9_9"), 64, "of F32, F16, Q4_0"),
        (("workload", "none", "--plot", "x.gif"), 64, ".svg or .png"), (("workload", "none", "--plot", "'.svg"), 64, "without '"),
        (("workload", "none", "--json"), 66, "none"), (("kernels", "--tokens", "0"), 64, "--tokens"),
        (("kernels", "--tokens", "1,,2"), 64, '"1,,2"'), (("kernels", "--tokens", "1,"), 64, '"1,"'),
        (("kernels", "--layout", "round"), 64, "tiles or rows"), (("ipc", "--seconds", "0"), 64, "0.1 to 600"),
        (("ipc", "--spin", "-1"), 64, "--spin"), (("policy", "--format", "xml"), 64, "json or text"),
        (("kernels", "--kernels", "mmx"), 64, '--kernels: there are no kernels called "mmx", allowed are auto, scalar, avx2, avx512'),
        (("kernels", "--kernels", ""), 64, "--kernels"), (("kernels", "--kernels", "reference"), 64, "--activations f32"),
        (("attention", "--kernels", "mmx"), 64, "--kernels"), (("model", "--model", DEMO, "--kernels", "mmx"), 64, "--kernels"),
        (("model", "--model", DEMO, "--kv", "q9"), 64, "--kv"), (("machine", "--format", "xml"), 64, "json or text"), (("model",), 64, "--model"), (("pool", "--pin", "maybe"), 64, "--pin"), (("pool", "--threads", "0"), 64, "--threads"),
        (("attention", "--shapes", "round"), 64, "gqa"), (("attention", "--depths", "0"), 64, "--depths"),
        (("model", "--model", "/none.gguf"), 66, "/none.gguf"), (("model", "--model", DEMO, "--batch", "x"), 64, "--batch"),
        (("model", "--model", DEMO, "--depth", "2000"), 65, "context"),
        (("model", "--model", DEMO, "--depth", "64,32"), 64, "ascend"),
        (("model", "--model", DEMO, "--batch", "-1"), 64, "--batch")):
    result = run(*arguments)
    ok(result.returncode == status and words in result.stderr, f"{' '.join(arguments)} is refused",
       f"{result.returncode}: {result.stderr}")

# Trees in a running service: exact ones are the model's answers, and a budget says what it changed.
with outrider_test.Service(draft=outrider_test.DRAFTS["aligned"], options=("--budget", "30%")) as up:
    asked = ("spec", "bench/workloads/math.jsonl", "--runtime-dir", up.runtime, "--limit", "2", "--max-tokens", "24", "--rounds", "1")
    result = run(*asked, "--method", "model,replay:0.7", "--depth", "4", "--nodes", "3,24", "--budget-experts", "off,4/router/truncation", "--json")
    rows = json.loads(result.stdout)["rows"] if result.returncode == 0 else []
    by = {(r["method"], r["nodes"], r["budget"]): r for r in rows}
    ok(set(by) == {("none", 0, "off"), *((m, n, b) for m in ("model", "replay:0.7") for n in (3, 24) for b in ("off", "4/router/truncation"))} and
       all(r["changed_share"] == 0 and r["tokens_per_s"] > 0 for r in rows if r["budget"] == "off") and by["none", 0, "off"]["audit_changed"] == 0,
       "spec measures every tree, and those without a budget change nothing", result.stderr)
    if by:
        exact, limited = by["replay:0.7", 24, "off"], by["replay:0.7", 24, "4/router/truncation"]
        ok(exact["unique_experts_per_iteration"] > 1.5 * by["none", 0, "off"]["unique_experts_per_iteration"] and
           limited["unique_experts_per_iteration"] < exact["unique_experts_per_iteration"] and exact["tokens_per_iteration"] > 1.2 and
           limited["audited"] == limited["tokens"] and limited["audit_changed"] > 0 and limited["perplexity"] > by["none", 0, "off"]["perplexity"] > 1 and
           by["none", 0, "off"]["asked"] == by["none", 0, "off"]["same"] == exact["same"] == 2, "trees use more experts, a budget fewer; its answers are less likely to the model", (exact, limited))
    result = run(*asked, "--method", "replay:0.7", "--depth", "4", "--nodes", "24", "--budget-experts", "off", "--budget-experts", "0-2:4,3-:8/router", "--json")
    by = {r["budget"]: r for r in json.loads(result.stdout)["rows"] if r["nodes"]} if result.returncode == 0 else {}
    ok(set(by) == {"off", "0-2:4,3-:8/router"} and by["off"]["changed_share"] == 0 and by["0-2:4,3-:8/router"]["audit_changed"] > 0 and
       by["0-2:4,3-:8/router"]["unique_experts_per_iteration"] < by["off"]["unique_experts_per_iteration"], "a budget by layer is one, whatever commas it has", (result.stderr, by))
    for wrong in ("0", "0-3:0", "33"):
        result = run(*asked, "--nodes", "2", "--depth", "2", "--budget-experts", wrong)
        ok(result.returncode != 0 and "1..32" in result.stderr, f"spec --budget-experts {wrong} is refused by the service", result.stderr)
    result = run(*asked, "--nodes", "2", "--depth", "2")
    ok(result.returncode == 0 and re.search(r"^ngram +2 +2 off ", result.stdout, re.M) and "right: answers" in result.stdout, "and prints a table", result)
for more, words in ((("--method", "magic"), "replay:A"), (("--method", "replay:0"), "replay:A"), (("--nodes", "512"), "1 to 511"), (("--depth", "64"), "1 to 63"),
                    (("--budget-experts", "few"), "off and B"), (("--budget-experts", "0-3:16,few"), "a list of LAYERS:NUMBER"),
                    (("--budget-experts", "off", "--budget-experts", "5-3:16"), "the first is behind the last"), (("--width", "256"), "1 to 255")):
    result = run("spec", "bench/workloads/math.jsonl", *more)
    ok(result.returncode == 64 and words in result.stderr, f"spec {' '.join(more)} is refused", result.stderr)

# Before anything was built.
with tempfile.TemporaryDirectory(prefix="outrider-bench-") as empty:
    for words, status, said in ((("--help",), 0, "cache-policies"), (("ipc", "--help"), 0, "cache-policies"),
                                (("matrix", "--help"), 0, "--budgets"), (("price", "--help"), 0, "--model-rounds"),
                                (("speculation", "--help"), 0, "--k-max"), (("drafters", "--help"), 0, "--skip-layers"), (("speculation", "--k", "16"), 2, "numbers of 1 to 15"),
                                (("speculation", "--k-max", "7,7"), 2, "numbers of 1 to 15"), (("ipc",), 69, "run make first"), (("matrix",), 69, "run make first"),
                                (("price",), 69, "run make first"), (("icp",), 2, "unknown benchmark icp")):
        result = bench(*words, B=empty)
        ok(result.returncode == status and said in result.stdout + result.stderr and "Traceback" not in result.stderr,
           f"bench/run.py {' '.join(words)} without programs ends with {status}", result.stdout + result.stderr)

with tempfile.TemporaryDirectory(prefix="outrider-bench-") as results:
    result = bench("speculation", "--rounds", "1", "--tokens", "12", "--prompts", "1", "--limit", "1", "--k", "1,15", "--k-max", "7,15",
                   OUTRIDER_BENCH_RESULTS=results)
    text = (Path(results) / "speculation.txt").read_text() if result.returncode == 0 else ""
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    ok(all(len(rows.get(name, [])) == 7 and all(float(r) >= 0 for r in rows[name])
           for name in ("0.60", "0.80", "0.95", "code", "math", "extract", "prose")),
       "speculation measures every K to the longest draft beside yield, on what the service answers alike", result.stderr + text)

import matrix  # noqa: E402

with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as figures:
    about = {"cpu": "this", "revision": "now"}
    line = {**about, "threads": 1, "requests": 4, "max_tokens": 192}
    for more in ({}, {"cpu": "that"}, {"revision": "then"}, {"threads": 2}, {}):
        figures.write(json.dumps({**line, **more}) + "\n")
    figures.flush()
    matrix.forget_others(Path(figures.name), about, matrix.parse([]))
    ok(matrix.read(Path(figures.name)) == [line, line], "the matrix adds up rounds of one revision, machine and kind",
       matrix.read(Path(figures.name)))
tap.done()
