"""What speculation brings: tokens/s over K with drafts whose acceptance is known, and with a draft model on the workloads.

A replayed draft is the answer itself (measured before, at K = 0), each token wrong with a set probability: what a drafter of that
acceptance would bring if drafting were free. `yield M` is the policy-controller's own choice of K, at most M (its knob k_max); it
knows neither the acceptance nor the model, and the first answers are measured like the rest.

Every prompt is answered in all modes before the next one, in an order drawn anew each time, since an answer finds the experts in
the cache that the one before has left there; K = 0 is twice among them. A round is every acceptance and every workload. No round
begins that would probably end after --seconds. What is compared is the ratio to the K = 0 of the same round, and of these the
median. An answer that is not the one of K = 0 ends the run."""
import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

ACCEPTANCE = (0.6, 0.8, 0.95)
WORKLOADS = ("code", "math", "extract", "prose")
KS = "0,1,2,3,4,5,6,7,9,11,13,15"
K_MOST = 15
LOADED_S = 600  # for a model to be read
COUNTS = ("output_tokens", "iterations", "verify_ns", "draft_ns", "unique_experts", "expert_hits", "expert_misses")


def numbers(low, high):
    """A type of argparse: numbers from low to high, by commas, each once."""
    def parse(text):
        values = [int(word) for word in text.split(",")]
        if len(set(values)) < len(values) or not all(low <= value <= high for value in values):
            raise ValueError
        return values
    parse.__name__ = f"numbers of {low} to {high}"  # what argparse says
    return parse


