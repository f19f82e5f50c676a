"""A GPU whose memory holds a share of the experts, simulated: bench/results/device.txt. Drafts and what is accepted of them are recorded
on the demo models; `outrider-bench device` does the rest in virtual time."""
import subprocess

TITLES = (
    ("Synthetic routing (Zipf's law), drafts accepted as the demo's aligned draft model was on the mixed workload.",
     ("--passes", "96")),
    ("A host with the published peak of two channels of DDR5-5600, 89.6 GB/s, in place of the measured one.",
     ("--passes", "96", "--policy", "lru,spac,outrider", "--cpu-bandwidth", "89.6")))


def record(bench, target, draft, root, folder, k):
    path = folder / f"device-{k}.trace"
    if not path.exists():
        subprocess.run([bench, "cache", "record", "--model", target, "--draft", draft, "--drafter", "model" if k else "none", "--k", str(k),
                        "--workload", root / "bench/workloads/mixed.jsonl", "--limit", "12", "--max-tokens", "64", "--out", path],
                       check=True, stdout=subprocess.DEVNULL)
    return path


def run(bench, target, draft, root, folder):
    traces = [record(bench, target, draft, root, folder, k) for k in (0, 3)]
    text = ["Simulated: nothing here was measured on a GPU.", ""]
    for title, options in TITLES:
        out = subprocess.run([bench, "device", *traces, *options], check=True, capture_output=True, text=True).stdout
        text += [f"#### {title}", f"$ outrider-bench device K-0.trace K-3.trace {' '.join(options)}", out]
    return "\n".join(text)
