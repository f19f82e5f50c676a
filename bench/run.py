#!/usr/bin/env python3
"""Runs the benchmarks on the demo models and writes bench/results/*.txt (and pictures), each with the CPU's name, the date,
the revision and the command. With names as arguments only those: kernels attention pool ipc price cache cache-policies device speculation spec trees
drafters workloads matrix policy knobs controller syscalls gateway load turns talks head-experts goodput goodput-live; `matrix --help`, `price --help`, `speculation --help`,
`spec --help`, `trees --help`, `drafters --help`, `goodput-live --help`, `turns --help` and `talks --help` say what these take besides. Environment:
B, where the programs are (build); OUTRIDER_BENCH_RESULTS, another folder for what is written; OUTRIDER_BENCH_ROUNDS (5).

The figures of a machine that does something else meanwhile are worth little: run it alone."""
import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cache_policies
import controller
import device
import drafters
import facts
import goodput_live
import head_experts
import matrix
import spec
import speculation
import trees
import turns

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import outrider_test  # noqa: E402
from outrider_test import DRAFTS, PROCESSES, TARGET, Service, program, prompts, run, run_json  # noqa: E402

RESULTS = Path(os.environ.get("OUTRIDER_BENCH_RESULTS", ROOT / "bench" / "results")).resolve()
LOADED_S = 600  # for a model, or all of its experts, to be read
ROUNDS = int(os.environ.get("OUTRIDER_BENCH_ROUNDS", 5))


def need_programs(*more):
    """Ends the run, and says what to do, where a program that is measured was not built."""
    for name in ("outrider", "outriderctl", "outrider-bench", "outrider-model", *(f"outrider-{p}" for p in PROCESSES), *more):
        if not Path(program(name)).exists():
            print(f"bench: {program(name)} is not there: run make{' tests' if name.startswith('tests/') else ''} first", file=sys.stderr)
            sys.exit(os.EX_UNAVAILABLE)


REVISION = facts.revision()


def write(name, command, text):
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.txt"
    path.write_text(f"{facts.cpu()}; {time.strftime('%Y-%m-%d %H:%M')}; {REVISION}\n$ {command}\n\n{text.rstrip()}\n")
    print(f"\n== {path}\n{text}", flush=True)


def bench_alone(name, timeout):
    """A subcommand of outrider-bench that needs no service, as it prints itself."""
    out = run(program("outrider-bench"), name, timeout=timeout)
    if out.returncode:
        sys.exit(f"bench: outrider-bench {name}: status {out.returncode}: {out.stderr.strip()}")
    write(name, f"outrider-bench {name}", out.stdout)


def bench_kernels():
    """Every product of every type beside the peaks of the machine."""
    bench_alone("kernels", 600)


def bench_attention():
    """Attention over every type of the KV cache behind short and long contexts."""
    bench_alone("attention", 900)


def bench_pool():
    """A hand-over to the threads of a pass, and reading while a CPU is taken away."""
    bench_alone("pool", 600)


def bench_ipc():
    bench_alone("ipc", 600)


def generated(ids, tokens, threads):
    """Decoding tokens per second of the engine alone, in its own process, with its weights packed as the services' are."""
    return run_json(program("outrider-model"), "generate", "--model", TARGET, "--pack", "--tokens", ",".join(map(str, ids)),
                    "--max-tokens", tokens, "--ignore-eos", "--threads", threads,
                    "--format", "json")["timing"]["decode_tokens_per_s"]


def served(service, ids, tokens):
    return service.answer(ids, tokens, "--k", 0)["usage"]["tokens_per_s"]


