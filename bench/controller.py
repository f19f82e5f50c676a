"""What live control costs and how soon it works, on the demo model: how many iterations after outriderctl set a session's K it is
in force, and how much of a core the policy-controller uses while sessions decode as fast as they can."""
import random
import statistics
import time

SETS = 400  # of K, in each row
SESSIONS = (1, 8, 16)
SET_SESSIONS = (1, 8)  # while K is set; what more of them answer does not fit the pipe that it waits in
DECODE_TOKENS = 900
MEASURED_S = 4  # of decoding, at least, in each row of a round


def running(service):
    return [s["uid"] for s in service.ctl_json("sessions")["sessions"] if s["state"] == "running"]


def set_while_running(service, process, dice):
    """Sets K of one session after the other by outriderctl as long as there are any; {uid: [(ns since 1970, K)]} as the process that
    took them wrote down, and how many milliseconds each command took."""
    uids, took = set(), []
    while process.poll() is None:
        for uid in running(service):
            uids.add(uid)
            before = time.monotonic()
            service.ctl("knob", "set", f"policy.policy=static:{dice.randint(1, 7)}",
                  "--session", uid)
            took.append((time.monotonic() - before) * 1e3)
            time.sleep(dice.uniform(0, 0.02))
    sets = {uid: [] for uid in uids}
    for change in service.ctl_json("knob", "history", "policy.policy")["changes"]:
        if change.get("session") in sets and change["old"] != change["new"]:
            sets[change["session"]].append((change["time_ns"], int(change["new"].removeprefix("static:"))))
    return sets, took


def iterations_until(records, at_ns, k, until_ns):
    """How many iterations that ended after the set had another K than that, of them how many began after it; None where another set
    or the session's end came first."""
    old = begun = 0
    for r in records:
        if r["time_ns"] <= at_ns:
            continue
        if r["time_ns"] >= until_ns:
            return None
        if r["k"] == k:
            return old, begun
        old += 1
        begun += r["time_ns"] - 1000 * r["iteration_us"] > at_ns
    return None


def in_force(service, sets):
    """Of every set the two counts of iterations_until; how many had no chance to be seen."""
    found, unseen = [], 0
    for uid, own in sets.items():
        records = service.ctl_json("policy", "plot", uid)["records"]
        for (at_ns, k), (until_ns, _) in zip(own, own[1:] + [(1 << 63, 0)]):
            counts = iterations_until(records, at_ns, k, until_ns)
            found += [counts] if counts else []
            unseen += not counts
    return found, unseen


def part(values, share):
    return sorted(values)[round(share * (len(values) - 1))]


def knob_row(t, ids, sessions, sets):
    found, took, unseen, dice = [], [], 0, random.Random(sessions)
    with t.Service(draft=t.DRAFTS["small"], options=("--threads", 1), sets=("policy.policy=static:1",)) as service:
        while len(found) < sets:
            requests = [{"tokens": ids[i % len(ids)], "max_tokens": DECODE_TOKENS, "ignore_eos": True} for i in range(sessions)]
            process, results = service.swarm_start(requests, concurrent=sessions)
            own, times = set_while_running(service, process, dice)
            results()
            more, n = in_force(service, own)
            found, took, unseen = found + more, took + times, unseen + n
    old, begun = zip(*found)
    return (f"{sessions:8}{len(found):7}   {part(old, 0.5):6}{part(old, 0.99):5}{max(old):5}   {part(begun, 0.5):6}{part(begun, 0.99):5}"
            f"{max(begun):5}   {statistics.median(took):6.1f}{part(took, 0.99):7.1f}   {unseen:6}")


def knobs(t, sets=SETS):
    ids = t.prompts(8, longest=60)
    lines = ["How many iterations of a session had the old K after outriderctl knob set policy.policy=static:K --session was taken: those",
             "that ended after it (the one that ran at that moment is one of them), and of them those that began after it. From the times in",
             "the two journals, that of the change and those of the iterations. Command: milliseconds from its start to its end. Unseen: the",
             "session ended, or another set came, before an iteration could show it.", "",
             "sessions   sets     ended after         began after         command, ms    unseen",
             "                  median  p99  max    median  p99  max    median    p99"]
    return "\n".join(lines + [knob_row(t, ids, n, sets) for n in SET_SESSIONS])


def cpu_seconds(pid):
    """Of all threads of the process, as long as it has lived (Linux: the clock of another process)."""
    return time.clock_gettime((~pid << 3) | 2)


def iterations_of(service):
    return service.ctl_json("sessions")["iterations_total"]


def cpu_row(t, service, ids, sessions):
    """(share of a core of policy-controller and verifier, iterations/s, microseconds of the controller a pass)"""
    pids = {name: service.pid(name) for name in ("policy", "verifier")}
    requests = [{"tokens": ids[i % len(ids)], "max_tokens": DECODE_TOKENS, "ignore_eos": True} for i in range(sessions)]
    service.swarm(requests, concurrent=sessions)
    iterations, wall, used = -iterations_of(service), -time.monotonic(), {n: -cpu_seconds(p) for n, p in pids.items()}
    while wall + time.monotonic() < MEASURED_S:
        service.swarm(requests, concurrent=sessions)
    wall += time.monotonic()
    used = {n: seconds + cpu_seconds(pids[n]) for n, seconds in used.items()}
    iterations += iterations_of(service)
    return used["policy"] / wall, used["verifier"] / wall, iterations / wall, used["policy"] / iterations * 1e6


def cpu(t, rounds):
    ids = t.prompts(16, longest=60)
    lines = [f"Sessions of {DECODE_TOKENS} tokens of the demo model decode as fast as they can, the verifier on one thread, with the small draft",
             f"model; {rounds} rounds of {MEASURED_S} s or more, median (highest). Shares are of one core; CPU time is that of all threads.", "",
             "policy    sessions   controller              a pass    passes/s   verifier"]
    for policy in ("static:3", "cascade", "yield"):
        for sessions in SESSIONS:
            with t.Service(draft=t.DRAFTS["small"], options=("--threads", 1), sets=(f"policy.policy={policy}",)) as service:
                rows = [cpu_row(t, service, ids, sessions) for _ in range(rounds)]
            share, verifier, passes, us = (statistics.median(column) for column in zip(*rows))
            lines.append(f"{policy:10}{sessions:8}   {share:6.2%} ({max(r[0] for r in rows):6.2%})   {us:8.2f} us   {passes:9.0f}   {verifier:7.1%}")
    return "\n".join(lines)
