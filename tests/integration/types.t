#!/usr/bin/env python3
"""Files in the types of few bits, whose weights are found in grids, and in NVFP4: checked, packed and served, with their experts
in slots in either layout, they give the bytes that outrider-model gives, on every instruction set."""
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import Service, Tap, difference, program, reference, run, run_json

DATAERR, USAGE = 65, 64
QUANTS = Path("tests/data/golden/quants")
FILES = [QUANTS / f"qwen3moe-256.{kind}.gguf" for kind in ("IQ2", "IQ1_IQ3", "NVFP4")]
DENSE = [QUANTS / f"llama-dense-256.{kind}.gguf" for kind in ("IQ", "TQ")]
TYPES = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4"}
tap = Tap()
tool = program("outrider-model")
home = Path(tempfile.mkdtemp(prefix="outrider-types-", dir="/var/tmp"))
IDS = [[7 + i * 31 % 300 for i in range(n)] for n in (1, 20, 41)]


def served(name, model, expected, sets=(), options=()):
    requests = [{"tokens": ids, "max_tokens": 24, "ignore_eos": True, "logits_hash": True, "k": 3, "draft_method": "ngram"} for ids in IDS]
    with Service(model=model, sets=sets, options=options) as service:
        found = [difference(r, e) for r, e in zip(service.swarm(requests, 3), expected)]
    tap.ok(not any(found), f"{model.name}: {name}", found)


seen = set()
for model in FILES + DENSE:
    checked = run(tool, "check", model)
    tap.ok(checked.returncode == 0 and "0 problems" in checked.stdout, f"{model.name}: is sound", checked.stdout)
    seen |= run_json(tool, "info", model, "--format", "json")["summary"]["types"].keys()
    answers = {}
    for kernels in ("scalar", "avx2", "avx512"):
        for more in ((), ("--pack",)):
            result = run(tool, "generate", "--model", model, "--tokens", ",".join(map(str, IDS[1])), "--max-tokens", 24, "--ignore-eos",
                         "--logits-hash", "--kernels", kernels, *more)
            if result.returncode != USAGE:  # else not on this CPU
                said = json.loads(result.stdout)
                answers[kernels, more] = said["tokens"], said["logits_hash"]
    tap.ok(len({json.dumps(a) for a in answers.values()}) == 1 and len(answers) > 1, f"{model.name}: the same bits by {list(answers)}", answers)
tap.ok(TYPES <= seen, "every type is in one of the files", seen)

try:
    for model in FILES:
        expected = [reference(ids, 24, model=model, extra=("--ignore-eos",)) for ids in IDS]
        packed = home / "packed.gguf"
        done = run(tool, "pack", model, packed, "--force")
        checked = run(tool, "check", packed)
        tap.ok(done.returncode == checked.returncode == 0, f"{model.name}: packs into a sound file", done.stderr + checked.stdout)
        served("with fewer slots than experts, packed", model, expected,
               ("expert-cache.pack=yes", "verifier.weights=packed"), ("--budget", "40%"))
        served("with experts as they lie in the file", model, expected, ("expert-cache.pack=no", "verifier.weights=mapped"))
        served("from the packed copy", packed, expected)

    # What a scale must not be is said with its place, whether it lies in one piece, in four, or is of 16 weights.
    for model, kind, at, bad in ((FILES[0], "IQ2_XXS", 0, b"\x00\x7e"), (FILES[1], "IQ1_S", 0, b"\x00\x7c"), (FILES[2], "NVFP4", 3, b"\x7f"),
                                 (FILES[1], "IQ1_M", 48, None), (DENSE[1], "TQ1_0", 52, b"\x01\xfc"), (DENSE[1], "TQ2_0", 64, b"\x00\xfc")):
        spoiled = Gguf(model)
        number = {"IQ2_XXS": 16, "IQ1_S": 19, "IQ1_M": 29, "NVFP4": 40, "TQ1_0": 34, "TQ2_0": 35}[kind]
        name = next(n for n, t in spoiled.tensors.items() if t[1] == number)
        ne, _, data = spoiled.tensors[name]
        data = bytearray(data)
        if bad:
            data[at:at + len(bad)] = bad
        else:
            words = struct.unpack_from("<4H", data, at)
            struct.pack_into("<4H", data, at, *(w & 0xFFF | (0x7C00 >> 4 * i & 15) << 12 for i, w in enumerate(words)))
        spoiled.tensors[name] = ne, number, bytes(data)
        path = home / "spoiled.gguf"
        spoiled.write(path)
        checked, loaded = run(tool, "check", path), run(tool, "logits", "--model", path, "--tokens", "1,2")
        wanted = f"tensor {name}: the scale at column 0 of row 0 is"
        tap.ok(checked.returncode == loaded.returncode == DATAERR and wanted in checked.stdout and wanted in loaded.stderr,
               f"{kind}: a scale that is no number is refused", f"{checked.stdout} {loaded.stderr}")

    # NAME.scale multiplies the products of NAME.weight: one number, of experts one for each.
    for name, shape, values, wanted in (("blk.0.attn_q.scale", [2], (1, 1), "has shape {2, 1, 1, 1}"),
                                        ("blk.1.ffn_up_exps.scale", [4], (1, 1, float("nan"), 1), "element 2 is nan"),
                                        ("blk.0.ffn_gate_inp.scale", [1], (1,), "leaving it out would change the output"),
                                        ("blk.0.attn_qkv.scale", [1], (1,), "leaving it out would change the output")):
        spoiled = Gguf(FILES[2])
        spoiled.tensors[name] = shape, 0, struct.pack(f"<{len(values)}f", *values)
        spoiled.write(path)
        checked, loaded = run(tool, "check", path), run(tool, "logits", "--model", path, "--tokens", "1,2")
        tap.ok(checked.returncode == loaded.returncode == DATAERR and all(f"tensor {name}" in t and wanted in t
                                                                          for t in (checked.stdout, loaded.stderr)),
               f"{name}: {wanted}", f"{checked.stdout} {loaded.stderr}")
    halved = Gguf(FILES[2])
    scale = halved.tensors["blk.1.ffn_down_exps.scale"][2]
    halved.tensors["blk.1.ffn_down_exps.scale"] = [4], 0, struct.pack("<4f", *(x / 2 for x in struct.unpack_from("<4f", scale)))
    halved.write(path)
    before, after = (run_json(tool, "logits", "--model", m, "--tokens", "1,2,3") for m in (FILES[2], path))
    tap.ok(before["logits"] != after["logits"], "scales of experts count")
    summary = run_json(tool, "info", path, "--format", "json")["summary"]
    tap.ok(summary["expert_bytes"] == 2 * 4 * 3 * 256 * 256 // 64 * 36, "and are not of the bytes of experts", summary)

    # A type that nothing here computes with is named, and those that are.
    path = home / "other.gguf"
    other = Gguf(FILES[0])
    name = "blk.0.attn_q.weight"
    ne, _, data = other.tensors[name]
    other.tensors[name] = ne, 41, bytes(ne[0] * ne[1] // 128 * 18)
    other.write(path)
    loaded = run(tool, "logits", "--model", path, "--tokens", "1,2")
    tap.ok(loaded.returncode == DATAERR and f"{name} is of type Q1_0" in loaded.stderr and all(t in loaded.stderr for t in TYPES),
           "another type is refused by name", loaded.stderr)
finally:
    for file in home.iterdir():
        file.unlink()
    home.rmdir()
tap.done()
