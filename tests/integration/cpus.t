#!/usr/bin/env python3
"""Other CPUs, emulated by qemu: one with AVX2 alone and one without it choose the kernels that they can run, say so when
those are slow, and give the same bits as this one."""
import json
import shutil
import subprocess
from pathlib import Path

from outrider_test import SANITIZED, Tap, program

QEMU = shutil.which("qemu-x86_64")
MODELS = sorted(Path("tests/data/golden/quants").glob("*.gguf")) + [Path("models/outrider-demo-moe-q8_0.gguf")]
# More than one pass of prompt, and a last one of odd length.
PROMPT = ",".join(str(3 + i * 7 % 50) for i in range(45))
CPUS = {"Haswell": "avx2", "Haswell,-f16c": "scalar", "Nehalem": "scalar"}


def generate(model, *before, more=()):
    """What outrider-model says of a few tokens, and its standard error without what qemu says of the CPU."""
    out = subprocess.run([*before, program("outrider-model"), "generate", "--model", model, "--tokens", PROMPT, "--max-tokens", "4",
                          "--prefill-chunk", "20", "--logits-hash", "--ignore-eos", *more], capture_output=True, text=True,
                         timeout=1500)
    said = "".join(line for line in out.stderr.splitlines(True) if "TCG doesn't support" not in line)
    return json.loads(out.stdout) if out.returncode == 0 else {}, said


def answer(result):
    return result.get("tokens"), result.get("logits_hash")


tap = Tap()
if SANITIZED or not QEMU:
    print("1..0 # SKIP " + ("sanitizers do not run under qemu" if SANITIZED else "no qemu-x86_64"))
    raise SystemExit
expected = {model: generate(model)[0] for model in MODELS}
for cpu, kernels in CPUS.items():
    emulated = [QEMU, "-cpu", cpu]
    different, chosen, said = [], set(), ""
    for model in MODELS:
        got, said = generate(model, *emulated)
        chosen.add(got.get("timing", {}).get("kernels"))
        if not got or answer(got) != answer(expected[model]):
            different.append((model.name, said))
    tap.ok(not different, f"{cpu}: the same tokens and logits of {len(MODELS)} models", different)
    tap.ok(chosen == {kernels}, f"{cpu}: by the {kernels} kernels", chosen)
    slow = "this CPU has no AVX2 (with FMA and F16C): the scalar kernels are used" in said
    tap.ok(slow == (kernels == "scalar"), f"{cpu}: {'with a notice' if kernels == 'scalar' else 'nothing to say'}", said)
_, said = generate(MODELS[0], QEMU, "-cpu", "Nehalem", more=["--kernels", "avx2"])
tap.ok("this CPU cannot run the avx2 kernels" in said, "kernels that the CPU cannot run are refused", said)
_, said = generate(MODELS[0], QEMU, "-cpu", "Nehalem", more=["--quiet"])
tap.ok(said == "", "--quiet says nothing", said)


def first_words(*command):
    """What it says on standard error before it measures, which takes an emulated CPU long."""
    process = subprocess.Popen([QEMU, "-cpu", "Nehalem", program("outrider-bench"), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
    lines = (line for line in process.stderr if "TCG doesn't support" not in line)
    line = next(lines, "")
    process.kill()
    process.communicate()
    return line


for command in (("kernels",), ("attention",), ("model", "--model", MODELS[-1])):
    line = first_words(*command)
    tap.ok("outrider-bench: this CPU has no AVX2" in line, f"outrider-bench {command[0]} says that its kernels are slow", line)
tap.done()
