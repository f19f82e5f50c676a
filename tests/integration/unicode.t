#!/usr/bin/env python3
"""Text as programs take and print it: NFC where the model's tokenizer normalises, U+FFFD as Python has it."""
import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import TARGET, Service, Tap, program, run, run_json, seeded

tap = Tap()
random = seeded()
MODEL = program("outrider-model")
TEXTS = ("café naïve résumé.pdf", "Tiếng Việt: Đường phố Hà Nội", "한국어 문장", "Å Ω が パ ヴ", "plain ASCII", "שָׁלוֹם हिन्दी में क़")


def raw(*arguments):
    return subprocess.run([MODEL, *arguments], stdout=subprocess.PIPE, check=True).stdout


# ---- what is no UTF-8, in JSON ----
def one_per_subpart():
    """The bytes of any tokens, cut where they may be: as text they are what they are, as JSON what Python makes of them."""
    alone = {}  # ids of single bytes
    for byte in range(0x80, 0xf5):
        lead = bytes([byte])
        ids = json.loads(subprocess.run([MODEL, "tokenize", "--model", TARGET], input=lead, stdout=subprocess.PIPE, check=True).stdout)
        if len(ids["tokens"]) == 1:
            alone[byte] = ids["tokens"][0]
    tap.ok(len(alone) > 100, "the vocabulary has single bytes", len(alone))
    byte_lists = [b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0", b"\xe2\x82", b"\xc3", b"\xe0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80\x80\x80"]
    byte_lists += [bytes(random.choices([0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x82, 0xc3, 0xed, 0xa0, 0xe0, 0x8f, 0xf4], k=random.randrange(1, 9)))
                   for _ in range(60)]
    wrong = []
    for data in byte_lists:
        if not all(b in alone for b in data):
            continue
        ids = ",".join(str(alone[b]) for b in data)
        shown = json.loads(raw("tokenize", "--model", TARGET, "--tokens", ids))["text"]
        if shown != data.decode("utf-8", "replace") or raw("tokenize", "--model", TARGET, "--tokens", ids, "--format", "text") != data:
            wrong.append(f"{data}: {ascii(shown)}")
    tap.ok(not wrong, "one U+FFFD for what could have become a character", "\n".join(wrong[:5]))


def names():
    """Names of files are any bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.fsencode(folder) + b"/\xf0\x9f\x98-\xe2\x82.gguf"
        wanted = path.decode("utf-8", "replace")
        said = {"outrider-model": subprocess.run([MODEL, "check", path, "--json"], capture_output=True, check=False),
                "outrider": subprocess.run([program("outrider"), "run", "--json", "--file", path], capture_output=True, check=False)}
        for name, done in said.items():
            text = (done.stdout + done.stderr).decode(errors="replace")
            tap.ok(any(wanted in json.dumps(json.loads(line), ensure_ascii=False) for line in text.splitlines() if line.startswith("{")),
                   f"{name}: the name of a file in JSON", text)


# ---- normalisation ----
def normal(service):
    wrong, differ = [], 0
    for text in TEXTS:
        composed, apart = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        differ += composed != apart
        for arguments in (("--text",), ("--chat", "--prompt"), ("--prompt",)):
            a, b = (run_json(MODEL, "tokenize", "--model", TARGET, *arguments, t)["tokens"] for t in (composed, apart))
            wrong += [] if a == b else [f"tokenize {arguments} {ascii(apart)}: {a} {b}"]
        if raw("tokenize", "--model", TARGET, "--tokens", ",".join(map(str, a)), "--format", "text").decode() != composed:
            wrong.append(f"{ascii(composed)} is not what its tokens say")
        for arguments in ((), ("--chat",), ("--chat", "--system", apart)):
            a, b = (run_json(program("outrider"), "run", "--runtime-dir", service.runtime, "--json", "--max-tokens", "6", *arguments, t)
                    for t in (composed, apart))
            if (a["tokens"], a["usage"]["prompt_tokens"]) != (b["tokens"], b["usage"]["prompt_tokens"]):
                wrong.append(f"run {arguments} {ascii(apart)}: {a} {b}")
    tap.ok(not wrong and differ >= 4, "decomposed text is the composed text to every command", "\n".join(wrong[:5]))
    marks = "q" + "\u0301\u0323" * 20000
    done = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--max-tokens", "1", stdin=marks)
    tap.ok("tokens, but the context" in done.stderr, "40,000 marks on one letter are too long, and nothing else", done)


one_per_subpart()
names()
with Service() as running:
    normal(running)
tap.done()