def parse(arguments, rounds):
    parser = argparse.ArgumentParser(prog="bench/run.py speculation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, metavar="FILE", help="measures this model instead of the demo model, with replayed drafts, into "
        "speculation-FILE.txt; needs memory for it twice")
    add("--budgets", default="all", help="budgets of experts for such a model, separated by commas; default %(default)s")
    add("--tokens", type=int, help="tokens of an answer; default: 160 with a replayed draft, at most 96 with a workload, 64 with such a model")
    add("--prompts", type=int, default=4, help="prompts with replayed drafts; default %(default)s (2 with such a model)")
    add("--limit", type=int, default=6, help="requests of each workload; default %(default)s")
    add("--k", type=numbers(1, K_MOST), metavar="K,...", default=KS[2:], help="draft lengths in addition to 0; default %(default)s")
    add("--k-max", type=numbers(1, K_MOST), metavar="M,...", default="7,15", help="values of k_max for yield; default %(default)s")
    add("--rounds", type=int, default=rounds, help="the most rounds; default %(default)s")
    add("--seconds", type=float, default=540, help="approximate time of all rounds; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    options = parser.parse_args(arguments)
    options.modes = [0, *options.k, *(f"yield {m}" for m in options.k_max), 0]
    return options


class Requests:
    """What is measured together: one acceptance, or one workload. Each request: prompt ids, tokens at most, further flags, and the
    answer that has to come (None: that of K = 0, once it is known)."""

    def __init__(self, name, requests):
        self.name, self.requests, self.rounds = name, requests, []

    def round(self, service, modes, turn):
        """One answer to every request in every mode; K = 0 has two places."""
        places = [{"tokens": 0, "seconds": 0.0, "at": [], "k_sum": 0, **dict.fromkeys(COUNTS, 0)} for _ in modes]
        for i, request in enumerate(self.requests):
            for at in random.Random(f"{self.name} {turn} {i}").sample(range(len(modes)), len(modes)):
                out = service.answer(request["ids"], request["tokens"], *request["flags"], k=modes[at])
                if request["answer"] is None:
                    request["answer"] = service.answer(request["ids"], request["tokens"], k=0)["tokens"]
                if out["tokens"] != request["answer"]:
                    sys.exit(f"bench: {self.name}, K = {modes[at]}: the answer differs from the one at K = 0")
                take(places[at], out)
        self.rounds.append(places)

    def rate(self, round_, mode, modes):
        return statistics.mean(p["tokens"] / p["seconds"] for p, m in zip(round_, modes) if m == mode)

    def rates(self, mode, modes):
        return [self.rate(r, mode, modes) for r in self.rounds]

    def ratio(self, mode, modes):
        return statistics.median(a / b for a, b in zip(self.rates(mode, modes), self.rates(0, modes)))


def take(place, out):
    """Adds an answer to what its mode gave; the first token is the prompt's."""
    usage = out["usage"]
    place["tokens"] += usage["output_tokens"] - 1
    place["seconds"] += usage["decode_ns"] / 1e9
    place["k_sum"] += sum(k * n for k, n in enumerate(usage["k_used"]))
    for name in COUNTS:
        place[name] += usage[name]
    place["at"].append((usage["drafted_at"], usage["accepted_at"]))


class Driver:
    """Asks the service, and sets the knob before an answer of yield that needs it."""

    def __init__(self, tools, service):
        self.tools, self.service, self.k_max = tools, service, None

    def answer(self, ids, tokens, *more, k):
        if isinstance(k, str):
            self.set_k_max(k.split()[1])
        else:
            more = (*more, "--k", k)
        return self.tools.run_json(self.tools.program("outrider"), "run", "--runtime-dir", self.service.runtime, "--tokens",
                                   ",".join(map(str, ids)), "--max-tokens", tokens, "--format", "json", *more, timeout=600)

    def set_k_max(self, most):
        if most != self.k_max:
            self.service.ctl_json("knob", "set", f"policy.k_max={most}")
            self.k_max = most


def replayed(service, ids, tokens):
    """One Requests per acceptance: drafts are the answers of K = 0, some of their tokens wrong."""
    answers = [service.answer(each, tokens, "--ignore-eos", k=0)["tokens"] for each in ids]
    return [Requests(f"{acceptance:.2f}", [
        {"ids": each, "tokens": tokens, "answer": answer, "flags": ("--ignore-eos", "--draft-method", "replay", "--replay",
                                                                  ",".join(map(str, answer)), "--replay-error", 1 - acceptance)}
        for each, answer in zip(ids, answers)]) for acceptance in ACCEPTANCE]


def workloads(tools, limit, tokens, root):
    def requests(name):
        lines = (root / "bench" / "workloads" / f"{name}.jsonl").read_text().splitlines()[:limit]
        return [{"ids": tools.tokens_of(json.loads(line)), "tokens": tokens, "answer": None, "flags": ("--draft-method", "model")}
                for line in lines]
    return [Requests(name, requests(name)) for name in WORKLOADS]


def measure(service, options, groups):
    """Rounds of all groups, one at least."""
    start, longest = time.monotonic(), 0
    for turn in range(options.rounds):
        began = time.monotonic()
        if turn and began + longest > start + options.seconds:
            break
        for group in groups:
            group.round(service, options.modes, turn)
        longest = max(longest, time.monotonic() - began)


def ratios(title, groups, modes):
    """A line per group: tokens/s at K = 0, the ratio of each mode, and the best fixed K."""
    fixed = [m for m in dict.fromkeys(modes) if isinstance(m, int)]
    columns = [m for m in fixed if m] + [m for m in modes if isinstance(m, str)]
    lines = [f"{title:12}{'K = 0':>6}" + "".join(f"{'K = ' + str(c) if c in fixed else c:>9}" for c in columns) + "   best K  gives"]
    for group in groups:
        middle = {mode: group.ratio(mode, modes) for mode in columns}
        best = max(fixed, key=lambda k: middle.get(k, 1))
        lines.append(f"{group.name:12}{statistics.median(group.rates(0, modes)):6.1f}" +
                     "".join(f"{middle[c]:9.2f}" for c in columns) + f"{best:9}  {middle.get(best, 1):5.2f}")
    return lines


def detail(group, modes):
    """A line per mode of a group: what an iteration was."""
    lines = ["", f"{group.name}: {len(group.requests)} requests, {medians_of([group])} (lowest to highest)",
             "mode      tokens/s                    tok/it  mean K  verify us  draft us  experts  hits  acceptance by position, %"]
    for mode in dict.fromkeys(modes):
        rates = group.rates(mode, modes)
        places = [p for r in group.rounds for p, m in zip(r, modes) if m == mode]
        total = {name: sum(p[name] for p in places) for name in ("k_sum", *COUNTS)}
        each = total["iterations"] or 1
        lines.append(f"{mode if isinstance(mode, str) else f'K = {mode}':9} {statistics.median(rates):8.1f} "
                     f"({min(rates):6.1f} to {max(rates):6.1f}) {total['output_tokens'] / each:6.2f}  {total['k_sum'] / each:6.2f} "
                     f"{total['verify_ns'] / each / 1e3:10.0f} {total['draft_ns'] / each / 1e3:9.0f} {total['unique_experts'] / each:8.1f} "
                     f"{total['expert_hits'] / max(1, total['expert_hits'] + total['expert_misses']):5.0%}  {accepted(places)}")
    return lines


def accepted(places):
    pairs = [pair for p in places for pair in p["at"]]
    sums = [[sum(pair[which][i] for pair in pairs if i < len(pair[which])) for i in range(K_MOST)] for which in (0, 1)]
    return " ".join(f"{100 * a / d:.0f}" for d, a in zip(*sums) if d)


def medians_of(groups):
    n = len(groups[0].rounds)
    return f"medians of {n} round{'s' * (n != 1)}"


def of_demo(tools, options, root):
    with tools.Service(draft=tools.DRAFTS["aligned"], options=("--threads", options.threads, "--budget", "17%")) as up:
        service = Driver(tools, up)
        tokens, longest = options.tokens or 160, options.tokens or 96
        replays = replayed(service, tools.prompts(options.prompts, longest=100), tokens)
        served = workloads(tools, options.limit, longest, root)
        measure(service, options, replays + served)
    return [f"Tokens/s at K = 0 and ratios to it, {medians_of(served)}. yield M: chosen by the policy, at most M "
            "(k_max).", "", f"== demo model, room for 17 % of its experts; replayed drafts, {options.prompts} prompts, {tokens} tokens "
            "each", "", *ratios("acceptance", replays, options.modes), "",
            f"== the same, drafts of the aligned draft model, {options.limit} requests of each workload, {longest} tokens at most", "",
            *ratios("workload", served, options.modes), *(line for group in served for line in detail(group, options.modes)), "",
            "tok/it, mean K, us, experts (distinct, summed over the layers) and hits: per iteration, over all rounds."]


def of_model(tools, options, budget):
    tokens = options.tokens or 64
    with tools.Service(options.model, options=("--threads", options.threads, "--budget", budget), ready_s=LOADED_S) as up:
        service = Driver(tools, up)
        replays = replayed(service, [[1, 2, 3], [4, 5, 6, 7]], tokens)
        measure(service, options, replays)
    return [f"== {options.model.stem}, room for {budget} of its experts; replayed drafts, two prompts, {tokens} tokens each: tokens/s at "
            f"K = 0 and ratios to it, {medians_of(replays)}", "", *ratios("acceptance", replays, options.modes), ""]


def run(tools, options, root):
    if options.model is None:
        return "\n".join(of_demo(tools, options, root))
    return "\n".join(line for budget in options.budgets.split(",") for line in of_model(tools, options, budget))
