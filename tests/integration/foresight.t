#!/usr/bin/env python3
"""What the drafter does for a session at K = 0: it says what it would have drafted while it follows, and reads no prompt of a session
that the policy has it rest in. The same bytes either way."""
import time

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


def settled(figure, service):
    """The figure once the drafter, which follows behind, has come to its end."""
    seen = []

    def stands():
        seen.append(figure(service))
        time.sleep(0.3)
        return figure(service) == seen[-1]
    until(stands)
    return figure(service)


def answer(service, tokens=TOKENS):
    return service.swarm([{"tokens": ids, "max_tokens": tokens, "ignore_eos": True, "logits_hash": True}])[0]


with Service(draft=DRAFTS["small"], options=("--budget", "all"), sets=NEVER) as service:
    first = answer(service)
    tap.ok(not difference(first, want) and first["usage"]["drafted"] == 0, "nothing is drafted where nothing may be lost", first["usage"])
    tap.ok(until(lambda: read(service) > len(ids)), "a prompt is read while drafts may pay", read(service))
    tap.ok(until(lambda: any("need not follow" in w for w in explained(service)["words"])), "then the drafter rests", explained(service)["words"])
    before = settled(read, service)
    answer(service)
    tap.ok(settled(read, service) == before, "and reads nothing of the next prompt", f"{before}, then {read(service)}")

with Service(draft=DRAFTS["small"], options=("--budget", "all"), sets=(*NEVER, "policy.rest_at_zero=no")) as service:
    answer(service)
    before = settled(read, service)
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
    tap.ok(not difference(still, want) and settled(foreseen, service) == 0, "static: nothing is compared", foreseen(service))
    service.ctl("knob", "set", "policy.policy=yield", *NEVER)
    after = answer(service)
    tap.ok(not difference(after, want) and until(lambda: foreseen(service) > 0), "yield, set meanwhile: it is", foreseen(service))
    service.ctl("knob", "set", "policy.policy=cascade")
    before = settled(foreseen, service)
    answer(service)
    tap.ok(settled(foreseen, service) == before, "cascade: no longer", f"{before}, then {foreseen(service)}")

tap.done()
