#!/usr/bin/env python3
"""Writes tests/data/tokenizers/normalized.json: text that is not in NFC, and the ids that it has where a tokenizer normalises.

  python make_normalized.py FOLDER      (tests/data/tokenizers)

The reference is Hugging Face's tokenizers (PyPI tokenizers 0.23.3; gguf reads the vocabularies). Of tiny-qwen2.json, whose ids
llama.cpp made, which does not normalise, the cases that differ get ids_hf, and `normalized`: the text that the ids stand for.
"""
import json
import sys
import unicodedata
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

folder = Path(sys.argv[1])
FORMS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}
# By the file's tokenizer.ggml.pre: the normaliser, the expressions.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KNOWN = {"qwen2": ("NFC", [QWEN2]), "olmo": ("NFC", [GPT2]), "exaone4": ("NFKC", [GPT2]), "gpt-2": (None, [GPT2])}

STRINGS = [
    "cafe\u0301", "Cafe\u0301 cafe\u0301!", "e\u0301", "\u0301", "\u0301e", " \u0301", "a \u0301b", "\n\u0301", "1\u0301", "e\u0301\u0301\u0301",
    "re\u0301sume\u0301.pdf", "Tie\u0302\u0301ng Vie\u0323\u0302t", "Vie\u0302\u0323t", "A\u030a \u212b \u2126 \u212a", "q\u0307\u0323 q\u0323\u0307",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u1112\u1161 \u11ab", "\ud55c\u11ab", "\u1100\u1161\u11a7", "\u3131\u314f", "ハ\u309aカ\u3099か\u3099",
    "\u0344", "\u0958 \ufb1d \ufb2a", "\u0928\u093c \u0915\u093c", "\u09c7\u09be \u09c7\u09d7", "\u0b47\u0b3e", "\u1025\u102e", "שׁ\u05b8לו\u05b9ם",
    "\u05e9\u05b8\u05c1", "\u0f71\u0f72\u0f74", "\u1e0b\u0323", "\u2260 =\u0338 <\u0338 >\u0338", "\u037e \u1fef \u2000 \u2001", "\u2adc", "\U0001d15e",
    "\U000111a5\U000111b0 \U00011131\U00011127", "\u00bd ﬁ ² Ａ ｶﾞ \u3000 \u00a0 ㎏ ﷺ ㍿ ｱ\uff9e ￡", "e\u200d\u0301 e\u034f\u0301", "가\u11a8각",
    "o\u031b\u0323\u0309 u\u031b\u0309", "ǖ u\u0308\u0304 ü\u0304", "<|im_start|>\u0301e\u0301", "e<|im_end|>\u0301", "e\u0301<|im_start|>user\ncafe\u0301<|im_end|>",
    "<think>\u0338 <think\u226f </think>\u0301 e<think>\u0301", "s\u0323\u0307 s\u0307\u0323 " * 3, "e" + "\u0301\u0323" * 40, "e\u0301" * 60, "汉字e\u0301漢字",
    "plain ASCII, nothing to do", "déjà vu: already composed",
]


def fields(path):
    return {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items()}


def tokenizer_of(f, form, expressions):
    tokens, types = f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ", 1)) for m in f["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    if form:
        t.normalizer = FORMS[form]()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in expressions] +
                                              [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return t, tokens, types


def encoders(f, pre):
    """Without and with control tokens."""
    both = []
    for special in (False, True):
        t, tokens, types = tokenizer_of(f, *KNOWN[pre])
        for token, kind in zip(tokens, types):
            if kind == 4:
                t.add_tokens([AddedToken(token, special=False, normalized=False)])
            elif kind == 3 and special:
                t.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        both.append(t)
    return both


cases = []
f = fields(folder / "tiny-qwen2.gguf")
for pre in KNOWN:
    plain, special = encoders(f, pre)
    for text in STRINGS:
        cases.append({"pre": pre, "text": text, "ids": plain.encode(text).ids, "ids_special": special.encode(text).ids})
lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
(folder / "normalized.json").write_text('{"model": "tiny-qwen2.gguf", "cases": [\n' + lines + "\n]}\n")

path = folder / "tiny-qwen2.json"
plain, special = encoders(f, "qwen2")
lines = path.read_text().split("\n")
for i, line in enumerate(lines):
    if not line.startswith('  {"category"'):
        continue
    case, end = json.JSONDecoder().raw_decode(line.strip())
    end += 2
    text = case["text"]
    normal = unicodedata.normalize("NFC", text)
    if normal == text or "normalized" in case:
        assert normal != text or plain.encode(text).ids == case["ids"]
        continue
    ids = plain.encode(text).ids
    assert ids != case["ids"] and special.encode(text).ids == ids and "ids_parse_special" not in case
    more = ',"ids_hf": %s,"normalized": %s}' % (json.dumps(ids), json.dumps(normal, ensure_ascii=False))
    lines[i] = line[:end - 1] + more + line[end:]
    print(path.name, ascii(text))
path.write_text("\n".join(lines))
