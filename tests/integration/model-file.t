#!/usr/bin/env python3
"""What happens to a model's file while it is served. Whatever leaves its bytes alone, or gives its name to another file, changes
no answer and ends no process, and the log says what was looked at. One byte that is another ends the answers, whatever the
file's times say. Processes that have different files open mix nothing."""
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import DRAFTS, TARGET, Service, Tap, difference, prompts, reference, seeded, until

TOKENS = 40
tap = Tap()
if not TARGET.exists():
    tap.skip("a model's file while it is served", f"{TARGET.name} is not there")
    tap.done()
home = Path(tempfile.mkdtemp(prefix="outrider-model-file-", dir="/var/tmp"))
asked = prompts(3, longest=60)
dice = seeded()
HOLDERS = ("verifier", "expert-cache")


def request_of(i, tokens=TOKENS):
    return {"tokens": asked[i], "max_tokens": tokens, "seed": i, "ignore_eos": True, "logits_hash": True}


def references(path, n=3):
    return [reference(asked[i], TOKENS, seed=i, extra=("--ignore-eos",), model=path) for i in range(n)]


def wrong(service, want, n=3):
    return [d for r, w in zip(service.swarm([request_of(i) for i in range(n)]), want) if (d := difference(r, w))]


def write_again(path):
    """The same bytes over themselves."""
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data)


def set_times(path, **changes):
    status = path.stat()
    os.utime(path, ns=(changes.get("accessed", status.st_atime_ns), changes.get("changed", status.st_mtime_ns)))


def rename_over(path, source):
    shutil.copy(source, home / "new")
    os.replace(home / "new", path)


def switch_link(path, to):
    (home / "new-link").symlink_to(to)
    os.replace(home / "new-link", path)


def there_and_back(path):
    path.rename(home / "away")
    (home / "away").rename(path)


TOUCHED, OTHER, GONE, AGAIN = ("something touched the file", "another file has this name now", "no file has this name any more",
                               "has its name again")
# What is done to a file that is open under this name, and what the log says of it.
HARMLESS = (
    ("touch", os.utime, TOUCHED),
    ("st_mtim in the past", lambda path: set_times(path, changed=10**18), TOUCHED),
    ("st_atim set", lambda path: set_times(path, accessed=10**18), TOUCHED),
    ("another mode", lambda path: path.chmod(0o640), TOUCHED),
    ("one more name", lambda path: os.link(path, home / "link"), TOUCHED),
    ("one name less", lambda path: (home / "link").unlink(), TOUCHED),
    ("another name for a moment", there_and_back, TOUCHED),
    ("the same bytes written over it", write_again, TOUCHED),
    ("read through", lambda path: path.read_bytes(), None),
    ("renamed", lambda path: path.rename(home / "away"), GONE),
    ("renamed back", lambda path: (home / "away").rename(path), AGAIN),
    ("a copy renamed over it", lambda path: rename_over(path, home / "first"), OTHER),
    ("another model renamed over that", lambda path: rename_over(path, home / "second"), None),
    ("which is cut", lambda path: os.truncate(path, 5000), None),
    ("a text renamed over that", lambda path: rename_over(path, __file__), None),
    ("deleted", lambda path: path.unlink(), GONE),
    ("a link to another model", lambda path: switch_link(path, home / "second"), OTHER),
)


def said(service, name, text):
    return service.whole_log().count(text) if not name else sum(
        f"{name}: " in line and text in line for line in service.whole_log().splitlines())


