#!/usr/bin/env python3
"""bench/results: each file says on what, when and of which revision it was measured, and with which command; what README.md claims
stands in the file that it names."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "bench")]
sys.dont_write_bytecode = True
import facts  # noqa: E402
from outrider_test import Tap  # noqa: E402

RESULTS = ROOT / "bench" / "results"
HEAD = re.compile(r".+; \d{4}-\d\d-\d\d \d\d:\d\d; (no revision|[0-9a-f]{7,}(-dirty)?( .*)?)$")
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(%| %)?(?![\w.]*\d)")
tap = Tap()
ok = tap.ok


def numbers(text):
    """[(value, decimals)]: of percents also the ratio that they are."""
    out = []
    for digits, percent in NUMBER.findall(text):
        decimals = len(digits.partition(".")[2])
        out.append((float(digits), decimals))
        if percent:
            out.append((float(digits) / 100, decimals + 2))
    return out


def stands_in(figure, found):
    """Whether a number with as many decimals or more rounds to the figure, as printed."""
    decimals = len(figure.partition(".")[2])
    return any(d >= decimals and abs(value - float(figure)) <= 0.5 * 10 ** -decimals + 1e-9 for value, d in found)


def claims(text):
    """[(first words, [figures with decimals], [files])] of the table of README.md; "the same" is the row's before."""
    out, files = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        named = re.findall(r"\((bench/results/[^)]+)\)", cells[-1]) if cells else []
        files = named or files
        if len(cells) == 3 and (named or cells[-1] == "the same"):
            out.append((cells[0][:50], re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", f"{cells[0]} {cells[1]}"), files))
    return out


def matrix_phrases(text):
    """What README.md has to say of matrix.txt, made of its table: [phrase]."""
    cells = []
    for line in text.splitlines():
        row = re.match(r"(ngram|small|aligned) +(all|30%) +(\w+) +\d+ +((?:[\d.]+ +){7})([\d.]+) \(.*?\) [\d.]+ +([\d.]+) \(", line)
        if row:
            cells.append({"draft": row[1], "budget": row[2], "fixed": [float(x) for x in row[4].split()], "yield": float(row[6])})

    def span(values):
        return f"{min(values):.2f} to {max(values):.2f}"

    def of(budget, *drafts):
        return [c for c in cells if c["budget"] == budget and c["draft"] in drafts]

    every = of("all", "ngram", "small", "aligned"), of("30%", "ngram", "small", "aligned")
    noise = re.search(r"half differ by less than ([\d.]+)%, .*?\n?.*?the median of a cell by at most ([\d.]+)%", text, re.S)
    mean = [re.search(rf"\nbudget 30%.*?\n{mode} +(\d+\.\d+)", text, re.S) for mode in ("yield", "hindsight")]
    if [len(e) for e in every] != [15, 15] or not noise or not all(mean):
        return ["a table of 30 cells"]
    return [f"K = 1 gives {span([c['fixed'][0] for c in every[0]])} times K = 0",
            f"the best fixed K of a workload {max(max(c['fixed']) for c in every[0]):.2f}",
            f"with a draft model, at {span([c['yield'] for c in of('all', 'small', 'aligned')])}",
            f"brings {span([c['yield'] for c in of('all', 'ngram')])} with n-grams",
            f"half of the passes differ by less than {noise[1]} %, a cell's median by up to {noise[2]} %",
            f"`yield` {span([c['yield'] for c in every[1]])} times K = 0, {float(mean[0][1]):.2f} in the mean",
            f"known in hindsight, {float(mean[1][1]):.2f}"]


ok(stands_in("0.84", numbers("x 84% y")) and stands_in("5.5", numbers("5.47 tokens/s")) and not stands_in("5.5", numbers("5.4 6")) and
   not stands_in("1.00", numbers("1 1.1")), "a figure is found as it is rounded, or as a percentage, and no other is")
for path in sorted(RESULTS.glob("*.txt")):
    lines = path.read_text().splitlines()
    ok(HEAD.match(lines[0]) and lines[1].startswith("$ ") and not re.search(r"(^|[\s=,'])/", lines[1]),
       f"{path.name} says where it comes from, and the command without the caller's folders", "\n".join(lines[:2]))
first_cells = re.findall(r"^\|([^|]*)\|", (RESULTS / "README.md").read_text(), re.M)
listed = [pattern for cell in first_cells for pattern in re.findall(r"`([^`]+)`", cell)]
files = sorted(path.name for path in RESULTS.iterdir() if path.name != "README.md")
ok(all(any(Path(name).match(pattern) for pattern in listed) for name in files), "README.md there says of each file what it is",
   [name for name in files if not any(Path(name).match(pattern) for pattern in listed)])
found = claims((ROOT / "README.md").read_text())
ok(len(found) > 3, "README.md has a table of figures", found)
for what, figures, names in found:
    if facts.git("status", "--porcelain", "--", *names):
        tap.skip(f"README: {what}", f"{', '.join(names)} was measured anew and is not committed")
        continue
    missing = [name for name in names if not (ROOT / name).is_file()]
    there = [n for name in names if name not in missing for n in numbers((ROOT / name).read_text())]
    unfounded = [figure for figure in figures if not stands_in(figure, there)]
    ok(not missing and not unfounded, f"README: {what}: its figures stand in {', '.join(Path(n).name for n in names)}", (missing, unfounded))
readme = (ROOT / "README.md").read_text()
unsaid = [phrase for phrase in matrix_phrases((RESULTS / "matrix.txt").read_text()) if phrase not in readme]
ok(not unsaid, "README.md says of matrix.txt what its cells are", unsaid)
tap.done()
