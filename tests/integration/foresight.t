#!/usr/bin/env python3
"""What the drafter does for a session at K = 0: it says what it would have drafted while it follows, and reads no prompt of a session
that the policy has it rest in. The same bytes either way."""
from outrider_test import DRAFTS, Service, Tap, difference, prompts, reference, until

TOKENS = 120
# Nothing may be lost: K stays 0, and after some iterations the drafter rests.
NEVER = ("policy.purse=0", "policy.spend=0")
tap = Tap()
# The draft model reads ahead of any request what is longer than 32 tokens.
ids = next(p for p in prompts(8, longest=150) if len(p) > 100)
want = reference(ids, TOKENS, extra=("--ignore-eos",))


def read(service):
    """How many tokens the draft model has read."""
    return int(service.details("drafter")["pass_tokens"])


def foreseen(service):
    """How many drafts that were kept back the drafter has compared."""
    return int(service.details("drafter")["foreseen"])


def explained(service):
    return service.ctl_json("policy", "explain")


def answer(service, tokens=TOKENS):
    return service.swarm([{"tokens": ids, "max_tokens": tokens, "ignore_eos": True, "logits_hash": True}])[0]


with Service(draft=DRAFTS["small"], options=("--budget", "all"), sets=NEVER) as service:
    first = answer(service)
    tap.ok(not difference(first, want) and first["usage"]["drafted"] == 0, "nothing is drafted where nothing may be lost", first["usage"])
    tap.ok(read(service) > len(ids), "a prompt is read while drafts may pay", read(service))
    tap.ok(until(lambda: any("need not follow" in w for w in explained(service)["words"])), "then the drafter rests", explained(service)["words"])
    before = read(service)
    answer(service)
    tap.ok(read(service) == before, "and reads nothing of the next prompt", f"{before}, then {read(service)}")

with Service(draft=DRAFTS["small"], options=("--budget", "all"), sets=(*NEVER, "policy.rest_at_zero=no")) as service:
    answer(service)
    before = read(service)
    again = answer(service)
    tap.ok(not difference(again, want) and not any("need not follow" in w for w in explained(service)["words"]),
           "a drafter that may not rest does not", explained(service)["words"])
    tap.ok(until(lambda: read(service) >= before + len(ids) + TOKENS // 2), "and reads the next prompt and what comes of it",
           f"{before}, then {read(service)}")

# Room for some experts alone: the drafter, which hints, is told of every token.
for method, name in (("ngram", "n-grams"), ("model", "a draft model")):
    with Service(draft=DRAFTS["small"], options=("--budget", "30%"), sets=NEVER) as service:
        result = service.swarm([{"tokens": ids, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "draft_method": method}])[0]
        tap.ok(not difference(result, want) and result["usage"]["drafted"] == 0, f"{name}: the same bytes", difference(result, want))
        tap.ok(until(lambda: any("was compared with the text" in w for w in explained(service)["words"])),
               f"{name}: what would have been drafted is known at K = 0", explained(service)["words"])

# A policy that does not learn from them has none made, and one that does has them from its first iteration on.
with Service(draft=DRAFTS["small"], options=("--budget", "30%", "--policy", "static:0")) as service:
    still = answer(service)
    tap.ok(not difference(still, want) and foreseen(service) == 0, "static: nothing is compared", foreseen(service))
    service.ctl("knob", "set", "policy.policy=yield", *NEVER)
    after = answer(service)
    tap.ok(not difference(after, want) and foreseen(service) > 0, "yield, set meanwhile: it is", foreseen(service))
    service.ctl("knob", "set", "policy.policy=cascade")
    before = foreseen(service)
    answer(service)
    tap.ok(foreseen(service) == before, "cascade: no longer", f"{before}, then {foreseen(service)}")

tap.done()
