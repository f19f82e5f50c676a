#!/usr/bin/env python3
"""The setting device: what there is not, what is too small, what is of another version, and what is lost in use, is named; and
where the CPU goes on, it gives the same bytes. The GPU is emulated."""
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import BUILD, ROOT, SAMPLED, TARGET, TARGET_Q4, Service, Tap, difference, program, prompts, reference, until

MODEL = ROOT / "tests" / "data" / "golden" / "models" / "qwen3.f32.gguf"

tap = Tap()


def check(device, env=None, *more):
    """What outrider-verifier -n says of a device, and its exit status."""
    done = subprocess.run([str(program("outrider-verifier")), "-n", "--model", str(MODEL), "--set", f"device={device}", *more],
                          capture_output=True, text=True, env={**os.environ, **(env or {})})
    return done.returncode, done.stderr.strip()


for bad in ("gpu", "cuda:", "cuda:x", "cuda:-1", "simt:0", ""):
    rc, said = check(bad)
    tap.ok(rc == 78 and "is not allowed; device takes cpu, auto, cuda:N, cuda:GPU-UUID or simt" in said, f'device = "{bad}" is refused', f"{rc} {said}")
for more, named in (((), ""), (("--set", "device_lost=cpu"), ""), (("--set", "device_lost=end"), "device_lost")):
    rc, said = check("cpu", None, *more)
    tap.ok(rc == 0 and ("no device is used" in said) == (named != "") and said.endswith(named), f"without a device {named or 'nothing'} has no effect", said)
rc, said = check("simt", {"OUTRIDER_SIMT_MEMORY": "100K"})
tap.ok(rc == 71 and "the emulated GPU has 0.1 MiB free" in said and "the weights alone do not fit" in said,
       "a device that is too small for the weights is named", f"{rc} {said}")
rc, said = check("simt", {"OUTRIDER_SIMT_MEMORY": "9M"})
tap.ok(rc == 71 and "the model needs" in said and "these settings of the verifier would fit: " in said, "a device that is too small says what would fit", f"{rc} {said}")


def sets_of(said):
    """The settings that would fit, as a message names them."""
    fits = re.split(", | and ", said.split(" would fit: ")[1]) if " would fit: " in said else []
    return [word for pair in fits for word in ("--set", pair.replace(" ", ""))]


sets = sets_of(said)
rc, said = check("simt", {"OUTRIDER_SIMT_MEMORY": "9M"}, *sets)
tap.ok(sets and rc == 0, f"and that fits: {' '.join(sets)}", f"{rc} {said}")
little = ("--model", str(TARGET), "--set", "device_memory=50M")
rc, said = check("simt", None, *little)
rc_fits, said_fits = check("simt", None, *little, *sets_of(said))
tap.ok(rc == 71 and "50.0 MiB free of 1024.0 GiB (device_memory), but" in said and "the fewest experts" in said and rc_fits == 0,
       "what device_memory allows has to hold the fewest experts too", f"{rc} {said} {sets_of(said)} {rc_fits} {said_fits}")
rc, said = check("simt", None, *little, "--set", "sessions_max=8", "--set", "kv_tokens=8576")
tap.ok(rc == 71 and "the fewest experts" in said, "settings that leave no room for those are refused", f"{rc} {said}")

for unfit, words in (("no-driver", "NVIDIA's driver (libcuda.so.1) is not installed"),
                     ("old-driver", "driver is for CUDA 12.4, but outrider-backend-cuda.so was made with CUDA 13.0: install a newer driver"),
                     ("mps", "NVIDIA's MPS is on for the emulated GPU"),
                     ("exclusive", "the emulated GPU lets one process at a time use it")):
    rc, said = check("simt", {"OUTRIDER_SIMT_UNFIT": unfit})
    tap.ok(rc not in (0, 75) and f"device = simt: " in said and words in said, f"{unfit} is named", f"{rc} {said}")
rc, said = check("simt", {"OUTRIDER_SIMT_MEMORY": "1G", "OUTRIDER_SIMT_TAKEN": "1073000000"})
tap.ok(rc == 71 and "of 1024.0 MiB (other programs have the rest)" in said, "memory that other programs have is named", f"{rc} {said}")

# Programs beside a shared object that is not theirs.
with tempfile.TemporaryDirectory() as directory:
    shutil.copy(BUILD / "outrider-verifier", directory)
    fake, verifier = Path(directory) / "outrider-backend-cuda.so", Path(directory) / "outrider-verifier"

    def beside(source):
        if source is not None:
            made = subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(fake), "-"], input=source, text=True)
            if made.returncode:
                return "gcc cannot make a shared object"
        done = subprocess.run([str(verifier), "-n", "--model", str(MODEL), "--set", "device=cuda:0"], capture_output=True, text=True)
        return done.stderr

    said = beside(None)
    tap.ok("neither beside the program" in said and "make cuda builds it" in said, "no shared object", said)
    said = beside('const char outrider_backend_cuda_interface[] = "0.0.9-1"; int outrider_backend_cuda_create(void) { return 0; }')
    tap.ok(f"{fake} is of another version: 0.0.9-1, but this program needs " in said, "a shared object of another version", said)
    said = beside("int x;")
    tap.ok("is of another version: none is named" in said, "a shared object that is something else", said)
    fake.write_text("not an object")
    said = beside(None)
    tap.ok(f"{fake} cannot be loaded: " in said, "a file that is no shared object", said)

