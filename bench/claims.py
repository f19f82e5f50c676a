"""Every figure of the tables in README.md and docs/benchmarks.md: the file, the row and the column that it comes from.
tests/bench/results.t works the phrases out again and looks for them there. `python3 bench/claims.py` prints them, for use after
a new measurement."""
import re
import sys
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
NUMBER = r"-?\d+(?:\.\d+)?"


class Missing(Exception):
    """A file has no such row or column."""


def lines_behind(file, path):
    """The lines of a results file from the one on that the last pattern finds, each searched for behind the one before it."""
    lines = (RESULTS / file).read_text().splitlines()
    at = -1
    for pattern in path:
        at = next((i for i in range(at + 1, len(lines)) if re.search(pattern, lines[i])), None)
        if at is None:
            raise Missing(f"{file}: no line like {pattern!r} (of {path})")
    return lines, at


def columns(line, name):
    """[(start, end)] of a heading of this name."""
    return [found.span() for found in re.finditer(rf"(?<!\S){re.escape(name)}(?!\S)", line)]


def cell(file, *path, column, nth=0):
    """The number in a table: path leads to its row, column is the heading of its column, the nth of that name. The heading is in
    the nearest line above that has it; the number is the one below it. What is in parentheses is no column."""
    lines, at = lines_behind(file, path)
    heading = next((found[nth] for i in range(at - 1, -1, -1) if len(found := columns(lines[i], column)) > nth), None)
    if heading is None:
        raise Missing(f"{file}: no column {column!r} above {lines[at]!r}")
    row = re.sub(r"\([^)]*\)", lambda found: " " * len(found[0]), lines[at])
    below = [n for n in re.finditer(rf"(?<!\S){NUMBER}", row) if n.start() < heading[1] and n.end() > heading[0]]
    if len(below) != 1:
        raise Missing(f"{file}: {lines[at]!r} has {len(below)} numbers below {column!r}")
    return Decimal(below[0][0])


def said(file, *path, unit):
    """The number in front of its unit, in the line that path leads to."""
    lines, at = lines_behind(file, path)
    found = re.search(rf"({NUMBER})\s?{re.escape(unit)}(?!\w)", lines[at])
    if not found:
        raise Missing(f"{file}: {lines[at]!r} has no number before {unit!r}")
    return Decimal(found[1])


def rounded(value, decimals):
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP))


def span(values, decimals):
    """[the least, the most] of them, rounded."""
    values = list(values)
    return [rounded(min(values), decimals), rounded(max(values), decimals)]


def each(values, decimals):
    return [rounded(v, decimals) for v in values]


def capped():
    shares, file = ("17", "33", "50"), "capped.txt"

    def rates(skew):
        return each((said(file, f"-skew{skew},", f"{s}% of the experts fit +outrider", unit="tokens/s") for s in shares), 1)

    def ratios(skew):
        return each((said(file, f"-skew{skew},", f"{s}% of the experts fit +llama.cpp", unit="x") for s in shares), 1)

    def link(skew):
        return [said(file, f"-skew{skew},", f"{s}% of the experts fit +outrider", "against the link",
                     unit="of its time at work") for s in shares]
    yield ("uniform routing: {}, {} and {} tokens/s, which is {}, {} and {} times llama.cpp in the same memory; skewed routing: "
           "{}, {} and {} tokens/s, {}, {} and {} times.", rates(0) + ratios(0) + rates(1) + ratios(1))
    yield ("A token takes {} to {} (uniform) and {}, {} and {} (skewed) times as long as the disk alone needs",
           span(link(0), 2) + each(link(1), 2))


TYPES = ("q4_0", "q4_k_m", "q8_0")
VERIFY = ("verify 2 ", "verify 4 ", "verify 8 ", "verify 16 ")


def peer(model, rows, column, nth=0):
    """Of all files of a model: a column of these rows. Shares are percents."""
    values = [cell(f"peers-{model}.txt", f"{t}, .* GB; int8", f"^ *{row}", column=column, nth=nth) for t in TYPES for row in rows]
    return [v / 100 for v in values] if column == "floor" else values


