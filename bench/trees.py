"""What trees of drafts bring and cost: tokens/s, tokens per iteration, distinct experts and changed tokens over the size of trees, with
and without an expert budget, beside trees chosen by what their experts cost.

Modes, separated by commas:
  0        no drafts
  DxWxN    a tree of depth D, up to W tokens for one place, N tokens together; W = 1 is a chain of D
  DxWxN/B  the same, with an expert budget of B: its answers may differ, and the tokens that do are counted
  yield    the policy chooses K; all tokens of a draft are verified
  priced   the same, and drafted tokens that cost more than they bring are left out (by_experts)
  treesW   the same, with up to W alternatives for one token (width)

Every request is answered in all modes before the next one, in an order drawn anew each time; K = 0 is twice among them. The ratio is
that to the K = 0 of the same round, and of these the median; "from" and "to" hold half of the rounds. Of K = 0 they are the ratio of one of its
two answers to the other, which tells the noise. An exact answer that is not the one of K = 0 ends the run. With the method
"replay" drafts are the answer itself: each token is right as often as --acceptance says, and alternatives are right more seldom
(services/drafter/replay.c)."""
import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

import speculation

MODES = "4x1x4,2x2x4,4x2x8,4x4x16,8x4x32,8x8x63,4x4x16/8,8x8x63/8,yield,priced,trees4"
POLICIES = ("yield", "priced", "trees")


