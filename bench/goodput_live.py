"""The policy goodput beside fixed K and yield in the running service: the demo model, 1 to 256 sessions at a time.

Each client sends its next request when it has its answer. In each round all policies are measured in turn; the ratios are to the K = 0 of
the same round and to the best fixed K in hindsight, K = 0 among them: the one whose median rate is the highest. Before the first round the
longest drafts and goodput warm caches and the drafter."""
import argparse
import statistics

from speculation import numbers

FIXED = tuple(f"static:{k}" for k in (0, 1, 2, 3, 5))
POLICIES = (*FIXED, "yield", "goodput")
WORKLOAD = "bench/workloads/mixed.jsonl"
REQUESTS = 48  # of a measurement, at least


def parse(arguments, rounds):
    parser = argparse.ArgumentParser(prog="bench/run.py goodput-live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--drafter", choices=("aligned", "small", "ngrams"), default="aligned", help="a draft model, or n-grams alone; default %(default)s")
    add("--clients", type=numbers(1, 256), metavar="N,...", default="1,4,16,64,256", help="default %(default)s")
    add("--output-tokens", type=int, default=64, help="tokens of an answer; default %(default)s")
    add("--rounds", type=int, default=rounds, help="default %(default)s")
    return parser.parse_args(arguments)


def rate(outrider_test, service, policy, clients, options):
    """Tokens per second of one measurement."""
    service.ctl("policy", "set", policy)
    said = outrider_test.run_json(outrider_test.program("outrider-bench"), "load", "--runtime-dir", service.runtime, "--arrivals", "closed",
                                  "--clients", clients, "--requests", max(REQUESTS, 2 * clients), "--output-tokens", options.output_tokens,
                                  "--workload", WORKLOAD, "--json")
    return said["output_tokens_per_s"]


def rates(outrider_test, service, clients, options):
    """{policy: tokens per second of each round}."""
    for policy in (FIXED[-1], "goodput"):
        rate(outrider_test, service, policy, clients, options)
    rounds = [{policy: rate(outrider_test, service, policy, clients, options) for policy in POLICIES} for _ in range(options.rounds)]
    return {policy: [one[policy] for one in rounds] for policy in POLICIES}


def ratios(found, base):
    """The median of the ratios of each round, the least and the most."""
    each = [a / b for a, b in zip(found, base)]
    return f"{statistics.median(each):6.3f} ({min(each):.2f} to {max(each):.2f})"


def lines(clients, found):
    best = max(FIXED, key=lambda policy: statistics.median(found[policy]))
    return [f"{clients:3} clients  {policy:9} {statistics.median(each):9.1f}   to static:0 {ratios(each, found['static:0'])}   "
            f"to {best} {ratios(each, found[best])}" for policy, each in found.items()] + [""]


def run(outrider_test, options):
    most = max(options.clients)
    text = [f"tokens/s of answers of {options.output_tokens} tokens, medians of {options.rounds} rounds in turn; ratios of each round: median, least and most", ""]
    with outrider_test.Service(draft=outrider_test.DRAFTS.get(options.drafter), options=("--threads", 1),
                               sets=(f"verifier.sessions_max={most}", f"verifier.client_requests={max(32, most)}")) as service:
        for clients in options.clients:
            text += lines(clients, rates(outrider_test, service, clients, options))
            print("\n".join(text[-len(POLICIES) - 1:]), flush=True)
    return "\n".join(text)
