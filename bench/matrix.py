"""The matrix: tokens/s of K = 0, every static K, cascade and yield, per workload, draft and expert budget, in one interleaved run.

Each request is answered in all modes before the next one (outrider-bench workload), each time beginning with another mode, and all
requests again until a cell has had its seconds; cascade and yield, which share the service's policy knob, each with K = 0 twice
among them. What is compared is the ratio to the K = 0 of the same pass; the two K = 0 against each other say how precise that is.
A part ends after about --seconds and appends its figures to bench/results/matrix.jsonl, a line per cell and round; the next part
goes on with what was measured least, so that rounds are outermost however often it is started. The report is made of all lines: what
another revision or another machine has measured, or this one with other options, is forgotten when measuring begins.

Answers of 192 tokens: cascade's first iterations and tests, 20 at most, are then a tenth of an answer, as in the answers of hundreds
of tokens that it was made for; those of math and extract end by themselves after about 70, and longer ones would take a round of all
cells beyond five minutes."""
import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

DRAFT_MODES = {"ngram": ("small", "ngram"), "small": ("small", "model"), "aligned": ("aligned", "model")}
BUDGETS = ("all", "30%")
WORKLOADS = ("code", "math", "extract", "prose", "mixed")
STATIC = tuple(map(str, range(1, 8)))
POLICIES = ("cascade", "yield")
# Each policy and what it is compared with are measured twice, in different places.
MODES = {"yield": ("0", "1", "2", "auto", "3", "4", "0", "5", "6", "auto", "7"), "cascade": ("0", "auto", "0", "auto")}
SECONDS = {"yield": 5, "cascade": 2}
# With --floor: either policy against K = 0 alone, which is what the floor of a cell needs the most passes for.
FLOOR = ("0", "auto", "0", "auto")
PASSES_MAX = 99
# Of a median: outside lie 2.5 % of its samplings on each side.
INTERVAL = 0.025


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/run.py matrix", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", default=",".join(DRAFT_MODES), help="sources of drafts, separated by commas (default %(default)s)")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="budgets of experts, separated by commas (default %(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="workloads, separated by commas (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="ends when each cell has this many rounds (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no further cell after this time")
    parser.add_argument("--floor", action="store_true", help="adds rounds of K = 0, cascade and yield alone")
    parser.add_argument("--limit", type=int, default=4, help="requests of each workload (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the verifier (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=192, help="the most tokens of each request (default %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forgets what was measured before")
    parser.add_argument("--report", action="store_true", help="measures nothing")
    parser.add_argument("--to", type=Path, help="writes the figures to another file; the report is only printed")
    return parser.parse_args(arguments)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def same(line, about, options):
    """Whether it was measured as this run measures."""
    return all(line[key] == value for key, value in (
        ("cpu", about["cpu"]), ("revision", about["revision"]), ("threads", options.threads), ("requests", options.limit),
        ("max_tokens", options.max_tokens)))


def forget_others(path, about, options):
    lines = read(path)
    kept = [line for line in lines if same(line, about, options)]
    if len(kept) < len(lines):
        print(f"bench: {path.name}: {len(lines) - len(kept)} of {len(lines)} figures come from another revision or machine, or from other "
              "options, and are dropped", file=sys.stderr)
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))


def cell_of(line):
    return line["draft"], line["budget"], line["workload"]


def has_static(line):
    return any(k in modes for modes in line["modes"].values() for k in STATIC)


def run_modes(bench, service, options, drafter, workload, policy):
    """{mode: [{"per_s": tokens/s of each pass over the requests, "k": mean K}, once per place in MODES or FLOOR]}"""
    modes, seconds = (FLOOR, min(SECONDS.values())) if options.floor else (MODES[policy], SECONDS[policy])
    out = subprocess.run([bench, "workload", str(Path("bench") / "workloads" / f"{workload}.jsonl"), "--k", ",".join(modes),
                          "--drafter", drafter, "--rounds", str(PASSES_MAX), "--seconds", str(seconds), "--limit",
                          str(options.limit), "--max-tokens", str(options.max_tokens), "--runtime-dir", str(service.runtime),
                          "--format", "json"], check=True, capture_output=True, text=True)
    modes = {}
    for row in json.loads(out.stdout)["rows"]:
        modes.setdefault(str(row["k"]), []).append({"per_s": [round(r, 1) for r in row["rounds"]], "k": round(row["mean_k"], 3)})
    return modes


