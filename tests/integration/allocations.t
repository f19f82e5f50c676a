#!/usr/bin/env python3
"""No allocation per token: an answer of 220 tokens takes as many as one of 20, and while a service decodes, the threads that
compute, draft and decide take none; what the control plane takes is per message."""
import json
import os
import subprocess

from allocations import WHY_NOT, Allocations
from outrider_test import DRAFTS, ROOT, TARGET, Service, Tap, program, prompts

tap = Tap()
PROMPT = prompts(1, longest=40)[0]
FIRST, LAST, ALL = 100, 600, 900  # tokens between which it is counted, and of the answer
# The text that was not sent yet is kept in one piece of memory, which doubles; nothing else of the loop's is not a message.
GROWTH = 8
PER_MESSAGE = 8


def generate(tokens, *more):
    """How many allocations outrider-model takes for an answer of so many tokens, by all of its threads."""
    with Allocations() as counted:
        with subprocess.Popen([program("outrider-model"), "generate", "--model", TARGET, "--tokens", ",".join(map(str, PROMPT)), "--max-tokens",
                               str(tokens), "--ignore-eos", "--format", "text", "--quiet", *more], env={**os.environ, **counted.env},
                              stdout=subprocess.DEVNULL) as process:
            process.wait()
        return process.returncode, sum(counts.own for counts in counted.of(process.pid).values())


def of_an_answer():
    for what, more in (("greedy", ()), ("sampled", ("--temperature", "0.8", "--top-p", "0.9", "--top-k", "40", "--repeat-penalty", "1.1")),
                       ("with packed weights on two threads", ("--pack", "--threads", "2")), ("in plain C", ("--kernels", "scalar", "--kv", "q8_0"))):
        short, long = generate(20, *more), generate(220, *more)
        tap.ok(short == long and short[0] == 0 and short[1] > 10, f"220 tokens take as many allocations as 20, {what}", (short, long))


def threads(pid):
    """{thread: name}"""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as name:
            found[int(thread)] = name.read().strip()
    return found


def counted_while_it_decodes(service, counted, request):
    """{process: {thread: Counts}} between two tokens of one answer, and how many tokens that were; None when the answer was over
    before the second was looked at."""
    pids = service.processes()
    with subprocess.Popen([program("tests/swarm"), str(service.runtime), "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as swarm:
        swarm.stdin.write(json.dumps(request) + "\n")
        swarm.stdin.close()
        before = first = found = None
        for line in swarm.stderr:
            have = json.loads(line)["have"]
            if before is None and have >= FIRST:
                before, first = {name: counted.of(pid) for name, pid in pids.items()}, have
            elif found is None and have >= request["max_tokens"] * LAST // ALL:
                found = {name: counted.since(pid, before[name]) for name, pid in pids.items()}, have - first
                if swarm.poll() is not None:
                    found = None
    return found


def while_it_decodes(drafter, k, model=TARGET, n=ALL):
    request = {"tokens": [t % 380 for t in PROMPT] if model != TARGET else PROMPT, "max_tokens": n, "ignore_eos": True, "k": k, "draft_method": drafter, "progress": True}
    what = f"drafter {drafter}, K = {k}"
    with Allocations() as counted, \
            Service(model=model, draft=DRAFTS["small"] if drafter == "model" else None, env=counted.env,
                    sets=("verifier.kernels=scalar", "verifier.threads=2", "verifier.stream_interval=0")) as service:
        found = next(filter(None, (counted_while_it_decodes(service, counted, request) for _ in range(20))), None)
        names = {name: threads(pid) for name, pid in service.processes().items()}
    if not tap.ok(found, f"an answer is caught between two of its tokens, {what}"):
        return
    counts, tokens = found
    tap.note(f"{tokens} tokens: {counts}")
    verifier = {names["verifier"].get(thread, str(thread)): c for thread, c in counts["verifier"].items()}
    loop = verifier.pop("outrider-verifi")
    computing = {thread: c for thread, c in verifier.items() if not thread.startswith("ZMQbg")}
    tap.ok("engine" in names["verifier"].values() and not any(c.own + c.of_messages for c in computing.values()),
           f"from token to token no thread that computes or chooses allocates, {what}", verifier)
    tap.ok(loop.messages > 0 and loop.own <= GROWTH and loop.of_messages <= PER_MESSAGE * loop.messages,
           f"the loop takes some for each message to the client and none for a token, {what}", loop)
    for name in ("drafter", "policy"):
        tap.ok(not any(c.own for c in counts[name].values()), f"nor does the {name}, {what}", counts[name])


if WHY_NOT:
    tap.skip("allocations", WHY_NOT)
else:
    of_an_answer()
    while_it_decodes("ngram", 0)
    while_it_decodes("model", 3)
    while_it_decodes("mtp", 3, ROOT / "tests/data/golden/heads/nextn-glm4moe.f32.gguf", 460)
tap.done()