def peers():
    model = "qwen3-30b-a3b"
    yield ("{} to {} times llama.cpp and {} to {} times ik_llama.cpp. Outrider uses {} to {} of the memory's bandwidth; they use "
           "{} to {} and {} to {}",
           span(peer(model, ["decode"], "x llama.cpp"), 2) + span(peer(model, ["decode"], "x ik_llama.cpp"), 2) +
           [x for nth in range(3) for x in span(peer(model, ["decode"], "floor", nth), 2)])
    yield ("verifying: {} to {} times llama.cpp and {} to {} times ik_llama.cpp, at {} to {} of the roofline; the prompt: "
           "{} to {} and {} to {} times, at {} to {} of the roofline", [*span(peer(model, VERIFY, "x llama.cpp"), 1),
                                rounded(min(peer(model, VERIFY, "x ik_llama.cpp")), 2),
                                rounded(max(peer(model, VERIFY, "x ik_llama.cpp")), 1), *span(peer(model, VERIFY, "floor"), 2),
                                *span(peer(model, ["prefill"], "x llama.cpp"), 1),
                                *span(peer(model, ["prefill"], "x ik_llama.cpp"), 2), *span(peer(model, ["prefill"], "floor"), 2)])
    depth, row = "peers-depth-qwen3-30b-a3b.txt", "decode at 8192"
    yield ("{} tokens/s: {} times llama.cpp with flash attention ({} without), {} times ik_llama.cpp",
           each([cell(depth, row, column=c) for c in ("outrider", "x llama.cpp -fa 1", "x llama.cpp", "x ik_llama.cpp")], 1))
    yield ("Mixtral {} to {} times, OLMoE {} to {}, dense 0.6B {} to {};",
           span(peer("mixtral-8x7b", ["decode"], "x llama.cpp"), 2) + span(peer("olmoe-1b-7b", ["decode"], "x llama.cpp"), 2) +
           span(peer("qwen3-0.6b", ["decode"], "x llama.cpp"), 1))
    yield ("verifying 2 to 16 tokens: Mixtral {} to {} times, OLMoE {} to {}",
           span(peer("mixtral-8x7b", VERIFY, "x llama.cpp"), 2) + span(peer("olmoe-1b-7b", VERIFY, "x llama.cpp"), 2))


def depth():
    def times(kv, at):
        return said("model-qwen3-30b-a3b-12.txt", f"kernels, KV {kv};", f"^decode at {at} ", "more than at the first depth",
                    unit="times what the KV bytes need")
    yield ("{} and {} times the time in which their keys and values can be read from memory (in q16_0, the default; f16: {} and {})",
           each([times(kv, at) for kv in ("q16_0", "f16") for at in (8192, 32768)], 2))


def attention():
    def ratio(shape, kv, at, tokens):
        rate, of = (cell("attention.txt", rf"^{shape} +{k} +{at} +{tokens} ", column="Mcells/s") for k in (kv, "f16"))
        return rate / of

    def over(shape, kv, tokens):
        return [ratio(shape, kv, at, n) for at in (8192, 32768) for n in tokens]
    yield ("With one query head to a KV head q16_0 reaches {} to {} of f16's speed for one to four tokens",
           span(over("mha", "q16_0", (1, 2, 4)), 1))
    one, more = span(over("gqa", "q8_0", (1,)), 1), span(over("gqa", "q8_0", (2, 4, 8, 16)), 1)
    yield ("q16_0 is {} to {} times as fast as f16 for one token and {} to {} times for two to sixteen;",
           span(over("gqa", "q16_0", (1,)), 1) + span(over("gqa", "q16_0", (2, 4, 8, 16)), 1))
    if one[0] == one[1]:
        yield "q8_0 is {} and {} to {} times as fast", [one[0], *more]
    else:
        yield "q8_0 is {} to {} and {} to {} times as fast", one + more


def price():
    def pair(model, threads):
        lines, at = lines_behind("price.txt", (f"== {model}", f"^{threads} thread", "cache : own, of each pair"))
        return re.search(rf"pair +({NUMBER}) \(half of them ({NUMBER}) to ({NUMBER})\)", lines[at]).groups()
    small, large = [[pair(model, n)[0] for n in (1, 2)] for model in ("outrider-demo-moe", "qwen3-30b-a3b-12")]
    yield ("the shipped model: {} and {} with one and two threads; the 30B shape: {} and {}. For the shipped model on two threads, "
           "half of the pairs lie outside {} to {}",
           each([*small, *large, *pair("outrider-demo-moe", 2)[1:]], 2))


def matrix():
    file = "matrix.txt"

    def ratios(budget, drafts, column):
        return [cell(file, rf"^{d} +{budget} +{w} ", column=column) for d in drafts for w in
                ("code", "math", "extract", "prose", "mixed")]
    every, models = ("ngram", "small", "aligned"), ("small", "aligned")
    fixed = [v for k in range(1, 8) for v in ratios("all", every, f"K = {k}")]
    yield ("K = 1 runs at {} to {} of the speed of K = 0. The best fixed K of any workload reaches {} times.",
           span(ratios("all", every, "K = 1"), 2) + [rounded(max(fixed), 2)])
    yield ("The policy `yield` stays at {} to {} with a draft model and reaches {} to {} with n-grams.",
           span(ratios("all", models, "yield"), 2) + span(ratios("all", ("ngram",), "yield"), 2))
    lines, at = lines_behind(file, ("^K = 0 against K = 0",))
    half = re.search(rf"half differ by less than ({NUMBER})%", lines[at])
    most = re.search(rf"the median of a cell by at most ({NUMBER})%", lines[at + 1])
    if not half or not most:
        raise Missing(f"{file}: no noise in {lines[at]!r}")
    yield ("(K = 0 against itself: half of the passes differ by less than {} %, and the median of a cell by up to {} %)",
           each([half[1], most[1]], 1))
    yield ("`yield`: {} to {} times K = 0, {} on average, with up to 15 tokens. The best fixed K of 1 to 7 for each combination, "
           "known only afterwards: {}.", [*span(ratios("30%", every, "yield"), 2),
                              *each([cell(file, "^budget 30%", f"^{mode} ", column="to K = 0") for mode in ("yield", "hindsight")], 2)])
    lines, at = lines_behind(file, ("^budget 30%",))
    single = re.search(rf"single best static K: (\d+) \(({NUMBER}) of K = 0\)", lines[at])
    if not single:
        raise Missing(f"{file}: no single best K in {lines[at]!r}")
    yield ("No single K for all of them beats K = {}", ["0"]) if single[1] == "0" else (
        "K = {} for all of them: {}", [single[1], rounded(single[2], 2)])