def measure_cell(tools, service, options, drafter, workload, turn):
    """{policy: what run_modes gives}; the policies change places from round to round."""
    out = {}
    for policy in sorted(MODES, reverse=turn % 2):
        service.ctl_json("knob", "set", f"policy.policy={policy}")
        out[policy] = run_modes(tools.program("outrider-bench"), service, options, drafter, workload, policy)
    return out


def measure(tools, options, path, about):
    """One part: what was measured least first, a service at a time."""
    end = time.monotonic() + options.seconds
    cells = [(d, b, w) for d in options.drafts.split(",") for b in options.budgets.split(",") for w in options.workloads.split(",")]
    while time.monotonic() < end:
        lines = read(path)
        done = {cell: sum(cell_of(line) == cell and has_static(line) != options.floor for line in lines) for cell in cells}
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


def per_pass(runs):
    """tokens/s of each pass, over the places that a mode had in it: the same work in each."""
    return [statistics.harmonic_mean(rates) for rates in zip(*(run["per_s"] for run in runs))]


def samples_of(lines):
    """{mode: [(tokens/s, ratio to K = 0 of the same pass)]}, {mode: [mean K]}, and of K = 0 [first place / second]"""
    samples, ks, noise = {}, {}, []
    for line in lines:
        for policy, modes in line["modes"].items():
            base = per_pass(modes["0"])
            noise += [a / b for a, b in zip(*(run["per_s"] for run in modes["0"]))]
            for mode, runs in modes.items():
                name = policy if mode == "auto" else mode
                samples.setdefault(name, []).extend((rate, rate / zero) for rate, zero in zip(per_pass(runs), base))
                ks.setdefault(name, []).append(statistics.mean(run["k"] for run in runs))
    return samples, ks, noise


def interval(values):
    """Of the median, by the order of the values (the sign test); of few values, all of them."""
    values, below, i = sorted(values), 0.5 ** len(values), 0
    chance = below
    while below + chance * (len(values) - i) / (i + 1) <= INTERVAL:
        chance *= (len(values) - i) / (i + 1)
        below += chance
        i += 1
    return values[i], values[-1 - i]


class Cell:
    def __init__(self, lines):
        samples, ks, self.noise = samples_of(lines)
        self.per_s = statistics.median(rate for rate, _ in samples["0"])
        self.ratio = {mode: statistics.median(ratio for _, ratio in s) for mode, s in samples.items()}
        self.ratio["0"] = 1.0
        self.interval = {policy: interval([ratio for _, ratio in samples[policy]]) for policy in POLICIES}
        self.k = {policy: statistics.mean(ks[policy]) for policy in POLICIES}
        self.best = max(self.ratio[k] for k in ("0", *STATIC))
        self.passes = {policy: len(samples[policy]) for policy in POLICIES}


def harmonic(values):
    return statistics.harmonic_mean(list(values))


def summary(title, cells):
    """Each cell the same work at K = 0: what a policy gives over all of them, and its worst cell."""
    static = {k: harmonic(c.ratio[k] for c in cells.values()) for k in ("0", *STATIC)}
    single = max(static, key=static.get)
    hindsight = harmonic(c.best for c in cells.values())
    text = [f"{title}; the single best static K: {single} ({static[single]:.3f} of K = 0)",
            "           to K = 0  worst cell                     to each cell's best  worst cell                     to the single best"]
    for policy in POLICIES:
        own = {name: c.ratio[policy] for name, c in cells.items()}
        best = {name: own[name] / c.best for name, c in cells.items()}
        low, behind = min(own, key=own.get), min(best, key=best.get)
        text.append(f"{policy:10} {harmonic(own.values()):8.3f}  {own[low]:.3f} {' '.join(low):24}  {harmonic(best.values()):17.3f}"
                    f"  {best[behind]:.3f} {' '.join(behind):24} {harmonic(own.values()) / static[single]:10.3f}")
    return text + [f"hindsight  {hindsight:8.3f}  {'':30}  {1:17.3f}  {'':30} {hindsight / static[single]:10.3f}", ""]


