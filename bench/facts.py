"""What every result says of where it comes from: the machine, and the revision that was measured."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def machine(*words, build=None):
    """What outrider-bench machine says: it alone knows which microarchitecture a name stands for."""
    program = (Path(build) if build else ROOT / os.environ.get("B", "build")) / "outrider-bench"
    if not program.exists():
        print(f"bench: {program} is not there: run make first", file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)
    return subprocess.run([program, "machine", *words], capture_output=True, text=True, check=True).stdout.strip()


def cpu():
    """The machine in a result's first line: its CPU, how many are there, and the widest instructions that are used."""
    return machine()


def cpu_name(build):
    """The CPU alone."""
    return json.loads(machine("--json", build=build))["cpu"]


def cpu_flags():
    """All instructions that the CPU has, as the kernel names them."""
    flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return flags[1].split() if flags else []


def git(*words):
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        return ""


# What no figure depends on: results that this run, or one before it, has written, and words about them.
UNMEASURED = (":!bench/results", ":!*.md")


def revision():
    """Of what is measured: the last commit that changed it, and whether it has been changed since."""
    name = git("log", "-1", "--format=%h", "--", ".", *UNMEASURED)
    changed = git("status", "--porcelain", "--", ".", *UNMEASURED)
    return f"{name}-dirty" if name and changed else name or "no revision"