def price_options(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py price", description=bench_price.__doc__)
    parser.add_argument("--model", type=Path, action="append", default=[], metavar="FILE",
                        help="is measured after the demo model; needs memory for two copies of it and for the page cache")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer of such a model; default %(default)s")
    parser.add_argument("--model-rounds", type=int, default=2 * ROUNDS, help="pairs of its answers; default %(default)s")
    parser.add_argument("--rounds", type=int, default=12 * ROUNDS, help="pairs of the demo model's answers; default %(default)s")
    parser.add_argument("--threads", default="1,2", metavar="N,...", help="threads of the verifier; default %(default)s")
    return parser.parse_args(arguments)


def all_resident(service):
    stats = service.ctl_json("cache", "stats")
    return stats["resident"] == stats["slots"]


def price_of(model, ids, tokens, threads, rounds):
    """Two services side by side answer in turn, each first in every other round; of the demo model the engine alone as well."""
    own, cache, engine = "served, the verifier's memory", "served, expert-cache, all fit", "outrider-model generate"
    rates = {own: [], cache: []}
    with Service(model, options=("--threads", threads), sets=("verifier.experts=mapped", "verifier.weights=packed"),
                 ready_s=LOADED_S) as mapped, \
            Service(model, options=("--threads", threads, "--budget", "all"), ready_s=LOADED_S) as cached:
        services = {own: mapped, cache: cached}
        if not outrider_test.until(lambda: all_resident(cached), LOADED_S, every=0.2):
            sys.exit(f"bench: not all experts of {model} are in the cache after {LOADED_S} s:\n{cached.log_text()}")
        for service in services.values():
            served(service, ids, tokens)
        for round_ in range(rounds):
            for name in sorted(services, reverse=round_ % 2):
                rates[name].append(served(services[name], ids, tokens))
            if model == TARGET and round_ % 5 == 0:
                rates.setdefault(engine, []).append(generated(ids, tokens, threads))
    ratios = statistics.quantiles((c / f for c, f in zip(rates[cache], rates[own])), n=4)
    lines = [f"{threads} thread{'s' if threads > 1 else ' '}  {name:30} {statistics.median(values):8.1f} "
             f"({min(values):.1f} to {max(values):.1f})" for name, values in rates.items()]
    return lines + [f"           cache : own, of each pair     {ratios[1]:.3f} (half of them {ratios[0]:.3f} to {ratios[2]:.3f})", ""]


def bench_price(*arguments):
    """Tokens per second at K = 0 with experts from the expert-cache, all of which fit, and without: packed in the verifier's own
    memory."""
    options = price_options(arguments)
    need_programs()
    text = ["Decoding at K = 0, tokens/s: median (lowest to highest) of the rounds, taken in turn.", ""]
    for model, tokens, rounds in [(TARGET, 800, options.rounds)] + [(m, options.tokens, options.model_rounds) for m in options.model]:
        text.append(f"== {model.stem}, {tokens} tokens, {rounds} rounds")
        ids = prompts(1, longest=60)[0] if model == TARGET else [1, 2, 3]
        for threads in map(int, options.threads.split(",")):
            text += price_of(model, ids, tokens, threads, rounds)
    write("price", " ".join(["bench/run.py price", *(Path(a).name for a in arguments)]), "\n".join(text))


def bench_cache():
    """Tokens per second at K = 0 over the expert budget."""
    text = ["Decoding at K = 0 with a smaller expert budget (model file in the page cache or not: O_DIRECT reads it "
            "anyway), tokens/s, median of the rounds.", ""]
    ids = prompts(1, longest=60)[0]
    for budget in ("all", "75%", "50%", "30%", "min"):
        with Service(options=("--threads", 1, "--budget", budget)) as service:
            served(service, ids, 200)
            values, stats = [served(service, ids, 400) for _ in range(ROUNDS)], None
            stats = service.ctl_json("cache", "stats")
            text.append(f"budget {budget:5} {statistics.median(values):7.0f}   " +
                        ", ".join(f"{k} {stats[k]}" for k in ("slots", "hits", "misses", "loads", "self_served") if k in stats))
    write("cache", "make bench (bench/run.py cache)", "\n".join(text))


def bench_speculation(*arguments):
    """Tokens per second over K with replayed drafts of known acceptance, and with the aligned draft."""
    options = speculation.parse(arguments, ROUNDS)
    need_programs()
    text = speculation.run(outrider_test, options, ROOT)
    write("speculation" + (f"-{options.model.stem}" if options.model else ""),
          " ".join(["bench/run.py speculation", *(Path(a).name for a in arguments)]) +
          f": verifier on {options.threads} threads, the default cache policy", text)


def bench_drafters(*arguments):
    """Every way to draft for the demo model: acceptance by position, tokens per pass, and speed at several batch sizes."""
    options = drafters.parse(arguments)
    need_programs("tests/swarm")
    write(drafters.result_name(options), " ".join(["bench/run.py drafters", *arguments]) + f": verifier on {options.threads} threads, experts all in memory",
          drafters.run(outrider_test, options, ROOT))


def named(argument):
    """A file by its name alone; a budget may have a slash as well."""
    return Path(argument).name if Path(argument).is_file() else argument


def bench_trees(*arguments):
    """Tokens per second, tokens per iteration and experts over the shape of trees of drafts."""
    options = trees.parse(arguments)
    need_programs()
    write(trees.name(options), " ".join(["bench/run.py trees", *map(named, arguments)]) + f": verifier on {options.threads} threads, the default cache policy",
          trees.run(outrider_test, options, ROOT))


def bench_spec(*arguments):
    """Trees of drafts by method, size and expert budget: speed, accepted length, experts, and what a budget changes."""
    options = spec.parse(arguments)
    need_programs()
    write(spec.name(options), " ".join(["bench/run.py spec", *map(named, arguments)]) + f": verifier on {options.threads} threads, the default cache policy",
          spec.run(outrider_test, options, ROOT))


def bench_workloads():
    for draft, drafter in (("small", "ngram"), ("small", "model"), ("aligned", "model")):
        name = "ngram" if drafter == "ngram" else draft
        with Service(draft=DRAFTS[draft], options=("--threads", 1)) as service:
            text = []
            for workload in ("code", "math", "extract", "prose"):
                command = [program("outrider-bench"), "workload", f"bench/workloads/{workload}.jsonl", "--k",
                           "0,1,2,3,4,5,6,7,auto", "--drafter", drafter, "--rounds", 3, "--limit", 8, "--max-tokens", 128,
                           "--runtime-dir", service.runtime, "--plot", str(RESULTS / f"workload-{workload}-{name}.svg")]
                out = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT, timeout=900)
                text.append(out.stdout + out.stderr)
            write(f"workloads-{name}", f"outrider-bench workload bench/workloads/*.jsonl --k 0,1,2,3,4,5,6,7,auto --drafter "
                  f"{drafter} --rounds 3 --limit 8 --max-tokens 128   (verifier on 1 thread, draft {draft})", "\n".join(text))