def harmless(name, first, second, options=(), sets=(), draft=None, parts=None):
    """first: the model's path; second: other weights under the same metadata. parts: of a split model, of which the last is
    worked on."""
    served = parts[0] if parts else home / "served.gguf"
    path = parts[-1] if parts else served
    if not parts:
        served.unlink(missing_ok=True)
        shutil.copy(first, served)
    want = references(first, 1)
    for target, source in (("first", path), ("second", second)):
        shutil.copy(source, home / target)
    with Service(model=served, options=options, sets=sets, draft=draft) as service:
        until(lambda: service.digested() == sum(p.stat().st_size for p in (parts or [served])))
        before, found = service.processes(), wrong(service, want, 1)
        for what, act, notice in HARMLESS:
            counts = {who: said(service, who, notice) for who in HOLDERS} if notice else {}
            proven = {who: said(service, who, "every byte was compared") for who in HOLDERS}
            act(path)
            told = not notice or until(lambda c=counts: all(said(service, who, notice) > c[who] for who in HOLDERS))
            if notice == TOUCHED:
                told &= until(lambda p=proven: all(said(service, who, "every byte was compared") > p[who] for who in HOLDERS))
            found += [f"{what}: {d}" for d in wrong(service, want, 1)]
            if not told or service.processes() != before:
                found.append(f"{what}: the log says {told}, processes {before} are now {service.processes()}")
        # Nothing is written to the open file after its state was proven, so a successor that finds it takes everything over.
        tap.ok(not found and said(service, "verifier", OTHER) == said(service, "expert-cache", OTHER) == 2,
               f"{name}: what is done to the file and its name changes no answer and ends nothing, and each is told once",
               "\n".join(found) + "\n" + service.log_text())
        looked = "the parts that were compared are the same: its size, its header and up to"
        tap.ok(said(service, "", looked) >= 2, f"{name}: the log says what was looked at", service.log_text())


def swapped(path, to, tensor="blk.0.ffn_down_exps.weight"):
    """A model that no sample tells from the one at path: two runs of blocks of one expert change places."""
    gguf = Gguf(path)
    ne, kind, data = gguf.tensors[tensor]
    at, n = len(data) // 64 // 34 * 34, 40 * 34
    gguf.tensors[tensor] = ne, kind, data[:at] + data[at + n:at + 2 * n] + data[at:at + n] + data[at + 2 * n:]
    gguf.write(to)
    return to


