#!/usr/bin/env python3
"""Compares the speed of two builds on this machine: bench/compare.py OLD NEW, each a folder with the programs of one revision.

Every figure is a ratio, new to old, of two measurements made one after the other; which build goes first changes from pair to
pair. Printed are the median of the ratios and its 95 % interval (of the median, from the order statistics: no distribution is
assumed). A ratio above 1 means that the new build is better, whatever the unit is.

Both builds are measured on the same tokens. Two builds whose arithmetic differs give answers that part somewhere; so requests of
bench/workloads are answered by both first, and those are taken whose answers agree the longest, up to the token at which they part.
Every measured answer is compared with the one found then.

Measures: `model` (prefill, decoding and verification of 2 to 16 tokens of a file with the shape of a published model, made anew
with random weights), `served` (decoding of the demo model at K = 0 and K = 7, drafts from n-grams), `price` (the same at K = 0 with the experts in the
verifier's own memory), `capped` (with room for 17 % of the experts), `ipc` (a hop and a look-up through shared memory), `memory`
(of all processes, the most while many sessions run; needs `make tests` in both)."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import facts
import matrix

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "models" / "outrider-demo-moe-q8_0.gguf"
PROMPT = "In the beginning"
WORKLOADS = ("code", "extract", "math", "prose")
REQUESTS_PER_WORKLOAD = 8
TOKENS_LEAST = 32
MEASURES = ("model", "served", "price", "capped", "ipc", "memory")


class Pairs:
    """Measurements of both builds, by name, in pairs."""

    def __init__(self):
        self.old, self.new, self.more_is_better = {}, {}, {}
        self.texts = None  # which answers were compared, in words

    def add(self, name, old, new, more_is_better=True):
        self.old.setdefault(name, []).append(old)
        self.new.setdefault(name, []).append(new)
        self.more_is_better[name] = more_is_better

    def lines(self):
        for name, old in self.old.items():
            new = self.new[name]
            ratios = [(n / o if self.more_is_better[name] else o / n) for o, n in zip(old, new)]
            low, high = matrix.interval(ratios)
            yield (f"{name:44} {statistics.median(old):12.4g} {statistics.median(new):12.4g}"
                   f"   {statistics.median(ratios):6.3f}   {low:6.3f} to {high:6.3f}   {len(ratios):3}")


def in_turn(builds, pair, measure):
    """measure(build) of both, in an order that changes from pair to pair: (old, new)."""
    results = {i: measure(builds[i]) for i in ((0, 1) if pair % 2 == 0 else (1, 0))}
    return results[0], results[1]


def output(*command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"bench: {' '.join(map(str, command))}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def measure_model(options, pairs):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / f"{options.shape}-{options.layers}.gguf"
        output(options.new / "outrider-model", "synth", options.shape, file, "--layers", options.layers, "--quiet")

        def once(build):
            return json.loads(output(build / "outrider-bench", "model", "--model", file, "--batch", "2,4,8,16", "--rounds", 1, "--tokens",
                                     48, "--passes", 9, "--prefill", 512, "--threads", options.threads, "--format", "json"))
        for pair in range(options.pairs_model):
            old, new = in_turn((options.old, options.new), pair, once)
            pairs.add(f"prefill of 512, {options.shape}, tokens/s", old["prefill"]["tokens_per_s"], new["prefill"]["tokens_per_s"])
            pairs.add("decoding, tokens/s", old["decode"]["tokens_per_s"], new["decode"]["tokens_per_s"])
            for a, b in zip(old["batch"], new["batch"]):
                pairs.add(f"verification of {a['n']}, ms", a["ms"], b["ms"], more_is_better=False)


class Service:
    """`outrider up` of one build with the demo model."""

    def __init__(self, build, folder, *options):
        self.build, self.runtime = build, Path(folder) / f"run-{build.parent.name}-{time.monotonic_ns()}"
        output(build / "outrider", "up", "--model", DEMO, "--runtime-dir", self.runtime, "--detach", *options)
        status = json.loads(output(build / "outrider", "status", "--runtime-dir", self.runtime, "--format", "json"))
        self.pids = [process["pid"] for process in status["processes"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        output(self.build / "outrider", "down", "--runtime-dir", self.runtime)

    def answer(self, k, request, tokens):
        """request: a line of bench/workloads, with "prompt" or "messages"."""
        if "messages" in request:
            with open(self.runtime / "messages.json", "w", encoding="utf-8") as file:
                json.dump(request["messages"], file)
            question = ("--messages", file.name)
        else:
            question = (request["prompt"],)
        said = output(self.build / "outrider", "run", "--runtime-dir", self.runtime, "--max-tokens", tokens, "--ignore-eos", "--k", k,
                      "--draft-method", "ngram", "--format", "json", *question)
        return json.loads(said)

    def rate(self, k, texts):
        """(tokens/s, share of the drafted tokens that were accepted) over all texts, each of them (request, its answer's tokens)."""
        steps, seconds, drafted, accepted = 0, 0.0, 0, 0
        for request, tokens in texts:
            said = self.answer(k, request, len(tokens))
            if said["tokens"] != tokens:
                sys.exit(f"bench: {self.build}, K = {k}: the answer to {request['id']} is not the one that it gave before")
            steps, seconds = steps + len(tokens) - 1, seconds + said["usage"]["decode_ns"] / 1e9
            drafted, accepted = drafted + said["usage"]["drafted"], accepted + said["usage"]["accepted"]
        return steps / seconds, accepted / drafted if drafted else 0.0

    def bytes(self):
        """Proportional set size of the four processes: what two of them share counts once."""
        return sum(int(line.split()[1]) * 1024 for pid in self.pids
                   for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))


