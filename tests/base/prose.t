#!/usr/bin/env python3
"""The English that people read: README.md, HACKING.md, docs, the manual pages, every --help, the settings' help and config/*.conf.
A sentence has a bounded number of words and none of the phrases that are out. It finds what a pattern can find, and no more: whether
a sentence is true or clear takes a reader."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from outrider_test import BUILD, Tap  # noqa: E402

WORDS_MAX = 34
# (pattern, what to write, a sentence that it must find)
OUT = (
    (r"^Of (?!course)", "begin with the subject", "Of a session that has ended it says so."),
    (r"^Beside (?!the point)", "In addition to", "Beside that it reads the file."),
    (r"\b(?:that|which|it) is (?:then |also )?said\b", "prints, reports, says so", "It goes on, which is then said."),
    (r"\b(?:is|are) said to have\b", "prints, reports", "A process is said to have ended."),
    (r"\b(?:for|of|at most|in|after|every|stop after|by) so (?:many|long|much)\b", "the number, or `this long`", "It waits for so long."),
    (r"\bso many (?:bytes|tokens|times|layers|seconds)\b", "the number", "At most so many times S."),
    (r"\b[Ww]hoever\b", "name the person or program", "Whoever comes then waits."),
    (r"\bthose that\b", "name the noun again", "It keeps those that are used."),
    (r"\bthe ones? (?:that|which) (?:is|are|was|were)\b", "name the noun again", "It takes the ones that are there."),
    (r"\b(?:names?|says?|told|known|tell|asks?) who\b(?! (?:owns|changed))", "name the person or program", "The log says who it was."),
    (r"^What (?!is |[^.]*\?)[^.]{0,60} (?:is|are|goes|has|stays|comes) ", "name the noun", "What does not fit is read again."),
    (r"\b(?:says?|said) (?:more|errors alone)\b", "prints more, prints only errors", "With -v it says more."),
    (r"\bas [^.,;]{1,30} (?:has|have) (?:it|them)\b", "as in", "The options are as outrider-model has them."),
    (r"\b(?:is|are|was|were) held against\b", "is compared with", "The time is held against the floor."),
    (r"\bis (?:not )?to be (?:done|had|set)\b", "must, can, cannot", "Nothing is to be done."),
    (r"\b(?:has|have) gone\b", "is gone", "It waits until it has gone."),
    (r"\bfor want of\b", "for lack of", "It is slow for want of AVX2."),
    (r"\b[Ll]est\b", "so that ... not", "It stops lest it fail."),
    (r"\bof its own accord\b|\bhence\b|\bthereof\b|\bwhereof\b|\btherein\b|\bthereby\b", "plain words", "It stops of its own accord."),
    (r"\b[Tt]he more, the\b", "a sentence with subject and verb", "The more, the better."),
    (r"\bbe it\b", "whether", "It ends, be it stopped or killed."),
    (r"\bno policy has spoken\b|\bhas the say\b|\bhas spoken\b", "until a policy sets one", "It holds while no policy has spoken."),
    (r"\btakes? the place of what\b", "overrides", "It takes the place of what the file says."),
)


def findings(sentence):
    """What is wrong with a sentence."""
    words = len(re.findall(r"[A-Za-z0-9][^\s]*", sentence))
    if words > WORDS_MAX:
        yield f"{words} words, at most {WORDS_MAX}"
    for pattern, instead, _ in OUT:
        if re.search(pattern, sentence):
            yield f'"{re.search(pattern, sentence)[0]}": {instead}'


def sentences(paragraph):
    """A point, colon or semicolon ends a thought; one inside a word or an abbreviation does not."""
    text = re.sub(r"\b(e\.g|i\.e|vs|cf|etc)\.", r"\1", " ".join(paragraph.split()))
    return [s for s in re.split(r"(?<=[.!?:;])[)\"”]?\s+(?=\S)", text) if s]


def of_markdown(text):
    """Paragraphs, items and cells, without code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", text)).replace("**", "")
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", text):
        if block.lstrip().startswith("|"):
            yield from (cell for line in block.splitlines() for cell in line.split("|") if not set(cell) <= set(" -:"))
        else:
            yield re.sub(r"^\s*(?:[-*#]+|\d+\.) ", "", block)


def of_mdoc(text):
    """Paragraphs of a manual page. A literal display is no prose, and neither is the synopsis."""
    text = re.sub(r"^\.Bd -literal.*?^\.Ed$", ".Pp", text, flags=re.M | re.S)
    text = re.sub(r"^\.Sh SYNOPSIS$.*?(?=^\.Sh )", "", text, flags=re.M | re.S)
    paragraph = []
    for line in text.splitlines():
        if re.match(r"\.(?:Pp|It|Bl|El|Sh|Ss|Dd|Dt|Os|br|Dl|In|Ft|Fn \w+ \")", line):
            yield " ".join(paragraph)
            paragraph = []
            continue
        if line.startswith("."):
            line = re.sub(r"^\.", "", line)
            line = re.sub(r"(?:^|(?<= ))(?:[A-Z][a-z]|Xr \S+ \d|No|Ns|Fl -?)(?= )", "", line)
        paragraph.append(re.sub(r"\\&|\\e|\\", "", line))
    yield " ".join(paragraph)


