"""Time to the first token of a chat's turns (of an answer that has one, over HTTP): with what was said before in the KV cache, without, and from
disk; and what the cache finds when many requests begin in one of several ways, and of a trace of conversations."""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from gateway_test import Gateway  # noqa: E402
from gguf_file import Gguf  # noqa: E402
from outrider_test import TARGET, Service, program, run_json  # noqa: E402

CHATS, TURNS, ANSWER = 8, 4, 40
SLOW_CHATS = 3  # of other models
FIRST, MORE = 1200, 80  # characters of the first question, and of each further one
TRACE = ("--arrivals", "closed", "--clients", 4, "--requests", 96, "--prompt-tokens", "320-400", "--output-tokens", "8-16", "--shared", 256, "--k", 0)
# A trace in Mooncake's format, whose blocks of 512 tokens are pages of 32 at this scale; at this speed ours takes 20 s.
TALKS, SCALE, SPEED = 40, 1 / 16, 60
TRACE_SPEED = 2
BLOCK, PAGE = 512, 32
WORDS = " ".join(m["content"] for line in (ROOT / "bench" / "workloads" / "mixed.jsonl").read_text().splitlines() for m in json.loads(line).get("messages", ()))


def question(n, number):
    at = number * 997 % (len(WORDS) - n)
    return WORDS[at:at + n]


def ask(gateway, text, tokens):
    """Milliseconds until the answer was there, and its text."""
    begun = time.monotonic()
    status, answer = gateway.post("/v1/completions", {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "outrider": {"k": 0}})
    assert status == 200, answer
    return 1000 * (time.monotonic() - begun), (answer["choices"][0]["text"] if answer["choices"] else "")


def first_token(gateway, text):
    return ask(gateway, text, 1)[0]


def chats(gateway, n):
    """Milliseconds by turn, and what was said in each of n chats before the last answer."""
    took, said = [[] for _ in range(TURNS)], []
    first_token(gateway, question(MORE, 5000))  # so that nothing is done for the first time
    for chat in range(n):
        text = ""
        for turn in range(TURNS):
            text += question(MORE if turn else FIRST, chat * 31 + turn * 7)
            took[turn].append(first_token(gateway, text))
            if turn + 1 < TURNS:
                text += ask(gateway, text, ANSWER)[1]
        said.append(text)
    return took, said


def details(service):
    return next(p for p in service.status() if p["name"] == "verifier")["details"]


def line(what, values):
    return f"{what:44}" + "".join(f"{statistics.median(v):10.1f}" for v in values)


def of_model(model, n):
    text = [f"{model.stem}: {n} chats of {TURNS} turns; the first question has {FIRST} characters, each further one {MORE}, each answer {ANSWER} tokens; K = 0",
            f"{'median ms to an answer of one token, by turn':44}" + "".join(f"{t + 1:>10}" for t in range(TURNS))]
    with tempfile.TemporaryDirectory(prefix="outrider-turns-") as where:
        sets = ("verifier.kv_tokens=16384", f"verifier.prefix_dir={where}", "verifier.sleep_after=100ms")
        with Service(model=model, sets=("verifier.kv_tokens=16384", "verifier.prefix_tokens=0")) as service:
            gateway = Gateway(service)
            text.append(line("nothing is kept", chats(gateway, n)[0]))
            gateway.stop()
        with Service(model=model, sets=sets) as service:
            gateway = Gateway(service)
            took, said = chats(gateway, n)
            text.append(line("in the KV cache", took))
            while settle(where):
                pass
            gateway.stop()
        with Service(model=model, sets=sets) as service:
            gateway = Gateway(service)
            first_token(gateway, question(MORE, 5000))
            from_disk = [first_token(gateway, text_said) for text_said in said]
            found = details(service)["disk_found_tokens"]
            again = [first_token(gateway, text_said) for text_said in said]
            gateway.stop()
        text.append(f"turn {TURNS} after a restart of everything, from disk: {statistics.median(from_disk):.1f} ms ({found} tokens of {n} prompts were found there); "
                    f"once more, from the KV cache: {statistics.median(again):.1f} ms")
    return "\n".join(text)


def settle(where):
    """Whether files were written in the last half second."""
    before = len(os.listdir(where))
    time.sleep(0.5)
    return len(os.listdir(where)) != before


def trace():
    """What share of the prompts' tokens is found, with groups of requests that begin alike and a cache of some size."""
    text = [f"$ outrider-bench load {' '.join(map(str, TRACE))} --groups G, on {Path(TARGET).stem}",
            f"{'groups':>8}{'kv_tokens':>11}{'found':>9}{'kept at the end':>17}{'TTFT p50 ms':>13}{'TTFT p95 ms':>13}"]
    for groups in (4, 16):
        for size in (2048, 8192):
            with Service(sets=(f"verifier.kv_tokens={size}",)) as service:
                said = run_json(program("outrider-bench"), "load", "--runtime-dir", service.runtime, *TRACE, "--groups", groups, "--json")
                now = details(service)
            text.append(f"{groups:8}{size:11}{100 * said['cached_share']:8.1f}%{now['kv_kept_tokens']:17}{said['ttft_ms']['p50']:13.1f}{said['ttft_ms']['p95']:13.1f}")
    return "\n".join(text)


