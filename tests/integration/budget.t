#!/usr/bin/env python3
"""Expert budgets: what an answer with one says of itself, that no other session's bytes depend on it, what becomes of it when the
verifier dies, and the requests and settings that are refused."""
import json
import subprocess

from outrider_test import Service, Tap, difference, finish, program, prompts, reference, run, run_json, until

TOKENS = 120
tap = Tap()
ids = prompts(3, longest=80)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]
N = 32  # experts of the demo model


def words(service, i, *more):
    return [program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", ",".join(map(str, ids[i])), "--max-tokens", str(TOKENS),
            "--ignore-eos", "--json", "--logits-hash", *more]


def answer(service, i, *more):
    return run_json(*words(service, i, *more))


def drafted(i, k=7):
    """Drafts that the model would mostly accept, so that each pass verifies some."""
    return ("--draft-method", "replay", "--k", str(k), "--replay", ",".join(map(str, expected[i]["tokens"])), "--replay-error", "0.3")


def differs(result, i):
    return difference(result, expected[i])


# A draft that is late is not verified, and no budget is applied to its pass: none is late.
SETS = ("verifier.budget_oracle=yes", "verifier.linger=1d", "verifier.draft_wait=10s")
with Service(options=("--budget", "all"), sets=SETS) as service:
    plain = answer(service, 0, *drafted(0))
    tap.ok(not differs(plain, 0) and plain["usage"]["lossy"] == [] and plain["usage"]["lossy_tokens"] == 0, "without a budget nothing is lossy")
    for name, more in (("all experts", ("--budget-experts", str(N))), ("the word all", ("--budget-experts", "all"))):
        result = answer(service, 0, *drafted(0), *more)
        tap.ok(not differs(result, 0) and result["usage"]["lossy"] == [], f"{name}: the same bytes, and nothing is lossy", differs(result, 0))

    lossy = {}
    for ranking in ("router", "oracle"):
        for coverage in ("substitution", "truncation"):
            result = answer(service, 0, *drafted(0), "--budget-experts", "4", "--budget-ranking", ranking, "--budget-coverage", coverage)
            said, n = result["usage"]["lossy"], result["usage"]["lossy_tokens"]
            lossy[ranking, coverage] = result
            tap.ok(len(result["tokens"]) == TOKENS and n > 0 and
                   said == [f"expert budget 4 of {N} ({ranking}, {coverage}), which affected {n} of {TOKENS} tokens"],
                   f"{ranking}, {coverage}: the answer says that it is lossy, and how", (said, n))
    tap.ok(lossy["router", "truncation"]["tokens"] != expected[0]["tokens"], "and it is another answer")
    for nodes in (100, 511):
        result = answer(service, 0, *drafted(0, 16), "--max-tokens", "24", "--draft-width", "32", "--draft-nodes", str(nodes), "--budget-experts", "4",
                        "--budget-ranking", "oracle")
        passes, n = result["usage"]["iterations"] - result["usage"]["k_used"][0], result["usage"]["lossy_tokens"]
        tap.ok(n > 0 and result["usage"]["drafted"] > 64 * passes > 0 and f"which affected {n} of 24 tokens" in result["usage"]["lossy"][0],
               f"oracle: the experts of trees of {nodes} tokens are ranked", result["usage"])
    # A number for each layer.
    for experts, written in (("0-:4", "4"), ("0:4,2-3:8", "0:4,2-3:8"), (f"0-1:{N},2-:3", "2-:3")):
        result = answer(service, 0, *drafted(0), "--budget-experts", experts)
        said, n = result["usage"]["lossy"], result["usage"]["lossy_tokens"]
        tap.ok(len(result["tokens"]) == TOKENS and n > 0 and
               said == [f"expert budget {written} of {N} (router, substitution), which affected {n} of {TOKENS} tokens"],
               f"{experts}: the answer says which layers have a budget", (said, n))
        same = result["tokens"] == lossy["router", "substitution"]["tokens"]
        tap.ok(same == (written == "4"), f"{experts}: it is {'the same' if written == '4' else 'another'} budget than 4 in every layer")
    result = answer(service, 0, *drafted(0), "--budget-experts", f"0-:{N}")
    tap.ok(not differs(result, 0) and result["usage"]["lossy"] == [], "all experts in each layer are no budget", differs(result, 0))
    alone = answer(service, 0, "--k", "0", "--budget-experts", "4")
    tap.ok(not differs(alone, 0) and alone["usage"]["lossy_tokens"] == 0 and len(alone["usage"]["lossy"]) == 1,
           "a budget is for passes that verify drafts: without drafts the tokens are the model's", alone["usage"])
    stats = run(*words(service, 0, *drafted(0), "--budget-experts", "4", "--stats"))
    tap.ok("expert budget 4 of" in stats.stderr + stats.stdout, "--stats shows it", stats.stderr)

    # Beside others.
    with_replay = [{"tokens": p, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "k": 5, "draft_method": "replay",
                    "replay": e["tokens"], "replay_error": 0.3} for p, e in zip(ids, expected)]
    mixed = [dict(r, **({"budget_experts": "3"} if i % 2 else {})) for i in range(8) for r in [with_replay[i // 2 % 3]]]
    results = service.swarm(mixed, 8)
    found = [d for i, r in enumerate(results) if i % 2 == 0 and (d := difference(r, expected[i // 2 % 3]))]
    tap.ok(not found, "sessions beside one with a budget keep their bytes, also with the same prompt", found)
    found = [d for i in range(3) if (d := difference(service.swarm([with_replay[i]])[0], expected[i]))]
    tap.ok(not found, "and those that come after it", found)

    # Refused.
    for more, word in ((("--budget-experts", "0"), f"budget_experts: 0 is not 1..{N}"), (("--budget-experts", str(N + 1)), f"1..{N}"),
                       (("--budget-experts", "2-3:0"), f"layers 2 to 3: 0 is not 1..{N}"), (("--budget-experts", f"2:{N + 1}"), f"layer 2: {N + 1} is not 1..{N}"),
                       (("--budget-experts", "2-99:4"), "layer 99 does not exist"), (("--budget-experts", "0-2:4,2:5"), "layer 2 is named twice, with 4 and 5"),
                       (("--budget-experts", "some"), "0-3:16,4-:8"),
                       (("--budget-experts", "4", "--coupling", "maximal", "--temperature", "1"), "coupling"),
                       (("--budget-experts", "4", "--budget-ranking", "static"), "budget_profile"),
                       (("--budget-experts", "4", "--budget-ranking", "best"), "router, static and oracle"),
                       (("--budget-ranking", "router"), "--budget-experts")):
        result = run(*words(service, 0, *more))
        tap.ok(result.returncode != 0 and word in result.stderr, f"{' '.join(more)} is refused by name", result.stderr)
    refused = service.ctl("knob", "set", f"budget_experts={N + 1}")
    tap.ok(refused.returncode != 0 and f"1..{N}" in refused.stderr, "so is a knob beyond the model's experts", refused.stderr)
    for experts, word in (("2:0", f"layer 2: 0 is not 1..{N}"), ("0-:4,1:5", "layer 1 is named twice"), ("40:4", "layer 40 does not exist"), ("few", '"few"')):
        refused = service.ctl("knob", "set", f"budget_experts={experts}")
        tap.ok(refused.returncode != 0 and "budget_experts" in refused.stderr and word in refused.stderr, f"and {experts}", refused.stderr)
    refused = service.ctl("knob", "set", "budget_experts=4", "budget_ranking=static")
    tap.ok(refused.returncode != 0 and "budget_profile" in refused.stderr, "and a ranking without its profile", refused.stderr)

    # As a knob.
    service.ctl("knob", "set", "budget_experts=4", "budget_coverage=truncation")
    result = answer(service, 0, *drafted(0))
    tap.ok(result["usage"]["lossy"] and "4 of" in result["usage"]["lossy"][0] and "truncation" in result["usage"]["lossy"][0],
           "the knob is for requests that say nothing", result["usage"]["lossy"])
    result = answer(service, 0, *drafted(0), "--budget-experts", "all")
    tap.ok(not differs(result, 0) and result["usage"]["lossy"] == [], "a request may refuse it")
    by_layer = answer(service, 0, *drafted(0), "--budget-experts", "0:4,2-3:8")
    service.ctl("knob", "set", "budget_experts=0:4,2-3:8", "budget_coverage=substitution")
    result = answer(service, 0, *drafted(0))
    tap.ok(result["tokens"] == by_layer["tokens"] and "0:4,2-3:8 of" in result["usage"]["lossy"][0], "it has a number for each layer, too",
           result["usage"]["lossy"])
    service.ctl("knob", "set", "budget_experts=0")
    result = answer(service, 0, *drafted(0))
    tap.ok(not differs(result, 0) and result["usage"]["lossy"] == [], "0 is off again")

    # What is kept of it can be had again, from any token on: nothing is computed for that.
    kept = service.swarm([dict(with_replay[0], budget_experts="4", logits_hash=False)])[0]
    uid = service.ctl_json("sessions")["sessions"][-1]["uid"]

    def rest(have):
        return service.swarm([{"resume": uid, "have": have}])[0].get("tokens")
    tap.ok(kept["tokens"] != expected[0]["tokens"] and rest(0) == kept["tokens"] and rest(50) == kept["tokens"][50:],
           "a finished answer with a budget is resumed with its own tokens", kept)

    # The verifier dies.
    def running():
        return [s for s in service.ctl_json("sessions")["sessions"] if s["max_tokens"] > TOKENS and s["output_tokens"] > 8]

    longer = ("--max-tokens", "1500", "--budget-experts", "4")
    for _ in range(20):  # a quick machine may complete the answer first
        process = subprocess.Popen([str(w) for w in words(service, 0, *drafted(0, 2), *longer)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        other = service.swarm_start([dict(with_replay[1], k=1)])
        until(running, 5, every=0.01)
        service.restart("verifier")
        out, err = finish(process, 120)
        result, beside = json.loads(out), other[1]()[0]
        if result["end"] == "error":
            break
    tap.ok(result["end"] == "error" and "budget_experts 4" in result["message"] and "cannot go on after" in result["message"] and
           0 < len(result["tokens"]) < 1500, "an answer with a budget ends with an error that names it", (out[-400:], err))
    found = difference(beside, expected[1])
    tap.ok(not found, "the session beside it goes on to its bytes", found)
    tap.ok(not differs(answer(service, 2, *drafted(2)), 2), "and so does the service")
    tap.ok(rest(50) == kept["tokens"][50:], "and the finished answer is still its own")
tap.done()