def bench_matrix(*arguments):
    """K = 0, every static K, cascade and yield in every cell of workload, draft and budget."""
    options = matrix.parse(arguments)
    if not options.report:
        need_programs()
    about = {"cpu": facts.cpu(), "time": time.strftime("%Y-%m-%d %H:%M"), "revision": REVISION}
    text = matrix.run(outrider_test, options, about, RESULTS / "matrix.jsonl")
    if text:
        write("matrix", "bench/run.py matrix, in parts", text)


def bench_policy():
    """Simulated sessions under every policy for K; nothing here depends on what the machine does meanwhile."""
    measured = "bench/results/curve-demo-moe.json,bench/results/curve-qwen3-30b-a3b-12.json"
    runs = (("Random sessions, each with a curve of its own and a controller that knows nothing.", ("--sessions", 400)),
            ("The same, four side by side.", ("--sessions", 400, "--batch", 4)),
            ("The same, sixteen side by side.", ("--sessions", 400, "--batch", 16)),
            ("Records read nine passes late.", ("--sessions", 400, "--lag", 9)),
            ("What the drafter would have drafted at K = 0 is known at every token.", ("--sessions", 400, "--foresight", 1)),
            ("This repository's n-gram drafter on recorded outputs, on published curves and two measured here.",
             ("--sessions", 32, "--process", "code,math,extract,prose", "--curve", "mixtral-math,olmoe,qwen-1.5," + measured)),
            ("The same, and what it would have drafted at K = 0 is known.",
             ("--sessions", 32, "--process", "code,math,extract,prose", "--curve", "mixtral-math,olmoe,qwen-1.5," + measured,
              "--foresight", 1)),
            ("Published acceptance on published and measured curves.",
             ("--sessions", 60, "--process", "ngram-code,ngram-math,ngram-extract,eagle-math", "--curve",
              "mixtral-math,phi-3.5,olmoe,deepseek-v1,qwen-1.5,bench/results/curve-qwen3-30b-a3b-12.json")),
            ("Cascade's published figures.", ("--published", "--sessions", 200)),
            ("The same without a policy: K = 0 where the paper has Cascade.",
             ("--published", "--sessions", 200, "--in-place-of-cascade", "static:0")))
    text = []
    for title, options in runs:
        out = run(program("outrider-bench"), "policy", *options, timeout=600)
        text.append(f"{title}\n$ outrider-bench policy {' '.join(map(str, options))}\n{out.stdout}{out.stderr}")
    write("policy", "make bench (bench/run.py policy)", "\n".join(text))


