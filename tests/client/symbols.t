#!/usr/bin/env python3
"""The libraries of the SDK show their users the functions of outrider.h, all of them and nothing else; each of those is tried with
wrong arguments. No program defines a name of a library that it uses: whoever calls that name would get the wrong function."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from outrider_test import BUILD, Tap

tap = Tap()
header = re.sub(r"/\*.*?\*/", "", (ROOT / "client/include/outrider.h").read_text(), flags=re.S)
declared = set(re.findall(r"\b(outrider_\w+)\s*\(", header))
tap.ok(len(declared) > 40, "outrider.h declares functions", sorted(declared))


def defined(path, *flags):
    """What a library defines for its users; not the name of the version itself."""
    lines = subprocess.run(["nm", *flags, "--defined-only", path], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines]
    return {w[2].split("@")[0] for w in words if len(w) == 3 and w[1] != "A"}


shared = defined(BUILD / "liboutrider.so", "-D")
tap.ok(shared == declared, "the shared library exports these and nothing else", sorted(shared ^ declared))
make = ["make", "-s", "-C", str(ROOT), f"B={BUILD}", f"SAN={os.environ.get('SAN', '')}", str(BUILD / "sdk/liboutrider.a")]
made = subprocess.run(make, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
tap.ok(made.returncode == 0, "the static library is made", made.stderr)
static = {n for n in defined(BUILD / "sdk/liboutrider.a", "-g") if not n.startswith(("__asan", "__tsan", "__ubsan", "__odr"))}
tap.ok(static == declared, "the static library shows these and nothing else", sorted(static ^ declared))
tried = set(re.findall(r"\boutrider_\w+", (ROOT / "tests/client/test_misuse.c").read_text()))
tap.ok(declared <= tried, "each is tried with wrong arguments", sorted(declared - tried))


def global_names(path, *flags):
    """Names without those of the compiler's own runtime, which every program has."""
    return {n for n in defined(path, *flags) if not n.startswith("_")}


clashes = []
programs = [p for p in sorted(BUILD.glob("outrider*")) if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
for path in programs:
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    own = global_names(path, "-g")
    for library in re.findall(r"=> (/\S+)", listed):
        if not re.search(r"/lib[atu]san\b|/libubsan", library):
            clashes += [f"{path.name}: {name} of {library}" for name in sorted(own & global_names(library, "-D"))]
tap.ok(len(programs) >= 9 and not clashes, "no program defines a name of a library that it uses", "\n".join(clashes) or programs)
tap.done()
