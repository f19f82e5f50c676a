#!/usr/bin/env python3
"""Live administration: every knob of every process, listed, changed, made to last, brought back and written down while
answers are generated, whose bytes never change. OUTRIDER_KNOB_CHANGES sets how many changes the storm makes."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import (DRAFTS, PROCESSES, ROOT, SAMPLED, SANITIZED, TARGET, Service, Tap, difference, ended, finish, program, prompts,
                           reference, run, seeded, session_name, until)

CHANGES = int(os.environ.get("OUTRIDER_KNOB_CHANGES", 300 if SANITIZED else 10000))
TOKENS = 60 if SANITIZED else 300
tap = Tap()
rng = seeded()


def knobs(service, *words):
    result = service.ctl("knob", "get" if words else "list", *words, "--json")
    if result.returncode:
        raise RuntimeError(result.stderr)
    return {f"{k['process']}.{k['name']}": k for k in json.loads(result.stdout)["knobs"]}


def value(service, name):
    return knobs(service, name)[name]["value"]


def done(result):
    return result.returncode == 0


def refused(name, result, status, *words):
    tap.ok(result.returncode == status and all(w in result.stderr for w in words), name,
           f"status {result.returncode}: {result.stdout}{result.stderr}")


def check_list(service):
    listed = knobs(service)
    for process in PROCESSES:
        printed = [line.split(" = ")[0][1:] for line in run(program(f"outrider-{process}"), "--print-config").stdout.splitlines()
                   if line.startswith("#") and not line.startswith("# ") and " = " in line]
        own = [k["name"] for k in listed.values() if k["process"] == process]
        tap.ok(printed and printed == own, f"the registry has every setting of {process}", f"{printed}\n{own}")
    fields = ("process", "name", "type", "unit", "range", "default", "scope", "live", "help", "value")
    bare = [n for n, k in listed.items() if any(f not in k for f in fields) or not k["help"] or not k["range"]]
    bare += [n for n, k in listed.items() if k["type"] in ("integer", "number", "time", "bytes") and not k["unit"]]
    tap.ok(not bare, "each with type, unit, range, default, scope, whether it is live, and a line of help", bare)
    text = service.ctl("knob", "list")
    tap.ok(done(text) and all(f"\n{p}\n" in "\n" + text.stdout for p in PROCESSES), "as text too", text.stdout)
    # A path is longer than any column: its middle is left out, and what is behind it stays below the other lines'.
    wide = service.ctl("knob", "get", "verifier.model").stdout
    section = re.findall(r"^  \w.*$", re.match(r"verifier\n(.*?)\n\n", text.stdout, re.S)[1], re.M)
    # A range may be wider than the line, and goes on in the next one.
    ranges = {line.split()[0]: re.search(r" (live|restart) +\w+ +", line).end() for line in section}
    listed_as = {line.split()[0]: line[ranges[line.split()[0]]:].split()[0] for line in section}
    tap.ok(all(listed[f"verifier.{name}"]["range"].split()[0] == word for name, word in listed_as.items()) and
           len(set(ranges.values())) == 1 and max(ranges.values()) < 80 and
           max(map(len, text.stdout.splitlines())) <= 100 and
           re.search(r"^  model +/.*\.\.\..*\.gguf  *restart model  *path$", section[0]) and listed["verifier.model"]["value"] == str(TARGET) in wide,
           "with long values cut short in the list alone", f"{ranges}\n{section[0]}\n{wide}")


def check_set(service):
    result = service.ctl("knob", "set", "k_max=9", "default_k=2", "ngram_max=12")
    tap.ok(done(result) and value(service, "policy.k_max") == "9" and value(service, "verifier.default_k") == "2"
           and value(service, "drafter.ngram_max") == "12", "a batch over three processes", result.stderr)
    refused("of a batch over three processes that one refuses, nothing is done",
            service.ctl("knob", "set", "default_k=5", "ngram_max=13", "k_max=99"), 65, "k_max = 99", "1 to 63")
    tap.ok(value(service, "verifier.default_k") == "2" and value(service, "drafter.ngram_max") == "12",
           "and the others took it back")
    result = service.ctl("knob", "set", "default_k=5", "k_max=99", "--json")
    tap.ok(result.returncode == 65 and not result.stdout and json.loads(result.stderr) ==
           {"error": "policy: k_max = 99 is too large; k_max takes 1 to 63 tokens", "status": 65},
           "with JSON a refusal is JSON as well", result.stdout + result.stderr)
    refused("a knob that none has", service.ctl("knob", "set", "k_mxa=3"), 65, "did you mean policy.k_max?")
    for wrong, meant in (("polciy.k_max", "did you mean policy.k_max?"), ("K_MAX", "did you mean policy.k_max?"),
                         ("verifier.k_max", 'verifier has no knob "k_max"; did you mean policy.k_max?')):
        refused(f"{wrong} says which is", service.ctl("knob", "set", f"{wrong}=3"), 65, meant)
    refused("of cache set too", service.ctl("cache", "set", "k_max=3"), 65, "expert-cache has no knob", "policy.k_max")
    for more in (("--for", "1s"), ("--session", 5)):
        for lasting in ("--persist", "--next-start"):
            refused(f"{lasting} with {more[0]}", service.ctl("knob", "set", "k_max=3", lasting, *more), 64,
                    f"{lasting} makes a permanent change for all sessions: it excludes --for and --session")
    refused("a knob that several have", service.ctl("knob", "set", "threads=3"), 65, "verifier.threads or drafter.threads")
    refused("one that needs a restart", service.ctl("knob", "set", "verifier.threads=1"), 65, "--persist",
            "restart outrider-verifier")
    refused("more than there is memory for", service.ctl("knob", "set", "prefill_chunk=2048"), 65, "--next-start")
    refused("an empty value", service.ctl("knob", "set", "k_max="), 65,
            'outriderctl: policy: k_max = "" is empty; k_max takes 1 to 63 tokens\n')
    takes = "; budget takes auto, all, min, a share of the experts such as 30%, or bytes such as 8G (GiB) or 8GB\n"
    for budget, wrong in (("200%", "200% is more than all experts, which are 100%"), ("", '"" is not allowed'),
                          ("much", "much is not allowed"), ("1e30", "1e30 is 2^63 bytes or more")):
        refused(f"a budget of {budget or 'nothing'}", service.ctl("cache", "set", f"budget={budget}"), 65,
                f"outriderctl: expert-cache: budget: {wrong}{takes}")
    refused("a relation", service.ctl("knob", "set", "set_max=8"), 65, "outriderctl: policy: set_max = 8", "set (16)")
    tap.ok(done(service.ctl("knob", "set", "k_max=2")) and value(service, "policy.k_start") == "3"
           and done(service.ctl("knob", "set", "k_max=9")), "a start above k_max counts as k_max")
    refused("a time without its unit", service.ctl("knob", "set", "stream_interval=10"), 65,
            "verifier: stream_interval = 10 has no unit (ns, us, ms, s, m, h, d); stream_interval takes 0 to 1s\n")
    refused("one that is too long", service.ctl("knob", "set", "pool_spin=2s"), 65,
            "outriderctl: verifier: pool_spin = 2s is too large; pool_spin takes auto, or 0 to 1s\n")
    refused("a change for too long", service.ctl("knob", "set", "k_max=3", "--for", "31d"), 64,
            '--for "31d": allowed are times from 1ms to 30d, such as 30s, 10m or 2h; a number without a unit is seconds')
    refused("a session that is not there", service.ctl("knob", "set", "k_max=3", "--session", 5), 65, "session 5")
    refused("no knob at all", service.ctl("knob", "set"), 64, "KNOB=VALUE")
    refused("a time that is none", service.ctl("knob", "set", "k_max=3", "--for", "soon"), 64, "--for")
    refused("a stale value", service.ctl("knob", "set", "k_max=3", "--if", "7"), 65, "k_max is 9, not 7")
    tap.ok(done(service.ctl("knob", "set", "k_max=8", "--if", "9", "default_k=0", "--if", "2"))
           and value(service, "policy.k_max") == "8", "values that are there are changed")
    tap.ok(done(service.ctl("policy", "set", "static:3", "k_max=5")) and value(service, "policy.policy") == "static:3",
           "policy set is the same")
    refused("a stale name of the policy", service.ctl("policy", "set", "cascade", "--if", "yield"), 65,
            "policy is static:3, not yield")
    refused("one before the name", service.ctl("policy", "set", "--if", "yield", "cascade"), 65, "policy is static:3, not yield")
    refused("an --if too many", service.ctl("policy", "set", "--if", "static:3", "cascade", "--if", "static:3"), 64, "--if")
    tap.ok(done(service.ctl("policy", "set", "cascade", "--if", "static:3", "k_max=6", "--if", "5"))
           and value(service, "policy.policy") == "cascade", "the name is set where it is what --if says")
    tap.ok(done(service.ctl("knob", "reset", "policy.policy", "k_max", "default_k", "ngram_max"))
           and value(service, "policy.policy") == "yield" and value(service, "policy.k_max") == "15",
           "reset goes back to the start")
    day = service.ctl("knob", "set", "k_max=6", "--for", "1d")
    tap.ok(done(day) and day.stdout == "policy.k_max: 15 -> 6, for 1d\n", "a change for a day", day.stdout + day.stderr)
    tap.ok(done(service.ctl("knob", "set", "k_max=6", "default_k=1", "--for", "1h")), "a change for a time")
    hour = service.ctl("knob", "set", "k_max=6", "--for", "3600")
    tap.ok(done(hour) and hour.stdout.endswith(", for 1h\n"), "a number alone is seconds", hour.stdout + hour.stderr)
    left = service.ctl("knob", "get", "k_max").stdout
    tap.ok(re.search(r"goes back to 15 in (1h|59m\d*s?)\n", left), "as a person writes times", left)
    said = service.ctl("knob", "history", "k_max").stdout
    tap.ok(", for 1d, by" in said and ", for 1h, by" in said, "in the history too", said)
    now = knobs(service, "k_max")["policy.k_max"]
    tap.ok(now["value"] == "6" and now["reverts_to"] == "15" and 3000 < now["reverts_in_s"] <= 3600, "that says when it ends", now)
    tap.ok(done(service.ctl("knob", "set", "k_max=6", "default_k=1", "--for", "300ms")) and until(
        lambda: value(service, "policy.k_max") == "15" and value(service, "verifier.default_k") == "0", 20),
        "goes back by itself, long after whoever made it has ended")


def check_idle(service):
    """What was that before is no change, but where it is to stay, to last or to go back."""
    def history():
        return service.ctl("knob", "history", "k_max", "--json").stdout
    before, value_now = history(), value(service, "policy.k_max")
    again = service.ctl("knob", "set", f"k_max={value_now}")
    tap.ok(again.returncode == 0 and "as before" in again.stdout and history() == before, "what changes nothing is not in the history",
           again.stdout + history())
    service.ctl("knob", "set", f"k_max={value_now}", "--for", "1h")
    timed = json.loads(history())["changes"]
    service.ctl("knob", "set", f"k_max={value_now}")
    stays = json.loads(history())["changes"]
    tap.ok(len(timed) == len(json.loads(before)["changes"]) + 1 == len(stays) - 1,
           "the same value for a time is, and so is that it stays after all", stays[-3:])
    service.ctl("knob", "set", "k_max=4", "--for", "1h")
    same = service.ctl("knob", "set", "k_max=4", "k_start=3").stdout.splitlines()[0]
    said = service.ctl("knob", "history", "k_max", "--last", 1).stdout
    tap.ok(same == f"policy.k_max: 4, as before; it no longer goes back to {value_now}" and
           f": 4 -> 4: it no longer goes back to {value_now}, by " in said, "a change that ends one for a time says so, and the history",
           f"{same}\n{said}")
    service.ctl("knob", "set", "k_max=4", "--for", "1h")
    other = service.ctl("knob", "set", "k_max=5").stdout
    service.ctl("knob", "set", "k_max=4", "--for", "1h")
    as_json = json.loads(service.ctl("knob", "set", "k_max=3", "--json").stdout)["changes"][0]
    tap.ok(other == f"policy.k_max: 4 -> 5; it no longer goes back to 4\n" and as_json["no_longer_back_to"] == "5",
           "with another value too, and as JSON", f"{other} {as_json}")
    service.ctl("knob", "set", "k_max=4", "--for", "1h")
    back = service.ctl("knob", "reset", "k_max", "k_start").stdout
    tap.ok(f"policy.k_max: 4 -> {value_now}; it no longer goes back to 3\n" in back, "and a reset", back)
    service.ctl("knob", "set", "k_max=4", "--for", "1h")
    back = service.ctl("knob", "set", f"k_max={value_now}").stdout
    tap.ok(back == f"policy.k_max: 4 -> {value_now}\n", "not where it has gone back just there", back)


def check_history(service):
    result = service.ctl("knob", "history", "k_max", "--json")
    events = json.loads(result.stdout)["changes"]
    tap.ok(events and {e["what"] for e in events} == {"set", "reset", "revert"}
           and all(e["name"] == "k_max" and e["time_ns"] for e in events), "the history has all of it", result.stdout)
    by_hand = [e for e in events if e["what"] == "set"]
    tap.ok(all("outriderctl" in e["who"] and e["who"] != "outriderctl" for e in by_hand), "and who it was", by_hand)
    tap.ok([(e["old"], e["new"]) for e in events][-1] == ("6", "15"), "from what to what", events[-1])


def check_persist(service):
    tap.ok(done(service.ctl("knob", "set", "k_max=4", "--persist")), "a lasting change")
    tap.ok("stays for the next start; knob reset --persist" in service.ctl("knob", "reset", "k_max").stdout
           and list(service.config.glob("policy.conf.d/*.conf")), "a reset without --persist says that the stored value stays")
    tap.ok(done(service.ctl("knob", "set", "k_start=2")), "and one that is not")
    tap.ok("stays for" not in service.ctl("knob", "reset", "k_start").stdout, "which it does not say when none is stored")
    tap.ok(done(service.ctl("knob", "set", "k_start=2")), "it is set again")
    service.restart("policy")
    tap.ok(value(service, "policy.k_max") == "4"
           and value(service, "policy.k_start") == "3", "after the process was killed the lasting one is there, alone",
           service.ctl("knob", "list", "policy").stdout)
    events = json.loads(service.ctl("knob", "history", "policy", "--json").stdout)["changes"]
    tap.ok(any(e["persist"] and e["new"] == "4" for e in events), "and so is the history")
    tap.ok(done(service.ctl("knob", "reset", "k_max", "--persist")) and value(service, "policy.k_max") == "15"
           and not list(service.config.glob("policy.conf.d/*.conf")), "reset --persist takes it out again")
    blocked = service.config / "drafter.conf.d"
    blocked.write_text("a file in the way")
    refused("where no drop-in can be written nothing is set",
            service.ctl("knob", "set", "ngram_min=3", "--persist"), 65, str(blocked))
    tap.ok(value(service, "drafter.ngram_min") == "2", "really not")
    blocked.unlink()
    away = service.config.rename(f"{service.config}.away")
    refused("where there is no folder for it, what has one is said",
            service.ctl("knob", "set", "ngram_min=3", "--persist"), 65, str(blocked), "--config-dir")
    away.rename(service.config)


def check_next_start(service):
    done(service.ctl("knob", "set", "default_k=3", "--next-start"))
    now = knobs(service, "default_k")["verifier.default_k"]
    tap.ok(now["value"] == "0" and now["next_start"] == "3", "what is set for the next start is shown beside what is", now)
    text = service.ctl("knob", "get", "default_k").stdout + service.ctl("knob", "list", "verifier").stdout
    tap.ok("from the next start on: 3, stored" in text and "0 (next start: 3)" in text, "in words as well", text)
    drop_in = f"{service.config}/verifier.conf.d/90-knobs.conf"
    lasts = service.ctl("knob", "set", "default_k=3", "--next-start").stdout
    tap.ok(lasts == f"verifier.default_k: 0 until outrider-verifier restarts, then 3; stored in {drop_in}\n",
           "the answer says that it is stored, and in which file", lasts)
    now = json.loads(service.ctl("knob", "set", "default_k=3", "--persist", "--json").stdout)["changes"][0]
    tap.ok((now["lasting"], now["drop_in"], now["at_start"]) == (True, drop_in, False), "as JSON too", now)
    said = [line.split("default_k: ")[1].split(", by ")[0] for line in
            service.ctl("knob", "history", "default_k", "--last", 3).stdout.splitlines()]
    tap.ok(said == ["0 -> 3, from the next start on, stored"] * 2 + ["0 -> 3, now and from the next start on, stored"],
           "and in the history, which tells the two apart", said)
    gone = service.ctl("knob", "reset", "default_k", "--persist").stdout
    tap.ok(gone == f"verifier.default_k: 3 -> 0, now and from the next start on; removed from {drop_in}, where it was 3\n" and
           "next_start" not in knobs(service, "default_k")["verifier.default_k"], "until it is taken back", gone)
    service.ctl("knob", "set", "default_k=5", "--next-start")
    gone = json.loads(service.ctl("knob", "reset", "default_k", "--next-start", "--json").stdout)["changes"][0]
    said = service.ctl("knob", "history", "default_k", "--last", 1).stdout
    events = json.loads(service.ctl("knob", "history", "default_k", "--last", 2, "--json").stdout)["changes"]
    tap.ok(gone["removed"] == "5" and ": 0 -> 0, from the next start on, the stored value 5 removed, by " in said and
           [e["removed"] for e in events] == [None, "5"], "a reset and the history say which stored value was taken out",
           f"{gone}\n{said}\n{events}")
    same = service.ctl("knob", "set", "default_k=0").stdout
    tap.ok(same == "verifier.default_k: 0, as before\n", "what was so before is said to be", same)
    # What the process could not start with is not stored: it would be gone at the next crash, and nobody there to take it back.
    for change, said in ((("verifier.context=100000",), ("context: 100000", "the model's 1024")), (("verifier.context=1",), ("context: 1 ",)),
                         (("verifier.kv_tokens=10",), ("kv_tokens: 10", "too small")), (("expert-cache.budget=30",), ("budget: 30", "the least is min")),
                         (("expert-cache.budget=900G",), ("budget: 900.0 GiB", "at most")),
                         (("expert-cache.profile=/none.profile",), ("profile: /none.profile: No such file",)),
                         (("verifier.model=/none.gguf",), ("model: /none.gguf: No such file",)),
                         (("drafter.draft=/none.gguf",), ("draft: /none.gguf: No such file",)),
                         (("default_k=2", "expert-cache.profile=/"), ("profile: /: ",))):
        refused(f"{' '.join(change)} for the next start", service.ctl("knob", "set", *change, "--next-start"), 65, *said)
    tap.ok(not any("next_start" in knob for knob in knobs(service).values()), "and nothing of it is stored", knobs(service))
    both = service.ctl("knob", "set", "verifier.context=512", "expert-cache.budget=50%", "--next-start")
    taken_out = service.ctl("knob", "reset", "verifier.context", "expert-cache.budget", "--next-start")
    tap.ok(done(both) and done(taken_out), "what it could start with is", both.stderr + taken_out.stderr)
    refused("one that is for now and not for now", service.ctl("knob", "set", "default_k=0", "--persist", "--next-start"), 64,
            "--persist and --next-start")


def check_two_admins(service):
    """Counts up with --if, as two administrators who read the same value: no count is lost, none is made twice."""
    service.ctl("knob", "set", "refresh=1000")
    made = [0, 0]

    def count(which):
        while made[which] < 15:
            now = value(service, "policy.refresh")
            made[which] += done(service.ctl("knob", "set", f"refresh={int(now) + 1}", "--if", now))

    # Pairs that two administrators set in two processes at once: what is left is one of the pairs.
    results = []

    def pairs(which):
        for i in range(10):
            k = 2 * i % 14 + which
            results.append(service.ctl("knob", "set", f"default_k={k}", f"ngram_max={k + 10}").returncode)

    for work in (count, pairs):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tap.ok(value(service, "policy.refresh") == str(1000 + sum(made)), "two administrators who compare and set lose nothing",
           f"{value(service, 'policy.refresh')} after {made}")
    k, n = value(service, "verifier.default_k"), value(service, "drafter.ngram_max")
    tap.ok(results == [0] * 20 and int(n) == int(k) + 10, "two who change two processes each do so one after the other",
           f"{results}, {k}, {n}")
    service.ctl("knob", "reset", "refresh", "default_k", "ngram_max")


def uids(service):
    sessions = json.loads(service.ctl("sessions", "--json").stdout)["sessions"]
    return [s["uid"] for s in sessions if s["state"] in ("prefill", "running")]


def check_alive(service, before):
    now = service.processes()
    tap.ok(now == before, "no process has ended", f"{before} {now}\n{service.log_text()}")


def of_one(result, uid):
    """Whether it was done, and whose it is was said."""
    if result.returncode == 0 and not result.stdout.endswith(f", for session {session_name(uid)} only\n"):
        raise RuntimeError(result.stdout)
    return result.returncode == 0


def check_session_that_ends(service, ids):
    before = service.processes()
    process, results = service.swarm_start([{"tokens": p, "max_tokens": 40, "ignore_eos": True} for p in ids * 4], concurrent=4)
    answers, text = [], ""
    while process.poll() is None:
        for uid in uids(service)[:2]:
            result = service.ctl("knob", "set", f"k_max={rng.randint(1, 15)}", "k_start=1", "--for", "50ms", "--session", uid)
            answers.append(result.returncode)
            text += "" if result.returncode in (0, 65) else result.stderr
    tap.ok(not text and all(not r.get("error") for r in results()),
           f"sessions that end while their knobs are changed ({answers.count(0)} changed, {answers.count(65)} too late)", text)
    check_alive(service, before)


def check_storm(service, ids, expected):
    """Traffic goes on as long as the storm does; each answer is the reference's."""
    before = service.processes()
    requests = [{"tokens": ids[i % len(ids)], "max_tokens": TOKENS, "ignore_eos": True, "seed": 100 + i % len(ids), "logits_hash": True,
                 **(SAMPLED if i % 2 else {})} for i in range(len(ids))]
    first, first_results = service.swarm_start(requests, concurrent=4)
    until(lambda: uids(service))
    storm = subprocess.Popen([program("tests/knob-storm"), str(service.runtime), "storm", str(CHANGES), str(rng.randrange(1 << 30)),
                              *map(str, uids(service))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wrong, answers, answered_during = [], 0, 0
    results = first_results()
    while True:
        during = storm.poll() is None
        for i, result in enumerate(results):
            what = difference(result, expected[i])
            wrong += [f"answer {answers + i}: {what}"] if what else []
        answers += len(results)
        answered_during += len(results) if during else 0
        if not during:
            break
        results = service.swarm(requests, concurrent=4, timeout=600)
    out, errors = storm.communicate()
    tap.ok(storm.returncode == 0, "every change is answered, whole or refused with a reason", errors)
    tap.ok(not wrong, f"{CHANGES} changes during generation change no byte of {answers} answers", "\n".join(wrong[:10]))
    if storm.returncode == 0:
        counts = json.loads(out)
        tap.note(f"{out.strip()}; {answers} answers, {answered_during} of them while it lasted")
        tap.ok(counts["done"] > CHANGES / 20 and counts["refused"] > CHANGES / 20, "right ones were made, wrong ones refused", out)
        tap.ok(counts["processes"] == 4 and (counts["tried"] == counts["knobs"] or CHANGES < 1000), "of every knob of every process", out)
    check_alive(service, before)


def check_latency(service, ids):
    # On a fast machine a session may be over before it was measured often enough.
    for _ in range(20):
        process, results = service.swarm_start([{"tokens": ids[0], "max_tokens": 900, "ignore_eos": True}], concurrent=1)
        running = []
        until(lambda: running.extend(uids(service)) or running or process.poll() is not None, 30, every=0.001)
        if running and of_one(service.ctl("knob", "set", "k_max=15", "--session", running[0]), running[0]):
            measured = run(program("tests/knob-storm"), service.runtime, "latency", 200, running[0])
            numbers = json.loads(measured.stdout) if done(measured) else {}
        else:
            numbers = {}
        results()
        if numbers.get("sets", 0) > 10:
            break
    if not numbers:
        tap.ok(False, "a session lives long enough to be measured")
        return
    tap.note(measured.stdout.strip())
    # What is seen later was looked at later: on a machine that has other things to do, some always is.
    tap.ok(numbers.get("sets", 0) > 10 and numbers["iterations_p25"] <= 1, "a session's K is in force one iteration later",
           measured.stdout + measured.stderr)
    details = service.details("verifier")
    tap.note({k: v for k, v in details.items() if k.startswith("settings")})
    tap.ok(int(details["settings_taken"]) > 0, "and so are the verifier's own settings", details)


def environment():
    return {"PATH": f"{program('.')}:{os.environ['PATH']}", "OUTRIDER_RUNTIME_DIR": "/tmp/outrider-nowhere"}


def bash_completions(line):
    script = f"""
        source {ROOT}/admin/completion/outriderctl.bash
        COMP_WORDS=({' '.join(repr(w) for w in line)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _outriderctl; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return set(run("bash", "-c", script, env=environment()).stdout.split())


def zsh_completions(line):
    """A knob, '=' and its value are one word to zsh; compadd, which takes what begins as the word does, is what zsh has."""
    words = " ".join(line).replace(" = ", "=").split()
    script = f"""
        compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -rl -- ${{(M)@:#$PREFIX*}} }}
        words=({' '.join(map(repr, words))}) CURRENT=$#words PREFIX=$words[-1]
        source {ROOT}/admin/completion/_outriderctl """
    knob = words[-1].partition("=")[0] + "=" if "=" in line else ""
    return {word.removeprefix(knob) for word in run("zsh", "-f", "-c", script, env=environment()).stdout.split()}


def check_completion(shell, completions):
    if not shutil.which(shell):
        tap.skip(f"completion in {shell}", f"no {shell}")
        return
    drafter, policy = ({k for k in map(lambda line: f"{p}.{line.split(' = ')[0][1:]}", run(
        program(f"outrider-{p}"), "--print-config").stdout.splitlines()) if not k.startswith(f"{p}. ") and k != f"{p}."}
        for p in ("drafter", "policy"))
    helped = run(program("outriderctl"), "--help").stdout.splitlines()
    commands = [line[2:].split()[:2] for line in helped if line.startswith("  ") and line[2].isalpha()]
    missing = [c for c in commands if c[0] not in completions(["outriderctl", c[0][:2]])]
    missing += [c for c in commands if c[0] in ("policy", "knob", "cache") and c[1] not in completions(["outriderctl", c[0], c[1][:2]])]
    tap.ok(len(commands) > 15 and not missing, f"{shell}: every command is completed", missing)
    knobs = [f"{k['process']}.{k['name']}" for k in json.loads(run(program("outriderctl"), "knob", "list", "--json").stdout)["knobs"]]
    missing = [name for name in knobs if f"{name}=" not in completions(["outriderctl", "knob", "set", name[:-1]])]
    tap.ok(len(knobs) > 50 and not missing, f"{shell}: every knob is completed", missing)
    for line, words in ((["outriderctl", "kn"], {"knob"}), (["outriderctl", "knob", "hi"], {"history"}),
                        (["outriderctl", "knob", "co"], set()), (["outriderctl", "help", "knob", "co"], set()),
                        (["outriderctl", "he"], {"help"}), (["outriderctl", "help", "knob", "res"], {"reset"}),
                        (["outriderctl", "knob", "set", "default"], {"default_k="}),
                        (["outriderctl", "knob", "set", "drafter.m"], {"drafter.method="}),
                        (["outriderctl", "knob", "set", "method", "=", "n"], {"none", "ngram"}),
                        (["outriderctl", "knob", "get", "policy.thr"], {"policy.threshold"}),
                        (["outriderctl", "knob", "set", "k_max", "=", "3", "--pe"], {"--persist"}),
                        (["outriderctl", "policy", "set", "ca"], {"cascade", "carry="}),
                        (["outriderctl", "policy", "set", "static"], {"static:"}),
                        (["outriderctl", "policy", "set", "policy", "=", "y"], {"yield"}),
                        (["outriderctl", "cache", "set", "policy", "=", "l"], {"lru", "lfu-trace"}),
                        (["outriderctl", "cache", "set", "budget", "=", "m"], {"min"}),
                        (["outriderctl", "cache", "top", "--o"], {"--once"}),
                        (["outriderctl", "top", "--o"], {"--once"}),
                        (["outriderctl", "knob", "list", "drafter"], {"drafter"} | drafter),
                        (["outriderctl", "knob", "history", "polic"], {"policy", "policy.policy"} | policy),
                        (["outriderctl", "--format", "j"], {"json"})):
        got = completions(line)
        tap.ok(got == words, f"{shell}: {' '.join(line)} is completed, without a service", f"{got}, expected {words}")


class Configured(Service):
    """With configuration files of its own, so that something can last."""

    def __init__(self, **more):
        self.config = Path(f"/tmp/outrider-knobs-{os.getpid()}")
        shutil.rmtree(self.config, ignore_errors=True)
        shutil.copytree(ROOT / "config", self.config)
        super().__init__(options=("--config-dir", self.config), **more)

    def stop(self):
        status = super().stop()
        shutil.rmtree(self.config, ignore_errors=True)
        return status


def check_stopped():
    """What a process that does not answer is waited for, and what is said of it."""
    with Service(options=("--watchdog", "0")) as service:
        pid = service.end("policy", signal.SIGSTOP)
        waiting = subprocess.Popen([program("outriderctl"), "--runtime-dir", service.runtime, "knob", "set", "k_max=5"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # The command ends only when the process goes on, which is after this line came.
        line = waiting.stderr.readline()
        os.kill(pid, signal.SIGCONT)
        out, errors = finish(waiting, 60)
        tap.ok(line == "outriderctl: policy has not answered yet; waiting 10 s at most\n" and not errors and
               waiting.returncode == 0 and out == "policy.k_max: 15 -> 5\n", "who waits for a stopped process is told for which",
               line + out + errors)
        os.kill(pid, signal.SIGSTOP)
        waiting = subprocess.Popen([program("outriderctl"), "--runtime-dir", service.runtime, "policy", "get", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = waiting.stderr.readline()
        os.kill(pid, signal.SIGCONT)
        out, errors = finish(waiting, 60)
        tap.ok(json.loads(line) == {"notice": "policy has not answered yet; waiting 3 s at most"} and not errors and
               json.loads(out)["policy"] == "yield", "with JSON by JSON", line + errors)
        os.kill(pid, signal.SIGSTOP)
        for words, more in ((("knob", "set", "k_max=6"), "outriderctl knob get shows the value"), (("policy", "get"), "")):
            stopped = service.ctl(*words)
            tap.ok(stopped.returncode == 69 and "outriderctl: policy has not answered in " in stopped.stderr and
                   "outriderctl status shows when it answers again" in stopped.stderr and stopped.stderr.endswith(f"{more}\n") and
                   stopped.stderr.count("\n") == 2 and "ipc:" not in stopped.stderr, f"{' '.join(words)} says what to do, at the end",
                   stopped.stderr)
        os.kill(pid, signal.SIGCONT)


def check_hidden(service):
    """What is stored where the command line comes before it."""
    service.ctl("knob", "set", "memory=40", "--persist")
    service.restart("policy")
    now, text = knobs(service, "memory")["policy.memory"], service.ctl("knob", "get", "memory").stdout
    tap.ok((now["value"], now["stored"], now["next_start"]) == ("60", "40", "60"),
           "what is stored is shown beside what is in force", now)
    tap.ok("started with 60 on the command line" in text and "40 is stored" in text and "the command line overrides it" in text
           and "the same, stored" not in text, "and what overrides it", text)
    service.ctl("knob", "reset", "memory", "--persist")


def check_drop_ins_alone():
    """A folder that has drop-ins and no file beside them; and what is said of processes that do not run."""
    folder = Path(f"/tmp/outrider-knobs-alone-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "policy.conf.d").mkdir(parents=True)
    (folder / "policy.conf.d/10-mine.conf").write_text("k_max = 4\n")
    with Service(draft=DRAFTS["small"], options=("--config-dir", folder), sets=("policy.memory=60",)) as service:
        check_hidden(service)
        tap.ok(value(service, "policy.k_max") == "4", "up --config-dir reads drop-ins without a file beside them",
               service.log_text())
        tap.ok(done(service.ctl("knob", "set", "default_k=2", "--persist")) and
               (folder / "verifier.conf.d/90-knobs.conf").exists(), "and what is made to last goes there")
        service.process.send_signal(signal.SIGTERM)
        ended(service.process)
        for words in (("default_k",), ("default_k", "--json"), ("policy",)):
            refused(f"knob get {' '.join(words)} without the process is refused", service.ctl("knob", "get", *words), 69,
                    "is not running", "knob list")
        tap.ok(not service.ctl("knob", "get", "default_k", "--json").stdout, "without a value")
        tap.ok(done(service.ctl("knob", "list", "verifier")), "knob list goes on to say what there is")
    nowhere = run(program("outriderctl"), "--runtime-dir", "/tmp/outrider-nowhere", "knob", "get", "k_max")
    refused("knob get without a service", nowhere, 69, "/tmp/outrider-nowhere", "outrider up", "--runtime-dir")
    shutil.rmtree(folder, ignore_errors=True)


def check_any_bytes():
    """The name of a file is any bytes, JSON's text is not."""
    folder = Path(f"/tmp/outrider-knobs-bytes-{os.getpid()}")
    folder.mkdir()
    (folder / "caf\udce9.gguf").symlink_to(TARGET)
    (folder / "caf\udce9.profile").write_text("outrider-profile 1\nlayers 6 experts 32\n")
    (folder / "caf\udce9-draft.gguf").symlink_to(DRAFTS["small"])
    shown = f"{folder}/caf\ufffd.gguf"
    with Service(model=folder / "caf\udce9.gguf", draft=folder / "caf\udce9-draft.gguf", runtime="caf\udce9") as service:
        service.answer(prompts(1)[0], 20)
        service.ctl("knob", "set", f"expert-cache.profile={folder}/caf\udce9.profile", "--next-start")
        for words in (("status",), ("sessions",), ("policy", "get", "--all"), ("policy", "watch", "--once", "--all"),
                      ("policy", "explain"), ("policy", "plot"), ("knob", "list"), ("knob", "get", "verifier.model", "draft", "profile"),
                      ("knob", "set", "k_max=3"), ("knob", "reset", "k_max"), ("knob", "history"), ("cache", "set", "spin=0"),
                      ("cache", "stats", "--layers"), ("cache", "hot"), ("cache", "top", "--once"), ("top", "--once"),
                      ("trace", "1ms", folder / "caf\udce9.json")):
            printed = service.ctl(*words, "--json")
            try:
                parsed = json.loads(printed.stdout)
            except json.JSONDecodeError:
                parsed = None
            tap.ok(printed.returncode == 0 and parsed, f"{' '.join(map(str, words[:2]))} is JSON, whatever the names",
                   printed.stdout[:500] + printed.stderr)
        for name in ("verifier.model", "expert-cache.model"):
            tap.ok(value(service, name) == shown, f"{name} is listed, whatever bytes its name has", knobs(service).get(name))
        told = service.ctl("knob", "get", "expert-cache.model")
        tap.ok(done(told) and shown in told.stdout, "and as text", told.stdout + told.stderr)
        said = [service.details(name).get("model") for name in ("verifier", "expert-cache")]
        tap.ok(said == [shown] * 2, "and in the status", said)
    shutil.rmtree(folder)


ids = prompts(8, longest=64)
with Configured(draft=DRAFTS["small"]) as service:
    check_list(service)
    check_set(service)
    check_history(service)
    check_idle(service)
    check_persist(service)
    check_next_start(service)
    check_two_admins(service)
    check_session_that_ends(service, ids)
    check_latency(service, ids)
expected = [reference(p, TOKENS, SAMPLED if i % 2 else None, seed=100 + i, extra=("--ignore-eos",)) for i, p in enumerate(ids)]
with Configured(draft=DRAFTS["small"], sets=("expert-cache.budget=30%",)) as service:
    check_storm(service, ids, expected)
check_stopped()
check_drop_ins_alone()
check_any_bytes()
check_completion("bash", bash_completions)
check_completion("zsh", zsh_completions)
tap.done()
