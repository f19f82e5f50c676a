#!/usr/bin/env python3
"""training/mtp: it computes what the golden data say, trains dense models and MoE, from GGUF files and Hugging Face folders, and a run
that was stopped goes on as if nothing had happened. OUTRIDER_TORCH is a Python that has PyTorch; without one the test is skipped."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import ROOT, Tap

TORCH = os.environ.get("OUTRIDER_TORCH", sys.executable)
HEADS, CHECK, TRAIN = ROOT / "tests/data/golden/heads", Path(__file__).parent / "training_check.py", ROOT / "training/mtp/train.py"
tap = Tap()
if subprocess.run([TORCH, "-c", "import torch, gguf, safetensors"], capture_output=True).returncode:
    tap.skip("training", f"{TORCH} has no torch, gguf and safetensors")
    tap.done()
    sys.exit()


def python(*words):
    return subprocess.run([TORCH, *map(str, words)], capture_output=True, text=True, timeout=1500, env={**os.environ, "OMP_NUM_THREADS": "1"})


def check(*words):
    done = python(CHECK, *words)
    return json.loads(done.stdout) if not done.returncode else {"failed": done.stderr[-2000:]}


kept = tempfile.TemporaryDirectory(prefix="outrider-training-")
folder = Path(kept.name)
adapter = HEADS / "mtp-qwen3moe.f32.gguf"
if adapter.exists():
    found = check("golden", HEADS / "target-qwen3moe.f32.gguf", adapter, HEADS / "mtp-qwen3moe.json")
    tap.ok(found.get("worst", 1) < 2e-4 and found["same"] == found["drafts"] > 0, "masks and sampler give the golden states and drafts", found)
else:
    tap.skip("golden data of an adapter", f"{adapter.name} is not there")

QUICK = ("--rank", 2, "--windows", 2, "--length", 24, "--anchors", 8, "--threads", 1, "--device", "cpu")
for name, matrices in (("target-llama", ("attention", "dense")), ("target-qwen3moe", ("attention", "experts"))):
    model, hf = HEADS / f"{name}.f32.gguf", folder / name
    found = check("folder", model, hf)
    tap.ok(found.get("worst", 1) < 1e-4, f"{name}: as a Hugging Face folder it gives the same states", found)
    check("tokens", 400, folder / "data")
    options = ("--model", hf, "--data", folder / "data", *QUICK, "--matrices", *matrices)
    whole = python(TRAIN, *options, "--steps", 20, "--out", folder / f"{name}-whole.gguf")
    rows = [json.loads(line) for line in (folder / f"{name}-whole.log").read_text().splitlines()] if not whole.returncode else []
    tap.ok(rows and rows[-1]["step"] == 20 and rows[-1]["loss"] > 0, f"{name}: it trains", whole.stderr[-2000:])

# Killed in the middle, as soon as it has saved its state once.
out, state = folder / "parts.gguf", folder / "parts.state"
words = [str(w) for w in (TORCH, TRAIN, *options, "--steps", 20, "--save-every", 0, "--out", out)]
process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
while not state.exists() and process.poll() is None:
    time.sleep(0.01)
process.send_signal(signal.SIGKILL)
process.wait()
resumed = python(TRAIN, *options, "--steps", 20, "--resume", "--out", out)
found = check("same", state, folder / f"{name}-whole.state") if not resumed.returncode else resumed.stderr[-2000:]
tap.ok(found == {"steps": [20, 20], "same": True} and out.read_bytes() == (folder / f"{name}-whole.gguf").read_bytes(),
       "a run that was killed goes on as if nothing had happened, and writes the same adapter", found)
refused = python(TRAIN, *options, "--steps", 20, "--resume", "--k", 2, "--out", out)
tap.ok(refused.returncode == 1 and "made with another value of --k" in refused.stderr, "a state of other options is refused", refused.stderr)
check("tokens", 60000, folder / "data")
refused = python(TRAIN, *options, "--steps", 1, "--out", out)
tap.ok(refused.returncode == 1 and "the model has" in refused.stderr, "data of another vocabulary is refused", refused.stderr)
refused = python(TRAIN, *options[2:], "--model", HEADS / "nextn-deepseek2.f32.gguf", "--steps", 1, "--out", out)
tap.ok(refused.returncode == 1 and "architecture deepseek2" in refused.stderr, "an architecture that is not known is refused", refused.stderr)
if (folder / "target-llama-whole.log").exists() and not subprocess.run(["which", "gnuplot"], capture_output=True).returncode:
    drawn = python(ROOT / "training/mtp/plot.py", folder / "target-llama-whole.log", folder / "log.svg")
    tap.ok(not drawn.returncode and "plain head" in (folder / "log.svg").read_text(), "the log is drawn", drawn.stderr)
tap.done()
