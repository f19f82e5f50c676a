#!/usr/bin/env python3
"""outriderctl policy explain shows the last draft whose tokens were taken by what they cost: what was judged of each node, and why
it was taken or left out. The same bytes whatever was left out."""
from outrider_test import DRAFTS, Service, Tap, difference, prompts, reference, until

TOKENS = 96
tap = Tap()
ids = prompts(2, longest=60)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]


def answers(service):
    """Drafts whose recorded tokens stand most of the time, among wrong ones."""
    results = service.swarm([{"tokens": p, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "k": -1, "draft_method": "replay",
                              "replay": e["tokens"], "replay_error": 0.2} for p, e in zip(ids, expected)])
    return [d for r, e in zip(results, expected) if (d := difference(r, e))]


def explained(service):
    return service.ctl_json("policy", "explain")


def check(tree):
    """What is wrong with a tree, in words."""
    wrong, nodes = [], tree["nodes"]
    for i, node in enumerate(nodes):
        before = nodes[node["parent"]] if node["parent"] >= 0 else None
        if not -1 <= node["parent"] < i:
            wrong.append(f"node {i} comes before its parent")
        elif before and node["chance"] > before["chance"] * 1.000001:
            wrong.append(f"node {i} is likelier than its parent")
        if before and not before["taken"] and (node["taken"] or node["why"] != "behind one left out"):
            wrong.append(f"node {i} is behind one that was left out")
        if not before or before["taken"]:
            experts = node["experts_in_slots"], node["experts_in_flight"], node["experts_to_load"]
            cost = tree["row_us"] + sum(experts) * tree["expert_us"] + (experts[2] + experts[1] / 2) * tree["load_us"]
            if abs(cost - node["cost_us"]) > 1e-3 * cost + 1e-3:
                wrong.append(f"node {i} costs {node['cost_us']}, by the prices {cost}")
            if not node["taken"] and node["chance"] * tree["token_us"] > node["cost_us"]:
                wrong.append(f"node {i} was left out, though it pays")
        if node["taken"] != (node["why"] == "taken"):
            wrong.append(f"node {i}: {node['why']}")
    if sum(n["taken"] for n in nodes) != tree["taken"]:
        wrong.append("the number of nodes taken")
    return wrong


with Service(draft=DRAFTS["aligned"], options=("--budget", "30%")) as service:
    tap.ok(not answers(service) and explained(service)["tree"] is None and "was judged" not in service.ctl("policy", "explain").stdout,
           "without by_experts no draft is judged, and none is shown", explained(service)["tree"])
    service.ctl("knob", "set", "policy.by_experts=yes", "policy.width=4", "draft_wait=10s")
    seen = []

    def both():
        """Asks until some nodes that were judged stood and others were left out."""
        seen.append((answers(service), explained(service)["tree"]))
        return seen[-1][0] or {n["taken"] for _, t in seen if t for n in t["nodes"]} == {True, False}
    tap.ok(until(both) and not any(w for w, _ in seen), "answers whose drafts are judged have the same bytes; some nodes are taken, others left out",
           [(w, t and [n["why"] for n in t["nodes"]]) for w, t in seen])
    trees = [t for _, t in seen if t]
    tap.ok(trees and not (wrong := [w for t in trees for w in check(t)]), "each node has its chance, its cost by the prices and experts, and the reason",
           trees and wrong)
    tap.ok(any(t["nodes"] and t["method"] == "replay" and t["token_us"] > 0 and t["iteration"] > 0 for t in trees), "the tree says what it is", trees[:1])
    text, tree = service.ctl("policy", "explain").stdout, explained(service)["tree"]
    lines = text[text.index("CHANCE   COST US"):].splitlines()[1:1 + len(tree["nodes"])]
    tap.ok(f"{tree['taken']} of {len(tree['nodes'])} tokens were verified" in " ".join(text.split()) and
           sum(line.startswith("  * ") for line in lines) == tree["taken"] and
           all(any(w in line for line in lines) for w in {n["why"] for n in tree["nodes"] if not n["taken"]}),
           "the text has a line for each node, a star where it was taken, and the reason where not", text)
    service.restart("verifier")
    tap.ok(service.ctl("policy", "explain").returncode == 0 and explained(service)["tree"] is None, "a verifier that was started anew has judged nothing")
tap.done()