def speculation():
    def row(column):
        return each([cell("speculation.txt", "^== the same, drafts of the aligned", f"^{w} ", column=column) for w in
                     ("code", "math", "extract", "prose")], 2)
    yield ("`yield`: {}, {}, {} and {} times K = 0, with at most 7 tokens (`k_max`) {}, {}, {} and {}; the best fixed K of up to 15: "
           "{}, {}, {} and {}", row("yield 15") + row("yield 7") + row("gives"))


def control():
    def of(policy, column):
        return [cell("controller.txt", rf"^{policy} +{n} ", column=column) for n in (1, 8, 16)]
    passes = [v for policy in ("static:3", "cascade", "yield") for v in of(policy, "passes/s")]
    yield "{} to {} passes a second, verifier on one thread", span(passes, 0)
    sets = [cell("knobs.txt", r"^sessions +sets", rf"^ +{n} ", column="sets") for n in (1, 8)]
    lines, at = lines_behind("knobs.txt", (r"^sessions +sets",))
    late = {lines[i].split()[k] for i in (at + 2, at + 3) for k in (2, 3, 4)}
    yield "is in force {} iteration later ({} sets: median, 99th percentile and maximum)", ["one" if late == {"1"} else f"{min(late)} to {max(late)}", str(sum(sets))]
    shares = [span(of(policy, "controller"), 1) for policy in ("cascade", "yield")]
    yield "The policy-controller takes {} % of a core under `cascade` and {} % under `yield`", [
        low if low == high else f"{low} to {high}" for low, high in shares]
    yield ("{} us while both spin, {} us if both were asleep",
           [rounded(cell("ipc.txt", "^ring, both sides spinning", column="p50"), 1),
            rounded(cell("ipc.txt", "^ring and doorbell, both sides asleep", column="p50"), 0)])


def first_screen():
    """The three figures of README.md."""
    rate, ratio = (said("capped.txt", "-skew0,", f"33% of the experts fit +{who}", unit=unit)
                   for who, unit in (("outrider", "tokens/s"), ("llama.cpp", "x")))
    yield "{} tokens/s: {} times llama.cpp in the same memory", each([rate, ratio], 1)
    yield "decoding {} to {} times as fast as llama.cpp", span(peer("qwen3-30b-a3b", ["decode"], "x llama.cpp"), 2)
    drafts = [cell("matrix.txt", rf"^{d} +30% +{w} ", column="yield") for d in ("ngram", "small", "aligned")
              for w in ("code", "math", "extract", "prose", "mixed")]
    mean = cell("matrix.txt", "^budget 30%", "^yield ", column="to K = 0")
    yield "{} to {} times the speed without drafts, {} on average", [*span(drafts, 2), rounded(mean, 2)]


# Per page: the heading of its table, and where its figures come from.
PAGES = {
    "README.md": ("Why", (first_screen,)),
    "docs/benchmarks.md": ("Measured", (capped, peers, depth, attention, price, matrix, speculation, control)),
}


def phrases(page):
    """[phrase] that the page has to have."""
    return [text.format(*figures) for claim in PAGES[page][1] for text, figures in claim()]


def measured(page, text):
    """The rows of the page's table of measurements."""
    table = text.partition(f"\n## {PAGES[page][0]}\n")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if re.match(r"\| (?!what \||You want)", line)]


def unclaimed(page, text, said_there):
    """Figures of that table's second column which no phrase covers, as [(row, figure)]."""
    out = []
    for row in measured(page, text):
        second = row.split("|")[2]
        for phrase in said_there:
            second = second.replace(phrase, "")
        out += [(row[2:50], figure) for figure in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", second)]
    return out


if __name__ == "__main__":
    for name in PAGES:
        print(f"{name}:", *phrases(name), sep="\n  ")
    sys.exit(0)
