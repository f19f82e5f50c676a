"""What trees of drafts bring and cost with all experts in memory and with few of them, with an expert budget and without: paper 002's figures 2b and 4
in shape. `outrider-bench spec` measures; this starts the services.

--quality instead compares the rankings and coverages of a budget by what they do to the answers, at one size of tree: figure 5 in shape.
--layers instead measures the error of a layer's result and the share of the router's weight over the budget, with `outrider-bench budget`:
figures 6 and 7 in shape."""
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
    add("--methods", help="draft methods of outrider-bench spec; default model,eagle3,mtp,replay:0.8 (replay:0.8 with --model, model with --quality)")
    add("--nodes", help="default 1,3,7,15,31,63,127,255,511 (31 with --quality)")
    add("--depth", default="8", help="default %(default)s")
    add("--width", help="tokens that may be alternatives for one place; default: as many as a tree needs to be that deep")
    add("--budgets", action="append", help="expert budgets, by commas; one by layer (0-3:16,7:4) takes a --budgets of its own; default off and half of the experts")
    add("--workload", default="mixed", help="default %(default)s (math with --quality; with --layers all five)")
    add("--limit", type=int, help="prompts; default 3 (all with --quality, 4 of each workload with --layers)")
    add("--tokens", type=int, help="tokens of an answer at most; default 48 (as the workload says with --quality, 64 with --layers)")
    add("--rounds", type=int, default=9, help="the most rounds; default %(default)s")
    add("--seconds", type=int, default=25, help="after which no further round of a memory begins; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--quality", action="store_true")
    kinds.add_argument("--layers", action="store_true")
    options = parser.parse_args(arguments)
    options.methods = options.methods or ("replay:0.8" if options.model else "model" if options.quality else "model,eagle3,mtp,replay:0.8")
    options.nodes = options.nodes or ("31" if options.quality else "63" if options.layers else "1,3,7,15,31,63,127,255,511")
    if options.quality:
        options.memory = options.memory[:1]
        options.workload = "math"
        options.rounds = 1
    else:
        options.limit = options.limit or (4 if options.layers else 3)
        options.tokens = options.tokens or (64 if options.layers else 48)
    return options


def name(options):
    kind = "-quality" if options.quality else "-layers" if options.layers else ""
    return f"spec{kind}" + (f"-{options.model.stem}" if options.model else "")


def measure(tools, options, service, root, *more):
    command = ["spec", f"bench/workloads/{options.workload}.jsonl", "--runtime-dir", service.runtime, "--rounds", options.rounds,
               "--seconds", options.seconds, "--depth", options.depth, "--nodes", options.nodes, *more]
    command += ["--limit", options.limit] if options.limit else []
    command += ["--max-tokens", options.tokens] if options.tokens else []
    command += ["--width", options.width] if options.width else []
    command += ["--ignore-eos"] if options.model else []
    return said(tools, root, *command)


def said(tools, root, *words):
    out = subprocess.run([str(word) for word in (tools.program("outrider-bench"), *words)], capture_output=True, text=True, cwd=root, timeout=7200)
    if out.returncode:
        raise SystemExit(f"bench: outrider-bench {words[0]}: status {out.returncode}: {out.stderr.strip()}")
    return out.stdout


def profile(tools, root, folder, model):
    """What the experts were used for by the prompts of another workload than is measured."""
    trace, made = folder / "mixed.trace", folder / "mixed.profile"
    for words in (("record", "--model", model, "--workload", "bench/workloads/mixed.jsonl", "--limit", 16, "--out", trace), ("profile", trace, "--out", made)):
        said(tools, root, "cache", *words)
    return made


def services(tools, options):
    """The draft methods by the service that has them: what it is given, and the methods."""
    if options.model:
        return [({"model": options.model}, options.methods)]
    heads = {"eagle3": {"draft": tools.MODELS / "outrider-demo-eagle3-q8_0.gguf"}, "mtp": {"model": tools.MODELS / "outrider-demo-mtp-q8_0.gguf"}}
    methods = options.methods.split(",")
    others = [m for m in methods if m not in heads]
    return ([({"draft": tools.DRAFTS["aligned"]}, ",".join(others))] if others else []) + [(heads[m], m) for m in methods if m in heads]


def layers(tools, options, root, folder):
    model = options.model or tools.TARGET
    same = ["budget", "--model", model, "--profile", profile(tools, root, folder, model), "--nodes", options.nodes, "--depth", options.depth,
            "--width", options.width or 8, "--limit", options.limit, "--max-tokens", options.tokens, "--threads", options.threads]
    same += ["--budgets", ",".join(options.budgets)] if options.budgets else []
    same += [] if options.model else ["--draft", tools.DRAFTS["aligned"]]
    return [said(tools, root, *same, "--workload", f"bench/workloads/{workload}.jsonl") for workload in ("code", "math", "extract", "prose", "mixed")]


def run(tools, options, root):
    sets, text = ("verifier.draft_wait=10s",), []
    with tempfile.TemporaryDirectory(prefix="outrider-spec-") as folder:
        if options.layers:
            return "\n".join(layers(tools, options, root, Path(folder)))
        asked = [word for text in options.budgets or [] for word in ([text] if ":" in text else text.split(","))]
        batches = [asked or ["off", "16"]]
        if options.quality:
            sets += (f"verifier.budget_profile={profile(tools, root, Path(folder), tools.TARGET)}", "verifier.budget_oracle=yes")
            budgets = ["off", *(f"{b}/{how}" for b in (4, 8, 12, 16, 24, 32) for how in ("router", "router/truncation", "static", "oracle"))]
            budgets = asked or budgets
            # A run has few budgets.
            batches = [budgets[i:i + 8] for i in range(0, len(budgets), 8)]
        for memory in options.memory:
            for given, methods in services(tools, options):
                with tools.Service(**given, options=("--threads", options.threads, "--budget", memory), sets=sets, ready_s=LOADED_S) as service:
                    text += [] if options.quality else [f"== Memory for {memory} of the experts, drafts of {methods}", ""]
                    text += [measure(tools, options, service, root, "--method", methods, *(f"--budget-experts={budget}" for budget in batch)) for batch in batches]
    return "\n".join(text)
