#!/usr/bin/env python3
"""outrider doctor on this machine: what it finds, how the service agrees with it, what it writes, and what it says of bad input."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from outrider_test import BUILD, DRAFTS, TARGET, Service, Tap, program, run, until

tap = Tap()
if not TARGET.exists():
    tap.skip("outrider doctor", f"{TARGET.name} is not there")
    tap.done()
DRAFT = DRAFTS["small"]
folder = tempfile.TemporaryDirectory()
HERE = Path(folder.name)
LEVELS = {"ok", "advice", "problem"}


def doctor(*arguments, **more):
    return run(program("outrider"), "doctor", "--runtime-dir", HERE / "run", *arguments, **more)


def doctor_json(*arguments, **more):
    result = doctor("--json", *arguments, **more)
    return result.returncode, json.loads(result.stdout)


def finding(report, name):
    return next((f for f in report["findings"] if f["name"] == name), {"level": None, "text": "", "todo": None})


# The machine alone.
text = doctor()
names = {line.split()[1] for line in text.stdout.splitlines() if line.split()[:1] and line.split()[0] in LEVELS and line[0] != " "}
tap.ok(text.returncode == 0 and {"cpu", "cpus", "memory", "swap", "huge-pages", "memlock", "io_uring", "descriptors", "gpu", "systemd",
                                 "runtime-dir", "bandwidth"} <= names, "the machine is looked at", text.stdout + text.stderr)
tap.ok("model" not in names and "Expected" not in text.stdout, "without a model nothing is said of one", text.stdout)
tap.ok(all(len(line) <= 100 for line in text.stdout.splitlines()), "its lines are no wider than 100 columns", text.stdout)
tap.ok("computes on the CPU" in text.stdout, "it says what computes", text.stdout)
# The default of --device needs no model.
code, report = doctor_json("--device", "auto")
KEYS = {"ok", "version", "findings", "machine", "model", "draft", "storage", "device", "measured", "expected", "settings"}
tap.ok(code == 0 and set(report) == KEYS and report["ok"] is True, "JSON has the same members always", report)
tap.ok(all(set(f) == {"name", "level", "text", "todo"} and f["level"] in LEVELS and (f["level"] == "ok" or f["todo"])
           for f in report["findings"]), "what is not ok says what to do", report["findings"])
meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
total = int(meminfo["MemTotal"].split()[0]) << 10
tap.ok(0 < report["machine"]["memory_bytes"] <= total, "memory is what the machine has at most", report["machine"])
threads = report["measured"]["memory"]
tap.ok(threads[-1]["threads"] == report["machine"]["threads"] and all(t["gb_s"] > 0 for t in threads),
       "memory is measured with each number of threads", threads)

# A model on it.
code, report = doctor_json("--model", TARGET, "--draft", DRAFT, "--device", "simt")
tap.ok(code == 0 and set(report) == KEYS and report["model"]["layers"] > 0 < report["draft"]["layers"], "a model is looked at", report)
info = json.loads(run(program("outrider-model"), "info", TARGET, "--format", "json").stdout)
tap.ok(report["model"]["token_expert_bytes"] == info["summary"]["expert_bytes_per_token"], "a token reads the experts that info says",
       (report["model"], info["summary"]))
resident = info["summary"]["resident_bytes_per_token"]
tap.ok(0.9 * resident < report["model"]["token_dense_bytes"] <= resident, "and of the other weights what are matrices",
       (report["model"]["token_dense_bytes"], resident))
rows = report["expected"]["budgets"]
tap.ok([r["share"] for r in rows] == sorted((r["share"] for r in rows), reverse=True) and rows[0]["share"] == 1 and
       sum(r["planned"] for r in rows) == 1 and rows[0]["disk_ms"] == 0 < rows[-1]["disk_ms"] and
       all(a["tokens_per_s"] >= b["tokens_per_s"] > 0 for a, b in zip(rows, rows[1:])),
       "fewer experts in memory are read from the disk, and are never faster", rows)
costs = [d["cost"] for d in report["expected"]["drafts"]]
tap.ok(costs == sorted(costs) and costs[0] > 1, "more drafts cost more", costs)
tap.ok(report["measured"]["disk"]["random_gb_s"] > 0, "the disk is measured", report["measured"])
tap.ok(finding(report, "draft-tokens")["level"] == "ok", "the draft model has the same tokens", report["findings"])

least, buffers = report["settings"]["least_bytes"], report["settings"]["prefix_buffers_bytes"]
tap.ok(buffers == 0, "nothing goes to a disk if nobody says so", report["settings"])

# What fits into a device's memory. The GPU is emulated.
device = report["device"]
taken = sum(device[f"{what}_bytes"] for what in ("weights", "passes", "kv", "spare"))
tap.ok(device["runs"] and device["experts_fit"] == device["experts"] == info["model"]["experts"] * info["model"]["layers"] and
       device["would_fit"] is None and finding(report, "device")["level"] == "ok", "a large device holds all experts", device)
tap.ok(all(device["settings"][key] == report["settings"][key] for key in ("sessions_max", "context")),
       "with the settings that are recommended", (device, report["settings"]))
device_fit_bytes = device["experts_fit_bytes"]
HALF = {"OUTRIDER_SIMT_MEMORY": str((taken + device["experts_fit_bytes"] // 2) * 16 // 15 + 4096)}
code, report = doctor_json("--model", TARGET, "--device", "simt", env=HALF)
half, words = report["device"], finding(report, "device")
tap.ok(code == 0 and half["memory_bytes"] == half["memory_free_bytes"] == int(HALF["OUTRIDER_SIMT_MEMORY"]) and
       half["experts_fit"] == half["experts"] // 2 and words["level"] == "advice" and "(50 %" in words["text"],
       "a smaller one holds a part of them", (half, words))
LITTLE = {"OUTRIDER_SIMT_MEMORY": str(taken // 2)}
code, report = doctor_json("--model", TARGET, "--device", "simt", env=LITTLE)
device, words = report["device"], finding(report, "device")
fits = device["would_fit"]
tap.ok(code == 1 and not device["runs"] and device["experts_fit"] == 0 and words["level"] == "problem" and fits and
       all(f"{key} = {value}" in words["todo"] for key, value in fits.items()), "one that is too small: which settings would fit", (device, words))


def verifier(settings):
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return run(program("outrider-verifier"), "-n", "--model", TARGET, "--set", "device=simt", *sets, env=LITTLE)


refused, accepted = verifier(device["settings"]), verifier(fits or {})
tap.ok(refused.returncode == 71 and accepted.returncode == 0, "the verifier agrees", (refused.stderr, accepted.stderr))
share = f"{taken + device_fit_bytes // 4}"
code, report = doctor_json("--model", TARGET, "--device", "simt", "--device-memory", share, env=HALF)
quarter, words = report["device"], finding(report, "device")
tap.ok(code == 0 and quarter["limit_bytes"] == int(share) < half["limit_bytes"] and quarter["memory_bytes"] == half["memory_bytes"] and
       quarter["experts_fit"] == quarter["experts"] // 4 and "device_memory allows" in words["text"],
       "--device-memory: what fits into that part of it", (quarter, words))
code, report = doctor_json("--model", TARGET, "--device", "simt", "--device-memory", str(taken // 2))
device, words = report["device"], finding(report, "device")
sets = [word for key, value in (device["would_fit"] or {}).items() for word in ("--set", f"{key}={value}")]
accepted = run(program("outrider-verifier"), "-n", "--model", TARGET, "--set", "device=simt", "--set", f"device_memory={taken // 2}", *sets)
tap.ok(code == 1 and sets and words["level"] == "problem" and accepted.returncode == 0, "and which settings would fit into it, as the verifier says too",
       (device, words, accepted.stderr))
code, report = doctor_json("--model", TARGET, "--device", "simt", "--device-memory", "100K")
tap.ok(code == 1 and "set a larger device_memory" in finding(report, "device")["todo"], "or that none would", finding(report, "device"))
code, report = doctor_json("--model", TARGET, "--device", "cuda:99", "--prefix-dir", "/pages")
tap.ok(code == 1 and report["device"] is None and finding(report, "device")["level"] == "problem", "a device that is not there is a problem",
       report["findings"])
buffers = report["settings"]["prefix_buffers_bytes"]
tap.ok(buffers > 0 and report["settings"]["least_bytes"] == least + buffers, "the buffers of pages that go to a disk are counted",
       (report["settings"], least))

# The service takes what was planned.
with Service(TARGET, sets=["verifier.device=simt", "expert-cache.device=simt"], env=HALF) as service:
    tap.ok(until(lambda: service.ctl_json("cache", "stats")["device"]["slots"] == half["experts_fit"]),
           "the device has the experts that were planned", (half, service.ctl_json("cache", "stats")["device"]))
    service.ctl("cache", "set", f"device_memory={share}")
    tap.ok(until(lambda: service.ctl_json("cache", "stats")["device"]["slots"] == quarter["experts_fit"]),
           "and with --device-memory", (quarter, service.ctl_json("cache", "stats")["device"]))
    stats = service.ctl_json("cache", "stats")
    words = json.dumps(stats)
    experts = report["settings"]["experts_bytes"]
    tap.ok(report["settings"]["all_experts_fit"] and str(experts) in words, "budget auto of the service takes what was planned",
           (report["settings"], words[:2000]))
    busy = run(program("outrider"), "doctor", "--json", "--runtime-dir", service.runtime)
    tap.ok("a service runs there" in finding(json.loads(busy.stdout), "runtime-dir")["text"], "a service that runs is told", busy.stdout)

# What it writes is what the services read.
settings = HERE / "new" / "settings"
wrote = doctor("--model", TARGET, "--write", settings)
tap.ok(wrote.returncode == 66 and "new/settings" in wrote.stderr, "a directory above the one to write to is not made", wrote.stderr)
settings = HERE / "settings"
wrote = doctor("--model", os.path.relpath(TARGET), "--draft", DRAFT, "--device", "cpu", "--device-memory", "50%", "--prefix-dir",
               HERE / "pages", "--write", settings)
FILES = {"verifier": "verifier", "expert-cache": "expert-cache", "drafter": "drafter", "policy": "policy"}
tap.ok(wrote.returncode == 0 and {p.name for p in settings.iterdir()} == {f"{f}.conf" for f in FILES}, "four files are written",
       wrote.stderr)
for name in FILES:
    checked = run(program(f"outrider-{name}"), "--config", settings / f"{name}.conf", "--check")
    tap.ok(checked.returncode == 0, f"outrider-{name} takes its file", checked.stderr + (settings / f"{name}.conf").read_text())
tap.ok(f"model = {TARGET.resolve()}" in (settings / "verifier.conf").read_text(), "the model is named from the root on",
       (settings / "verifier.conf").read_text())
tap.ok(all("\ndevice = cpu\n" in (settings / f"{name}.conf").read_text() for name in ("verifier", "expert-cache", "drafter")),
       "they name what computes", (settings / "verifier.conf").read_text())
tap.ok("  device        cpu\n  device_memory 50%\n" in wrote.stdout and "\ndevice_memory = 50%\n" in (settings / "verifier.conf").read_text(), "and how much of its memory the service takes",
       (settings / "verifier.conf").read_text())
with Service(TARGET, options=("--config-dir", settings)) as service:
    knobs = json.dumps(service.ctl_json("knob", "list"))
    answer = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--max-tokens", 4, "Hello")
    tap.ok(answer.returncode == 0 and DRAFT.name in knobs and (HERE / "pages").is_dir(), "and a service runs with them", answer.stderr + knobs[:500])
before = {p.name: p.read_bytes() for p in settings.iterdir()}
(settings / "policy.conf").write_text("# mine\n")
again = doctor("--model", TARGET, "--write", settings)
tap.ok(again.returncode == 73 and "exists already; --force replaces it" in again.stderr, "files that are there stay", again.stderr)
(settings / "verifier.conf").unlink()
again = doctor("--model", TARGET, "--write", settings)
left = {p.name for p in settings.iterdir()}
tap.ok(again.returncode == 73 and left == {"policy.conf", "drafter.conf", "expert-cache.conf"} and
       (settings / "policy.conf").read_text() == "# mine\n", "and then none is written", left)
again = doctor("--model", TARGET, "--write", settings, "--force")
tap.ok(again.returncode == 0 and (settings / "policy.conf").read_bytes() == before["policy.conf"] and
       "draft =" not in (settings / "drafter.conf").read_text(), "--force replaces them", again.stderr)
odd = HERE / "a model ; of mine.gguf"
odd.symlink_to(TARGET.resolve())
result = doctor("--model", odd, "--device", "simt", "--write", HERE / "odd")
tap.ok("Expected on the CPU: one session" in result.stdout and "Expected: one session" in wrote.stdout and "e+" not in result.stdout,
       "with a device it says that the expected speed is the CPU's", result.stdout)
tap.ok(result.returncode == 65 and "plain name" in result.stderr and not (HERE / "odd").exists(),
       "a path that a configuration file cannot hold is refused", result.stderr)

# Bad input.
broken = HERE / "broken.gguf"
broken.write_bytes(TARGET.read_bytes()[:5000])
noise = HERE / "noise.gguf"
noise.write_bytes(b"no model at all" * 100)
locked = HERE / "locked.gguf"
locked.write_bytes(b"")
locked.chmod(0)
for what, path, word in (("no such file", HERE / "none.gguf", "No such file"), ("a file that was cut", broken, "broken.gguf"),
                         ("a file that is no model", noise, "noise.gguf"), ("a directory", HERE, "irectory"),
                         ("an empty file that may not be read", locked, "locked.gguf")):
    code, report = doctor_json("--model", path)
    problem = finding(report, "model")
    tap.ok(code == 1 and report["ok"] is False and problem["level"] == "problem" and word in problem["text"] and
           str(path)[-8:] in problem["text"] and report["model"] is None and finding(report, "memory")["level"],
           f"{what}: named, and the machine is looked at all the same", report["findings"])
code, report = doctor_json("--model", TARGET, "--draft", noise)
tap.ok(code == 1 and finding(report, "draft")["level"] == "problem" and report["expected"], "a broken draft model is a problem",
       report["findings"])
refused = doctor("--model", noise, "--write", HERE / "other")
tap.ok(refused.returncode == 1 and not (HERE / "other").exists() and "nothing is written" in refused.stderr,
       "with a problem nothing is written", refused.stderr)
for what, words, arguments in (("a draft without a model", "--draft needs --model", ("--draft", TARGET)),
                               ("--write without a model", "--write needs --model", ("--write", HERE)),
                               ("a device without a model", "--device needs --model", ("--device", "simt")),
                               ("a part of a device's memory without a model", "--device-memory needs --model", ("--device-memory", "1G")),
                               ("a wrong part of it", "--device-memory: 101% is not allowed", ("--model", TARGET, "--device-memory", "101%")),
                               ("a wrong device", "device takes cpu, auto", ("--model", TARGET, "--device", "gpu")),
                               ("a directory that is not named from the root on", "from the root on",
                                ("--model", TARGET, "--prefix-dir", "pages")),
                               ("--force alone", "--force needs --write", ("--force",)),
                               ("an argument", 'unexpected argument "x"', ("x",)),
                               ("an unknown flag", "unknown option --nonsense", ("--nonsense",)),
                               ("another format", "text or json", ("--format", "yaml"))):
    result = doctor(*arguments)
    tap.ok(result.returncode == 64 and words in result.stderr and not result.stdout, f"{what} is wrong usage", result.stderr)
shared = HERE / "open"
shared.mkdir(mode=0o777)
shared.chmod(0o777)
code, report = doctor_json("--runtime-dir", shared)
tap.ok(code == 1 and "may write to it" in finding(report, "runtime-dir")["text"], "a runtime directory of others' is a problem",
       report["findings"])
few = subprocess.run(["sh", "-c", f"ulimit -n 40; exec {BUILD}/outrider doctor --json --runtime-dir {HERE}/run"], capture_output=True,
                     text=True)
tap.ok(few.returncode == 1 and finding(json.loads(few.stdout), "descriptors")["level"] == "problem", "so are too few descriptors", few.stdout)
tap.done()