def bench_knobs():
    """How soon a session's K that outriderctl sets is in force."""
    write("knobs", "make bench (bench/run.py knobs)", controller.knobs(outrider_test))


def bench_controller():
    """What the policy-controller takes of a core."""
    write("controller", "make bench (bench/run.py controller)", controller.cpu(outrider_test, ROUNDS))


def threads_of(pid):
    out = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        out[int(task.name)] = (task / "comm").read_text().strip()
    return out


def output_tokens(service):
    """Of all sessions so far."""
    details = next(p["details"] for p in service.ctl_json("status")["processes"]
                   if p["name"] == "verifier")
    return int(details["output_tokens"])


def calls_by_thread(log, names):
    """{thread: {system call: count}} of what strace wrote; every named thread is there, "?" is those begun later."""
    counts = {name: {} for name in names.values()}
    for line in log.splitlines():
        # A call that another thread interrupts is written twice: "read(...<unfinished ...>" and "<... read resumed>...".
        match = re.match(r"(\d+)\s+(\w+)\(", line)
        if match:
            calls = counts.setdefault(names.get(int(match[1]), "?"), {})
            calls[match[2]] = calls.get(match[2], 0) + 1
    return counts


def calls_line(process, thread, calls, iterations):
    total = sum(calls.values())
    often = ", ".join(f"{c} {n}" for c, n in sorted(calls.items(), key=lambda x: -x[1])[:8])
    return f"{process:9} {thread:16} {total:6} {total / iterations:8.3f}  {often}"


def bench_syscalls():
    """strace over the verifier and the drafter while both are busy: what each thread asked of the kernel."""
    ids = prompts(1, longest=60)[0]
    with Service(draft=DRAFTS["small"], options=("--threads", 1),
                 sets=("verifier.draft_spin=2ms", "drafter.spin=2ms", "verifier.expert_spin=2ms")) as service:
        pids = {name: service.pid(name) for name in ("verifier", "drafter")}
        names = {name: threads_of(pid) for name, pid in pids.items()}
        request = [{"tokens": ids, "max_tokens": 900, "ignore_eos": True, "k": 3, "draft_method": "ngram"}] * 40
        process, results = service.swarm_start(request)
        time.sleep(0.5)
        tokens = -output_tokens(service)
        tracers = {name: subprocess.Popen(["strace", "-f", "-q", "-p", str(pid), "-o", str(service.directory / name)],
                                          stderr=subprocess.DEVNULL) for name, pid in pids.items()}
        time.sleep(2)
        for tracer in tracers.values():
            tracer.terminate()
            tracer.wait()
        tokens += output_tokens(service)
        usage = [r["usage"] for r in results()]
        iterations = tokens * sum(u["iterations"] for u in usage) / sum(u["output_tokens"] for u in usage)
        if iterations < 1:
            sys.exit("bench: nothing was decoded while strace was attached")
        text = [f"K = 3, n-grams, one session, both sides spinning: system calls per thread in 2 s, in which about {iterations:.0f} iterations ran",
                "(strace makes them slower); how many an iteration is, and of which kind.", ""]
        for name in tracers:
            counts = calls_by_thread((service.directory / name).read_text(), names[name])
            text += [calls_line(name, thread, counts[thread], iterations) for thread in sorted(counts)]
        write("syscalls", "make bench (bench/run.py syscalls): strace -f -p PID for 2 s", "\n".join(text))


