#!/usr/bin/env python3
"""Measures Outrider beside llama.cpp where the model does not fit: one file, one memory cap (a control group), in turn, medians.

The cap leaves room for a share of the experts beside everything else. llama.cpp maps the file, and the kernel keeps in
memory what it can (its default, which repacks weights into a private copy, would be killed by the cap: repacking is off). Outrider runs its four processes under the same cap, with a budget of that share, K = 0. Both generate
random tokens, whose routing does not repeat: llama-bench feeds them, Outrider samples them at a temperature that makes
them so. Outrider's answers are traced (outriderctl trace), which says how long the link was at work and where a token left it
idle. The page cache is dropped before each measurement; the device's read-ahead is set to the usual 128 KiB and put back.

Writes bench/results/capped.txt and capped.json. Needs root (control groups, read-ahead, dropping the page cache), cmake and g++
(make packages-peers)."""
import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
from peers import PACKAGES, Failure, need_programs  # noqa: E402
from run import command_line, machine  # noqa: E402
import disk  # noqa: E402
import link_use  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODELS = "qwen3-30b-a3b:24:0,qwen3-30b-a3b:24:1"
# Beside the weights that every token needs: KV, buffers and code of either engine, and what the kernel accounts to a group.
ROOM = 500e6


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    add = parser.add_argument
    add("--models", default=MODELS, metavar="SHAPE:LAYERS:SKEW,...", help="models that outrider-model synth makes, in Q4_0; default %(default)s")
    add("--shares", default="17,33,50", metavar="PERCENT,...", help="percent of the expert bytes that fit; default %(default)s")
    add("--rounds", type=int, default=3, help="rounds; default %(default)s")
    add("--tokens", type=int, default=32, help="tokens measured in a round; default %(default)s")
    add("--warm", type=int, default=96, help="approximate number of tokens before them; default %(default)s")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads; default: the usable CPUs, %(default)s")
    add("--set", action="append", default=[], metavar="NAME.KEY=VALUE", help="a setting of Outrider's processes")
    add("--engines", default="llama.cpp", metavar="NAME,...", help="peers; default %(default)s; none: \"\"")
    add("--cache", type=Path, default=ROOT / "build" / "peers", metavar="DIR", help="folder for sources, builds and models; default %(default)s")
    add("--build", type=Path, default=Path(os.environ.get("B", ROOT / "build")), metavar="DIR", help="where Outrider's programs are; default $B or build")
    add("--jobs", type=int, default=os.cpu_count(), help="jobs of the peers' builds")
    add("--under", default="", metavar="COMMAND", help="a command to run every measurement under")
    add("--keep", action="store_true", help="keep the models that were made")
    add("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="folder of the results; default %(default)s")
    add("--name", default="capped", help="name of the result files; default %(default)s")
    return parser.parse_args()


class Group:
    """A memory control group with a cap, version 1 or 2."""

    def __init__(self, cap):
        v1 = Path("/sys/fs/cgroup/memory")
        self.v1 = v1.is_dir()
        self.path = (v1 if self.v1 else Path("/sys/fs/cgroup")) / f"outrider-capped-{os.getpid()}"
        try:
            self.path.mkdir()
            self.limit = self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")
            self.limit.write_text(str(int(cap)))
            if not self.v1:
                (self.path / "memory.swap.max").write_text("0")
        except OSError as problem:
            raise Failure(f"a memory control group cannot be created: {problem}") from problem

    def wrap(self, command):
        """The command, started inside."""
        words = shlex.join(str(c) for c in command)
        return ["sh", "-c", f"echo $$ > {shlex.quote(str(self.path / 'cgroup.procs'))} && exec {words}"]

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.v1 else "memory.peak"
        with contextlib.suppress(OSError):
            return int((self.path / name).read_text())
        return 0

    def close(self):
        for _ in range(50):
            with contextlib.suppress(OSError):
                for pid in (self.path / "cgroup.procs").read_text().split():
                    os.kill(int(pid), 9)
                self.path.rmdir()
                return
            time.sleep(0.1)


def call(command, timeout=1800):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def under(options):
    return shlex.split(options.under)


def llama(program, options, path, group):
    """llama-bench reads the warm-up's and the measured tokens alike: their bytes are shared out evenly."""
    before, repeats = disk.sectors(path), 1 + -(-options.warm // options.tokens)
    out = call([*under(options), *group.wrap([program, "-m", path, "-t", options.threads, "-p", 0, "-n", options.tokens, "-r", repeats,
                                              "-o", "json", "--load-mode", "mmap", "--repack", 0])])
    row = json.loads(out[out.index("["):])[-1]
    return {"tokens_per_s": float(row["samples_ts"][-1]), "mb_per_token": (disk.sectors(path) - before) / 1e6 / (repeats * options.tokens + 1)}


class Served:
    """The four processes under the cap."""

    def __init__(self, options, path, share, group):
        self.options, self.runtime = options, Path(tempfile.mkdtemp(prefix="outrider-capped-"))
        command = [options.build / "outrider", "up", "--detach", "--model", path, "--runtime-dir", self.runtime, "--threads",
                   options.threads, "--budget", f"{share}%", "--context", 1024, "--policy", "static:0"]
        for pair in options.set:
            command += ["--set", pair]
        call([*under(options), *group.wrap(command)])

    def stats(self):
        return json.loads(call([self.options.build / "outriderctl", "cache", "stats", "--format", "json", "--runtime-dir", self.runtime]))

    def generate(self, seed, tokens):
        out = call([*under(self.options), self.options.build / "outrider", "run", "--runtime-dir", self.runtime, "--format", "json",
                    "--tokens", "1,2,3", "--max-tokens", tokens + 1, "--ignore-eos", "--temperature", 20, "--seed", seed])
        return json.loads(out.splitlines()[-1])

    @contextlib.contextmanager
    def traced(self):
        """The path of a trace of what is done inside, to be read afterwards."""
        path = self.runtime / "trace.json"
        tracer = subprocess.Popen([str(self.options.build / "outriderctl"), "trace", "1m", str(path), "--runtime-dir", str(self.runtime)],
                                  stdout=subprocess.DEVNULL)
        time.sleep(0.3)
        try:
            yield path
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(60)

    def close(self):
        subprocess.run([str(self.options.build / "outrider"), "down", "--runtime-dir", str(self.runtime)], capture_output=True, timeout=120)
        shutil.rmtree(self.runtime, ignore_errors=True)


def outrider(options, path, share, group, seed):
    served, gives = Served(options, path, share, group), []
    try:
        served.generate(1000 + seed, options.warm)
        gives.append(disk.gb_per_s(path))
        before, read = served.stats(), disk.sectors(path)
        with served.traced() as trace:
            usage = served.generate(seed, options.tokens)["usage"]
        after, read = served.stats(), disk.sectors(path) - read
        gives.append(disk.gb_per_s(path))
        decode_s = usage["decode_ns"] / 1e9
        return {"tokens_per_s": options.tokens / decode_s, "mb_per_token": read / 1e6 / options.tokens,
                "policy_mb_per_token": (after["bytes_loaded"] - before["bytes_loaded"]) / 1e6 / options.tokens,
                "hit_rate": (after["hits"] - before["hits"]) / max(1, after["hits"] + after["misses"] - before["hits"] - before["misses"]),
                "compute_ms": (usage["decode_ns"] - (after["wait_ns"] - before["wait_ns"])) / 1e6 / options.tokens,
                "policy": after["policy"], "link": after["link"], "disk_gb_per_s": statistics.mean(gives),
                "full_gb_per_s": after["link_bytes_per_second"] / 1e9,
                **link_use.of(trace)}
    finally:
        served.close()


def model(options, text):
    """Name and path of a model, made when it is not there."""
    shape, layers, skew = text.split(":")
    path = options.cache / "models" / f"{shape}-{layers}-q4_0-skew{skew}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = not path.exists()
    if made:
        print(f"capped: making {path}", flush=True)
        call([options.build / "outrider-model", "synth", shape, path, "--layers", layers, "--type", "q4_0", "--router-skew", skew, "--quiet"])
    return path, made and not options.keep


def measure(options, engines, path, share, facts):
    cap = facts["other_bytes"] + share / 100 * facts["expert_bytes"] + ROOM
    rows = {name: [] for name in ("outrider", *engines)}
    for round_ in range(options.rounds):
        order = list(rows)
        for name in order[round_ % len(order):] + order[:round_ % len(order)]:
            group = Group(cap)
            try:
                disk.drop_caches()
                row = outrider(options, path, share, group, round_ + 1) if name == "outrider" else llama(engines[name], options, path, group)
                row["peak_bytes"] = group.peak()
            finally:
                group.close()
            rows[name].append(row)
            print(f"  {share}% round {round_ + 1} {name:12} {row['tokens_per_s']:.2f} tokens/s, {row['mb_per_token']:.0f} MB/token", flush=True)
    return {"share": share, "cap_bytes": cap, "engines": rows}


def middle(rows, key):
    return statistics.median(row[key] for row in rows)


def table(result):
    text = [f"{result['name']}, {result['bytes'] / 1e9:.2f} GB, of it experts {result['expert_bytes'] / 1e9:.2f} GB"]
    for cell in result["cells"]:
        ours = middle(cell["engines"]["outrider"], "tokens_per_s")
        for name, rows in cell["engines"].items():
            rate = middle(rows, "tokens_per_s")
            line = (f"  {cell['share']:3d}% of the experts fit  {name:12} {rate:7.2f} tokens/s  {middle(rows, 'mb_per_token'):6.0f} MB read per token"
                    f"  {rate * middle(rows, 'mb_per_token') / 1e3:5.2f} GB/s")
            line += f"  {ours / rate:5.2f} x" if name != "outrider" else f"  hits {100 * middle(rows, 'hit_rate'):.0f}%, {rows[0]['policy']}, {rows[0]['link']}"
            text.append(line)
            if name == "outrider":
                text += link_use.lines(sorted(rows, key=lambda row: row["token_ms"])[len(rows) // 2])
    return "\n".join(text)


def head(options, facts):
    rounds = f"{options.rounds} round{'s' * (options.rounds != 1)}"
    return (f"{facts['cpu']}, {facts['cpus']} CPUs, {facts['memory_gb']} GB; {facts['date']}; {facts['revision']}\n"
            f"$ {command_line('bench/peers/capped.py', sys.argv[1:])}\n\n"
            f"Medians of {rounds} in turn, behind {options.warm} tokens; read-ahead 128 KiB; the cap is the share of the experts, all other "
            f"weights and\n{ROOM / 1e6:.0f} MB.\n{link_use.ABOUT}")


def main():
    options = arguments()
    try:
        if os.geteuid() != 0:
            raise Failure("control groups and read-ahead need root")
        need_programs(options.build, "outrider", "outriderctl", "outrider-bench", "outrider-model")
        engines = {name: PACKAGES[name].build(options.cache, options.jobs) for name in options.engines.split(",") if name}
        facts, results = machine(options), []
        for text in options.models.split(","):
            path, temporary = model(options, text)
            info = json.loads(call([options.build / "outrider-model", "info", path, "--format", "json"]))
            result = {"name": path.stem, "bytes": path.stat().st_size, "expert_bytes": info["summary"]["expert_bytes"], "cells": []}
            result["other_bytes"] = result["bytes"] - result["expert_bytes"]
            results.append(result)
            try:
                with disk.read_ahead(path):
                    for share in map(int, options.shares.split(",")):
                        result["cells"].append(measure(options, engines, path, share, result))
            finally:
                if temporary:
                    path.unlink()
            print("\n" + table(result) + "\n", flush=True)
        options.results.mkdir(parents=True, exist_ok=True)
        text = f"{head(options, facts)}\n\n" + "\n\n".join(map(table, results)) + "\n"
        (options.results / f"{options.name}.txt").write_text(text)
        (options.results / f"{options.name}.json").write_text(json.dumps({"machine": facts, "models": results}, indent=1) + "\n")
    except Failure as problem:
        print(f"capped: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
