#!/usr/bin/env python3
"""Writes tests/data/tokenizers/splits.json: how each pre-tokenizer cuts strings of many scripts.

  python make_splits.py > tests/data/tokenizers/splits.json

An implementation of its own: Hugging Face's tokenizers (PyPI tokenizers 0.23.3, regular expressions by Oniguruma) with the
expressions that the models' tokenizer.json, or tokenization_*.py, publish, and for names whose files were not at hand with
those that llama.cpp's src/llama-vocab.cpp (sdist of PyPI llama_cpp_python 0.3.36) gives. Outrider's own table
(shared/model/text/pretokenizer.c) is written for PCRE2 and differs in form.
"""
import json

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def llama3(digits, contractions=CONTRACTIONS + "|"):
    return contractions + r"[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def by_case(digits, suffix=CONTRACTIONS + "?", rest=r"[\r\n/]*", without=""):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + without + "]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + without + "]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return (f"{first}{upper}*{lower}+{suffix}|{first}{upper}+{lower}*{suffix}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+" + rest + r"|\s*[\r\n]+|\s+(?!\S)|\s+")


CJK = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LETTERS = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
           "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
           "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
           "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
           "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
           "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
           "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
           "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
           "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
           "\U000118a0-\U000118df\U0001e900-\U0001e943")

