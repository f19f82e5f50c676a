#!/usr/bin/env python3
"""outrider-model pack: the packed copy gives the same bytes everywhere, is refused by who does not know it, and is checked
like any file."""
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import ARRAY, STRING, U32, Gguf
from outrider_test import (DRAFTS, SAMPLED, TARGET, TARGET_Q4, Service, Tap, difference, program, prompts, reference, run,
                           run_json)

DATAERR, CANTCREAT, USAGE = 65, 73, 64
KEY, TENSOR = "outrider.pack.", "blk.0.ffn_exps.packed"
tap = Tap()
if not TARGET.exists() or not TARGET_Q4.exists():
    tap.skip("packed models", "the demo models are not there")
    tap.done()
home = Path(tempfile.mkdtemp(prefix="outrider-pack-", dir="/var/tmp"))
tool = program("outrider-model")
packed = home / "packed.gguf"


def pack(model, out, *options):
    return run(tool, "pack", model, out, *options)


def fingerprint(model):
    return run_json(tool, "info", "--model", model, "--format", "json")["model"]["fingerprint"]


def refused(name, change, *words):
    """A packed file with something changed is refused with these words, by check and by the loader."""
    copy = Gguf(packed)
    change(copy)
    bad = home / "bad.gguf"
    copy.write(bad)
    checked = run(tool, "check", bad)
    loaded = run(tool, "logits", "--model", bad, "--tokens", "1,2")
    tap.ok(checked.returncode == loaded.returncode == DATAERR and
           all(w in checked.stdout and w in loaded.stderr for w in words), f"refused: {name}",
           f"{checked.returncode} {checked.stdout}\n{loaded.returncode} {loaded.stderr}")


def key(name, kind, value):
    return lambda g: g.keys.update({KEY + name: (kind, value)})


def without(name):
    return lambda g: g.keys.pop(KEY + name)


def tensor(ne=None, kind=None, data=None):
    def change(g):
        old = g.tensors[TENSOR]
        g.tensors[TENSOR] = ne or old[0], kind if kind is not None else old[1], data(old[2]) if data else old[2]
    return change


def offset_by_32(g):
    """As its tensors' data would lie with the usual alignment."""
    g.keys["general.alignment"] = U32, 32
    g.keys["general.description"] = STRING, g.keys["general.description"][1] + b"-" * 32


def with_nan(data):
    """Rows are lanes of a tile: its first plane is the scales of the first block of sixteen rows. The third is row 2."""
    return data[:4] + b"\x00\x7e" + data[6:]


def serve(name, model, sets=(), options=(), draft=None):
    with Service(model=model, draft=draft, sets=sets, options=options) as service:
        found = [difference(r, e) for r, e in zip(service.swarm(requests, 3), expected)]
        tap.ok(not any(found), name, found)