def bench_cache_policies():
    """Every policy of the expert-cache over traces of real routing."""
    with tempfile.TemporaryDirectory(prefix="outrider-cache-") as made:
        folder = Path(os.environ.get("OUTRIDER_BENCH_TRACES", made))
        text = cache_policies.run(program("outrider-bench"), TARGET, DRAFTS["aligned"], ROOT, RESULTS, folder)
    write("cache-policies", "make bench (bench/run.py cache-policies): outrider-bench cache record, replay", text)


def bench_device():
    """A GPU deployment in virtual time."""
    with tempfile.TemporaryDirectory(prefix="outrider-device-") as made:
        text = device.run(program("outrider-bench"), TARGET, DRAFTS["aligned"], ROOT, Path(made))
    write("device", "bench/run.py device: outrider-bench cache record, device", text)


def bench_gateway():
    """The same answers through the SDK and through HTTP, in turn."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--http", f"127.0.0.1:{port}"]
    texts = []
    for threads, rounds in ((1, 30), (2, 30)):
        with Service(options=(*where, "--threads", threads)) as service:
            out = run(program("outrider-bench"), "gateway", *where, "--runtime-dir", service.runtime, "--rounds", rounds, timeout=600)
        if out.returncode:
            sys.exit(f"bench: outrider-bench gateway: status {out.returncode}: {out.stderr.strip()}")
        texts.append(f"== the demo model, {threads} thread{'s' * (threads > 1)}\n" + out.stdout.partition("\n")[2])
    write("gateway", "bench/run.py gateway", "\n".join(texts))


def bench_goodput():
    """Simulated batches of 1 to 64 sessions: goodput beside K = 0, each fixed K and yield; nothing here depends on the machine."""
    text = []
    for batch in (1, 4, 16, 64):
        options = ("--policy", "static:0,static:1,static:2,static:3,static:4,static:5,static:6,static:7,yield,goodput", "--sessions", 192,
                   "--batch", batch)
        out = run(program("outrider-bench"), "policy", *options, timeout=600)
        text.append(f"$ outrider-bench policy {' '.join(map(str, options))}\n{out.stdout}{out.stderr}")
    write("goodput", "bench/run.py goodput", "\n".join(text))


def bench_goodput_live(*arguments):
    """The policy goodput beside fixed K and yield in the running service."""
    options = goodput_live.parse(arguments, ROUNDS)
    write("goodput-live" + ("-ngrams" if options.drafter == "ngrams" else ""), " ".join(["bench/run.py goodput-live", *arguments]) +
          f": the demo model, drafts of {'n-grams' if options.drafter == 'ngrams' else f'the {options.drafter} draft model'}, verifier on 1 thread",
          goodput_live.run(outrider_test, options))


def bench_load():
    """What many clients wait: at random times, in bursts, and each as fast as it is answered."""
    runs = (("--rate", 20, "--clients", 64, "--plot", RESULTS / "load.svg"),
            ("--arrivals", "bursts:2,8", "--rate", 20, "--clients", 64),
            ("--arrivals", "gamma:0.25", "--rate", 20, "--clients", 64),
            ("--arrivals", "closed", "--clients", 1),
            ("--arrivals", "closed", "--clients", 16),
            ("--arrivals", "closed", "--clients", 64, "--shared", 48),
            ("--arrivals", "closed", "--clients", 1000, "--retry", 100))
    same = ("--seconds", 6, "--workload", "bench/workloads/mixed.jsonl", "--output-tokens", "16-64", "--ttft", 200, "--tpot", 20)
    tokens = ("--seconds", 6, "--prompt-tokens", "64-128", "--output-tokens", "16-64", "--ttft", 200, "--tpot", 20)
    text = []
    with Service(draft=DRAFTS["small"], sets=("verifier.sessions_max=64", "verifier.queue_max=400", "verifier.client_requests=464")) as service:
        for more in runs:
            options = [*more, *(tokens if "--shared" in more else same)]
            out = run(program("outrider-bench"), "load", "--runtime-dir", service.runtime, *options, timeout=600)
            text.append(f"$ outrider-bench load {' '.join(Path(str(o)).name if str(o).startswith('/') else str(o) for o in options)}\n{out.stdout.partition(chr(10))[2]}{out.stderr}")
    write("load", "bench/run.py load: outrider up with the demo model and a draft model, room for 64 sessions and 400 in the queue", "\n".join(text))


def bench_head_experts():
    """Which experts a head's drafts need: routers on its state beside history."""
    write("head-experts", "bench/run.py head-experts", head_experts.measure())


