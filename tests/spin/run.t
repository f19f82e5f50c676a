#!/usr/bin/env python3
"""Every tests/spin/*.pml is searched exhaustively with spin. A model lists, in lines "breaks: -DNAME  why", the mistakes
that it must find: each is one more search, which has to fail, so that a model that checks nothing does not pass. A line
"names in: FILE ..." says where the C code is whose steps a model names in brackets: each name has to be there."""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CC = shlex.split(os.environ.get("CC", "gcc"))


def search(model, defines):
    """(errors found, text); raises when the search was not exhaustive or did not run. A search for a planted mistake (defines)
    soon ends, so that its compiler had better not take long."""
    with tempfile.TemporaryDirectory(prefix="outrider-spin-") as work:
        for other in glob.glob(os.path.join(HERE, "*.pml")):
            shutil.copy(other, work)
        commands = [
            ["spin"] + defines + ["-a", os.path.basename(model)],
            [*CC, "-O1" if defines else "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=4096", "-o", "pan", "pan.c"],
            ["./pan", "-m1000000", "-w24"],
        ]
        text = ""
        for command in commands:
            done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=1500, check=False)
            text += done.stdout
            if done.returncode != 0 and command[0] != "./pan":
                raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{text}")
        found = re.search(r"errors: (\d+)", text)
        if not found:
            raise RuntimeError("pan said nothing\n" + text)
        errors = int(found.group(1))
        if errors == 0 and ("not completed" in text or "max search depth too small" in text):
            raise RuntimeError("the search was not exhaustive\n" + text)
        return errors, text


def names(text):
    """What stands in brackets in comments."""
    return {name for comment in re.findall(r"/\*.*?\*/", text, re.S) for name in re.findall(r"\[([a-z_]{3,})\]", comment)}


def unnamed(model):
    """(names of the model that its C code lacks, its files), or None when it names no files."""
    with open(model, encoding="utf-8") as file:
        text = file.read()
    files = re.findall(r"^ \* names in: (.*)$", text, re.M)
    if not files:
        return None
    here = set()
    for path in files[0].split():
        with open(os.path.join(HERE, "../..", path), encoding="utf-8") as file:
            here |= names(file.read())
    return sorted(names(text) - here), files[0]


def diagnose(text):
    for line in text.splitlines():
        print("# " + line)


def main():
    if not shutil.which("spin"):
        print("1..0 # SKIP spin is not installed")
        return 0
    cases = []
    for model in sorted(glob.glob(os.path.join(HERE, "*.pml"))):
        cases.append((model, [], ""))
        with open(model, encoding="utf-8") as file:
            for define, why in re.findall(r"^[ *]*breaks: (-D\w+)\s+(.*)$", file.read(), re.M):
                cases.append((model, [define], why))
    named = [(model, found) for model in sorted(glob.glob(os.path.join(HERE, "*.pml"))) if (found := unnamed(model))]
    print(f"1..{len(cases) + len(named)}")
    failed = 0
    for number, (model, defines, why) in enumerate(cases, 1):
        name = os.path.basename(model)
        title = f"{name}: finds that {why}" if defines else f"{name}: no error in any order of steps"
        try:
            errors, text = search(model, defines)
            good = (errors > 0) == bool(defines)
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as problem:
            good, text = False, str(problem)
        print(f"{'ok' if good else 'not ok'} {number} - {title}", flush=True)
        if not good:
            failed += 1
            diagnose(text)
    for number, (model, (missing, files)) in enumerate(named, len(cases) + 1):
        print(f"{'not ok' if missing else 'ok'} {number} - {os.path.basename(model)}: its steps have their names in {files}", flush=True)
        if missing:
            failed += 1
            diagnose(" ".join(missing))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