def mode(text):
    if text == "0" or text in POLICIES[:2] or text.startswith("trees") and 1 <= int(text[5:]) <= 32:
        return text if text != "0" else 0
    tree, _, budget = text.partition("/")
    depth, width, nodes = map(int, tree.split("x"))
    if not (1 <= depth <= 63 and 1 <= width <= 255 and 1 <= nodes <= 511 and (not budget or int(budget) > 0)):
        raise ValueError
    return text


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py trees", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--modes", type=lambda text: [mode(word) for word in text.split(",")], default=MODES, help="default %(default)s")
    add("--methods", type=lambda text: text.split(","), default="ngram,model", help="draft methods; default %(default)s")
    add("--workloads", type=lambda text: text.split(","), default=",".join(speculation.WORKLOADS), help="default %(default)s")
    add("--model", type=Path, metavar="FILE", help="this model instead of the demo model, with replayed drafts")
    add("--acceptance", type=float, default=0.8, help="chance of the first token of replayed trees; default %(default)s")
    add("--budget", default="17%", help="memory for experts; default %(default)s")
    add("--draft", default="aligned", help="the draft model, or the head eagle3; default %(default)s")
    add("--tokens", type=int, default=64, help="tokens of an answer at most; default %(default)s")
    add("--limit", type=int, default=3, help="requests of each workload; default %(default)s")
    add("--rounds", type=int, default=5, help="the most rounds; default %(default)s")
    add("--seconds", type=float, default=180, help="approximate time of all rounds; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    add("--json", type=Path, metavar="FILE", help="also writes what was measured there")
    options = parser.parse_args(arguments)
    options.modes = [0, *(m for m in options.modes if m), 0]
    if options.model:
        options.methods = ["replay"]
    return options


def name(options):
    """A memory other than the usual one, and a model other than the demo model, are part of the file's name."""
    model = f"-{options.model.stem}" if options.model else ""
    return f"trees{model}" + ("" if options.budget == "17%" else f"-{options.budget.rstrip('%')}")


class Driver(speculation.Driver):
    """Sets the policy's knobs before an answer that needs others."""

    def __init__(self, tools, service):
        super().__init__(tools, service)
        self.knobs = None

    def answer(self, ids, tokens, *more, k):
        if isinstance(k, str) and k.startswith(POLICIES):
            self.set(("no" if k == "yield" else "yes", k[5:] if k.startswith("trees") else "1"))
            return self.run(ids, tokens, *more)
        if isinstance(k, str):
            tree, _, budget = k.partition("/")
            k, width, nodes = tree.split("x")
            more = (*more, "--draft-width", width, "--draft-nodes", nodes, *(("--budget-experts", budget) if budget else ()))
        return super().answer(ids, tokens, *more, k=int(k))

    def run(self, ids, tokens, *more):
        return self.tools.run_json(self.tools.program("outrider"), "run", "--runtime-dir", self.service.runtime, "--tokens",
                                   ",".join(map(str, ids)), "--max-tokens", tokens, "--format", "json", *more, timeout=600)

    def set(self, knobs):
        if knobs != self.knobs:
            for name, value in zip(("by_experts", "width"), knobs):
                self.service.ctl_json("knob", "set", f"policy.{name}={value}")
            self.knobs = knobs


def changed(answer, other):
    """How many tokens differ; from the first one on, those of a lossy answer are another text."""
    return sum(a != b for a, b in zip(answer, other)) + abs(len(answer) - len(other))


class Requests(speculation.Requests):
    def round(self, service, modes, turn):
        places = [{"tokens": 0, "seconds": 0.0, "at": [], "k_sum": 0, "changed": 0, **dict.fromkeys(speculation.COUNTS, 0)}
                  for _ in modes]
        for i, request in enumerate(self.requests):
            for at in random.Random(f"{self.name} {turn} {i}").sample(range(len(modes)), len(modes)):
                out = service.answer(request["ids"], request["tokens"], *request["flags"], k=modes[at])
                if request["answer"] is None:
                    plain = ("--ignore-eos",) if "--ignore-eos" in request["flags"] else ()
                    request["answer"] = service.answer(request["ids"], request["tokens"], *plain, k=0)["tokens"]
                differ = changed(out["tokens"], request["answer"])
                if differ and "/" not in str(modes[at]):
                    sys.exit(f"bench: {self.name}, {modes[at]}: the answer differs from the one at K = 0")
                places[at]["changed"] += differ
                speculation.take(places[at], out)
        self.rounds.append(places)


def measure(service, options, groups):
    start, longest = time.monotonic(), 0
    for turn in range(options.rounds):
        began = time.monotonic()
        if turn and began + longest > start + options.seconds:
            break
        for group in groups:
            group.round(service, options.modes, turn)
        longest = max(longest, time.monotonic() - began)


def ratios(group, mode_, modes):
    """To K = 0, by round; of K = 0 its one place to the other."""
    if mode_ == 0:
        first, last = (i for i, m in enumerate(modes) if m == 0)
        return [(r[first]["tokens"] / r[first]["seconds"]) / (r[last]["tokens"] / r[last]["seconds"]) for r in group.rounds]
    return [a / b for a, b in zip(group.rates(mode_, modes), group.rates(0, modes))]


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def figures(group, mode_, modes):
    places = [p for r in group.rounds for p, m in zip(r, modes) if m == mode_]
    total = {name: sum(p[name] for p in places) for name in (*speculation.COUNTS, "changed")}
    each = total["iterations"] or 1
    low, ratio, high = quartiles(ratios(group, mode_, modes))
    return {"mode": mode_, "tokens_per_s": statistics.median(group.rates(mode_, modes)), "ratio": ratio, "from": low, "to": high,
            "tokens_per_iteration": total["output_tokens"] / each, "experts_per_iteration": total["unique_experts"] / each,
            "verify_us": total["verify_ns"] / each / 1e3, "draft_us": total["draft_ns"] / each / 1e3,
            "changed_share": total["changed"] / (total["output_tokens"] or 1)}


def line(f):
    return (f"{f['mode'] or 'K = 0':10}{f['tokens_per_s']:9.1f}{f['ratio']:7.2f}{f['from']:7.2f}{f['to']:6.2f}{f['tokens_per_iteration']:9.2f}"
            f"{f['experts_per_iteration']:9.1f}{f['verify_us']:11.0f}{f['draft_us']:10.0f}{100 * f['changed_share']:9.1f}")


def groups_of(service, tools, options, root):
    if options.methods == ["replay"]:
        ids = [[1 + (7 * i + 13 * j) % 400 for j in range(16)] for i in range(options.limit)]
        made = []
        for each in ids:
            answer = service.answer(each, options.tokens, "--ignore-eos", k=0)["tokens"]
            made.append({"ids": each, "tokens": options.tokens, "answer": answer,
                         "flags": ("--ignore-eos", "--draft-method", "replay", "--replay", ",".join(map(str, answer)),
                                   "--replay-error", 1 - options.acceptance)})
        return [Requests(f"replay, acceptance {options.acceptance}", made)]
    groups = []
    for method in options.methods:
        for group in speculation.workloads(tools, options.limit, options.tokens, root):
            if group.name in options.workloads:
                requests = [{**request, "flags": ("--draft-method", method)} for request in group.requests]
                groups.append(Requests(f"{method}, {group.name}", requests))
    return groups


def run(tools, options, root):
    name = options.model.stem if options.model else "Demo model"
    text = [f"{name}, room for {options.budget} of its experts, {'replayed drafts' if options.model else f'draft model {options.draft}'}, {options.limit} requests of each workload, "
            f"{options.tokens} tokens at most.",
            "tok/it, experts (distinct, summed over the layers) and us: per iteration, over all rounds. changed: tokens that are not those",
            "of K = 0, in %, which only an expert budget (DxWxN/B) may change.", ""]
    drafts = {**tools.DRAFTS, "eagle3": tools.MODELS / "outrider-demo-eagle3-q8_0.gguf"}
    model = {"model": options.model} if options.model else {"draft": drafts[options.draft]}
    with tools.Service(**model, options=("--threads", options.threads, "--budget", options.budget)) as up:
        service = Driver(tools, up)
        groups = groups_of(service, tools, options, root)
        measure(service, options, groups)
    result = {}
    for group in groups:
        rows = result[group.name] = [figures(group, m, options.modes) for m in dict.fromkeys(options.modes)]
        text += [f"== {group.name}: {speculation.medians_of([group])}", "",
                 "mode       tokens/s  ratio   from    to   tok/it  experts  verify us  draft us  changed", *map(line, rows), ""]
    if options.json:
        options.json.write_text(json.dumps({"model": name, "budget": options.budget, "tokens": options.tokens, "groups": result}, indent=1))
    return "\n".join(text)
