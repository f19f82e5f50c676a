"""Encodes texts for train.py.

  tokens.py --tokenizer TOKENIZER.json --out DIR TEXT...

TOKENIZER.json is a Hugging Face folder's. A TEXT that ends in .jsonl has one answer a line: tokens (ids of prompt and answer), or text,
or prompt and answer. Any other TEXT is one document. DIR gets train_NAME.npy of each. Answers of the model itself are the best data: what
an adapter drafts is what the model says.
"""
import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def documents(path, tokenizer):
    if path.suffix != ".jsonl":
        yield tokenizer.encode(path.read_text()).ids
        return
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield row["tokens"] if "tokens" in row else tokenizer.encode(row.get("text") or row["prompt"] + row["answer"]).ids


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("texts", type=Path, nargs="+")
    a = p.parse_args()
    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    a.out.mkdir(parents=True, exist_ok=True)
    for text in a.texts:
        ids = np.array([t for document in documents(text, tokenizer) for t in document], np.uint32)
        np.save(a.out / f"train_{text.stem}.npy", ids)
        print(f"{text}: {len(ids)} tokens")


if __name__ == "__main__":
    main()
