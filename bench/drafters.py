"""Every way to draft for the demo model, beside each other: acceptance by position, tokens per pass, and speed against K = 0 at several
batch sizes: table 1 of the paper "Rethinking the high-throughput LLM inference: an opportunity for speculative decoding" in shape.

Every session of a batch begins at once, with another prompt of the four workloads, and has as many tokens as the others. The rate of a
batch is the sum of the sessions' own rates while they decode. In each round all K of a method are measured in an order drawn anew,
K = 0 among them; the ratio is that to the K = 0 of the same round, and of these the median. An answer that is not the one of K = 0 ends
the run."""
import argparse
import json
import random
import statistics
import sys

import speculation

# Name, draft method, and what the service is started with.
METHODS = (("separate model (aligned)", "model", {"draft": "aligned"}), ("separate model (small)", "model", {"draft": "small"}),
           ("EAGLE-3", "eagle3", {"draft": "outrider-demo-eagle3-q8_0.gguf"}), ("MTP head", "mtp", {"model": "outrider-demo-mtp-q8_0.gguf"}),
           ("layer skip", "layer-skip", {}), ("mtp-lora", "mtp-lora", {"options": ("--adapter", "outrider-demo-mtp-lora.gguf")}),
           ("n-grams", "ngram", {}))
MASKS = 3  # that the demo model's adapter has
BATCHES = "1,4,16,64"
LONGEST = 5  # of the chains whose acceptance is shown


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py drafters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--methods", type=lambda text: text.split(","), help="draft methods, separated by commas; default: all")
    add("--batches", type=speculation.numbers(1, 256), metavar="B,...", default=BATCHES, help="sessions at once; default %(default)s; with others the "
        "result has their numbers in its name")
    add("--k", type=speculation.numbers(1, speculation.K_MOST), metavar="K,...", default="1,2,3,5", help="default %(default)s")
    add("--tokens", type=int, default=96, help="tokens of an answer; default %(default)s")
    add("--least", type=int, default=8, help="answers of a measurement, at least; default %(default)s")
    add("--rounds", type=int, default=3, help="default %(default)s")
    add("--skip-layers", default="auto", help="layers that layer-skip leaves out; default %(default)s")
    add("--threads", type=int, default=2, help="threads of the verifier; default %(default)s")
    return parser.parse_args(arguments)


def result_name(options):
    batches = ",".join(map(str, options.batches))
    return "drafters" if batches == BATCHES else "drafters-" + batches.replace(",", "-")


def measure(service, method, k, batch, ids, options):
    """(tokens per second, tokens, usage) of one batch after the other, until there are enough answers."""
    rate, tokens, usage = [], [], []
    for first in range(0, max(options.least, batch), batch):
        asked = [{"tokens": ids[(first + i) % len(ids)], "max_tokens": options.tokens, "seed": 1, "ignore_eos": True, "k": k,
                  "draft_method": method if k else "none"} for i in range(batch)]
        results = service.swarm(asked, concurrent=batch, timeout=600)
        failed = [r for r in results if r.get("error")]
        if failed:
            sys.exit(f"bench: {method}, K = {k}: {failed[0]['error']}")
        tokens += [r["tokens"] for r in results]
        usage += [r["usage"] for r in results]
        rate.append(sum((r["usage"]["output_tokens"] - 1) * 1e9 / r["usage"]["decode_ns"] for r in results))
    return statistics.mean(rate), tokens, usage


def acceptance(usage):
    """Share of the drafted tokens that were accepted, at each position."""
    drafted, accepted = ([sum(u[key][i] for u in usage) for i in range(LONGEST)] for key in ("drafted_at", "accepted_at"))
    return [a / d if d else None for a, d in zip(accepted, drafted)]


def run_method(outrider_test, name, method, start, options, root):
    models = root / "models"
    draft = start.get("draft")
    more = tuple(models / word if word.endswith(".gguf") else word for word in start.get("options", ()))
    ks = [k for k in options.k if method != "mtp-lora" or k <= MASKS]
    sessions = max(options.batches)
    lines = (models / "golden" / "workload-outputs.jsonl").read_text().splitlines()
    ids = [json.loads(lines[i])["input_ids"] for i in sorted(range(len(lines)), key=lambda i: (i % 32, i // 32))]
    room = max(32768, sessions * (max(map(len, ids)) + options.tokens + 64))  # for the draft model, so that no session's cells are evicted
    out = {"name": name, "k": ks, "batch": {}}
    with outrider_test.Service(model=models / start.get("model", "outrider-demo-moe-q8_0.gguf"),
                               draft=outrider_test.DRAFTS.get(draft, models / draft) if draft else None,
                               options=("--threads", options.threads, "--budget", "all", *more),
                               sets=(f"verifier.sessions_max={sessions}", f"verifier.client_requests={sessions}",
                                     f"drafter.skip_layers={options.skip_layers}", f"drafter.kv_tokens={room}")) as service:
        for batch in options.batches:
            ratios, tokens, usage, base = {k: [] for k in ks}, {}, {}, []
            measure(service, method, ks[0], batch, ids, options)  # so that the drafter has read the model
            for turn in range(options.rounds):
                rate = {}
                for k in random.Random(f"{name} {batch} {turn}").sample([0, *ks], len(ks) + 1):
                    rate[k], tokens[k], usage[k] = measure(service, method, k, batch, ids, options)
                if any(tokens[k] != tokens[0] for k in ks):
                    sys.exit(f"bench: {name}, batch {batch}: answers differ from those at K = 0")
                base.append(rate[0])
                for k in ks:
                    ratios[k].append(rate[k] / rate[0])
            out["batch"][batch] = {"base": statistics.median(base), "ratio": {k: statistics.median(ratios[k]) for k in ks}}
            if batch == options.batches[0]:
                out["tokens"] = {k: sum(u["output_tokens"] - 1 for u in usage[k]) / sum(u["iterations"] - 1 for u in usage[k]) for k in ks}
                out["accepted"] = acceptance(usage[ks[-1]])
    return out


def report(found, options):
    lines = [f"Tokens per pass, and accepted tokens by position (of chains of the longest K), {options.batches[0]} session"
             f"{'s' if options.batches[0] > 1 else ''} at a time:", "",
             f"{'':26}" + "".join(f"{f'K = {k}':>8}" for k in options.k) + "   " + "".join(f"{p + 1:>7}." for p in range(LONGEST))]
    for f in found:
        lines.append(f"{f['name']:26}" + "".join(f"{f['tokens'][k]:8.2f}" if k in f["tokens"] else f"{'-':>8}" for k in options.k) + "   " +
                     "".join(f"{100 * a:7.0f}%" if a is not None else f"{'-':>8}" for a in f["accepted"]))
    for batch in options.batches:
        lines += ["", f"{batch} session{'s' if batch > 1 else ''}: tokens/s at K = 0, and the speed as a multiple of it:", "",
                  f"{'':26}{'K = 0':>9}" + "".join(f"{f'K = {k}':>8}" for k in options.k)]
        for f in found:
            at = f["batch"][batch]
            lines.append(f"{f['name']:26}{at['base']:9.0f}" + "".join(f"{at['ratio'][k]:8.2f}" if k in at["ratio"] else f"{'-':>8}" for k in options.k))
    return "\n".join(lines)


def run(outrider_test, options, root):
    wanted = [m for m in METHODS if not options.methods or m[1] in options.methods]
    found = []
    for method in wanted:
        found.append(run_method(outrider_test, *method, options, root))
        print(report(found[-1:], options), flush=True)
    return report(found, options)