def change_behind_times(path, at, n):
    """n bytes at a place are others; st_mtim is put back."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        data = file.read(n)
        file.seek(at)
        file.write(bytes(b ^ 1 for b in data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def weights_begin(path):
    size = path.stat().st_size
    gguf = Gguf(path)
    return size - sum(-(-len(data) // 32) * 32 for _, _, data in gguf.tensors.values())


def restarted(service, before, names=HOLDERS):
    until(lambda: all(service.processes().get(n) not in (None, before[n]) for n in names))
    service.wait_ready()


def small_changes(name, trials, options=(), sets=(), model=TARGET):
    """What gets out is of the old weights; then the new ones are served."""
    path = home / "changing.gguf"
    shutil.copy(model, path)
    begin = weights_begin(path)
    wrong_answers, ended, log = [], 0, ""
    with Service(model=path, options=options, sets=sets) as service:
        for trial in range(trials):
            until(lambda: service.digested() == path.stat().st_size)
            before = service.processes()
            old = references(path, 2)
            process, results = service.swarm_start([request_of(i % 2) for i in range(40)], concurrent=2)
            until(lambda: process.poll() is not None, 0.2)
            n = dice.choice((1, 16, 512))
            change_behind_times(path, dice.randrange(begin, path.stat().st_size - n), n)
            got = results()
            for i, r in enumerate(got):
                right = old[i % 2]["tokens"][:len(r["tokens"])] == r["tokens"]
                if not right and r["tokens"] != (new := references(path, 2))[i % 2]["tokens"]:
                    wrong_answers.append(f"trial {trial}, answer {i}: {r}")
            restarted(service, before)
            # After the change every answer is an error, or of processes that were started since.
            ended += all(said(service, "", f"outrider up: {who} ended with status 75") > trial for who in HOLDERS)
            found = wrong(service, references(path, 2), 2)
            wrong_answers += [f"trial {trial}, after the restart: {d}" for d in found]
        log = service.log_text()
    tap.ok(not wrong_answers and ended == trials,
           f"{name}: {trials} changes of up to 512 bytes, with st_mtim put back, give no wrong token and end the processes",
           f"{ended} ended\n" + "\n".join(wrong_answers[:5]) + "\n" + log)


def restarts_on_another(second):
    """The name stands for another file, and one process is started anew."""
    path = home / "served.gguf"
    old, new = references(home / "first.gguf", 2), references(second, 2)
    shutil.copy(home / "first.gguf", path)
    with Service(model=path, options=("--budget", "30%")) as service:
        before = service.processes()
        rename_over(path, second)
        until(lambda: all(said(service, who, OTHER) for who in HOLDERS))
        service.end("verifier")
        restarted(service, before)
        found = wrong(service, new, 2)
        follows = "the verifier has another file open; a restart opens the file that has this name now"
        tap.ok(not found and said(service, "expert-cache", follows) == 1 and said(service, "", "verifier ended") == 0,
               "a verifier that is started on another file: the expert-cache follows, and nothing is mixed",
               "\n".join(found) + service.log_text())
    shutil.copy(home / "first.gguf", path)
    with Service(model=path, options=("--budget", "30%")) as service:
        before = service.processes()
        found = wrong(service, old, 2)
        rename_over(path, second)
        service.end("expert-cache")
        until(lambda: service.processes().get("expert-cache") not in (None, before["expert-cache"]))
        refused = until(lambda: any("has another file open" in p["state"] for p in service.status()))
        found += wrong(service, old, 2)
        tap.ok(not found and refused and service.processes()["verifier"] == before["verifier"],
               "an expert-cache that is started on another file: the verifier goes on with its own, and its state says so",
               "\n".join(found) + service.log_text())
        service.end("verifier")
        service.renewed("verifier", before["verifier"])
        service.wait_ready()
        found = wrong(service, new, 2)
        tap.ok(not found, "until it is started again", "\n".join(found) + service.log_text())


def a_draft_model():
    draft = home / "draft.gguf"
    shutil.copy(DRAFTS["small"], draft)
    want = references(TARGET, 2)
    with Service(draft=draft, sets=("drafter.method=model",)) as service:
        before = service.processes()
        os.utime(draft)
        touched = until(lambda: said(service, "drafter", TOUCHED))
        rename_over(draft, DRAFTS["aligned"])
        told = until(lambda: said(service, "drafter", OTHER))
        found = wrong(service, want, 2)
        tap.ok(touched and told and not found and service.processes() == before,
               "a draft model that is touched and replaced: the drafter goes on and says so", "\n".join(found) + service.log_text())
    shutil.copy(DRAFTS["small"], draft)
    with Service(draft=draft, sets=("drafter.method=model",)) as service:
        before = service.processes()
        data = draft.read_bytes()
        with open(draft, "r+b") as file:
            file.seek(len(data) // 2)
            file.write(bytes(b ^ 1 for b in data[len(data) // 2:]))
        restarted(service, before, ("drafter",))
        found = wrong(service, want, 2)
        tap.ok(not found and said(service, "", "drafter ended with status 75") == 1 and
               service.processes()["verifier"] == before["verifier"],
               "a draft model that is overwritten: the drafter is started again, and answers are the same",
               "\n".join(found) + service.log_text())


try:
    shutil.copy(TARGET, home / "first.gguf")
    second = swapped(TARGET, home / "second.gguf")
    harmless("all experts", home / "first.gguf", second)
    harmless("experts from the file", home / "first.gguf", second, options=("--budget", "min"), draft=DRAFTS["small"])
    harmless("weights in the mapping", home / "first.gguf", second, sets=("verifier.experts=mapped", "verifier.weights=mapped"))
    harmless("a dense model", DRAFTS["aligned"], DRAFTS["small"])
    parts = Gguf(TARGET).split(home / "parts", 3)
    harmless("a split model", home / "first.gguf", second, options=("--budget", "30%"), parts=parts)
    small_changes("experts from the file", 4, options=("--budget", "min"))
    small_changes("weights in the mapping", 2, sets=("verifier.experts=mapped", "verifier.weights=mapped"))
    small_changes("all packed", 1, sets=("verifier.weights=packed", "expert-cache.pack=yes"))
    small_changes("a dense model", 1, model=DRAFTS["aligned"])
    restarts_on_another(second)
    a_draft_model()
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