if not (BUILD / "outrider-backend-cuda.so").exists():
    done = subprocess.run([str(ROOT / "tools" / "gpu_check.sh")], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "B": str(BUILD)})
    tap.ok(done.returncode == 77 and "nothing was checked: outrider-model: " in done.stderr, "gpu-check says that it checks nothing", done.stderr)

ids = prompts(3, longest=24)
IDLE = "so {} no effect: {}\n"
with Service(TARGET_Q4, options=["--device", "auto"], sets=["verifier.hybrid=greedy", "verifier.kv_memory=host", "expert-cache.device_budget=50%"]) as service:
    said = service.log_text()
    result = service.swarm([{"tokens": ids[0], "max_tokens": 6, "logits_hash": True}])[0]
    wrong = difference(result, reference(ids[0], 6, model=TARGET_Q4))
    for who, what in (("verifier", IDLE.format("these settings have", "hybrid, kv_memory")), ("expert-cache", IDLE.format("this setting has", "device_budget"))):
        tap.ok(said.count(f"{who}: no device is used (device = auto), {what}") == 1 and said.count("no device is used") == 2,
               f"settings of the {who} that have no effect without one are named", said)
    answers = [service.ctl("knob", "set", setting).stdout.count("it has no effect, because no device is used")
               for setting in ("verifier.device_memory=50%", "verifier.device_memory=auto", "cache.device_budget=min", "verifier.prefill_chunk=64")]
    tap.ok(answers == [1, 0, 1, 0], "and so are those that are changed", answers)
    shown = {p["name"]: (p.get("details") or {}).get("device_refused", "") for p in service.status()}
    tap.ok("device = auto: the CPU computes, because" in said and not wrong, "auto without a GPU: the CPU, and the log says why", said + wrong)
    tap.ok(shown["verifier"] and shown["verifier"] in said and shown["verifier"] == shown["expert-cache"], "and the status", shown)


def asked(n):
    return [{"tokens": p, "max_tokens": n, "seed": 100 + i, "k": 3, "draft_method": "ngram", "logits_hash": True, **SAMPLED}
            for i, p in enumerate(ids)]


