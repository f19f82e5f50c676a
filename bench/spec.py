"""What trees of drafts bring and cost with all experts in memory and with few of them, with an expert budget and without: paper 002's figures 2b and 4
in shape. `outrider-bench spec` measures; this starts the services.

--quality instead compares the rankings and coverages of a budget by what they do to the answers, at one size of tree: figures 5 and 6 in shape."""
import argparse
import subprocess
import tempfile
from pathlib import Path

LOADED_S = 600


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py spec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, metavar="FILE", help="this model instead of the demo model, with replayed drafts, into spec-FILE.txt")
    add("--memory", type=lambda text: text.split(","), default="all,30%,17%", help="memory for experts; default %(default)s")
    add("--methods", help="draft methods of outrider-bench spec; default model,replay:0.8 (replay:0.8 with --model)")
    add("--nodes", help="default 1,3,7,15,31,63,127,255,511 (31 with --quality)")
    add("--depth", default="8", help="default %(default)s")
    add("--width", help="tokens that may be alternatives for one place; default: as many as a tree needs to be that deep")
    add("--budgets", help="expert budgets; default off and half of the experts")
    add("--workload", default="mixed", help="default %(default)s (math with --quality)")
    add("--limit", type=int, default=3, help="prompts; default %(default)s")
    add("--tokens", type=int, default=48, help="tokens of an answer at most; default %(default)s")
    add("--rounds", type=int, default=9, help="the most rounds; default %(default)s")
    add("--seconds", type=int, default=25, help="after which no further round of a memory begins; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    add("--quality", action="store_true")
    options = parser.parse_args(arguments)
    options.methods = options.methods or ("replay:0.8" if options.model else "model" if options.quality else "model,replay:0.8")
    options.nodes = options.nodes or ("31" if options.quality else "1,3,7,15,31,63,127,255,511")
    if options.quality:
        options.memory = options.memory[:1]
        options.workload = "math"
    return options


def measure(tools, options, service, root, *more):
    command = [tools.program("outrider-bench"), "spec", f"bench/workloads/{options.workload}.jsonl", "--runtime-dir", service.runtime, "--limit", options.limit,
               "--max-tokens", options.tokens, "--rounds", options.rounds, "--seconds", options.seconds, "--method", options.methods, "--depth", options.depth,
               "--nodes", options.nodes, *more]
    command += ["--width", options.width] if options.width else []
    command += ["--ignore-eos"] if options.model else []
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=root, timeout=1800)
    if out.returncode:
        raise SystemExit(f"bench: outrider-bench spec: status {out.returncode}: {out.stderr.strip()}")
    return out.stdout


def profile(tools, root, folder):
    """What the experts were used for by the prompts of another workload than is measured."""
    trace, made = folder / "mixed.trace", folder / "mixed.profile"
    for words in (("cache", "record", "--model", tools.TARGET, "--workload", "bench/workloads/mixed.jsonl", "--limit", 16, "--out", trace),
                  ("cache", "profile", trace, "--out", made)):
        subprocess.run([tools.program("outrider-bench"), *map(str, words)], check=True, capture_output=True, cwd=root)
    return made


def run(tools, options, root):
    model = {"model": options.model} if options.model else {"draft": tools.DRAFTS["aligned"]}
    sets, text = ("verifier.draft_wait=10s",), []
    with tempfile.TemporaryDirectory(prefix="outrider-spec-") as folder:
        if options.quality:
            sets += (f"verifier.budget_profile={profile(tools, root, Path(folder))}", "verifier.budget_oracle=yes")
            budgets = ["off", *(f"{b}/{how}" for b in (4, 8, 12, 16, 24) for how in ("router", "static", "oracle", "router/truncation"))]
            # A run has few budgets.
            batches = [budgets[i:i + 7] for i in range(0, len(budgets), 7)]
        for memory in options.memory:
            with tools.Service(**model, options=("--threads", options.threads, "--budget", memory), sets=sets, ready_s=LOADED_S) as service:
                if options.quality:
                    for batch in batches:
                        text += [measure(tools, options, service, root, "--budget-experts", ",".join(batch))]
                    continue
                text += [f"== Memory for {memory} of the experts", "",
                         measure(tools, options, service, root, "--budget-experts", options.budgets or "off,16")]
    return "\n".join(text)
