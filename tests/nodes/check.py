#!/usr/bin/env python3
"""Outrider on a machine with two memory nodes, which qemu emulates: threads on the CPUs of both, what all of them read on
both nodes in turn, and the same bits. Minutes; `make check-nodes` runs it."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))
from outrider_test import ROOT, Tap, program, run_json

MODEL = ROOT / "models" / "outrider-demo-moe-q8_0.gguf"
PROGRAMS = ("outrider", "outriderctl", "outrider-model", "outrider-verifier", "outrider-drafter", "outrider-expert-cache",
            "outrider-policy")
KERNEL = "linux-image-cloud-amd64"
SECONDS_MAX = 1800


def kernel(folder):
    """This machine's, or Debian's for virtual machines."""
    here = sorted(glob.glob("/boot/vmlinuz-*"))
    if here:
        return here[-1]
    depends = subprocess.run(["apt-cache", "depends", KERNEL], check=True, capture_output=True, text=True).stdout
    package = re.search(r"Depends: (linux-image-\S+)", depends)[1]
    subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
    subprocess.run(["dpkg", "-x", glob.glob(f"{folder}/{package}*.deb")[0], folder], check=True)
    return glob.glob(f"{folder}/boot/vmlinuz-*")[0]


def libraries(path):
    """Of a program, with its loader; of a static one none."""
    return re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", path], capture_output=True, text=True).stdout)


def initial_root(folder):
    """An archive with the programs, what they are linked with, the model and `init`."""
    root = Path(folder) / "root"
    files = {"bin/busybox": shutil.which("busybox"), "init": Path(__file__).with_name("init"), "model.gguf": MODEL}
    for name in PROGRAMS:
        files[f"bin/{name}"] = program(name)
        files.update({library.lstrip("/"): library for library in libraries(program(name))})
    for name, source in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for name in ("proc", "sys", "dev", "tmp"):
        (root / name).mkdir()
    archive = Path(folder) / "root.cpio"
    listing = "\n".join(str(path.relative_to(root)) for path in [root, *sorted(root.rglob("*"))])
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=listing.encode(), stdout=out, check=True)
    return archive


def boot(folder):
    """{name of fact: [its lines]} that `init` says."""
    memory = [f"memory-backend-ram,id=m{n},size=1G" for n in (0, 1)]
    nodes = [f"node,nodeid={n},cpus={2 * n}-{2 * n + 1},memdev=m{n}" for n in (0, 1)]
    out = subprocess.run(
        ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Haswell", "-smp", "4,sockets=2,cores=2", "-m", "2G",
         "-object", memory[0], "-object", memory[1], "-numa", nodes[0], "-numa", nodes[1], "-kernel", kernel(folder),
         "-initrd", initial_root(folder), "-append", "console=ttyS0 rdinit=/init quiet panic=-1", "-nographic", "-no-reboot"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX)
    facts = {}
    for name, text in re.findall(r"fact (\w+) ?(.*)", out.stdout.replace("\r", "")):
        facts.setdefault(name, []).append(text)
    return facts or {"console": [out.stdout[-2000:] + out.stderr[-2000:]]}


tap = Tap()
here = run_json(program("outrider-model"), "generate", "--model", MODEL, "--max-tokens", "8", "--prompt", "Once", "--logits-hash")
with tempfile.TemporaryDirectory() as work:
    said = boot(work)
tap.ok(said.get("nodes") == ["0-1"] and "end" in said, "a machine with two nodes runs the four processes", said)
there = json.loads(said.get("generated", ["{}"])[0])
tap.ok(there.get("logits_hash") == here["logits_hash"], "the same tokens and logits as here", there)
tap.ok(set("0123") <= set(said.get("cpus", [])), "threads are bound to the CPUs of both, one each", said.get("cpus"))
pages = {name: (int(first), int(second)) for name, first, second in map(str.split, said.get("pages", []))}
for name in ("weights", "experts", "kv"):
    first, second = pages.get(name, (0, 0))
    # Slots that were given back leave gaps.
    tap.ok(first + second > 16 and abs(first - second) <= (first + second) / 16, f"{name}: pages on both nodes in turn", pages)
answers = [said.get(name) for name in ("served", "with_less", "after_a_death")]
tap.ok(answers[0] and answers[0][0].strip("| ") and answers.count(answers[0]) == 3,
       "the same answer with all experts, with some, and after the death of the verifier", answers)
tap.done()
