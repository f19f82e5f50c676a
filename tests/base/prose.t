#!/usr/bin/env python3
"""The English that people read: README.md, HACKING.md, docs, the manual pages, every --help, the settings' help, config/*.conf, the
messages of the programs and of the Python tools, and the comments of unit files and completions. A sentence has a bounded number of
words and none of the phrases that are out. It finds what a pattern can find, and no more: whether a sentence is true or clear takes a
reader."""
import ast
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


# Only of messages, and of the help of Python tools.
OUT_OF_MESSAGES = (
    (r"(?<!\bthere )\b(?:is|are) no (?!longer|more)[a-z]+$", "is not a", "The file is no profile"),
    (r"\b(?:has|have) no business with\b", "may not connect to", "policy has no business with verifier"),
    (r"\bat most [^ ]+ (?:is|are) taken\b", "at most N are allowed", "5 tokens, at most 4 are taken"),
    (r"\b[Ww]hat (?:was|is|were|are) (?:there|asked|here|meant)\b", "name the noun", "It is not what was there"),
    (r"\b(?:is|are) not what (?:it|they) (?:was|were|is|are)\b", "differs from", "The file is not what it was"),
    (r"\bone of them$", "exclude each other", "--config and --config-dir: one of them"),
    (r"\ba number alone is\b", "a number without a unit is", "2m; a number alone is seconds"),
    (r"\bgive it so much\b|\bfor good\b|\blately, to be\b|\bput right\b(?! it)", "plain words", "It is changed for good"),
    (r"\bsomebody\b|\banybody\b|\bnobody\b", "name the person or process", "somebody wrote to it"),
)
# Those that the comments of headers are free of, by their sentences. Another one joins them when its last place is rewritten.
OUT_OF_HEADERS = tuple(phrase for phrase in OUT if phrase[2] in (
    "Beside that it reads the file.", "A process is said to have ended.", "With -v it says more.", "It stops lest it fail.",
    "The more, the better.", "It holds while no policy has spoken.", "It takes the place of what the file says."))
OUT_OF_TOOLS = (*OUT_OF_MESSAGES, (r"^of (?!course)[a-z]", "begin with the noun", "of the verifier; default 2"))


def findings(sentence, out=()):
    """What is wrong with a sentence."""
    words = len(re.findall(r"[A-Za-z0-9][^\s]*", sentence))
    if words > WORDS_MAX:
        yield f"{words} words, at most {WORDS_MAX}"
    for pattern, instead, _ in (*OUT, *out):
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


def worth_reading(text):
    """A message, and no format, key or command of gnuplot."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and not text.startswith("usage:") and not re.match(r"#|set [a-z]", text.lstrip())


C_TOKEN = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|\s+|[A-Za-z_]\w*|.""", re.S)


def of_c(text):
    """The string literals of a source, adjacent ones joined, with X for a conversion. Static assertions and texts of --help, which are
    read above, are left out."""
    literal, asserts, depth = None, False, 0
    for token in (m[0] for m in C_TOKEN.finditer(text + "\n;")):
        if token.startswith('"'):
            literal = (literal or "") + token[1:-1]
        elif not token.strip() or token.startswith(("/*", "//")):
            continue
        elif re.fullmatch(r"PRI[udxX]\d+", token) and literal is not None:
            literal += "u"
        else:
            if literal is not None and not asserts and worth_reading(literal) and not re.search(r"\\n  --?\w|^  --?\w", literal):
                plain = literal.replace('\\n', " ").replace('\\"', '"').replace("%%", "percent")
                yield re.sub(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|j)?[a-zA-Z]", "X", plain)
            literal = None
            asserts = asserts or token == "static_assert"
            depth += (token == "(") - (token == ")") if asserts else 0
            if asserts and token == ")" and depth == 0:
                asserts = False


def of_comments(text):
    """The comments of a C file."""
    for comment in (m[0] for m in C_TOKEN.finditer(text) if m[0].startswith("/*")):
        yield " ".join(re.sub(r"^\s*\*+ ?", "", line) for line in comment[2:-2].splitlines())


SPEAKING = {"print", "say", "exit", "error", "Failure", "Missing", "Unavailable", "fail"}


