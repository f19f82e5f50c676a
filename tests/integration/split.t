#!/usr/bin/env python3
"""A model in parts is the model: the same bytes from the engine and from the whole service, with experts read from
every part; and what is wrong with a part is said with its name."""
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import I32, STRING, U16, Gguf
from outrider_test import DRAFTS, TARGET_Q4, SAMPLED, Service, Tap, difference, program, prompts, reference, run, run_json

tap = Tap()
directory = Path(tempfile.mkdtemp(prefix="outrider-split-", dir="/var/tmp"))
model = Gguf(TARGET_Q4)
parts = model.split(directory / "demo", 3)
empty_first = model.split(directory / "lazy", 4, first_is_empty=True)
draft = Gguf(DRAFTS["small"]).split(directory / "draft", 2)
ids = prompts(3, model=TARGET_Q4, longest=48)
TOKENS = 24


def expert_parts(paths):
    return sum(any("_exps" in name for name in Gguf(p).tensors) for p in paths)


tap.ok(expert_parts(parts) == 3 and expert_parts(empty_first) == 3, "the test's files have experts in every part")
expected = {i: reference(p, TOKENS, SAMPLED, seed=7 + i, model=TARGET_Q4) for i, p in enumerate(ids)}
for name, paths in (("three parts", parts), ("four, the first without tensors", empty_first)):
    wrong = [difference(reference(p, TOKENS, SAMPLED, seed=7 + i, model=paths[0]), expected[i]) for i, p in enumerate(ids)]
    tap.ok(not any(wrong), f"outrider-model with {name}: the bytes of the single file", "\n".join(wrong))

whole = run_json(program("outrider-model"), "info", "--model", TARGET_Q4, "--format", "json")
info = run_json(program("outrider-model"), "info", "--model", parts[0], "--format", "json")
tap.ok([(t["name"], t["shape"], t["type"]) for t in info["tensors"]] ==
       [(t["name"], t["shape"], t["type"]) for t in whole["tensors"]], "info lists the tensors of all parts")
tap.ok(info["model"]["fingerprint"] != whole["model"]["fingerprint"], "in parts, offsets differ, and so the fingerprint")

# As in a cache of downloads: links with the parts' names to files with others.
links = directory / "links"
links.mkdir()
for i, part in enumerate(parts):
    (links / part.name).symlink_to(part.rename(directory / f"blob{i}"))
parts = [links / p.name for p in parts]

for io in ("auto", "pread"):
    with Service(model=parts[0], draft=draft[0], options=("--budget", "30%"),
                 sets=(f"expert-cache.io={io}",)) as service:
        requests = [{"tokens": p, "max_tokens": TOKENS, "seed": 7 + i, "k": 4, "draft_method": "model", "logits_hash": True,
                     **SAMPLED} for i, p in enumerate(ids)]
        results = service.swarm(requests, concurrent=3)
        wrong = [difference(r, expected[i]) for i, r in enumerate(results)]
        tap.ok(not any(wrong), f"the service on three parts, experts read with {io}: the bytes of the single file",
               "\n".join(wrong))
        # The verifier's successor finds the same model again.
        service.end("expert-cache")
        results = service.swarm(requests, concurrent=3)
        wrong = [difference(r, expected[i]) for i, r in enumerate(results)]
        tap.ok(not any(wrong), f"and after the cache was killed, {io}", "\n".join(wrong))


def refused(path, *words):
    result = run(program("outrider-model"), "logits", "--model", path, "--tokens", "1")
    missing = [w for w in words if w not in result.stderr]
    tap.ok(result.returncode in (65, 66) and not missing, f"refused with {', '.join(words)}",
           f"status {result.returncode}: {result.stderr}")


def spoilt(name, change, part=1):
    """A copy of the parts in which one was changed."""
    there = directory / name
    there.mkdir()
    copies = [Path(shutil.copy(p, there)) for p in parts]
    spoil = Gguf(copies[part])
    change(spoil)
    spoil.write(copies[part])
    return copies


refused(parts[1], "part 2 of 3", parts[0].name)
copies = spoilt("missing", lambda g: None)
copies[2].unlink()
refused(copies[0], copies[2].name, "No such file")
copies = spoilt("renamed", lambda g: None)
refused(copies[0].rename(copies[0].with_name("model.gguf")), "model.gguf", "-00001-of-00003.gguf")
copies = spoilt("swapped", lambda g: None)
shutil.copy(copies[1], copies[2])
refused(copies[0], copies[2].name, "split.no", "part 2 of 3")
copies = spoilt("count", lambda g: g.keys.update({"split.count": (U16, 4)}))
refused(copies[0], copies[1].name, "split.count")
copies = spoilt("other", lambda g: g.keys.update({"split.tensors.count": (I32, 7)}))
refused(copies[0], copies[1].name, "split.tensors.count", "another model")
copies = spoilt("architecture", lambda g: g.keys.update({"general.architecture": (STRING, "llama")}))
refused(copies[0], copies[1].name, "general.architecture", "another model")
copies = spoilt("fewer", lambda g: g.tensors.popitem())
refused(copies[0], "split.tensors.count", "another model")
alone = directory / "alone-00001-of-00001.gguf"
for said, count in ((0, 1), (-1, 1), (-1, 0)):
    one = Gguf(TARGET_Q4)
    one.keys.update({"split.no": (U16, 0), "split.count": (U16, count), "split.tensors.count": (I32, len(one.tensors) + said)})
    one.write(alone)
    if said and count:
        refused(alone, "split.tensors.count is", "only part")
    else:
        tap.ok(run(program("outrider-model"), "logits", "--model", alone, "--tokens", "1").returncode == 0,
               f"a file that is its only part is read, split.count {count}")
alone.unlink()
copies = spoilt("no-number", lambda g: g.keys.pop("split.no"))
refused(copies[0], copies[1].name, "split.no")
twice = next(iter(Gguf(parts[0]).tensors))
copies = spoilt("twice", lambda g: g.tensors.update({twice: g.tensors.pop(next(iter(g.tensors)))}))
refused(copies[0], twice, "twice")
copies = spoilt("cut", lambda g: None)
with open(copies[2], "r+b") as f:
    f.truncate(copies[2].stat().st_size - 64)
refused(copies[0], copies[2].name, "do not fit")
copies[1].write_bytes(b"")
refused(copies[0], copies[1].name, "empty")
for service in ("outrider-verifier", "outrider-expert-cache"):
    result = run(program(service), "-n", "--model", parts[1])
    tap.ok(result.returncode == 65 and parts[0].name in result.stderr, f"{service} given part 2 names the first",
           f"status {result.returncode}: {result.stderr}")
shutil.rmtree(directory)
tap.done()
