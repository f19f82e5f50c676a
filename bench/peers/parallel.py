#!/usr/bin/env python3
"""Measures Outrider beside llama.cpp's server with 1 to 64 requests at a time: the same file, the same threads, the same client.

Both answer the same requests at POST /v1/completions: a prompt of random tokens of its own, greedy, an answer of fixed length, no drafts.
Each client sends its next request when it has its answer. Figures are tokens of answers by the time from the first request to the last
answer, prompts included: medians of the rounds, in which the engines take turns. llama.cpp's server has a slot for each client
(-np), room for its context (-c), and is otherwise as it comes; Outrider has as many sessions.

Writes bench/results/NAME.txt and NAME.json. Needs cmake and g++ (make packages-peers), the programs of `make`, and memory for twice the
file."""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
from peers import PACKAGES, Failure, need_programs  # noqa: E402
from run import MODELS, command_line, each_file, machine, numbers, warm, write_files  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
READY_S = 600  # for a model to be read, and packed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--models", default=MODELS, metavar="SHAPE[:LAYERS],...", help=f"shapes of outrider-model synth; default {MODELS}")
    add("--types", default="q4_0", metavar="TYPE,...", help="types of their matrices; default %(default)s")
    add("--file", action="append", metavar="GGUF", help="measure this file instead (may be repeated)")
    add("--clients", default="1,2,4,8,16,32,64", metavar="N,...", help="requests at a time; default %(default)s")
    add("--requests", type=int, default=2, help="requests of each client; default %(default)s")
    add("--prompt-tokens", type=int, default=16, help="tokens of a prompt; default %(default)s")
    add("--output-tokens", type=int, default=32, help="tokens of an answer; default %(default)s")
    add("--rounds", type=int, default=3, help="rounds; default %(default)s")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads; default: the usable CPUs, %(default)s")
    add("--server", type=Path, metavar="PROGRAM", help="this llama-server; default: build one")
    add("--cache", type=Path, default=ROOT / "build" / "peers", metavar="DIR", help="folder for sources, builds and models; default %(default)s")
    add("--keep", action="store_true", help="keep the models that were made")
    add("--build", type=Path, default=Path(os.environ.get("B", ROOT / "build")), metavar="DIR", help="where Outrider's programs are; default $B or build")
    add("--jobs", type=int, default=os.cpu_count(), help="jobs of the peer's build")
    add("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="folder of the results; default %(default)s")
    add("--name", default="parallel", help="name of the result files; default %(default)s")
    add("--build-only", action="store_true", help="build the peer and stop")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, method, path, body=None, timeout=600):
    """Status and parsed body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")


class Server:
    """A process that answers at a port of its own; a context manager."""

    def __init__(self, name, command, health):
        self.name, self.health = name, health
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        words = [str(c).replace("PORT", str(self.port)) for c in command]
        try:
            self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        except OSError as problem:
            raise Failure(f"{words[0]}: {problem.strerror}") from problem

    def __enter__(self):
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if ask(self.port, "GET", self.health, timeout=10)[0] == 200:
                    return self
            time.sleep(0.1)
        self.__exit__()
        self.log.seek(0)
        raise Failure(f"{self.name} did not become ready: {self.log.read()[-600:].strip()}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def outrider(options, path, clients, folder):
    tokens = options.prompt_tokens + options.output_tokens + 64
    sets = [f"verifier.sessions_max={clients}", f"verifier.client_requests={max(32, clients)}", f"verifier.queue_max={max(32, clients)}"]
    command = [options.build / "outrider", "up", "--model", path, "--runtime-dir", folder / "run", "--threads", options.threads,
               "--context", tokens, "--policy", "static:0", "--http", "127.0.0.1:PORT"]
    for pair in sets:
        command += ["--set", pair]
    return Server("outrider", command, "/health")


def llama(options, path, clients):
    # Each slot has room in whole multiples of 256.
    room = -(-(options.prompt_tokens + options.output_tokens + 64) // 256) * 256
    return Server("llama.cpp", [options.server, "-m", path, "-t", options.threads, "-c", clients * room, "-np", clients, "--host",
                                "127.0.0.1", "--port", "PORT"], "/health")


def send(server, options, seed, out):
    draw = random.Random(seed)
    try:
        for _ in range(options.requests):
            prompt = [draw.randrange(1000, 30000) if options.vocabulary > 30000 else draw.randrange(256, options.vocabulary - 8)
                      for _ in range(options.prompt_tokens)]
            status, answer = ask(server.port, "POST", "/v1/completions",
                                 {"prompt": prompt, "max_tokens": options.output_tokens, "temperature": 0, "ignore_eos": True})
            if status != 200:
                raise Failure(f"{server.name}: status {status}: {str(answer)[:300]}")
            out.append(answer["usage"]["completion_tokens"])
    except (OSError, http.client.HTTPException, KeyError, ValueError, Failure) as problem:
        out.append(problem)


def tokens_per_s(server, options, clients, seed):
    out, start = [], time.monotonic()
    threads = [threading.Thread(target=send, args=(server, options, 1000 * seed + i, out)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    for one in out:
        if isinstance(one, Exception):
            raise one if isinstance(one, Failure) else Failure(f"{server.name}: {one!r}")
        if one != options.output_tokens:
            raise Failure(f"{server.name}: an answer has {one} tokens, not {options.output_tokens}")
    return sum(out) / seconds


def measured(server, options, clients, round_):
    """With the server's first answer, which finds it cold, left out."""
    with server:
        warmed = []
        send(server, options, 999999, warmed)
        rate = tokens_per_s(server, options, clients, round_)
    print(f"  {server.name:10} {clients:3} at a time {rate:9.1f} tokens/s", flush=True)
    return rate


