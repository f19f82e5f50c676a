"""The matrix: tokens/s of K = 0, every static K, cascade and yield, per workload, draft and expert budget, in one interleaved run.

Each request is answered in all modes before the next one (outrider-bench workload), each time beginning with another mode; cascade
and yield, which share the service's policy knob, each with K = 0 among them. A part ends after about --seconds and appends
its figures to bench/results/matrix.jsonl, a line per cell and round; the next part goes on with what was measured least, so that
rounds are outermost however often it is started. The report is made of all lines."""
import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

DRAFT_MODES = {"ngram": ("small", "ngram"), "small": ("small", "model"), "aligned": ("aligned", "model")}
BUDGETS = ("all", "30%")
WORKLOADS = ("code", "math", "extract", "prose", "mixed")
STATIC = tuple(range(1, 8))
# The policies and what they are compared with are measured twice, in different places.
MODES = {"yield": ("0", "1", "2", "auto", "3", "4", "0", "5", "6", "auto", "7"), "cascade": ("0", "auto", "0", "auto")}


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py matrix", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", default=",".join(DRAFT_MODES), help="by commas (default %(default)s)")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="of experts, by commas (default %(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="by commas (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="ends when each cell has so many (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no further cell after so long")
    parser.add_argument("--limit", type=int, default=4, help="requests of each workload (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the verifier (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of each request (default %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forgets what was measured before")
    parser.add_argument("--report", action="store_true", help="measures nothing")
    return parser.parse_args(arguments)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cell_of(line):
    return line["draft"], line["budget"], line["workload"]


def run_modes(bench, service, options, drafter, workload, ks):
    """[(mode, tokens/s, mean K)] of one pass over the requests per mode, in this order."""
    out = subprocess.run([bench, "workload", str(Path("bench") / "workloads" / f"{workload}.jsonl"), "--k", ",".join(ks), "--drafter",
                          drafter, "--rounds", "1", "--limit", str(options.limit), "--max-tokens", str(options.max_tokens),
                          "--runtime-dir", str(service.runtime), "--format", "json"], check=True, capture_output=True, text=True)
    return [(str(row["k"]), row["tokens_per_s"], row["mean_k"]) for row in json.loads(out.stdout)["rows"]]


def measure_cell(tools, service, options, drafter, workload, turn):
    """{policy: {mode: [(tokens/s, mean K)]}}; the policies change places from round to round."""
    out = {policy: {} for policy in MODES}
    for policy in sorted(MODES, reverse=turn % 2):
        tools.run_json(tools.program("outriderctl"), "--runtime-dir", service.runtime, "knob", "set", f"policy.policy={policy}",
                       "--format", "json")
        for mode, per_s, mean_k in run_modes(tools.program("outrider-bench"), service, options, drafter, workload, MODES[policy]):
            out[policy].setdefault(mode, []).append((round(per_s, 1), round(mean_k, 3)))
    return out


def measure(tools, options, path, about):
    """One part: what was measured least first, a service at a time."""
    end = time.monotonic() + options.seconds
    cells = [(d, b, w) for d in options.drafts.split(",") for b in options.budgets.split(",") for w in options.workloads.split(",")]
    while time.monotonic() < end:
        lines = read(path)
        done = {cell: sum(cell_of(line) == cell for line in lines) for cell in cells}
        draft, budget, _ = min(cells, key=done.get)
        turn = min(done.values())
        if turn >= options.rounds:
            return True
        model, drafter = DRAFT_MODES[draft]
        with tools.Service(draft=tools.DRAFTS[model], options=("--budget", budget, "--threads", options.threads)) as service:
            for cell in [c for c in cells if c[:2] == (draft, budget) and done[c] == turn]:
                if time.monotonic() >= end:
                    break
                modes = measure_cell(tools, service, options, drafter, cell[2], turn)
                with path.open("a") as to:
                    to.write(json.dumps({**about, "threads": options.threads, "requests": options.limit,
                                         "max_tokens": options.max_tokens, "draft": draft, "budget": budget, "workload": cell[2], "modes": modes}) + "\n")
    return False


