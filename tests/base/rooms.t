#!/usr/bin/env python3
"""The rooms of HACKING.md: a file includes headers of its own room and of rooms above it in the table, never of one below it, and
every folder with sources is in the table. The rooms in services/policy-controller count as part of it there, and have arrows of
their own: what is in yield/ and in published/ is private to it, and both may use the estimators."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from outrider_test import Tap  # noqa: E402

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def rooms():
    """The folders in the first column of the table, from the bottom up, by their place in it."""
    text = (ROOT / "HACKING.md").read_text()
    table = text[text.index("\n## The rooms\n"):]
    table = table[:table.index("\n## ", 2)]
    return {name: place for place, name in enumerate(re.findall(r"^\| `([^`]+)` \|", table, re.M))}


def sources():
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cc", "*.cuh"], capture_output=True, text=True)
    if files.returncode:  # not a clone
        found = [path.relative_to(ROOT) for pattern in ("*.c", "*.h", "*.cc", "*.cuh") for path in ROOT.rglob(pattern)]
    else:
        found = [Path(line) for line in files.stdout.splitlines()]
    return [path for path in found if path.parts[0] not in ("tests", "build") and not path.parts[0].startswith("build-") and
            (ROOT / path).exists()]


def room_of(path):
    folder = str(path.parent)
    return "services/policy-controller" if folder.startswith("services/policy-controller/") else folder


POLICIES = "services/policy-controller"
INSIDE = {"estimates": {"estimates"}, "yield": {"", "estimates", "yield"}, "published": {"", "estimates", "published"},
          "": {"", "estimates"}}


def inside(name):
    """The room in services/policy-controller that a file of it is in; None: of another folder."""
    folder = str(Path(name).parent)
    if folder != POLICIES and not folder.startswith(POLICIES + "/"):
        return None
    return folder[len(POLICIES) + 1:]


def main():
    tap, known = Tap(), rooms()
    tap.ok(len(known) > 20, "HACKING.md has a table of rooms", known)
    files = sources()
    tap.ok(len(files) > 500, "there are sources to look at", len(files))
    missing = sorted({room_of(path) for path in files} - set(known))
    tap.ok(not missing, "every folder with sources is in the table", missing)
    gone = sorted(room for room in known if not any(room_of(path) == room for path in files))
    tap.ok(not gone, "every room of the table has sources", gone)
    upwards = []
    for path in files:
        for name in INCLUDE.findall((ROOT / path).read_text()):
            room = room_of(Path(name))
            if (ROOT / name).exists() and known.get(room, -1) > known.get(room_of(path), len(known)):
                upwards.append(f"{path} includes {name}")
    tap.ok(not upwards, "no file includes a header of a room below its own", "\n".join(upwards))
    private, inner = [], set()
    for path in files:
        room = inside(path)
        inner |= {room}
        for name in INCLUDE.findall((ROOT / path).read_text()):
            of = inside(name)
            if of is not None and of not in (INSIDE.get(room, set()) if room is not None else {"", "estimates"}):
                private.append(f"{path} includes {name}")
    tap.ok(inner - {None} == set(INSIDE), "the rooms of the policy-controller are those whose arrows are known", inner)
    tap.ok(not private, "a policy includes nothing of another one's, and nobody else what is private to one", "\n".join(private))
    tap.done()


main()
