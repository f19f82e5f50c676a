"""Which experts the tokens of a head's drafts need: how often the target's routers, applied to the head's state, are right, and how often history is,
layer by layer (shares of the experts that a token used). Not a matter of time: the machine may do other things."""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from outrider_test import TARGET, Service, until  # noqa: E402

HEADS = (("eagle3", TARGET, ROOT / "models/outrider-demo-eagle3-q8_0.gguf"), ("mtp", ROOT / "models/outrider-demo-mtp-q8_0.gguf", None))
BUDGET, TOKENS, EVERY = "60%", 96, 16
SHAPES = (("chains of 4", {}), ("trees of 12, depth 4", {"draft_nodes": 12, "draft_width": 4}))


def shares(service):
    said = next(p for p in service.status() if p["name"] == "drafter")["details"]
    return {source: said.get(f"head_recall_{source}", "") for source in ("routers", "history")}


def measure():
    prompts = [json.loads(line)["input_ids"] for line in (ROOT / "models/golden/workload-outputs.jsonl").read_text().splitlines()[::EVERY]]
    lines = [f"{len(prompts)} prompts of four kinds, {TOKENS} tokens each, greedy, one at a time, {BUDGET} of the experts in memory. Shares of the",
             "experts that a token used, in each layer, over about the last 128 tokens that were compared. A new service for each kind of draft.", "",
             f"{'head':8}{'drafts':24}{'after':>10}  {'predicted by':14}by layer"]
    for method, model, head in HEADS:
        for name, shape in SHAPES:
            with Service(model=model, draft=head, options=("--budget", BUDGET), sets=("verifier.draft_wait=10s",)) as service:
                until(lambda: next(p for p in service.status() if p["name"] == "drafter").get("details", {}).get("head") == method)
                asked = [{"tokens": p, "max_tokens": TOKENS, "seed": 5, "k": 4, "draft_method": method, **shape} for p in prompts]
                for after, part in ((1, asked[:1]), (len(asked), asked[1:])):
                    service.swarm(part)
                    for source, said in shares(service).items():
                        lines.append(f"{method:8}{name:24}{after:>4} prompt{'s' if after > 1 else ' '}  {source:14}{said}")
    return "\n".join(lines)
