"""What speculation brings: tokens/s over K with drafts whose acceptance is known, and with a draft model on the workloads.

A replayed draft is the answer itself (measured before, at K = 0), each token wrong with a set probability: what a drafter of that
acceptance would bring if drafting were free. `yield` is the policy-controller's own choice of K; it knows neither the acceptance nor
the model, and the first answers are measured like the rest."""
import argparse
import statistics
import sys
from pathlib import Path

ACCEPTANCE = (0.6, 0.8, 0.95)
KS = range(8)
# K = 0, which everything is compared with, and yield are measured twice a round, in different places.
MODES = (0, 1, 2, "yield", 3, 0, 4, 5, "yield", 6, 7)


def parse(arguments, rounds):
    parser = argparse.ArgumentParser(prog="bench/run.py speculation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FILE", help="measures this one instead of the demo model, with replayed drafts, into "
                        "speculation-FILE.txt; needs memory for it twice")
    parser.add_argument("--budgets", default="all", help="of experts, by commas, for such a model; default %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer of such a model; default %(default)s")
    parser.add_argument("--rounds", type=int, default=rounds, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="of the verifier; default %(default)s")
    return parser.parse_args(arguments)


def replayed(service, ids, answer, mode, acceptance):
    """Tokens and seconds of an answer that is drafted from itself."""
    k = () if mode == "yield" else ("--k", mode)
    out = service.answer(ids, len(answer), "--draft-method", "replay", "--replay", ",".join(map(str, answer)), "--replay-error",
              1 - acceptance, *k)
    if out["tokens"] != answer:
        sys.exit("bench: a draft changed the answer")
    return len(answer) - 1, out["usage"]["decode_ns"] / 1e9


def replay(service, texts, tokens, rounds):
    """Lines, one per acceptance: tokens/s at K = 0, and of each mode the median of its ratios to the K = 0 of the same round."""
    answers = [service.answer(ids, tokens, "--k", 0)["tokens"] for ids in texts]
    columns = (*KS[1:], "yield")
    lines = ["acceptance  K = 0" + "".join(f"{'K = ' + str(c) if c in KS else c:>8}" for c in columns) + "   best K"]
    for acceptance in ACCEPTANCE:
        base, ratios = [], {c: [] for c in columns}
        for round_ in range(rounds):
            rates = {m: [] for m in MODES}
            for mode in MODES[round_ % len(MODES):] + MODES[:round_ % len(MODES)]:
                runs = [replayed(service, ids, answer, mode, acceptance) for ids, answer in zip(texts, answers)]
                rates[mode].append(sum(n for n, _ in runs) / sum(s for _, s in runs))
            base.append(statistics.mean(rates[0]))
            for column in columns:
                ratios[column].append(statistics.mean(rates[column]) / base[-1])
        middle = {c: statistics.median(values) for c, values in ratios.items()}
        best = max(columns[:-1], key=middle.get)
        lines.append(f"{acceptance:<10.2f}{statistics.median(base):7.1f}" + "".join(f"{middle[c]:8.2f}" for c in columns) +
                     f"{best if middle[best] > 1 else 0:9}")
    return lines


def by_workload(tools, service, root):
    text = []
    for workload in ("code", "math", "extract", "prose"):
        out = tools.run(tools.program("outrider-bench"), "workload", root / "bench" / "workloads" / f"{workload}.jsonl", "--k",
                        "0,1,2,3,5,7,auto", "--drafter", "model", "--rounds", 3, "--limit", 6, "--max-tokens", 96, "--runtime-dir",
                        service.runtime, timeout=900)
        text += ["", out.stdout.replace(str(root) + "/", "").rstrip()]
    return text


def of_demo(tools, options, root):
    with tools.Service(draft=tools.DRAFTS["aligned"], options=("--threads", options.threads, "--budget", "17%")) as service:
        return ["== demo model, room for 17 % of its experts; replayed drafts, four prompts, 160 tokens each: tokens/s at K = 0 and ratios to it", ""] + \
            replay(service, tools.prompts(4, longest=100), 160, options.rounds) + \
            ["", "== the same, drafts of the aligned draft model"] + by_workload(tools, service, root)


def of_model(tools, options, budget):
    with tools.Service(options.model, options=("--threads", options.threads, "--budget", budget)) as service:
        return [f"== {options.model.stem}, room for {budget} of its experts; replayed drafts, two prompts, {options.tokens} tokens each: "
                "tokens/s at K = 0 and ratios to it", ""] + replay(service, [[1, 2, 3], [4, 5, 6, 7]], options.tokens, options.rounds) + [""]


def run(tools, options, root):
    if options.model is None:
        return "\n".join(of_demo(tools, options, root))
    return "\n".join(line for budget in options.budgets.split(",") for line in of_model(tools, options, budget))
