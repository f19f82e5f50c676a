"""The target's own answers as data: what a head is asked to draft is what the target says, not what the corpus says.

  answers.py --target TARGET.gguf --data DIR --out DIR2 [--prompts 400]

DIR is that of tok.py. Prompts are the questions and the beginnings of texts of its training part; DIR2 gets files of the same form
in which the target has gone on, every second time with its best tokens, else drawn at temperature 1. Then heads.py and training/mtp
take --data DIR2. The running service (`make` first) answers, so that it takes minutes.
"""
import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
from tok import DOMAINS, EOT, chat_prompt, load

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests" / "integration"))
from outrider_test import Service

LONGEST = {"code": 160, "math": 192, "extract": 192, "prose": 160}  # tokens of an answer


def beginning(doc, r):
    """The prompt of a document: its question, or some lines of its text."""
    if "user" in doc:
        return chat_prompt(doc["user"])
    lines = doc["text"].split("\n")
    first = r.randrange(max(1, len(lines) - 12))
    return "\n".join(lines[first:first + r.randint(2, 12)])[:600]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--prompts", type=int, default=400, help="per domain; an eighth as many for the part that is held out")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    r, tok = random.Random(9), load(HERE.parent / "tokenizer.json")
    with Service(model=a.target.resolve()) as service:
        for domain in DOMAINS:
            for part, n in (("held", a.prompts // 8), ("train", a.prompts)):
                docs = json.loads((a.data / f"{part}_{domain}.json").read_text())
                prompts = [tok.encode(beginning(r.choice(docs), r)).ids[:400] or [EOT] for _ in range(n)]
                answers = service.swarm([{"tokens": ids, "max_tokens": LONGEST[domain], "seed": i, "k": 0, "temperature": float(i % 2)}
                                         for i, ids in enumerate(prompts)], concurrent=16, timeout=3600)
                ids = [t for prompt, answer in zip(prompts, answers) for t in (*prompt, *answer["tokens"], EOT)]
                np.save(a.out / f"{part}_{domain}.npy", np.array(ids, np.uint16))
                print(f"{part} {domain}: {len(ids)} tokens, {sum(len(x['tokens']) for x in answers)} of them answers", flush=True)


if __name__ == "__main__":
    main()