def conversations(path, seed=1):
    """Writes a trace of conversations. They begin at random (Poisson, one in 15 s), with one of four system prompts; each turn repeats all that was said, and
    comes some time after the answer."""
    chance, requests = random.Random(seed), []
    systems = [[1 + 2 * i, 2 + 2 * i] for i in range(4)]
    at_s, fresh = 0.0, 100
    for _ in range(TALKS):
        at_s += chance.expovariate(1 / 15)
        blocks, turn_s, length = list(chance.choice(systems)), at_s, 0
        for _ in range(min(8, 1 + int(chance.expovariate(1 / 3)))):
            length = max(length, len(systems[0]) * BLOCK) + int(chance.lognormvariate(6.5, 0.8))
            answer = min(800, int(chance.lognormvariate(5.3, 0.7)) + 16)
            if length + answer > 900 / SCALE:
                break
            while len(blocks) * BLOCK < length:
                fresh += 1
                blocks.append(fresh)
            requests.append((turn_s, length, answer, list(blocks)))
            length += answer
            turn_s += 5 + chance.expovariate(1 / 40)
    requests.sort(key=lambda r: r[0])
    with open(path, "w") as out:
        for when_s, length, answer, blocks in requests:
            out.write(json.dumps({"timestamp": int(1000 * when_s), "input_length": length, "output_length": answer, "hash_ids": blocks}) + "\n")


def read_trace(path):
    """The blocks of each request, the whole ones only; how many tokens all prompts have; and the context that the longest request needs at our scale."""
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    longest = max(r["input_length"] + r["output_length"] for r in requests)
    return [r["hash_ids"][:r["input_length"] // BLOCK] for r in requests], sum(r["input_length"] for r in requests), int(SCALE * longest) + PAGE


def least_recent(requests, capacity):
    """How many tokens a cache of so many blocks finds that knows nothing else: the block that was used longest ago gives way."""
    cache, found = OrderedDict(), 0
    for blocks in requests:
        n = next((i for i, b in enumerate(blocks) if b not in cache), len(blocks))
        found += BLOCK * n
        for b in blocks:
            cache[b] = True
            cache.move_to_end(b)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found


def for_context(model, context, path):
    """The model, or a copy in which its context is so long: what is found does not depend on what it says."""
    file = Gguf(model)
    key = next(k for k in file.keys if k.endswith(".context_length"))
    kind, has = file.keys[key]
    if has >= context:
        return model
    file.keys[key] = kind, context
    file.write(path)
    return path


def replay(model, path, speed, rows):
    """What caches of some sizes find of a trace, with and without a disk; rows: tokens, and bytes on disk. The first has a disk, whose files say how many bytes a
    token has."""
    requests, tokens, context = read_trace(path)
    options = ("--trace", path, "--scale", SCALE, "--speed", speed, "--clients", 16, "--k", 0)
    held = tempfile.TemporaryDirectory(prefix="outrider-talks-")
    longer = for_context(model, context, Path(held.name) / model.name)
    text = [f"$ outrider-bench load {' '.join(map(str, ('--trace', path.name, *options[2:])))}, on {model.stem}" +
            (f" with its context raised to {context} tokens" if longer != model else ""),
            f"{'kv_tokens':>10}{'disk':>7}{'found':>8}{'by age':>9}{'kept MB':>9}{'on disk MB':>12}{'read from disk':>16}{'failed':>8}"]
    for size, disk in rows:
        with tempfile.TemporaryDirectory(prefix="outrider-talks-") as pages:
            more = (f"verifier.prefix_dir={pages}", f"verifier.prefix_disk={disk}", "verifier.sleep_after=100ms") if disk else ()
            with Service(model=longer, sets=(f"verifier.kv_tokens={size}", f"verifier.context={context}", *more)) as service:
                said = run_json(program("outrider-bench"), "load", "--runtime-dir", service.runtime, *options, "--json", timeout=1800)
                now = details(service)
            if disk:
                token_bytes = (next(Path(pages).glob("*.kv")).stat().st_size - 512) / PAGE
        from_disk = f"{now['disk_found_tokens']} tokens" if disk else "-"
        by_age = f"{100 * least_recent(requests, size // PAGE) / tokens:.1f}%"
        text.append(f"{size:10}{disk or 'none':>7}{100 * said['cached_share']:7.1f}%{by_age:>9}{now['kv_kept_tokens'] * token_bytes / 1e6:9.1f}"
                    f"{now.get('disk_bytes', 0) / 1e6:12.1f}{from_disk:>16}{said['failed']:8}")
    held.cleanup()
    text.append("by age: what a cache of so many tokens finds without a disk whose blocks give way by age alone, with the requests one after another")
    return "\n".join(text)


def what_of(path):
    requests, tokens, _ = read_trace(path)
    return f"{len(requests)} requests with {tokens} tokens of prompts, of which {100 * least_recent(requests, 1 << 40) / tokens:.1f} % lie in blocks that came before"


def talks(trace_file, model):
    if trace_file:
        return f"{what_of(trace_file)}\n" + replay(model, trace_file, TRACE_SPEED, ((32768, "2G"), (8192, "2G"), (131072, ""), (32768, ""), (8192, "")))
    with tempfile.TemporaryDirectory(prefix="outrider-talks-") as where:
        path = Path(where) / "talks.jsonl"
        conversations(path)
        return f"{TALKS} conversations (bench/turns.py): {what_of(path)}\n" + replay(model, path, SPEED, ((8192, "64M"), (2048, "64M"), (8192, ""), (2048, "")))


def report(model):
    return of_model(model, CHATS) + "\n\n" + trace() if model == TARGET else of_model(model, SLOW_CHATS)


def parse(arguments, name):
    parser = argparse.ArgumentParser(prog=f"bench/run.py {name}", description=__doc__)
    parser.add_argument("--model", type=Path, default=TARGET, help="instead of the demo model")
    parser.add_argument("--name", default=name, help="name of the file with the results; default %(default)s")
    if name == "talks":
        parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format instead of ours; its lengths are divided by 16, and its times by 2")
    return parser.parse_args(arguments)
