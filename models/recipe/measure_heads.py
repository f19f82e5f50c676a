"""How often the tokens that a head drafts are accepted: by the running service, and by the head in float32.

  measure_heads.py --target TARGET.gguf HEAD.gguf WORKLOADS [--prompts 8] [--out RESULTS.jsonl]

HEAD.gguf is an EAGLE-3 head, or a model file with a layer for drafts. WORKLOADS is the folder with code.jsonl and so on. The service
(`make` first) answers the first prompts of each workload without drafts, then with chains and with trees of as many nodes; its answers
must be the same. Then the head, dequantised, drafts chains along the same answers in float32, as heads.py trains it. Prints tables of
tokens per pass, and of the acceptance at each depth, which RESULTS.jsonl gets as one more line.
"""
import argparse
import json
import sys
from pathlib import Path

import gguf
import torch
from evaluate import prompt_text, table
from heads import Eagle, Mtp, Target, unroll
from reference import Reference
from tok import DOMAINS, load

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests" / "integration"))
from outrider_test import Service

DEPTH = 6
CHAINS = (1, 2, 3, 4, DEPTH, 16)
TREES = ((4, 6, 3), (6, 16, 4))  # depth, nodes, width: beside the chains of 6 and of 16


def loaded(path, target):
    """The head with the weights of its file."""
    weights = Reference(path).w
    eagle = gguf.GGUFReader(str(path)).fields["general.architecture"].contents() == "eagle3"
    head, block = (Eagle if eagle else Mtp)(target), "blk.0." if eagle else f"blk.{target.ref.layers}."
    with torch.no_grad():
        for name, value in head.named_parameters():
            if name == "ffn_gu_exps":
                value.copy_(torch.cat((weights[block + "ffn_gate_exps"], weights[block + "ffn_up_exps"]), 1))
            else:
                of_block = [block + name, block + "nextn." + name]
                value.copy_(next(weights[n] for n in ([name] if eagle else []) + of_block if n in weights))
    return head, "eagle3" if eagle else "mtp"


@torch.no_grad()
def right(head, prompt, answer):
    """For each token of the answer but the last: how many of the DEPTH tokens that the head drafts behind it are right."""
    ids = torch.tensor([prompt + answer])
    # Row q of a step drafts the token q + 2, so the chain behind token s + 1 has its step i in row s + i. unroll leaves out the
    # first `i` rows of step i, which have no draft behind which they could come.
    hits = [(logits[0].argmax(-1) == follows).tolist() for logits, follows in drafted(head, ids)]
    found = []
    for s in range(len(prompt) - 1, ids.shape[1] - 2):
        run = 0
        while run < DEPTH and s + run < ids.shape[1] - 2 and hits[run][s]:
            run += 1
        found.append(run)
    return found


def drafted(head, ids):
    """(logits, the tokens that follow) of each step; row s is the chain that begins at row s of step 0."""
    for step, (logits, _, _) in enumerate(unroll(head, ids, DEPTH)):
        yield logits[:, :-1], ids[0, 2 + step:]


def passes(runs, n_tokens, k):
    """The runs at those tokens behind which a pass with a chain of k begins."""
    at, found = 1, []  # the pass over the prompt gives the first token
    while at < n_tokens:
        found.append(min(k, runs[at - 1]) if at - 1 < len(runs) else 0)
        at += 1 + found[-1]
    return found


class Measured:
    """Of some prompts: results of the service by (k, nodes, width), and runs of the head in float32."""

    def __init__(self, served, runs):
        self.served, self.runs = served, runs

    def of_service(self, shape):
        usages = [r["usage"] for r in self.served[shape]]
        return sum(u["output_tokens"] for u in usages) / sum(u["iterations"] for u in usages)

    def of_head(self, k):
        n = [len(r["tokens"]) for r in self.served[0, 0, 0]]
        return sum(n) / (len(n) + sum(len(passes(r, m, k)) for r, m in zip(self.runs, n)))

    def by_depth(self):
        """The share of drafts at each depth that is accepted, of chains of DEPTH: by the service and by the head."""
        usages = [r["usage"] for r in self.served[DEPTH, 0, 0]]
        at = lambda name, d: sum(u[name][d] for u in usages if d < len(u[name]))
        service = [at("accepted_at", d) / max(1, at("drafted_at", d)) for d in range(DEPTH)]
        taken = [p for r, answer in zip(self.runs, self.served[0, 0, 0]) for p in passes(r, len(answer["tokens"]), DEPTH)]
        return service, [sum(p > d for p in taken) / len(taken) for d in range(DEPTH)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("head", type=Path)
    p.add_argument("workloads", type=Path)
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    target, tok = Target(a.target), load(HERE.parent / "tokenizer.json")
    head, method = loaded(a.head, target)
    asked = [(d, tok.encode(prompt_text(x)).ids, x["max_tokens"]) for d in DOMAINS
             for x in list(map(json.loads, open(a.workloads / f"{d}.jsonl")))[:a.prompts]]
    eagle, served = method == "eagle3", {}
    with Service(model=a.target if eagle else a.head, draft=a.head if eagle else None, sets=("verifier.draft_wait=10s",)) as service:
        for k, nodes, width in ((0, 0, 0), *((k, 0, 0) for k in CHAINS), *TREES):
            more = {"draft_nodes": nodes, "draft_width": width} if nodes else {}
            more |= {"draft_method": method} if k else {}
            requests = [{"tokens": ids, "max_tokens": n, "seed": 1, "k": k, **more} for _, ids, n in asked]
            results = served[k, nodes, width] = service.swarm(requests, concurrent=4, timeout=1800)
            assert [r["tokens"] for r in results] == [r["tokens"] for r in served[0, 0, 0]], (k, nodes, width)
            print(f"served: K {k}, {nodes} nodes", file=sys.stderr, flush=True)
    runs = [right(head, ids, r["tokens"]) for (_, ids, _), r in zip(asked, served[0, 0, 0])]
    speed, depth = [], []
    for domain in (*DOMAINS, "all"):
        of = [i for i, (d, _, _) in enumerate(asked) if domain in (d, "all")]
        m = Measured({shape: [results[i] for i in of] for shape, results in served.items()}, [runs[i] for i in of])
        speed.append([domain, "service", *(f"{m.of_service((k, 0, 0)):.2f}" for k in CHAINS), *(f"{m.of_service(t):.2f}" for t in TREES)])
        speed.append([domain, "float32", *(f"{m.of_head(k):.2f}" for k in CHAINS if k <= DEPTH), *[""] * (1 + len(TREES))])
        for name, shares in zip(("service", "float32"), m.by_depth()):
            depth.append([domain, name, *(f"{share:.3f}" for share in shares)])
    print(table(["workload", method, *(f"K={k}" for k in CHAINS), *(f"tree of {n}" for _, n, _ in TREES)], speed))
    print(table(["workload", method, *(f"depth {d + 1}" for d in range(DEPTH))], depth))
    if a.out:
        with a.out.open("a") as file:
            file.write(json.dumps({"head": a.head.name, "method": method, "prompts": a.prompts, "tokens_per_pass": speed,
                                   "accepted_at_depth": depth}) + "\n")


if __name__ == "__main__":
    main()
