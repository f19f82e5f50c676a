"""What every result says of where it comes from: the machine, and the revision that was measured."""
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cpu_fields():
    """The first of /proc/cpuinfo: {field: text}."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in lines if ":" in line)}


def cpu():
    fields = cpu_fields()
    flags = fields.get("flags", "").split()
    widest = "AVX-512 VNNI" if "avx512_vnni" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{fields.get('model name', 'unknown CPU')}, {os.cpu_count()} CPUs, {widest}"


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