try:
    for original in (TARGET, TARGET_Q4):
        done = pack(original, packed, "--force")
        same = [reference((1, 2, 3, 4), 60, model=m, extra=("--ignore-eos", "--kernels", k, *more))
                for m in (original, packed) for k in ("scalar", "auto") for more in ((), ("--pack",))]
        tap.ok(done.returncode == 0 and all(s["logits_hash"] == same[0]["logits_hash"] and s["tokens"] == same[0]["tokens"]
                                            for s in same), f"{original.name}: the same bytes packed", done.stderr)
        tap.ok(fingerprint(original) == fingerprint(packed), "and it counts as the same model")
        tap.ok(run(tool, "check", packed).returncode == 0, "which is sound", run(tool, "check", packed).stdout)
        model = run_json(tool, "info", "--model", packed, "--format", "json")["model"]
        tap.ok(re.fullmatch(rf"outrider-model: wrote {packed}: {packed.stat().st_size / (1 << 20):.1f} MiB, "
                            rf"{model['experts']} experts in each of {model['layers']} layers\n", done.stderr) and not done.stdout,
               "and it is said what was written", done.stdout + done.stderr)
        done = pack(original, packed, "--force", "--quiet")
        tap.ok(done.returncode == 0 and not done.stdout + done.stderr, "but with --quiet", done.stdout + done.stderr)

    pack(TARGET, packed, "--force")
    pages = Gguf(packed).tensors[TENSOR][0]
    info = run_json(tool, "info", "--model", packed, "--format", "json")["model"]
    tap.ok(info["packed"] and info["architecture"] == "qwen3moe" and
           "each is one read" in run(tool, "info", packed).stdout, "info says what it is", info)
    tap.ok(pages[0] % 4096 == 0 and pages[1] == 32, "an expert is whole pages", pages)

    ids = prompts(3, longest=80)
    expected = [reference(p, 50, sampling=SAMPLED, seed=7, extra=("--ignore-eos",)) for p in ids]
    requests = [{"tokens": p, "max_tokens": 50, "ignore_eos": True, "logits_hash": True, "k": 3, "seed": 7, **SAMPLED}
                for p in ids]
    serve("served from the packed file, all in slots", packed)
    serve("served with a budget of 30% and a draft model", packed, options=("--budget", "30%"), draft=DRAFTS["small"])
    serve("served with the smallest budget, through the page cache", packed, options=("--budget", "min"),
          sets=("expert-cache.io=pread", "expert-cache.direct=no", "expert-cache.pack=no"))
    serve("served from its mapping", packed, sets=("verifier.experts=mapped", "verifier.weights=packed"))
    serve("the cache reads the packed file, the verifier the original", TARGET, sets=(f"expert-cache.model={packed}",))

    # A session that began over one file goes on over the other.
    served = home / "served.gguf"
    shutil.copy(TARGET, served)
    want = reference(ids[0], 600, sampling=SAMPLED, seed=7, extra=("--ignore-eos",))

    def goes_on(service, other):
        """Whether the session was still there when the file had changed; a fast machine has given the answer by then."""
        process, results = service.swarm_start([{**requests[0], "max_tokens": 600, "logits_hash": False, "progress": True,
                                                 "window": 8}])
        process.stderr.readline()
        before = service.end("verifier", signal.SIGSTOP)
        shutil.copy(other, home / "other.gguf")
        os.replace(home / "other.gguf", served)
        os.kill(before, signal.SIGKILL)
        service.renewed("verifier", before)
        got.update(results()[0])
        return got["usage"]["restarts"] > 0 or got["tokens"] != want["tokens"]

    got = {}
    with Service(model=served, sets=("verifier.ahead_max=0",)) as service:
        went_on = any(goes_on(service, other) for other in (packed, TARGET) * 5)
        tap.ok(went_on and got["tokens"] == want["tokens"], "a session that began over the original goes on over the packed copy", got)

    tap.ok("outrider-packed" in Gguf(packed).keys["general.architecture"][1].decode() and
           not any("_exps.weight" in n for n in Gguf(packed).tensors), "nothing in it looks like a model others know")

    refused("another version", key("version", U32, 2), KEY + "version", "pack the original again")
    refused("no version", without("version"), KEY + "version", "missing")
    refused("no fingerprint", without("fingerprint"), KEY + "fingerprint", "missing")
    refused("no architecture", without("architecture"), KEY + "architecture", "missing")
    refused("an unknown architecture", key("architecture", STRING, "x"), KEY + "architecture", "not supported")
    refused("too few types", key("types", ARRAY, (U32, [8] * 17)), KEY + "types", "17")
    refused("a type nobody knows", key("types", ARRAY, (U32, [4000000000] * 18)), TENSOR, "unknown")
    refused("types of other sizes", key("types", ARRAY, (U32, [0] * 18)), TENSOR, "shape")
    refused("fewer experts", tensor(ne=[pages[0], 31]), TENSOR, "shape")
    refused("experts of another length", tensor(ne=[pages[0] // 2, 64]), TENSOR, "shape")
    refused("experts of another type", tensor(kind=25, ne=[pages[0] // 2, 32]), TENSOR, "I8 is wanted")
    refused("experts that begin within a page", offset_by_32, TENSOR, "aligned")
    refused("no experts", lambda g: g.tensors.pop(TENSOR), TENSOR, "missing")
    refused("the original's tensors too", lambda g: g.tensors.update(
        {"blk.0.ffn_up_exps.weight": ([256, 96, 32], 8, bytes(256 * 96 * 32 // 32 * 34))}), "blk.0.ffn_up_exps.weight")
    refused("a weight that is not a number", tensor(data=with_nan), TENSOR, "row 2 of expert 0's gate matrix is nan")

    cut = home / "cut.gguf"
    cut.write_bytes(packed.read_bytes()[:-5000])
    tap.ok(run(tool, "info", cut).returncode == DATAERR, "refused: one that is cut short")

    for name, status, words, arguments in (
            ("a packed model", DATAERR, "packed model already", (packed, home / "x")),
            ("a dense model", DATAERR, "no experts", (DRAFTS["small"], home / "x")),
            ("a file that is there", CANTCREAT, "--force", (TARGET, packed)),
            ("the model itself", CANTCREAT, "the model itself", (packed.parent / "served.gguf", served, "--force")),
            ("a folder that is not there", CANTCREAT, "No such file", (TARGET, home / "no" / "x")),
            ("one file only", USAGE, "IN and OUT", (TARGET,))):
        if name == "the model itself":
            shutil.copy(TARGET, served)
        result = run(tool, "pack", *arguments)
        tap.ok(result.returncode == status and words in result.stderr and result.stderr.count("\n") == 1,
               f"not packed: {name}", f"{result.returncode} {result.stderr}")
    tap.ok(not list(home.glob("*.part")) and not (home / "x").exists(), "nothing half-written stays")
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