def rates_of(lines):
    """{mode: (median tokens/s, median ratio to the K = 0 of the same round, mean K)}"""
    rates, ratios, ks = {}, {}, {}
    for line in lines:
        for policy, modes in line["modes"].items():
            base = statistics.mean(per_s for per_s, _ in modes["0"])
            for mode, runs in modes.items():
                name = policy if mode == "auto" else mode
                per_s = statistics.mean(r for r, _ in runs)
                rates.setdefault(name, []).append(per_s)
                ratios.setdefault(name, []).append(per_s / base)
                ks.setdefault(name, []).append(statistics.mean(k for _, k in runs))
    return {m: (statistics.median(rates[m]), statistics.median(ratios[m]), statistics.mean(ks[m])) for m in rates}


def harmonic(values):
    return statistics.harmonic_mean(list(values))


def summary(title, cells):
    """Each cell the same work at K = 0: what a policy gives over all of them, and its worst cell."""
    static = {m: harmonic(c[m][1] for c in cells.values()) for m in ("0", *map(str, STATIC))}
    single = max(static, key=static.get)
    text = [f"{title}; the single best static K: {single} ({static[single]:.3f} of K = 0)",
            "          to K = 0  worst cell                     to each cell's best  worst cell                     to the single best"]
    for policy in ("cascade", "yield"):
        own = {c: cells[c][policy][1] for c in cells}
        best = {c: own[c] / max(cells[c][m][1] for m in static) for c in cells}
        low, behind = min(own, key=own.get), min(best, key=best.get)
        text.append(f"{policy:9} {harmonic(own.values()):8.3f}  {own[low]:.3f} {' '.join(low):24}  {harmonic(best.values()):17.3f}"
                    f"  {best[behind]:.3f} {' '.join(behind):24} {harmonic(own.values()) / static[single]:10.3f}")
    return text + [""]


def report(lines):
    cells = {}
    for line in lines:
        cells.setdefault(cell_of(line), []).append(line)
    rates = {c: rates_of(cells[c]) for c in cells}
    modes = ("0", *map(str, STATIC), "cascade", "yield")
    counts = [len(c) for c in cells.values()]
    about = {(l["revision"], l["threads"], l["requests"], l["max_tokens"]) for l in lines}
    text = [f"tokens/s of decoding at K = 0, and of each mode the ratio to the K = 0 of the same round: medians of {min(counts)} to "
            f"{max(counts)} rounds;", "for cascade and yield also the mean K they chose.",
            *(f"Measured at {r}: verifier on {t} thread{'s' * (t > 1)}, {n} requests of each workload, {m} tokens at most."
              for r, t, n, m in sorted(about)), "",
            "draft    budget  workload  tokens/s   " + " ".join(f"K = {m} " for m in modes[1:8]) + "  cascade  (K)    yield  (K)"]
    for cell in sorted(cells, key=lambda c: (list(DRAFT_MODES).index(c[0]), c[1] != "all", WORKLOADS.index(c[2]))):
        r = rates[cell]
        text.append(f"{cell[0]:8} {cell[1]:7} {cell[2]:8} {r['0'][0]:9.0f}   " + " ".join(f"{r[m][1]:6.3f}" for m in modes[1:8]) +
                    "".join(f"   {r[m][1]:6.3f} {r[m][2]:5.2f}" for m in modes[8:]))
    text.append("")
    for budget in BUDGETS:
        some = {c: rates[c] for c in rates if c[1] == budget}
        if some:
            text += summary(f"budget {budget}, {len(some)} cells", some)
    return "\n".join(text + summary(f"all {len(rates)} cells", rates))


def run(tools, arguments, about, path):
    """Measures a part; the report of all parts, or None when nothing was measured yet."""
    options = parse(arguments)
    if options.fresh:
        path.unlink(missing_ok=True)
    if not options.report:
        measure(tools, options, path, about)
    lines = read(path)
    return report(lines) if lines else None