def vocabulary(options, path):
    done = subprocess.run([options.build / "outrider-model", "info", path, "--format", "json"], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{path}: {done.stderr.strip()}")
    return json.loads(done.stdout)["model"]["vocabulary"]


def measure(options, name, path):
    counts = numbers(options.clients, "--clients")
    rates = {engine: {n: [] for n in counts} for engine in ("outrider", "llama.cpp")}
    options.vocabulary = vocabulary(options, path)
    warm(path)
    for round_ in range(options.rounds):
        print(f"{name}: round {round_ + 1} of {options.rounds}", flush=True)
        for n in counts:
            folder = Path(tempfile.mkdtemp(prefix="outrider-parallel-"))
            try:
                turns = [lambda: outrider(options, path, n, folder), lambda: llama(options, path, n)]
                for make in turns if round_ % 2 == 0 else reversed(turns):
                    server = make()
                    rates[server.name][n].append(measured(server, options, n, round_))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return {"name": name, "bytes": path.stat().st_size, "tokens_per_s": rates}


def table(result):
    ours, theirs = result["tokens_per_s"]["outrider"], result["tokens_per_s"]["llama.cpp"]
    lines = [f"{result['name']}, {result['bytes'] / 1e9:.2f} GB", "  at a time     outrider    llama.cpp        ratio of each round"]
    for n in ours:
        ratios = [a / b for a, b in zip(ours[n], theirs[n])]
        lines.append(f"  {n:9} {statistics.median(ours[n]):12.1f} {statistics.median(theirs[n]):12.1f} {statistics.median(ratios):12.2f} "
                     f"({min(ratios):.2f} to {max(ratios):.2f})")
    return "\n".join(lines)


def shared_pages():
    """Whether shared memory, where Outrider's weights and experts lie, may have huge pages: the word in brackets."""
    path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    word = re.search(r"\[(.*)\]", path.read_text()) if path.exists() else None
    return word[1] if word else "none"


def write(options, about, results):
    package = PACKAGES["llama.cpp"]
    head = (f"{about['cpu']}, {about['cpus']} CPUs ({' '.join(about['flags'])}), {about['memory_gb']} GB; {about['date']}; {about['revision']}\n"
            f"$ {command_line('bench/peers/parallel.py', sys.argv[1:])}\n\n"
            f"{about['threads']} threads; prompts of {options.prompt_tokens} tokens, answers of {options.output_tokens}, {options.requests} requests "
            f"of each client; medians of {options.rounds} round{'s' * (options.rounds != 1)} in turn.\nTokens/s of all answers together, prompts included. Huge pages of shared "
            f"memory (shmem_enabled): {shared_pages()}.\n"
            f"llama.cpp: llama-server of {package.name} {package.version} from PyPI\n")
    write_files(options, head + "\n" + "\n\n".join(map(table, results)) + "\n",
                {"machine": about, "llama.cpp": package.facts("llama-server"), "models": results})


def main():
    options = arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    try:
        numbers(options.clients, "--clients")
        if not options.server:
            options.server = PACKAGES["llama.cpp"].build(options.cache, options.jobs, "llama-server")
        if options.build_only:
            return 0
        need_programs(options.build, "outrider", "outrider-gateway", "outrider-model")
        about = machine(options)
        each_file(options, lambda name, path: measure(options, name, path), lambda results: write(options, about, results), table)
    except Failure as problem:
        print(f"peers: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