NAMES = {
    ("default",): [r"[\p{P}\$\+<=>\^~\|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]"],
    ("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "gigachat", "mellum", "a.x-4.0", "modern-bert", "jina-es", "jina-de",
     "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe", "trillion", "granite-docling"): [GPT2],
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "glm4", "glm5",
     "dbrx", "smaug-bpe", "chatglm-bpe"): [llama3(r"\p{N}{1,3}")],
    ("minicpm5",): [r"\p{N}{1,3}", llama3(r"\p{N}+")],
    ("jais-2",): [llama3(r"\p{N}{1,3}").removesuffix(r"|\s+(?!\S)|\s+") +
                  "".join(r"|\s{%d}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"],
    ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "f2llmv2", "grok-2", "solar-open"):
        [llama3(r"\p{N}")],
    ("bailingmoe", "bailingmoe2", "llada-moe"):
        [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    ("ufakzeka",): [llama3(r"\p{N}", "")],
    ("laguna",): [r"[^\n]+|[\n]+", llama3(r"\p{N}")],
    ("seed-coder",): [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ("exaone-moe",): [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
                      r"|\s*[\r\n]|\s+(?!\S)|\s+"],
    ("qwen35",): [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
                  r"|\s+"],
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): [r"\p{N}", GPT2],
    ("falcon",): [r"[\p{P}\$\+<=>\^~\|`]+", GPT2.removesuffix(r"|\s+"), "[0-9][0-9][0-9]"],
    ("deepseek-llm",): ["[\r\n]", r"\s?[" + LETTERS + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"],
    ("deepseek-coder",): ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): [r"\p{N}{1,3}", CJK, DEEPSEEK],
    ("spark2_5",): [r"\p{N}{1,3}", CJK, DEEPSEEK.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"), r"\p{N}"],
    ("afmoe",): [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
                 "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟\u0e00-\u0e7f\u0e80-\u0effក-៿က-႟ꩠ-ꩿꧠ-꧿가-\ud7afᄀ-ᇿ]+", DEEPSEEK],
    ("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie", "granite-embed-multi-97m"): [by_case(r"\p{N}{1,3}")],
    ("tiny_aya", "cohere2moe"): [r"\d{1,3}(?=(?:\d{3})*\b)", by_case(r"\p{N}{1,3}")],
    ("tekken",): [by_case(r"\p{N}", "")],
    ("youtu",): ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", by_case(r"\p{N}")],
    ("kimi-k2",): [r"[\p{Han}]+|" + by_case(r"\p{N}{1,3}", rest=r"[\r\n]*", without=r"&&[^\p{Han}]")],
    ("superbpe",): [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    ("poro-chat", "bloom", "gpt3-finnish"): [BLOOM],
    ("viking",): [BLOOM, r"\p{N}"],
    ("chameleon",): ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", r"\p{N}",
                     r"[\p{P}!-/:-@\[-`{-~]", GPT2.removesuffix(r"|\s+")],
}

STRINGS = [
    "Hello, World! It's a test; they'RE here, I'll see. Don’t?",
    "HTTPServer XMLHttpRequest iPhone eBay ABCdefGHI x2y3 McDonald'S O'Neill 'tis I'M we'Ve",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 2024-11-25 0x1F 1e10 ٣٤٥٦ १२३४ ½¾ 12½3456 ⅷ²³ ①②③④",
    "abc12345def 9876543210xyz 1234_567 12345é 99luftballons 123\u0301 12345. 1234567 \n1234",
    "  leading, two  three   four    spaces\ttab\t\ttabs \t mixed trailing   ",
    "line\nline\r\nline\n\nline\r\rline \n line\t\n \n\n  end\n", "!!!\n\n??\r\n...\n/path/to\n//comment\n/", "\n", " \n ", "   ", " ", "\t",
    "def f(x):\n    if x > 0:\n        return x**2  # comment\n\treturn [x+1, {'a': \"b\"}]\n", "a=b&&c||d!=e<=f>=g->h::i;;`j`~k^l|m\\n@o#p$q%r",
    "https://example.org/a/b?c=d&e=f#g user@example.com C:\\Windows\\System32 /usr/local/bin/",
    "我想在apple工作1314151天～你好，世界！「引用」《書》。测试…—“中文”", "漢字かな交じり文とカタカナ、ｶﾀｶﾅ。東京2024年々〆〇",
    "한국어 문장입니다. ㄱㄴㄷ ㅏㅑ 가나다123", "ㄅㄆㄇㄈ ㄪㄫ注音ㄅ", "ภาษาไทยไม่มีช่องว่าง ລາວ ភាសាខ្មែរ မြန်မာ", "㐀㐁𠀀𠀁豈更⼀⼁⺀⺁〇〡〢〻々",
    "Привет, мир! ЁЖИК Её Ⴀ Ა ა Ꭰ", "Ελληνικά ΟΔΟΣ ῼ ΐ", "العربية مرحبا، كيف حالك؟ ۱۲۳ فارسی۔", "हिन्दी में पाठ। क्या हाल है? नमस्ते", "বাংলা தமிழ் తెలుగు മലയാളം",
    "עברית שָׁלוֹם", "Tiếng Việt: Đường phố Hà Nội", "Tie\u0302\u0301ng Vie\u0323\u0302t cafe\u0301 nai\u0308ve e\u0301\u0301\u0323 \u0301start o\u0302\u0302",
    "ǅ ǈ ǲ ʰ ª º ﬁ Ａｂｃ１２３ 𝐀𝐁𝐜 𝟙𝟚", "😀😃 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ✌🏽 1️⃣ ☃", "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u200bi\ufeffj\u202fk",
    "“curly” ‘quotes’ — dash … ellipsis «guillemets» ¿qué? ¡sí! € £ ¥ © ® ™ § ¶ † •", "a.b,c!d?e…f。g，h、i।j۔k،l(m)n|o[p]q", "x  y   z    w     v\n\n\n\nu",
    "<sentinel:12> IMGIMGABCZ IMGIMGABCDEZ IMGIMGZ <sentinel:> imgimgaz", "a b c d e fg h ij k\u0301 l m\n n /o// /\n", "\u0000\u0001\u0013\u007f a\u0000b",
    "ſ's 'ſ don'ſ K k'LL", "___snake_case__ --flag=value -x +y ~z", "'''s''t 'x 's's 've've", "1'st 2'nd A'b 'S 'LL 'd'D", "word\u3000\u3000\n\u3000word \u3000 x",
    " " * 700 + "x" + " " * 37 + "\n" + " " * 9, "\t" * 21 + "y", " " * 514,
]


def words(stages, text):
    cutter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(s), "isolated") for s in stages])
    pieces = [piece for piece, _ in cutter.pre_tokenize_str(text) if piece]
    assert "".join(pieces) == text
    return [len(piece.encode()) for piece in pieces]


result = {"strings": STRINGS, "splits": [{"names": list(names), "words": [words(stages, s) for s in STRINGS]}
                                         for names, stages in NAMES.items()]}
lines = ",\n".join(json.dumps(s) for s in STRINGS)
splits = ",\n".join(json.dumps(s, separators=(",", ":")) for s in result["splits"])
print(f'{{"strings": [\n{lines}\n],\n"splits": [\n{splits}\n]}}')
