"""What a token's time is beside the time of the link under it, from a trace of the processes (outriderctl trace).

The link is busy while at least one expert is on its way. Idle time is told apart by where it lies: at the turn from a token to
the next one (behind the last wait for an expert and before the first: the last layer, the output matrix, sampling, the first
layer), which no expert can be asked for before the token is known, and anywhere else."""
import json

KEYS = ("token_ms", "busy_ms", "turn_idle_ms", "other_idle_ms")


def spans(events, *names):
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e["name"] in names)


def union(intervals):
    out = []
    for start, end in intervals:
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out


def covered(intervals, start, end):
    return sum(max(0, min(b, end) - max(a, start)) for a, b in intervals)


def of(path):
    """Milliseconds per token: of a token, of it with the link at work, idle at the turn of tokens, idle elsewhere. The first
    pass is the prompt's, and of the last nobody sees the end."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    link = union(spans(events, "demand", "prefetch"))
    waits = spans(events, "wait for experts")
    starts = [start for start, _ in spans(events, "iteration")][1:]
    sums = dict.fromkeys(KEYS, 0.0)
    for start, end in zip(starts, starts[1:]):
        inside = [w for w in waits if start <= w[0] < end]
        busy = covered(link, start, end)
        first, last = (inside[0][0], inside[-1][1]) if inside else (end, end)
        turn = first - start - covered(link, start, first) + end - last - covered(link, last, end)
        for key, value in zip(KEYS, (end - start, busy, turn, end - start - busy - turn)):
            sums[key] += value / 1e3 / (len(starts) - 1)
    return sums


ABOUT = """The lines below Outrider's are of the round whose token time is the middle one. \"at work\": at least one expert is on its way. Against the
link, two measures: a token's time over the larger of the link's time at work and the time without waits for experts (what
overlapping leaves over, whatever the disk gave); and over the larger of what the policy read at the disk's bandwidth, taken right
before and after by 16 direct reads at once that are not Outrider's, and the same time without waits (that the link is used as
well as it can be, too; below 1: Outrider's reader, tuned at its start, had more of the disk than those reads). The rate of a full queue is what Outrider's reader saw while it had enough to do."""


def over(row, link_ms):
    return row["token_ms"] / max(link_ms, row["compute_ms"])


def lines(row):
    """Of one answer, so that its parts add up. disk_gb_per_s: what the disk gave others before and after; full_gb_per_s: what the
    reader measured meanwhile, with as many reads in the kernel as it allows."""
    read_mb, disk = row["policy_mb_per_token"], row["disk_gb_per_s"]
    return [f"    a token {row['token_ms']:.1f} ms: link at work {row['busy_ms']:.1f}, idle at the turn of tokens {row['turn_idle_ms']:.1f}, "
            f"idle elsewhere {row['other_idle_ms']:.1f}; without waits {row['compute_ms']:.1f}",
            f"    against the link: {over(row, row['busy_ms']):.2f} of its time at work; {over(row, read_mb / disk):.2f} of {read_mb:.0f} MB at the "
            f"disk's {disk:.2f} GB/s = {read_mb / disk:.1f} ms (full queue {row['full_gb_per_s']:.2f} GB/s)"]
