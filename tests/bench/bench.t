#!/usr/bin/env python3
"""outrider-bench: what needs no service runs, says what it measured, and refuses what it cannot."""
import json
import os
import subprocess

PROGRAM = os.path.join(os.environ.get("B", "build"), "outrider-bench")
DEMO = "models/outrider-demo-moe-q8_0.gguf"
count = 0


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300)


def ok(good, name, detail=""):
    global count
    count += 1
    print(f"{'ok' if good else 'not ok'} {count} - {name}", flush=True)
    if not good:
        print("# " + detail.replace("\n", "\n# "), flush=True)


result = run("kernels", "--types", "Q8_0,F32", "--tokens", "1,3", "--rounds", "1", "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {"rows": [], "peaks": {}}
ok([(r["type"], r["tokens"]) for r in figures["rows"]] == [("Q8_0", 1), ("Q8_0", 3), ("F32", 1), ("F32", 3)],
   "kernels measures every type with every count", result.stderr)
ok(all(r["gb_s"] > 0 and r["floor_share"] > 0 for r in figures["rows"]) and figures["peaks"].get("read_gb_s", 0) > 0,
   "each beside the peaks of the machine", result.stdout)

result = run("attention", "--shapes", "gqa,mla-16", "--types", "q8_0", "--depths", "300", "--tokens", "1,3", "--rounds", "1",
             "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {"rows": []}
ok([(r["shape"], r["depth"], r["tokens"]) for r in figures["rows"]]
   == [("gqa", 300, 1), ("gqa", 300, 3), ("mla-16", 300, 1), ("mla-16", 300, 3)]
   and all(r["gb_s"] > 0 and r["cells_per_s"] > 0 and r["floor_share"] > 0 for r in figures["rows"]),
   "attention measures every shape with every count", result.stderr + result.stdout)

result = run("model", "--model", DEMO, "--batch", "1,4,16", "--depth", "32", "--prefill", "32", "--rounds", "1",
             "--format", "json")
figures = json.loads(result.stdout) if result.returncode == 0 else {}
ok([r["n"] for r in figures.get("batch", [])] == [1, 4, 16], "model measures every batch", result.stderr)
experts = [r["distinct_experts"] for r in figures.get("batch", [])]
ok(experts[:1] == [24] and experts == sorted(experts), "one token reads 4 experts in each of 6 layers, more read more",
   str(experts))
ok(figures.get("decode", {}).get("tokens_per_s", 0) > 0 and "bandwidth_share" in figures.get("decode", {}),
   "decode has its share of the bandwidth", result.stdout)

for arguments, status, words in (
        (("kernels", "--types", "Q9_9"), 64, "Q9_9"), (("kernels", "--tokens", "0"), 64, "--tokens"),
        (("kernels", "--kernels", "mmx"), 65, "mmx"), (("model",), 64, "--model"),
        (("attention", "--shapes", "round"), 64, "gqa"), (("attention", "--depths", "0"), 64, "--depths"),
        (("model", "--model", "/none.gguf"), 66, "/none.gguf"), (("model", "--model", DEMO, "--batch", "x"), 64, "--batch"),
        (("model", "--model", DEMO, "--depth", "2000"), 65, "context")):
    result = run(*arguments)
    ok(result.returncode == status and words in result.stderr, f"{' '.join(arguments)} is refused",
       f"{result.returncode}: {result.stderr}")
print(f"1..{count}")