def of_help(text):
    """An option's line has its description behind it and below it; a paragraph goes on until a blank line."""
    paragraph = []
    for line in text.splitlines():
        option = re.match(r"  (?:-\w, )?-{0,2}[\w|-]+(?:,? \S+)*?(?:  +|$)", line)
        if not line.strip() or option or line.startswith(("usage:", "       outrider")):
            yield " ".join(paragraph)
            paragraph = []
        if line.startswith(("usage:", "       outrider")):
            continue
        paragraph.append(line[option.end():] if option else line)
    yield " ".join(paragraph)


def help_of(*command):
    done = subprocess.run([BUILD / command[0], *command[1:], "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout if done.returncode == 0 else ""


def helps():
    """(command, --help) of each program and of each of its commands."""
    for program in sorted(p.name for p in BUILD.glob("outrider*") if p.is_file() and os.access(p, os.X_OK)):
        text = help_of(program)
        yield (program,), text
        commands = {tuple(filter(None, w)) for w in re.findall(r"^  ([a-z]+)(?: ([a-z]+))?(?= |$)", text, re.M)}
        for command in sorted({c[:n] for c in commands for n in (1, 2) if c[:n]}):
            own = help_of(program, *command)
            if own and own != text:
                yield (program, *command), own
            for verb in sorted(set(re.findall(rf"^(?:usage:)? *{program} {command[0]} ([a-z]+) ", own, re.M))):
                verb_help = help_of(program, command[0], verb)
                if len(command) == 1 and verb_help and verb_help != own:
                    yield (program, command[0], verb), verb_help


def settings():
    """(name, help) of every setting, from the programs' own tables."""
    listed = subprocess.run([BUILD / "outriderctl", "--runtime-dir", "/nonexistent", "knob", "list", "--json"], capture_output=True,
                            text=True, check=True)
    for knob in json.loads(listed.stdout)["knobs"]:
        yield f"{knob['process']}.{knob['name']}", knob["help"]


def of_config(text):
    """The comments of a file that --print-config writes; the second line of each has the range."""
    for block in re.split(r"\n\s*\n", text):
        yield from (line[2:] for line in block.splitlines()[:1] if line.startswith("# "))


def wrong(name, paragraphs):
    return [f"{name}: {why}: {sentence[:160]}" for paragraph in paragraphs for sentence in sentences(paragraph)
            for why in findings(sentence)]


tap = Tap()
# First the finder itself: each phrase, the length, and each kind of text.
missed = [bad for pattern, _, bad in OUT if not re.search(pattern, bad)]
tap.ok(not missed, "every phrase that is out is found", missed)
LONG = " ".join(["word"] * (WORDS_MAX + 1)) + "."
tap.ok(list(findings(LONG)) and not list(findings(LONG.replace("word ", "", 1))), "a sentence that is too long is found")
BAD = "It waits for whoever comes."
PLANTED = {of_markdown: (f"# Head\n\n- one\n- {BAD}\n", f"| a | {BAD} |\n|---|---|\n", f"Good.\n{BAD}\n"),
           of_mdoc: (f".Sh DESCRIPTION\nGood.\n.It Fl -x\n{BAD}\n.El\n", ".It Cm a\nIt waits for\n.Cm whoever\ncomes.\n",
                     "It waits for\n.Xr a 1 whoever comes.\n"),
           of_help: (f"usage: x\n\n  --option N            {BAD}\n", f"usage: x\n\n{BAD}\n",
                     "  --option              It waits\n                        for whoever comes.\n"),
           of_config: (f"# {BAD}\n# 0 to 1; default: 0\n#a = 0\n",)}
missed = [f"{reader.__name__}: {text}" for reader, texts in PLANTED.items() for text in texts if not wrong("", reader(text))]
tap.ok(not missed, "a planted sentence is found in each kind of text", missed)
good = "Vocabulary padding may differ. Without a draft model, Outrider drafts from n-grams. Of course it works beside a fast disk."
tap.ok(not wrong("", of_markdown(good)), "good sentences are not", wrong("", of_markdown(good)))

for path in (ROOT / "README.md", ROOT / "HACKING.md", *sorted((ROOT / "docs").glob("*.md"))):
    found = wrong(path.name, of_markdown(path.read_text()))
    tap.ok(not found, str(path.relative_to(ROOT)), "\n".join(found))
for path in sorted((ROOT / "man").glob("*.[1-9]")):
    found = wrong(path.name, of_mdoc(path.read_text()))
    tap.ok(not found, str(path.relative_to(ROOT)), "\n".join(found))
texts = list(helps())
found = [line for command, text in texts for line in wrong(" ".join(command), of_help(text))]
tap.ok(len(texts) > 40 and not found, f"{len(texts)} texts of --help", "\n".join(found))
knobs = list(settings())
found = [line for name, text in knobs for line in wrong(name, [text])]
tap.ok(len(knobs) > 70 and not found, f"the help of {len(knobs)} settings", "\n".join(found))
for path in sorted((ROOT / "config").glob("*.conf")):
    found = wrong(path.name, of_config(path.read_text()))
    tap.ok(not found, str(path.relative_to(ROOT)), "\n".join(found))
tap.done()
