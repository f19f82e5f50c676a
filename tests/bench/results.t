#!/usr/bin/env python3
"""bench/results: each file says on what, when and of which revision it was measured, and with which command; each figure of the tables in
README.md and docs/benchmarks.md is that of a file, a row and a column (bench/claims.py)."""
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "bench")]
sys.dont_write_bytecode = True
import claims  # noqa: E402
import facts  # noqa: E402
from outrider_test import Tap  # noqa: E402

RESULTS = ROOT / "bench" / "results"
HEAD = re.compile(r".+; \d{4}-\d\d-\d\d \d\d:\d\d; (no revision|[0-9a-f]{7,}(-dirty)?( .*)?)$")
tap = Tap()
ok = tap.ok

for path in sorted(RESULTS.glob("*.txt")):
    lines = path.read_text().splitlines()
    ok(HEAD.match(lines[0]) and lines[1].startswith("$ ") and not re.search(r"(^|[\s=,'])/", lines[1]),
       f"{path.name} says where it comes from, and the command without the caller's folders", "\n".join(lines[:2]))
first_cells = re.findall(r"^\|([^|]*)\|", (RESULTS / "README.md").read_text(), re.M)
listed = [pattern for cell in first_cells for pattern in re.findall(r"`([^`]+)`", cell)]
files = sorted(path.name for path in RESULTS.iterdir() if path.name != "README.md")
ok(all(any(Path(name).match(pattern) for pattern in listed) for name in files), "README.md there says of each file what it is",
   [name for name in files if not any(Path(name).match(pattern) for pattern in listed)])
for name in claims.PAGES:
    if facts.git("status", "--porcelain", "--", "bench/results"):
        tap.skip(f"{name}: its figures", "results were measured anew and are not committed")
        continue
    text, phrases = (ROOT / name).read_text(), claims.phrases(name)
    for phrase in phrases:
        ok(phrase in text, f"{name}: {phrase}")
    ok(len(claims.measured(name, text)) >= 3 and not claims.unclaimed(name, text, phrases),
       f"no figure of the table in {name} is without a row and a column", claims.unclaimed(name, text, phrases))
    if name == "docs/benchmarks.md":
        ok(claims.unclaimed(name, text.replace("the shipped model: 1.01 and 1.01 ", "the shipped model: 1.02 and 1.01 "), phrases) and
           claims.unclaimed(name, text.replace("0.1 us while both spin, 23", "23 us while both spin, 0.1"), phrases),
           "one that is changed is found, and so are two that change places")


def phrases_with(name, old, new):
    """The phrases that are others when a file has something else in one place."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(RESULTS, folder, dirs_exist_ok=True)
        text = (RESULTS / name).read_text()
        assert text.count(old) == 1, (name, old, text.count(old))
        (Path(folder) / name).write_text(text.replace(old, new))
        before, claims.RESULTS = claims.phrases("docs/benchmarks.md"), Path(folder)
        try:
            return [b for a, b in zip(before, claims.phrases("docs/benchmarks.md")) if a != b]
        finally:
            claims.RESULTS = RESULTS


def refuses(name, old):
    try:
        phrases_with(name, old, "")
    except claims.Missing as e:
        return name in str(e)
    return False


for name, old, new, wanted in (
        ("ipc.txt", "22.720", "31.720", "32 us if both were asleep"),
        ("price.txt", "1.007 (half", "0.917 (half", "the shipped model: 0.92 and 1.01 with"),
        ("matrix.txt", "1.464 (1.240", "2.464 (1.240", "0.98 to 2.46 times K = 0"),
        ("speculation.txt", "1.50     1.75       13", "1.50     1.95       13", "0.99, 1.95, 1.21 and 1.03")):
    ok([wanted in phrase for phrase in phrases_with(name, old, new)] == [True], f"{name}: a phrase has what stands in its row and column",
       phrases_with(name, old, new))
ok(refuses("controller.txt", "passes/s") and refuses("knobs.txt", "sets  "), "a row or column that is gone is named")
tap.done()
