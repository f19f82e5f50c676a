#!/usr/bin/env python3
"""Hints reach the expert-cache from every source, are better than chance, and change no byte of an answer: with them on, off
or rubbish, and while the processes that make and take them are killed."""
import mmap
import os
import random
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, PATIENCE, SANITIZED, Service, Tap, difference, prompts, reference, until

# What hints from history are worth grows with what was seen: with these they find 2 times what chance would, with 4 answers of 16
# tokens 1.4 times.
TOKENS = 40
N = 6 if SANITIZED else 12
EXPERTS, USED = 32, 4
BUDGET = ("--budget", "30%", "--threads", 2)

tap = Tap()
ids = prompts(N, longest=120)
expected = [reference(p, TOKENS, seed=i) for i, p in enumerate(ids)]


def requests(k, method):
    return [{"tokens": p, "max_tokens": TOKENS, "seed": i, "k": k, "draft_method": method, "logits_hash": True}
            for i, p in enumerate(ids)]


def wrong(results):
    return "\n".join(filter(None, (difference(r, e) for r, e in zip(results, expected))))


def stats(service):
    return service.ctl_json("cache", "stats", "--layers")


def by_source(hints):
    return {h["source"]: h for h in hints}


def recall(quality):
    return quality["found"] / quality["used"]


def precision(quality):
    return quality["found"] / quality["hinted"]


def check(name, draft, method, k, source, *more):
    with Service(draft=draft and DRAFTS[draft], options=BUDGET, sets=("verifier.gate_hints=on",)) as service:
        what = wrong(service.swarm(requests(k, method)))
        tap.ok(not what, f"{name}: the reference's bytes", what)
        seen = stats(service)
    quality = by_source(seen["hint_quality"])
    tap.ok(seen["hints"] > 0, f"{name}: hints reach the cache", seen)
    for wanted in (source, "gate", *more, "any"):
        q = quality.get(wanted)
        if not tap.ok(q is not None and q["found"] > 0, f"{name}: hints of source {wanted} are judged", quality):
            continue
        # What as many hints at random would find, and how many of them.
        found, right = q["hinted"] / q["passes"] / EXPERTS, q["used"] / q["passes"] / EXPERTS
        tap.ok(recall(q) > 1.5 * found and precision(q) > 1.5 * right, f"{name}: those of {wanted} are better than chance",
               f"recall {recall(q):.3f}, at random {found:.3f}; precision {precision(q):.3f}, {right:.3f}")
        tap.ok(q["found"] <= min(q["used"], q["hinted"]) and q["lead_ns"] > 0, f"{name}: the counts of {wanted} make sense", q)
        tap.note(f"{name}: {wanted}: recall {recall(q):.3f}, precision {precision(q):.3f}, "
                 f"{q['lead_ns'] / q['found'] / 1e6:.3f} ms ahead, late {q['late']} of {q['hinted'] + q['late']}")
    layers = {layer["layer"]: by_source(layer["hint_quality"]) for layer in seen["layers"]}
    tap.ok("gate" not in layers[0], f"{name}: no layer foresees the first")
    tap.ok("gate-far" not in layers[0] and "gate-far" not in layers[1], f"{name}: nor the second from afar")
    tap.ok(all(source in layers[i] for i in layers if i > 0), f"{name}: every other layer is hinted for by {source}", layers)
    total = sum(layer.get(source, {"found": 0})["found"] for layer in layers.values())
    tap.ok(total == quality.get(source, {"found": -1})["found"], f"{name}: the layers sum up to the whole")


check("aligned draft, K = 3", "aligned", "model", 3, "draft")
check("small draft, K = 3", "small", "model", 3, "history")
check("n-grams, K = 3", None, "ngram", 3, "history")
check("no drafts, K = 0", None, "none", 0, "history", "gate-far")

# A draft model on a device: what its layers read comes back to the CPU, whose routers make the hints.
with Service(draft=DRAFTS["aligned"], options=BUDGET, sets=("verifier.draft_wait=10s", "verifier.gate_hints=off", "drafter.device=simt")) as service:
    def drafter():
        return service.details("drafter")

    until(lambda: drafter().get("device") == "simt")
    what = wrong(service.swarm(requests(3, "model")[:1]))
    said, quality = drafter(), by_source(stats(service)["hint_quality"])
    tap.ok(not what and said["device"] == "simt" and int(said["draft_hints"]) > 0, "drafted on a device: the reference's bytes", f"{what} {said}")
    q = quality.get("draft")
    tap.ok(q is not None and recall(q) > 1.5 * q["hinted"] / q["passes"] / EXPERTS, "its hints are better than chance", quality)

# Nobody hints, or nobody has to.
with Service(draft=DRAFTS["aligned"], options=BUDGET, sets=("verifier.gate_hints=off", "drafter.hints=off")) as service:
    what = wrong(service.swarm(requests(3, "model")))
    seen = stats(service)
    tap.ok(not what, "hints off: the reference's bytes", what)
    tap.ok(seen["hints"] == 0 and not seen["hint_quality"], "hints off: none", seen)