def same_texts(options, old, new):
    """The requests at which both services give the same answer the longest, with that answer up to where they part."""
    requests = [json.loads(line) for name in WORKLOADS
                for line in (ROOT / f"bench/workloads/{name}.jsonl").read_text().splitlines()[:REQUESTS_PER_WORKLOAD]]
    texts = []
    for request in requests:
        a, b = (service.answer(0, request, options.tokens)["tokens"] for service in (old, new))
        same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        texts.append((request, a[:same]))
    texts.sort(key=lambda text: -len(text[1]))
    texts = texts[:options.texts]
    if len(texts[-1][1]) < TOKENS_LEAST:
        sys.exit(f"bench: the answers of both builds agree for only {len(texts[-1][1])} tokens; --texts N takes fewer of them")
    return texts


def measure_served(options, pairs, name, ks, *up):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, \
            Service(options.old, folder, "--threads", options.threads, *up) as old, \
            Service(options.new, folder, "--threads", options.threads, *up) as new:
        texts = same_texts(options, old, new)
        pairs.texts = f"answers of {', '.join(str(len(tokens)) for _, tokens in texts)} tokens"
        for pair in range(options.pairs):
            for k in ks:
                a, b = in_turn((old, new), pair, lambda service: service.rate(k, texts))
                pairs.add(f"{name}, K = {k}, tokens/s", a[0], b[0])
                if k > 0:
                    pairs.add(f"{name}, K = {k}, share accepted", a[1], b[1])


def measure_ipc(options, pairs):
    for pair in range(options.pairs_ipc):
        old, new = in_turn((options.old, options.new), pair,
                           lambda build: json.loads(output(build / "outrider-bench", "ipc", "--seconds", 2, "--format", "json")))
        for a, b in zip(old["results"], new["results"]):
            if a["name"] != "zeromq_round_trip":
                pairs.add(f"{a['name'].replace('_', ' ')}, us", a["p50_us"], b["p50_us"], more_is_better=False)


def memory_of(build, folder, n):
    """MiB while n sessions run, at the most."""
    requests = "".join(json.dumps({"prompt": f"{PROMPT} {i}", "max_tokens": 1500, "ignore_eos": True, "k": 0}) + "\n" for i in range(n))
    with Service(build, folder, "--set", f"verifier.sessions_max={n}", "--set", "verifier.queue_max=0") as service:
        swarm = subprocess.Popen([build / "tests" / "swarm", service.runtime, str(n)], stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True)
        swarm.stdin.write(requests)
        swarm.stdin.close()
        most = service.bytes()
        while swarm.poll() is None:
            most = max(most, service.bytes())
            time.sleep(0.2)
        if swarm.returncode:
            sys.exit(f"bench: {build}: {n} sessions: swarm ended with {swarm.returncode}")
        return most / 2**20


def measure_memory(options, pairs):
    for n in options.sessions:
        for pair in range(options.pairs_memory):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                old, new = in_turn((options.old, options.new), pair, lambda build: memory_of(build, folder, n))
            pairs.add(f"memory of {n} sessions, MiB", old, new, more_is_better=False)


def parse():
    parser = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="the folder of the old programs")
    add("new", type=Path, metavar="NEW", help="the folder of the new programs")
    add("--measure", default=",".join(MEASURES), metavar="NAME,...", help="what to measure; default %(default)s")
    add("--pairs", type=int, default=25, help="pairs of answers; default %(default)s")
    add("--pairs-model", type=int, default=9, help="pairs of runs of the shaped model; default %(default)s")
    add("--pairs-ipc", type=int, default=9, help="pairs of measurements of ipc; default %(default)s")
    add("--pairs-memory", type=int, default=1, help="pairs of measurements of memory; default %(default)s")
    add("--sessions", type=lambda text: [int(n) for n in text.split(",")], default=[64], metavar="N,...", help="sessions at a time; default 64")
    add("--shape", default="qwen3-30b-a3b", help="shape of the shaped model; default %(default)s")
    add("--layers", type=int, default=4, help="its layers; default %(default)s")
    add("--tokens", type=int, default=800, help="the most tokens of an answer; default %(default)s")
    add("--texts", type=int, default=4, metavar="N", help="answers in one measurement; default %(default)s")
    add("--threads", type=int, default=os.cpu_count(), help="threads of the verifier; default %(default)s")
    add("--folder", default="/var/tmp", help="folder for temporary files; default %(default)s")
    options = parser.parse_args()
    options.measure = options.measure.split(",")
    if unknown := sorted(set(options.measure) - set(MEASURES)):
        parser.error(f"unknown measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    options.old, options.new = options.old.resolve(), options.new.resolve()
    return options


def main():
    options, pairs = parse(), Pairs()
    machine = facts.machine(build=options.new)
    for name in options.measure:
        if name == "model":
            measure_model(options, pairs)
        elif name == "served":
            measure_served(options, pairs, "served, all experts fit", (0, 7))
        elif name == "price":
            measure_served(options, pairs, "served, the verifier's memory", (0,), "--set", "verifier.experts=mapped", "--set",
                           "verifier.weights=packed")
        elif name == "capped":
            measure_served(options, pairs, "served, room for 17 %", (0, 7), "--budget", "17%")
        elif name == "ipc":
            measure_ipc(options, pairs)
        elif name == "memory":
            measure_memory(options, pairs)
    print("; ".join(filter(None, (str(machine), time.strftime("%Y-%m-%d %H:%M"), f"{options.threads} threads", pairs.texts))))
    print(f"{'':44} {'old':>12} {'new':>12}   {'new is better by a factor of, 95 % interval, pairs'}")
    for line in pairs.lines():
        print(line)


if __name__ == "__main__":
    main()