# Lost while a prompt is computed, while tokens are, and soon after: launches are counted from the start.
expected = [reference(p, 12, SAMPLED, seed=100 + i, model=TARGET_Q4) for i, p in enumerate(ids)]
for launch in (1, 150, 500):
    with Service(TARGET_Q4, sets=["verifier.device=simt", "verifier.device_memory=50%"], env={"OUTRIDER_SIMT_LOST": str(launch)}) as service:
        before = service.details("verifier").get("kernels", "")
        results = service.swarm(asked(12), concurrent=3)
        wrong = [f"session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, expected[i]))]
        said = service.log_text()
        after = service.details("verifier").get("kernels", "")
        lost = "the emulated GPU was lost in kernel" in said and "the CPU computes, because the emulated GPU was lost" in said
        tap.ok(not wrong and lost and "thread" in after, f"lost at launch {launch}, the CPU goes on: the same bytes",
               "\n".join(wrong) + f"\n{before}\n{after}\n" + said[-1500:])
with Service(TARGET_Q4, sets=["verifier.device=simt", "verifier.device_lost=end"],
             env={"OUTRIDER_SIMT_LOST": "300", "OUTRIDER_SIMT_LOST_WHY": "uncorrectable ECC error encountered"}) as service:
    results = service.swarm(asked(12), concurrent=3)
    errors = [r.get("error") or "" for r in results]
    tap.ok(any("the emulated GPU was lost in kernel" in e and "uncorrectable ECC error" in e for e in errors),
           "device_lost = end: sessions end with the reason", "\n".join(errors))
    service.wait_ready()
    kernels = service.details("verifier")["kernels"]
    result = service.swarm([{"tokens": ids[0][:2], "max_tokens": 1, "logits_hash": True}])[0]
    wrong = difference(result, reference(ids[0][:2], 1, model=TARGET_Q4))
    tap.ok(not wrong and "the emulated GPU" in kernels, "the process manager starts the verifier again, on the device", f"{wrong} {kernels}")

# Lost before anything is computed: while the verifier's weights are placed, and while the expert-cache makes its slots.
AT_START = {"OUTRIDER_SIMT_LOST_WEIGHTS": "2", "OUTRIDER_SIMT_LOST_COPY": "1", "OUTRIDER_SIMT_LOST_WHY": "uncorrectable ECC error encountered"}
with Service(TARGET_Q4, sets=["verifier.device=simt", "verifier.kv_memory=host", "expert-cache.device=simt"], env=AT_START) as service:
    wrong = "\n".join(what for i, r in enumerate(service.swarm(asked(12), concurrent=3)) if (what := difference(r, expected[i])))
    said = service.whole_log()
    reason = "because the emulated GPU was lost in a copy: uncorrectable ECC error encountered"
    tap.ok(not wrong and f"verifier: the CPU computes, {reason}" in said and f"experts are kept in memory alone, {reason}" in said and
           "set device alike for both" not in said, "lost at the start, the CPU goes on: the same bytes", wrong + said[-1500:])
with tempfile.TemporaryDirectory() as directory:
    done = subprocess.run([str(program("outrider-verifier")), "--runtime-dir", directory, "--model", str(TARGET_Q4), "--set", "device=simt",
                           "--set", "device_lost=end"], capture_output=True, text=True, env={**os.environ, **AT_START})
    tap.ok(done.returncode == 69 and "uncorrectable ECC error encountered; the verifier cannot start on it" in done.stderr and
           "set device_lost = cpu, or device = cpu" in done.stderr, "device_lost = end: the reason, and the way out", done)

# The cache's copies fail too. Later the verifier is killed, and its successor has the GPU again, which is lost again. The link is slow, so that
# passes wait for copies when that happens.
BOTH = ["verifier.device=simt", "expert-cache.device=simt", "expert-cache.device_budget=50%"]
with Service(TARGET_Q4, sets=BOTH, env={"OUTRIDER_SIMT_LOST_COPY": "60", "OUTRIDER_SIMT_LINK": "8000000"}) as service:
    wrong = ""
    for turn in range(2):
        results = service.swarm(asked(12), concurrent=3)
        wrong += "\n".join(f"turn {turn}, session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, expected[i])))
        if turn == 0:
            said = service.log_text()
            service.restart("verifier")
    tap.ok(not wrong and "was lost in a copy" in said and "the CPU computes, because" in said, "lost in a copy: the same bytes", wrong + said[-1500:])
    tap.ok(until(lambda: re.search("it starts anew\n(?:.*\n)*expert-cache: device simt: 96 of 192 experts", service.whole_log())),
           "the next verifier has the device: so has the expert-cache", service.log_text()[-2500:])

# Other programs take the memory when the cache has its first slots: 7 MiB are left. All experts take 8, 65 % of them 5, and the 50 % that
# are there 4.
with Service(TARGET_Q4, sets=[*BOTH, "verifier.prefill_chunk=16", "verifier.sessions_max=2", "verifier.kv_memory=host"],
             env={"OUTRIDER_SIMT_MEMORY": "200M", "OUTRIDER_SIMT_TAKEN": f"{193 << 20},2"}) as service:
    def slots():
        return service.ctl_json("cache", "stats")["device"]["slots"]
    refused = service.ctl("knob", "set", "cache.device_budget=all")
    tap.ok(refused.returncode and "device_budget: the emulated GPU has no " in refused.stderr and slots() == 96,
           "memory that is gone later: the change is refused", f"{refused.stderr} {slots()} {service.log_text()[-1500:]}")
    process, results = service.swarm_start(asked(12), concurrent=3)
    changed = [service.ctl("knob", "set", f"cache.device_budget={budget}") for budget in ("65%", "50%", "65%")]
    there = until(lambda: slots() == 125)
    wrong = "\n".join(what for i, r in enumerate(results()) if (what := difference(r, expected[i])))
    tap.ok(not wrong and there and not any(c.returncode for c in changed) and "until those are given back" in service.log_text(),
           "a budget for which there is room only instead of the former: answers go on, with the same bytes",
           f"{wrong} {slots()} {changed} {service.log_text()[-1500:]}")

    # Other slots come while the verifier may open no more files.
    pid = service.pid("verifier")
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = {int(n) for n in os.listdir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(opened) + 1)) - opened), limit[1]))
    changed = service.ctl("knob", "set", "cache.device_budget=50%")
    told = until(lambda: "leaves no room for its regions" in service.whole_log())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    back = until(lambda: "verifier: expert-cache: there is room for its regions now" in service.whole_log())
    wrong = "\n".join(what for i, r in enumerate(service.swarm(asked(12), concurrent=3)) if (what := difference(r, expected[i])))
    tap.ok(not wrong and not changed.returncode and told and back and service.whole_log().count("leaves no room for its regions") == 1 and
           service.pid("verifier") == pid and slots() == 96, "slots that found no descriptor free in the verifier come when one is: it says both once",
           f"{wrong} {slots()} {changed} {service.log_text()[-1500:]}")
tap.done()