with Service(options=BUDGET, sets=("verifier.gate_hints=near",)) as service:
    what = wrong(service.swarm(requests(0, "none")))
    seen = stats(service)
    quality = by_source(seen["hint_quality"])
    tap.ok(not what, "the next layer's hints alone: the reference's bytes", what)
    tap.ok("gate" in quality and "gate-far" not in quality, "the next layer's hints alone: none from afar", quality)
with Service(draft=DRAFTS["aligned"], options=("--threads", 2), sets=("verifier.gate_hints=on",)) as service:
    what = wrong(service.swarm(requests(3, "model")))
    seen = stats(service)
    tap.ok(not what, "a budget for all: the reference's bytes", what)
    tap.ok(seen["hints"] == 0, "a budget for all: nobody hints", seen)


def region_of(service, name):
    """A mapping of a region that the verifier has."""
    pid = service.processes()["verifier"]
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if f"memfd:{name}" in os.readlink(path) or f"memfd:outrider-{name}" in os.readlink(path):
                with open(path, "r+b") as file:
                    return mmap.mmap(file.fileno(), 0)
        except OSError:
            continue
    return None


RING_MAGIC_BYTES = 64  # a ring begins with a line of magic and sizes; then head, tail and bell, a line each, and the slots


def rings_of(memory, slot_bytes, n_slots):
    """Where rings of this shape begin."""
    shape = struct.pack("<II", slot_bytes, n_slots)
    at, found = memory.find(shape), []
    while 0 <= at < 1 << 22:
        found.append(at - 4)
        at = memory.find(shape, at + 1)
    return found


def rubbish(memory, ring, slot_bytes, n_slots, rng):
    slots = ring + 4 * RING_MAGIC_BYTES
    for _ in range(64):
        at = slots + rng.randrange(n_slots) * slot_bytes
        memory[at:at + slot_bytes] = rng.randbytes(slot_bytes)
    head, tail = ring + 64, ring + 128
    if rng.random() < 0.2:
        memory[head:head + 8] = rng.randbytes(8)
    elif rng.random() < 0.2:
        memory[tail:tail + 8] = rng.randbytes(8)
    else:
        # What was written over is there to be read.
        n = struct.unpack("<Q", memory[tail:tail + 8])[0]
        memory[head:head + 8] = struct.pack("<Q", (n + rng.randrange(n_slots)) % (1 << 64))


rng = random.Random(7)
with Service(draft=DRAFTS["aligned"], options=BUDGET, sets=("verifier.gate_hints=on",)) as service:
    service.swarm(requests(3, "model")[:1])
    before = service.processes()
    experts, hints, draft = (region_of(service, name) for name in ("experts", "hints", "draft"))
    targets = [(experts, r, 64, 4096) for r in rings_of(experts, 64, 4096)[1:]] if experts else []
    targets += [(hints, r, 64, 4096) for r in rings_of(hints, 64, 4096)] if hints else []
    targets += [(draft, r, 256, 4096) for r in rings_of(draft, 256, 4096)] if draft else []
    tap.ok(len(targets) == 3, "the rings of hints, gate hints and routings are found", f"{len(targets)}")
    process, results = service.swarm_start(requests(3, "model") * 3, concurrent=3)
    writes = 0
    while process.poll() is None and targets:
        rubbish(*rng.choice(targets), rng)
        writes += 1
        time.sleep(0.002)
    what = "\n".join(filter(None, (difference(r, e) for r, e in zip(results(), expected * 3))))
    tap.ok(not what, f"rubbish in the rings ({writes} times): the reference's bytes", what)
    tap.ok(until(lambda: all(p["state"].startswith("ready") for p in service.status())) and service.processes() == before,
           "rubbish in the rings: everybody lives", f"{before} {service.processes()} {service.status()}")

# Whoever makes or takes hints may die at any time.
with Service(draft=DRAFTS["aligned"], options=BUDGET, sets=("verifier.gate_hints=on",)) as service:
    stop, kills = threading.Event(), {"drafter": 0, "expert-cache": 0}

    def killer():
        while not stop.wait(rng.uniform(0.05, 0.4) * PATIENCE):
            name = rng.choice(list(kills))
            kills[name] += service.kill(name)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        what = ""
        end = time.monotonic() + 8 * PATIENCE
        while not what and (time.monotonic() < end or not all(kills.values())):
            for k, method in ((3, "model"), (2, "ngram"), (0, "none")):
                what = what or wrong(service.swarm(requests(k, method), concurrent=3))
    finally:
        stop.set()
        thread.join()
    tap.ok(not what, f"killed ({kills}): the reference's bytes", what)
    service.wait_ready()
    # Both have begun from nothing: hints come again.
    tap.ok(until(lambda: service.swarm(requests(3, "model")) and stats(service)["hints"] > 0), "after the kills: hints come again",
           stats(service))
tap.done()