def bench_turns(*arguments):
    """What a chat's later turns wait for their first token, and what prefixes of a trace are found."""
    options = turns.parse(arguments, "turns")
    need_programs("outrider-gateway")
    write(options.name, " ".join(["bench/run.py turns", *map(named, arguments)]), turns.report(options.model))


def bench_talks(*arguments):
    """What the prefix cache finds of a trace of conversations, in memory and on disk."""
    options = turns.parse(arguments, "talks")
    need_programs()
    write(options.name, " ".join(["bench/run.py talks", *map(named, arguments)]), turns.talks(options.trace, options.model))


def bench_gpu():
    """On a machine with a GPU: every product, a model, an expert of it, and what crosses processes, beside what copies in its memory and over its link reach."""
    model = os.environ.get("OUTRIDER_BENCH_MODEL", ROOT / "models" / "outrider-demo-moe-q4_0.gguf")
    for name, arguments in (("gpu-kernels", ["kernels"]), ("gpu-model", ["model", "--mapped", "--model", model]),
                            ("gpu-price", ["price", "--model", model]),
                            ("gpu-cache", ["cache", "copy", "--model", model]), ("gpu-ipc", ["ipc"])):
        command = [*arguments, "--backend", "cuda"]
        out = run(program("outrider-bench"), *command, timeout=900)
        if out.returncode:
            print(f"bench gpu: nothing was measured: {out.stderr.strip()}", file=sys.stderr)
            sys.exit(77)
        write(name, f"outrider-bench {' '.join(str(c) for c in command)}", out.stdout)


BENCHES = {"kernels": bench_kernels, "attention": bench_attention, "pool": bench_pool, "ipc": bench_ipc,
           "price": bench_price, "cache": bench_cache, "speculation": bench_speculation, "trees": bench_trees, "drafters": bench_drafters, "spec": bench_spec,
           "cache-policies": bench_cache_policies, "device": bench_device, "workloads": bench_workloads, "matrix": bench_matrix, "policy": bench_policy, "knobs": bench_knobs, "controller": bench_controller,
           "syscalls": bench_syscalls, "gateway": bench_gateway, "load": bench_load, "turns": bench_turns, "talks": bench_talks, "head-experts": bench_head_experts, "goodput": bench_goodput, "goodput-live": bench_goodput_live}
ASKED = {"gpu": bench_gpu}  # only by name
WITH_OPTIONS = ("drafters", "goodput-live", "matrix", "price", "spec", "speculation", "talks", "trees", "turns")


def main(arguments):
    if arguments[:1] and arguments[0] in WITH_OPTIONS:
        BENCHES[arguments[0]](*arguments[1:])
        return
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' '.join(BENCHES)}; default: all of them; gpu, on a machine with one")
    names = parser.parse_args(arguments).names or BENCHES
    for name in names:
        if name not in BENCHES | ASKED:
            parser.error(f"unknown benchmark {name}; there are {' '.join(BENCHES | ASKED)}")
    need_programs(*(["outrider-gateway"] if "gateway" in names else []), *(["tests/swarm"] if {"knobs", "controller", "syscalls"} & set(names) else []))
    for name in names:
        start = time.monotonic()
        (BENCHES | ASKED)[name]()
        print(f"\nbench: {name} took {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
