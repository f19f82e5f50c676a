"""What trees of drafts bring and cost on the demo model: tokens/s, tokens per iteration and distinct experts over depth, width and
nodes, with n-grams and with the draft model, at a budget of experts.

A mode DxWxN is a tree of depth D, with up to W tokens for one place and N tokens together; W = 1 is a chain of D. Every request is
answered in all modes before the next one, in an order drawn anew each time; K = 0 is twice among them. The ratio is that to the K = 0 of
the same round, and of these the median. An answer that is not the one of K = 0 ends the run."""
import argparse
import statistics
import time

import speculation

MODES = "2x1x2,4x1x4,8x1x8,2x2x4,4x2x8,4x4x16,8x4x32,8x8x63"


def tree(text):
    depth, width, nodes = map(int, text.split("x"))
    if not (1 <= depth <= 63 and 1 <= width <= 255 and 1 <= nodes <= 511):
        raise ValueError
    return f"{depth}x{width}x{nodes}"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py trees", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--trees", type=lambda text: [tree(word) for word in text.split(",")], default=MODES, metavar="DxWxN,...", help="default %(default)s")
    add("--methods", type=lambda text: text.split(","), default="ngram,model", help="draft methods; default %(default)s")
    add("--workloads", type=lambda text: text.split(","), default=",".join(speculation.WORKLOADS), help="default %(default)s")
    add("--budget", default="17%", help="memory for experts; default %(default)s")
    add("--draft", default="aligned", help="the draft model; default %(default)s")
    add("--tokens", type=int, default=64, help="tokens of an answer at most; default %(default)s")
    add("--limit", type=int, default=3, help="requests of each workload; default %(default)s")
    add("--rounds", type=int, default=5, help="the most rounds; default %(default)s")
    add("--seconds", type=float, default=180, help="approximate time of all rounds; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    options = parser.parse_args(arguments)
    options.modes = [0, *options.trees, 0]
    return options


class Driver(speculation.Driver):
    def answer(self, ids, tokens, *more, k):
        if isinstance(k, str):
            k, width, nodes = k.split("x")
            more = (*more, "--draft-width", width, "--draft-nodes", nodes)
        return super().answer(ids, tokens, *more, k=int(k))


def measure(service, options, groups):
    start, longest = time.monotonic(), 0
    for turn in range(options.rounds):
        began = time.monotonic()
        if turn and began + longest > start + options.seconds:
            break
        for group in groups:
            group.round(service, options.modes, turn)
        longest = max(longest, time.monotonic() - began)


def line(group, mode, modes):
    places = [p for r in group.rounds for p, m in zip(r, modes) if m == mode]
    total = {name: sum(p[name] for p in places) for name in speculation.COUNTS}
    each = total["iterations"] or 1
    return (f"{mode or 'K = 0':10}{statistics.median(group.rates(mode, modes)):9.1f}{group.ratio(mode, modes):7.2f}"
            f"{total['output_tokens'] / each:9.2f}{total['unique_experts'] / each:9.1f}{total['verify_ns'] / each / 1e3:11.0f}"
            f"{total['draft_ns'] / each / 1e3:10.0f}")


def run(tools, options, root):
    text = [f"Demo model, room for {options.budget} of its experts, draft model {options.draft}, {options.limit} requests of each workload, "
            f"{options.tokens} tokens at most.", "tok/it, experts (distinct, summed over the layers) and us: per iteration, over all rounds.", ""]
    with tools.Service(draft=tools.DRAFTS[options.draft], options=("--threads", options.threads, "--budget", options.budget)) as up:
        service = Driver(tools, up)
        groups = []
        for method in options.methods:
            for group in speculation.workloads(tools, options.limit, options.tokens, root):
                if group.name in options.workloads:
                    group.requests = [{**request, "flags": ("--draft-method", method)} for request in group.requests]
                    group.name = f"{method}, {group.name}"
                    groups.append(group)
        measure(service, options, groups)
    for group in groups:
        text += [f"== {group.name}: {speculation.medians_of([group])}", "",
                 "tree       tokens/s  ratio   tok/it  experts  verify us  draft us",
                 *(line(group, mode, options.modes) for mode in dict.fromkeys(options.modes)), ""]
    return "\n".join(text)
