#!/usr/bin/env python3
"""The commands in README.md and docs/*.md. Blocks marked ```sh run, line by line, against a service with the shipped model, and what
README says a command prints is compared with what it prints. Blocks marked ```sh gateway start a service of their own. Blocks marked ```sh root and ```sh long (which need root or hours), and
commands within sentences, must name programs, subcommands, options, make targets and files that exist. So must links."""
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import free_port  # noqa: E402
from outrider_test import PATIENCE, TARGET, Service, Tap, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("B", "build")).resolve()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = {path.name for path in BUILD.glob("outrider*") if path.is_file() and os.access(path, os.X_OK)}
tap = Tap()
ok = tap.ok


def shell(line, runtime, timeout=600):
    """Runs a line as its reader would, in the source directory, with the programs of the build directory."""
    env = {**os.environ, "OUTRIDER_RUNTIME_DIR": str(runtime), "PATH": f"{BUILD}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", re.sub(r"(?<![\w/])build/", f"{BUILD}/", line)], cwd=ROOT, env=env, capture_output=True,
                          text=True, timeout=timeout * PATIENCE, stdin=subprocess.DEVNULL)


def lines(block):
    return [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@cache
def help_of(program, words):
    """--help of a program, or of the longest of its subcommands that these words begin with."""
    for n in range(len(words), -1, -1):
        result = subprocess.run([BUILD / program, *words[:n], "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if result.returncode == 0:
            return result.stdout
    return ""


def wrong(command):
    """What a command names that does not exist, or None."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return f"not a command: {command}"
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        return None
    if words[0] == "make":
        targets = [w for w in words[1:] if "=" not in w and not w.startswith("-")]
        result = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
        return None if result.returncode == 0 else result.stderr.strip()
    if words[0].startswith(("bench/", "tests/", "tools/")):
        return None if (ROOT / words[0]).exists() else f"no {words[0]}"
    name = words[0].removeprefix("build/")
    if not name.startswith("outrider"):
        return None
    if name not in PROGRAMS:
        return f"no program {name}"
    plain = tuple(w for w in words[1:3] if re.fullmatch(r"[a-z][a-z-]*", w))
    text = help_of(name, plain)
    if plain and plain[0] not in re.findall(r"[\w-]+", help_of(name, ())):
        return f"{name} has no {plain[0]}"
    options = [w.partition("=")[0] for w in words[1:] if w.startswith("--")]
    everything = text + help_of(name, ())
    return next((f"{name} {' '.join(plain)}: no {option}" for option in options if f"{option}" not in everything), None)


def commands(page):
    """The commands of a page that are not run: those of marked blocks, and those within sentences."""
    text = page.read_text()
    for language, mark, block in BLOCK.findall(text):
        if language == "sh" and mark.strip() in ("root", "long"):
            for line in lines(block):
                yield from re.split(r"\s(?:&&|\||>>?|;)\s", line.partition("  #")[0])
    prose = BLOCK.sub("", text)
    for code in re.findall(r"`([^`\n]+)`", prose):
        if re.match(r"(?:build/)?(?:outrider(?:ctl|-[\w-]+)?|make) |bench/", code):
            yield code


def links(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"\w+:", target) and not (page.parent / target).exists():
            yield target


def readme(runtime):
    """The first answer: the commands of README, with what the third of them prints."""
    text = (ROOT / "README.md").read_text()
    blocks = BLOCK.findall(text)
    first = next(i for i, (language, mark, _) in enumerate(blocks) if language == "sh" and not mark)
    printed = blocks[first + 1][2]
    failed, answered = [], ""
    for line in lines(blocks[first][2]):
        if line.startswith("make "):
            failed += [w for w in map(wrong, re.split(r"\s&&\s", line)) if w]
            continue
        result = shell(line, runtime)
        if result.returncode:
            failed.append(f"{line}: status {result.returncode}: {result.stderr}")
        if " run " in line:
            answered = result.stdout
    return failed, printed, answered


with tempfile.TemporaryDirectory() as folder:
    failed, printed, answered = readme(Path(folder) / "first")
    ok(not failed, "README: the first answer's commands work", failed)
    ok(answered.strip() == printed.strip(), "README: the answer is the one that it shows", answered)

with tempfile.TemporaryDirectory() as folder, Service(model=TARGET, options=("--config-dir", folder)) as service:
    # So that there is a session to look at.
    shell("outrider run --max-tokens 64 'In the beginning'", service.runtime)
    for page in PAGES:
        blocks = [b for language, mark, b in BLOCK.findall(page.read_text()) if language == "sh" and not mark]
        if page.name == "README.md":
            blocks = blocks[1:]
        for line in (line for block in blocks for line in lines(block)):
            result = shell(line, service.runtime)
            ok(result.returncode == 0, f"{page.name}: {line.partition('  #')[0].strip()}", result.stdout + result.stderr)

PORT = free_port()


def healthy():
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health") as reply:
        return reply.status == 200
    return False


with tempfile.TemporaryDirectory() as folder:
    for page in PAGES:
        for line in (line for language, mark, b in BLOCK.findall(page.read_text()) if mark.strip() == "gateway" for line in lines(b)):
            result = shell(line.replace("127.0.0.1:8080", f"127.0.0.1:{PORT}"), Path(folder) / "run")
            ok(result.returncode == 0 and not re.search(r'"error":\s*\{', result.stdout), f"{page.name}: {line[:100]}", result.stdout + result.stderr)
            if " --http " in line:  # the gateway looks at the service now and then
                until(healthy)

for page in PAGES:
    bad = [w for w in map(wrong, commands(page)) if w]
    ok(not bad, f"{page.name}: its other commands name what there is", bad)
    bad = list(links(page))
    ok(not bad, f"{page.name}: its links lead somewhere", bad)
ok(wrong("outrider run --no-such-option") and wrong("outriderctl no-such-command") and wrong("make no-such-target") and
   wrong("bench/no-such.py"), "a command that does not exist is found")
tap.done()
