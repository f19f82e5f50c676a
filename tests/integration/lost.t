#!/usr/bin/env python3
"""A model file that is cut or written to while sessions run: they end with that error and only true tokens before it,
nobody crashes, and the processes end so that they are started again with what is there, of which nothing that a predecessor
kept in memory is a part."""
import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import TARGET, Service, Tap, difference, prompts, reference, until

TOKENS = 900
# Clients that take nothing keep their answers.
PATIENT = ("verifier.client_timeout=1h",)
tap = Tap()
if not TARGET.exists():
    tap.skip("a lost model", f"{TARGET.name} is not there")
    tap.done()
home = Path(tempfile.mkdtemp(prefix="outrider-lost-", dir="/var/tmp"))
model = home / "model.gguf"
asked = prompts(4)
expected = [reference(ids, TOKENS, seed=i, extra=("--ignore-eos",)) for i, ids in enumerate(asked)]


def cut():
    os.truncate(model, 40000)
    return "became shorter"


def overwrite():
    """Other weights in the same place; the size stays."""
    with open(model, "r+b") as file:
        file.seek(model.stat().st_size // 2)
        data = file.read(model.stat().st_size // 4)
        file.seek(model.stat().st_size // 2)
        file.write(bytes(b ^ 1 for b in data))
    return "was written to"


def true_prefix(result, want):
    n = len(result["tokens"])
    return n < TOKENS and result["tokens"] == want["tokens"][:n]


def lose(how, sets, options=()):
    shutil.copy(TARGET, model)
    name = f"{how.__name__} with {', '.join(sets) or 'the defaults'} {' '.join(options)}".strip()
    requests = [request_of(i, TOKENS) for i in range(4)]
    with Service(model=model, sets=(*sets, *PATIENT), options=options) as service:
        before = service.processes()
        _, results = service.swarm_held(requests, concurrent=4)
        said = how()
        results = results()
        errors = [r.get("error", "") for r in results]
        tap.ok(len(results) == 4 and all(said in e and str(model) in e for e in errors),
               f"{name}: every session ends with that error", errors)
        tap.ok(all(true_prefix(r, e) for r, e in zip(results, expected)), f"{name}: what was sent before it is true",
               [len(r["tokens"]) for r in results])
        ends = until(lambda: all(f"outrider up: {who} ended with status 75" in service.whole_log()
                                 for who in ("verifier", "expert-cache")))
        same = all(service.processes().get(who) == before[who] for who in ("drafter", "policy"))
        tap.ok(ends and same and "signal" not in service.whole_log(), f"{name}: verifier and cache end with status 75, the others stay",
               f"{service.status()}\n{service.log_text()}")
        if how is cut:
            shutil.copy(TARGET, home / "whole.gguf")
            os.replace(home / "whole.gguf", model)
            want = expected[0]
        else:
            want = reference(asked[0], TOKENS, seed=0, extra=("--ignore-eos",), model=model)
        until(lambda: all(service.processes().get(who) not in (None, before[who]) for who in ("verifier", "expert-cache")))
        service.wait_ready()
        result = service.swarm([requests[0]])[0]
        tap.ok(not difference(result, want), f"{name}: they are started again with what is there now", f"{difference(result, want)}\n{service.log_text()}")


def rotate(tensor):
    """The same quantised blocks in another order."""
    ne, kind, data = tensor
    blocks, block = math.prod(ne) // 32, 34
    return (ne, kind, data[blocks // 3 * block:blocks * block] + data[:blocks // 3 * block]) if kind == 8 else tensor


def swap(tensor):
    """Two runs of blocks of one expert change places, where a fingerprint, which looks at few places, does not look."""
    ne, kind, data = tensor
    at, n = len(data) // 64 // 34 * 34, 40 * 34
    return ne, kind, data[:at] + data[at + n:at + 2 * n] + data[at:at + n] + data[at + 2 * n:]


def all_rotated(tensors):
    return {name: rotate(tensor) for name, tensor in tensors.items()}


def one_swapped(tensors):
    return {name: swap(tensor) if name == "blk.0.ffn_down_exps.weight" else tensor for name, tensor in tensors.items()}


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def next_checkpoint(change, sets, options=()):
    """Other weights under the same metadata, as the next checkpoint of a training has; then the processes are killed, one
    after the other, before they could see it. What they left in memory is not for their successors."""
    before, after = home / "before.gguf", home / "after.gguf"
    gguf = Gguf(TARGET)
    gguf.write(before)
    gguf.tensors = change(gguf.tensors)
    gguf.write(after)
    want = [reference(asked[0], 40, seed=0, extra=("--ignore-eos",), model=m) for m in (before, after)]
    request = {"tokens": asked[0], "max_tokens": 40, "seed": 0, "ignore_eos": True, "logits_hash": True}
    name = f"other weights ({change.__name__}) under the same metadata with {', '.join(sets)} {' '.join(options)}".strip()
    shutil.copy(before, model)
    with Service(model=model, sets=sets, options=options) as service:
        first = service.swarm([request])[0]
        pids = {n: pid for n, pid in service.processes().items() if n in ("verifier", "expert-cache")}
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        os.replace(after, model)
        kill(pids["verifier"])
        kill(pids["expert-cache"])
        until(lambda: all(service.pid(n) not in (None, pid) for n, pid in pids.items()))
        service.wait_ready()
        second = service.swarm([request])[0]
        tap.ok(not difference(first, want[0]) and difference(first, want[1]), f"{name}: first the old ones", first)
        tap.ok(not difference(second, want[1]), f"{name}: after both were killed the new ones",
               f"{second}\n{want}\n{service.log_text()}")


def change_behind_times(change):
    """Writes other weights into the file, which keeps its inode, size and st_mtim."""
    before, gguf = model.stat(), Gguf(TARGET)
    gguf.tensors = change(gguf.tensors)
    gguf.write(home / "after.gguf")
    with open(model, "r+b") as file:
        file.write((home / "after.gguf").read_bytes())
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size


def request_of(i, tokens):
    return {"tokens": asked[i], "max_tokens": tokens, "seed": i, "ignore_eos": True, "logits_hash": True}


def changed_while_the_cache_was_killed():
    """The next cache finds another model in the file than the verifier has mapped, and nobody's times say why."""
    shutil.copy(TARGET, model)
    with Service(model=model, options=("--budget", "min")) as service:
        first = service.swarm([request_of(0, 40)])[0]
        pids = {n: pid for n, pid in service.processes().items() if n in ("verifier", "expert-cache")}
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        change_behind_times(all_rotated)
        kill(pids["expert-cache"])
        os.kill(pids["verifier"], signal.SIGCONT)
        until(lambda: service.pid("expert-cache") not in (None, pids["expert-cache"]))
        again = service.swarm([request_of(0, 40)])[0]
        # The verifier may have noticed it already, and another one answers, which serves the file as it is now.
        refused = "was written to" in again.get("error", "") and not again["tokens"]
        tap.ok(first["tokens"] == expected[0]["tokens"][:40] and "its model is lost" in service.whole_log() and
               (refused or service.pid("verifier") != pids["verifier"]),
               "a file changed behind its size and time while the cache was dead: the model is lost", f"{again}\n{service.log_text()}")
        service.renewed("verifier", pids["verifier"])
        service.wait_ready()
        now = service.swarm([request_of(0, 40)])[0]
        want = reference(asked[0], 40, seed=0, extra=("--ignore-eos",), model=model)
        tap.ok(not difference(now, want), "and the one that is there is served", f"{difference(now, want)}\n{service.log_text()}")


def restarted(service, meanwhile):
    """Verifier and cache are killed, and others take their place, in a world that has changed meanwhile."""
    pids = {n: pid for n, pid in service.processes().items() if n in ("verifier", "expert-cache")}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    meanwhile()
    kill(pids["verifier"])
    kill(pids["expert-cache"])
    until(lambda: all(service.pid(n) not in (None, pid) for n, pid in pids.items()))


def answers_under_way():
    """Answers that a dead verifier had begun do not go on with weights that no sample tells from theirs. Those of which no
    client has a token yet may begin with the new ones."""
    def in_its_place():
        shutil.copy(home / "swapped.gguf", home / "other.gguf")
        os.replace(home / "other.gguf", model)

    gguf = Gguf(TARGET)
    gguf.tensors = one_swapped(gguf.tensors)
    gguf.write(home / "swapped.gguf")
    after = [reference(ids, TOKENS, seed=i, extra=("--ignore-eos",), model=home / "swapped.gguf") for i, ids in enumerate(asked)]
    requests = [request_of(i, TOKENS) for i in range(4)]
    for name, meanwhile in (("replaced", in_its_place), ("written to behind its times", lambda: change_behind_times(one_swapped))):
        shutil.copy(TARGET, model)
        with Service(model=model, options=("--budget", "30%"), sets=PATIENT) as service:
            _, results = service.swarm_held(requests, concurrent=4)
            restarted(service, meanwhile)
            results = results()
            cut_off = [i for i, r in enumerate(results) if "another model" in r.get("error", "") and true_prefix(r, expected[i])]
            begun_again = [i for i, r in enumerate(results) if not difference(r, after[i])]
            tap.ok(len(cut_off) + len(begun_again) == 4 and cut_off,
                   f"the file is {name} while verifier and cache are dead: answers under way end with true tokens",
                   f"{[(r.get('error'), len(r['tokens'])) for r in results]}\n{service.log_text()}")


def there_and_back():
    model.rename(home / "away.gguf")
    (home / "away.gguf").rename(model)


def what_loses_nothing():
    """Another mode, one more name, another name for a while: the service goes on, and so do answers over a restart of it."""
    shutil.copy(TARGET, model)
    requests = [request_of(i, TOKENS) for i in range(4)]
    with Service(model=model, options=("--budget", "30%"), sets=PATIENT) as service:
        until(lambda: service.digested() == model.stat().st_size)
        _, results = service.swarm_held(requests, concurrent=4)
        before = service.processes()
        seen = []
        for n, touch in enumerate((lambda: model.chmod(0o640), lambda: os.link(model, home / "link.gguf"), there_and_back), 1):
            touch()
            seen.append(until(lambda n=n: all(service.whole_log().count(f"{who}: {model}: {what}") == n for who in ("verifier", "expert-cache")
                                              for what in ("something touched the file", "every byte was compared"))))
        same = service.processes() == before and all(seen)
        restarted(service, lambda: None)
        until(lambda: "took over" in service.whole_log())
        results = results()
        found = [d for i, r in enumerate(results) if (d := difference(r, expected[i % 4]))]
        log = service.whole_log()
        tap.ok(same and len(results) == 4 and not found and "taken over" not in log and "took over" in log,
               "a model file that gets another mode and another name is the same model, to successors too",
               f"{seen} {found}\n{service.log_text()}")


def comes_back():
    """A file that is cut and then missing for a while: its processes are started until there is one again."""
    shutil.copy(TARGET, model)
    with Service(model=model, options=("--budget", "30%")) as service:
        cut()
        lost = until(lambda: all(f"outrider up: {who} ended with status 75" in service.whole_log() for who in ("verifier", "expert-cache")))
        model.unlink()
        missing = until(lambda: service.whole_log().count("outrider up: verifier ended with status 66") > 5)
        clear = f"verifier: error: {model}: cannot open: No such file or directory" in service.whole_log()
        shutil.copy(TARGET, home / "whole.gguf")
        os.replace(home / "whole.gguf", model)
        service.wait_ready()
        result = service.swarm([request_of(0, 40)])[0]
        tap.ok(lost and missing and clear and result["tokens"] == expected[0]["tokens"][:40],
               "a model that is cut, and then missing for a while, is served when it is back", f"{result}\n{service.log_text()}")


try:
    comes_back()
    changed_while_the_cache_was_killed()
    answers_under_way()
    what_loses_nothing()
    next_checkpoint(all_rotated, ("verifier.weights=packed", "verifier.experts=mapped"))
    next_checkpoint(all_rotated, ("verifier.weights=packed", "expert-cache.pack=yes"), ("--budget", "30%"))
    next_checkpoint(all_rotated, ("verifier.weights=mapped",))
    next_checkpoint(one_swapped, ("verifier.weights=packed", "expert-cache.pack=yes"))
    for how in (cut, overwrite):
        lose(how, ("verifier.experts=mapped",))
        lose(how, (), ("--budget", "30%"))
    lose(cut, ("verifier.weights=packed", "expert-cache.pack=yes"))
    lose(overwrite, ("expert-cache.io=pread", "expert-cache.direct=no"), ("--budget", "30%"))
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