def noise_floor(cells):
    """What two measurements of the same thing differ by."""
    spread = sorted(abs(ratio - 1) for c in cells.values() for ratio in c.noise)
    medians = {name: statistics.median(c.noise) for name, c in cells.items()}
    worst = max(medians, key=lambda name: abs(medians[name] - 1))
    return [f"K = 0 against K = 0 of the same pass, {len(spread)} times: half differ by less than {spread[len(spread) // 2]:.1%}, nine in "
            f"ten by less than {spread[len(spread) * 9 // 10]:.1%};",
            f"the median of a cell by at most {abs(medians[worst] - 1):.1%} ({' '.join(worst)}). Nearer than that nothing is told apart.", ""]


def span(counts):
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"


def report(lines):
    by_cell = {}
    for line in lines:
        by_cell.setdefault(cell_of(line), []).append(line)
    by_cell = {name: of for name, of in by_cell.items() if any(map(has_static, of))}
    order = sorted(by_cell, key=lambda c: (list(DRAFT_MODES).index(c[0]), c[1] != "all", WORKLOADS.index(c[2])))
    cells = {name: Cell(by_cell[name]) for name in order}
    counts = [sum(map(has_static, of)) for of in by_cell.values()]
    floors = [len(of) - rounds for of, rounds in zip(by_cell.values(), counts)]
    passes = [min(c.passes.values()) for c in cells.values()]
    about = {(l["revision"], l["threads"], l["requests"], l["max_tokens"]) for of in by_cell.values() for l in of}
    text = [f"tokens/s of decoding at K = 0, and of each mode the ratio to the K = 0 of the same pass: medians over {min(passes)} to "
            f"{max(passes)} passes", f"and more, in {span(counts)} rounds{f', {span(floors)} more of the policies alone' if max(floors) else ''}; for cascade and yield "
            "also the", "interval that holds the median with 95 % (of few passes: all of them) and the mean K they chose.",
            *(f"Measured at {r}: verifier on {t} thread{'s' * (t > 1)}, {n} requests of each workload, {m} tokens at most."
              for r, t, n, m in sorted(about)), "", *noise_floor(cells),
            "draft    budget  workload  tokens/s   " + " ".join(f"K = {k} " for k in STATIC) +
            "".join(f"  {policy:7}                (K)" for policy in POLICIES)]
    for name, c in cells.items():
        text.append(f"{name[0]:8} {name[1]:7} {name[2]:8} {c.per_s:9.0f}   " + " ".join(f"{c.ratio[k]:6.3f}" for k in STATIC) +
                    "".join(f"   {c.ratio[p]:6.3f} ({c.interval[p][0]:.3f}-{c.interval[p][1]:.3f}) {c.k[p]:4.2f}" for p in POLICIES))
    text += ["", "hindsight: the best static K of each cell, chosen after all were measured: what no choice of one K per cell exceeds (and "
             "a little", "more, as the best of eight medians flatters). Its last column is the most that a policy which keeps one K per cell "
             "could give.", ""]
    for budget in BUDGETS:
        some = {name: c for name, c in cells.items() if name[1] == budget}
        if some:
            text += summary(f"budget {budget}, {len(some)} cells", some)
    return "\n".join(text + summary(f"all {len(cells)} cells", cells))


def run(tools, options, about, path):
    """Measures a part; the report of all parts, or None before a round of all modes or when it is not for the results."""
    to = options.to or path
    if options.fresh:
        to.unlink(missing_ok=True)
    if not options.report:
        forget_others(to, about, options)
        measure(tools, options, to, about)
    lines = read(to)
    if not any(map(has_static, lines)):
        lines = []
    if options.to and lines:
        print(report(lines))
    return report(lines) if lines and not options.to else None
