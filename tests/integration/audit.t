#!/usr/bin/env python3
"""Audits: what the model itself picks in the places of an answer's tokens. Those of an exact answer are all its own, sampled or not; what an
expert budget changed is found, in the places where the engine alone picks otherwise; a verifier that dies changes nothing."""
import json

from outrider_test import Service, Tap, prompts, program, reference, run, run_json

TOKENS = 60
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "repeat_penalty": 1.2, "repeat_window": 24, "presence_penalty": 0.3, "dry_multiplier": 0.6}
tap = Tap()
ids = prompts(2, longest=60)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]


def words(i, *more):
    return [program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", ",".join(map(str, ids[i])), "--max-tokens", TOKENS, "--ignore-eos",
            *more]


def drafted(i):
    return ("--draft-method", "replay", "--k", 7, "--replay", ",".join(map(str, expected[i]["tokens"])), "--replay-error", "0.3")


def wrong(answer, i):
    """Where an audit says something else than the engine alone does behind the same tokens: in the changed places and before them."""
    changed = {c["index"]: c for c in answer["audit"]["changed"]}
    found = []
    for at in sorted({*list(changed)[:4], *(c - 1 for c in list(changed)[:4] if c > 0)}):
        picked = reference(ids[i] + answer["tokens"][:at], 1, extra=("--ignore-eos",))["tokens"][0]
        says = changed[at]["picked"] if at in changed else answer["tokens"][at]
        if picked != says or (at in changed and changed[at]["token"] != answer["tokens"][at]):
            found.append((at, says, picked))
    return found


# A draft that is late is not verified, and no budget is applied to its pass: none is late.
with Service(options=("--budget", "all"), sets=("verifier.draft_wait=10s", "verifier.ahead_max=16")) as service:
    exact = run_json(*words(0, *drafted(0), "--audit", "--json"))
    tap.ok(exact["tokens"] == expected[0]["tokens"] and exact["audit"] == {"tokens": TOKENS, "changed": []}, "an exact answer has no changed tokens", exact)
    lossy = run_json(*words(0, *drafted(0), "--budget-experts", 4, "--budget-coverage", "truncation", "--audit", "--json"))
    tap.ok(lossy["audit"]["tokens"] == TOKENS and lossy["audit"]["changed"] and not (why := wrong(lossy, 0)),
           "what a budget changed is found, and what the model picks is what the engine alone does", (lossy, lossy["audit"]["changed"] and why))
    text = run(*words(0, *drafted(0), "--budget-experts", 4, "--budget-coverage", "truncation", "--audit"))
    n = len(lossy["audit"]["changed"])
    tap.ok(text.returncode == 0 and f"audit: in the places of {n} of {TOKENS} tokens" in text.stderr and text.stderr.count(", the model picks ") == n,
           "and said in words, a line for each", text.stderr)

    sampled = [{"tokens": p, "max_tokens": TOKENS, "ignore_eos": True, "seed": 9, "logits_hash": True, "logprobs": 2, **SAMPLED} for p in ids]
    answers = service.swarm(sampled)
    audits = service.swarm([{**r, "audit": a["tokens"]} for r, a in zip(sampled, answers)])
    tap.ok(all(b["picked"] == b["tokens"] == a["tokens"] and b["usage"]["changed_tokens"] == 0 and b["end"] == "length" for a, b in zip(answers, audits)) and
           answers[0]["tokens"] != expected[0]["tokens"], "sampling with penalties picks the same tokens again", [a.get("picked") for a in audits])
    tap.ok(all(a["logits_hash"] == b["logits_hash"] and a["logprobs"] == b["logprobs"] for a, b in zip(answers, audits)),
           "with the same logits and log probabilities", audits)
    other = [*expected[0]["tokens"][:20], *expected[1]["tokens"][:20]]
    audit = service.swarm([{"tokens": ids[0], "audit": other, "logprobs": 20, "stop": ["e"]}])[0]
    of_text = service.swarm([{"tokens": [*ids[0], *other[:25]], "max_tokens": 1, "logprobs": 20}])[0]["logprobs"][0]["top"]
    given = {t["token"]: t["logprob"] for t in of_text}
    tap.ok(audit["tokens"] == other and audit["picked"][:20] == other[:20] and audit["usage"]["changed_tokens"] > 0 and
           [t["token"] for t in audit["logprobs"]] == other and audit["picked"][25] == of_text[0]["token"] and
           given.get(other[25], audit["logprobs"][25]["logprob"]) == audit["logprobs"][25]["logprob"],
           "any tokens can be checked; their log probabilities are theirs, not those of what was picked, and no stop string ends them", audit)

    # A verifier that dies has lost what it had found: it is found again.
    long = expected[0]["tokens"] * 12
    request = {"tokens": ids[0], "audit": long, "logprobs": 0}
    want = service.swarm([request])[0]
    _, results = service.swarm_held([request, {**request, "tokens": ids[1]}])
    service.restart("verifier")
    got = results()
    tap.ok(got[0]["picked"] == want["picked"] and got[0]["logprobs"] == want["logprobs"] and len(got[1]["picked"]) == len(long),
           "a restart of the verifier in the middle changes nothing", [g.get("error") for g in got])

    for spec, word in (({"budget_experts": "4"}, "expert budget"), ({"grammar": ["regex", "a+"]}, "grammar"), ({"coupling": "maximal"}, "maximal"),
                       ({"audit": [10 ** 6]}, "vocabulary"), ({"audit": [1] * 2000}, "1023"), ({"audit": [1] * 1000}, "context")):
        result = service.swarm([{"tokens": ids[0], "audit": [1, 2], **spec}])[0]
        tap.ok("audit" in result.get("error", "") and word in result["error"], f"refused by name: {word}", result)
    refused = run(*words(0, "--audit", "--regex", "a+"))
    tap.ok(refused.returncode == 64 and "--audit cannot be combined with --" in refused.stderr, "outrider run refuses it with a grammar", refused.stderr)
    service.ctl("knob", "set", "budget_experts=4")
    plain = service.swarm([{"tokens": ids[0], "audit": expected[0]["tokens"]}])[0]
    tap.ok(plain["picked"] == expected[0]["tokens"], "a service with a budget audits without it", plain)
tap.done()
