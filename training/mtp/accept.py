"""How many drafts of an adapter are right, on answers of the model itself.

  accept.py --model MODEL --adapter ADAPTER.gguf --answers FILE.jsonl [--per-domain 16]

FILE has one answer a line: id (what is in front of its last hyphen is the kind of text), input_ids, output_ids (the model's best tokens;
models/golden/workload-outputs.jsonl for the demo model). Behind every token of an answer, the drafts of its masks are compared with
what follows. Prints, for each kind of text, how often each draft is right if those before it are, and tokens per pass.
"""
import argparse
import json
from pathlib import Path

import torch
from adapter import load
from target import Target


@torch.no_grad()
def right(target, adapter, prompt, answer):
    """For each token of the answer that has k behind it and one more: how many drafts made with it as the last accepted one are right."""
    k, ids = adapter.k, torch.tensor([prompt + answer], device=target.device)
    anchors = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - k - 1, device=target.device)
    if len(anchors) < 1:
        return []
    past, _ = target.states(ids)
    states = target.mask_states(past, anchors[None], adapter)[0]
    before, good, found = ids[0, anchors + 1], torch.ones(len(anchors), dtype=torch.bool, device=target.device), 0
    for j in range(k):
        token = target.logits(adapter.sampled(before, states[:, j])).argmax(-1)
        good = good & (token == ids[0, anchors + 2 + j])
        found, before = found + good, token
    return found.tolist()


class Tally:
    def __init__(self, k):
        self.tokens = self.passes = 0
        self.reached, self.hit = [0] * k, [0] * k

    def add(self, runs):
        """runs: of one answer. A pass gives a token for sure, and the drafts that are right."""
        at = 0
        while at < len(runs):
            self.passes, at = self.passes + 1, at + 1 + runs[at]
        self.tokens += at
        for run in runs:
            for j in range(len(self.hit)):
                self.reached[j] += run >= j
                self.hit[j] += run > j

    def row(self):
        return {"tokens_per_pass": round(self.tokens / max(1, self.passes), 3),
                "right_if_reached": [round(h / max(1, n), 3) for h, n in zip(self.hit, self.reached)]}


def measure(target, adapter, answers, per_domain):
    """{kind of text: Tally.row()}, and "all"."""
    tallies, seen = {"all": Tally(adapter.k)}, {}
    for line in answers:
        domain = line["id"].rsplit("-", 1)[0]
        seen[domain] = seen.get(domain, 0) + 1
        if seen[domain] > per_domain:
            continue
        runs = right(target, adapter, line["input_ids"], line["output_ids"])
        for name in (domain, "all"):
            tallies.setdefault(name, Tally(adapter.k)).add(runs)
    return {name: tally.row() for name, tally in tallies.items()}


def read_answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--adapter", type=Path, required=True)
    p.add_argument("--answers", type=Path, required=True)
    p.add_argument("--per-domain", type=int, default=16)
    a = p.parse_args()
    target = Target(a.model)
    for name, row in measure(target, load(a.adapter, target), read_answers(a.answers), a.per_domain).items():
        print(json.dumps({"text": name, **row}))


if __name__ == "__main__":
    main()