def of_python(text):
    """The strings that a tool prints, raises or shows as help, with X for a value."""
    def words(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(words(v) if isinstance(v, ast.Constant) else "X" for v in node.values)
        return None

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            spoken = node.args if called in SPEAKING or called[:1].isupper() else []
            spoken = [*spoken, *(k.value for k in node.keywords if k.arg in ("help", "description"))]
            yield from (w for w in map(words, spoken) if w and worth_reading(w))


def of_hashes(text):
    """The comments of a unit file or a completion: lines that begin with a hash."""
    for block in re.findall(r"(?:^[ \t]*#(?!!|compdef).*\n?)+", text, re.M):
        yield " ".join(line.strip().lstrip("# ") for line in block.splitlines())


def wrong(name, paragraphs, out=()):
    return [f"{name}: {why}: {sentence[:160]}" for paragraph in paragraphs for sentence in sentences(paragraph)
            for why in findings(sentence, out)]


def files(*folders, suffix):
    """Sources of some folders, without generated ones."""
    for folder in folders:
        yield from (p for p in sorted((ROOT / folder).rglob("*" + suffix)) if "_proto" not in p.parts and "__pycache__" not in p.parts)


tap = Tap()
# First the finder itself: each phrase, the length, and each kind of text.
missed = [bad for pattern, _, bad in (*OUT, *OUT_OF_TOOLS) if not re.search(pattern, bad)]
tap.ok(not missed, "every phrase that is out is found", missed)
LONG = " ".join(["word"] * (WORDS_MAX + 1)) + "."
tap.ok(list(findings(LONG)) and not list(findings(LONG.replace("word ", "", 1))), "a sentence that is too long is found")
BAD = "It waits for whoever comes."
PLANTED = {of_markdown: (f"# Head\n\n- one\n- {BAD}\n", f"| a | {BAD} |\n|---|---|\n", f"Good.\n{BAD}\n"),
           of_mdoc: (f".Sh DESCRIPTION\nGood.\n.It Fl -x\n{BAD}\n.El\n", ".It Cm a\nIt waits for\n.Cm whoever\ncomes.\n",
                     "It waits for\n.Xr a 1 whoever comes.\n"),
           of_help: (f"usage: x\n\n  --option N            {BAD}\n", f"usage: x\n\n{BAD}\n",
                     "  --option              It waits\n                        for whoever comes.\n"),
           of_config: (f"# {BAD}\n# 0 to 1; default: 0\n#a = 0\n",),
           of_c: (f'return error_set(err, EINVAL, "%s: {BAD}", path);', 'log("It waits for "\n    "who" /* ever */ "ever %" PRIu64 " comes");'),
           of_python: (f'raise Failure(f"{{path}}: {BAD}")', f'add("--x", help="{BAD}")', f'print(f"{BAD} {{x}}")', f'sys.exit("{BAD}")'),
           of_hashes: (f"[Unit]\n# It waits for\n# whoever comes.\nA=b\n", f"\t# {BAD}\n\tx=1\n")}
missed = [f"{reader.__name__}: {text}" for reader, texts in PLANTED.items() for text in texts if not wrong("", reader(text))]
tap.ok(not missed, "a planted sentence is found in each kind of text", missed)
header = "/*\n * It stops lest\n * it fail. */\nint a; /* With -v it says\n\t* more. */\n"
tap.ok([len([1 for s in sentences(c) for p in OUT_OF_HEADERS if re.search(p[0], s)]) for c in of_comments(header)] == [1, 1] and
       len(OUT_OF_HEADERS) == 7, "and in the comments of a header", list(of_comments(header)))
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
for folder in ("admin", "bench/src", "client", "kernels", "services", "shared"):
    read = [(p.relative_to(ROOT), message) for suffix in (".c", ".h") for p in files(folder, suffix=suffix) for message in of_c(p.read_text())]
    found = [line for name, message in read for line in wrong(name, [message], OUT_OF_MESSAGES)]
    tap.ok(len(read) > 10 and not found, f"{len(read)} messages of {folder}", "\n".join(found))
read = list(files("admin", "bench/src", "client", "kernels", "services", "shared", suffix=".h"))
found = [f"{p.relative_to(ROOT)}: {instead}: {sentence[:160]}" for p in read for c in of_comments(p.read_text()) for sentence in sentences(c)
         for pattern, instead, _ in OUT_OF_HEADERS if re.search(pattern, sentence)]
tap.ok(len(read) > 100 and not found, f"the comments of {len(read)} headers", "\n".join(found))
read = [(p.relative_to(ROOT), message) for p in files("bench", "tools", "client/python", suffix=".py") for message in of_python(p.read_text())]
found = [line for name, message in read for line in wrong(name, [message], OUT_OF_TOOLS)]
tap.ok(len(read) > 100 and not found, f"{len(read)} messages of Python tools", "\n".join(found))
read = [*(ROOT / "systemd").glob("*"), *(ROOT / "admin/completion").glob("*"), *(ROOT / "client/completion").glob("*")]
found = [line for p in read for line in wrong(p.relative_to(ROOT), of_hashes(p.read_text()))]
tap.ok(len(read) > 10 and not found, f"the comments of {len(read)} unit files and completions", "\n".join(found))
tap.done()
