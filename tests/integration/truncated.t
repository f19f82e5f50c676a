#!/usr/bin/env python3
"""A model file that becomes shorter while it is in use: one line that names it and a status, from whoever reads it."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, TARGET, WORKLOADS, Service, Tap, ended, finish, program, run, until

IOERR, DATAERR = 74, 65
SHORTER = ": the file became shorter while it was in use"
tap = Tap()
if not TARGET.exists():
    tap.skip("a truncated model", f"{TARGET.name} is not there")
    tap.done()
home = Path(tempfile.mkdtemp(prefix="outrider-truncated-", dir="/var/tmp"))
model = home / "model.gguf"


def mapped(pid):
    """Whether the process has the model open and computes with it: it has used some time since."""
    try:
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return str(model) in Path(f"/proc/{pid}/maps").read_text() and ticks >= 20
    except OSError:
        return False


def cut_while(name, *command):
    shutil.copy(TARGET, model)
    process = subprocess.Popen([program("outrider-model"), *map(str, command)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    busy = until(lambda: mapped(process.pid) or process.poll() is not None)
    os.truncate(model, 8192)
    said = finish(process, 60)[1]
    tap.ok(busy and process.returncode == IOERR and said.splitlines()[-1:] == [f"outrider-model: {model}{SHORTER}"] and
           said.count(SHORTER) == 1, f"{name} ends with status {IOERR} and one line", f"{process.returncode}: {said}")


try:
    long = ",".join(["1", "2", "3", "4"] * 200)
    common = ("--model", model, "--threads", "2", "--quiet")
    cut_while("generate", "generate", *common, "--kernels", "scalar", "--tokens", "1,2,3", "--max-tokens", "1000", "--ignore-eos")
    cut_while("logits", "logits", *common, "--kernels", "scalar", "--all", "--tokens", long)
    cut_while("perplexity", "perplexity", *common, "--kernels", "scalar", WORKLOADS / "prose.jsonl")

    shutil.copy(TARGET, model)
    draft = home / "draft.gguf"
    shutil.copy(DRAFTS["small"], draft)
    request = ("run", "--max-tokens", "20", "--ignore-eos", "--draft-method", "model", "--k", "3", "--tokens", "1,2,3,4")
    with Service(model=model, draft=draft) as service:
        ready = run(program("outrider"), *request, "--runtime-dir", service.runtime)
        os.truncate(draft, 8192)
        again = run(program("outrider"), *request, "--runtime-dir", service.runtime)
        tap.ok(ready.returncode == again.returncode == 0 and ready.stdout == again.stdout,
               "without its draft model the service gives the same answer", ready.stderr + again.stderr)

        def given_up():
            """A short answer can be finished before the drafter has looked at its model, so it is asked again."""
            run(program("outrider"), *request, "--runtime-dir", service.runtime)
            return "giving up on it; the others go on" in service.log_text()

        tap.ok(until(given_up) and
               f"drafter: error: {draft}{SHORTER}" in service.log_text(), "the drafter says why and is given up",
               service.log_text())
        os.truncate(model, 8192)
        told = run(program("outrider"), *request, "--runtime-dir", service.runtime, "--wait", "60")
        tap.ok(told.returncode != 0 and f"{model}{SHORTER}" in told.stderr and
               until(lambda: f"verifier: error: {model}{SHORTER}" in service.log_text()),
               "without its model, a client is told", told.stderr + service.log_text())
        # lost.t says what happens to those that are being served.
        service.end("verifier")
        told = run(program("outrider"), *request, "--runtime-dir", service.runtime, "--wait", "3600")
        tap.ok(told.returncode == 69 and "has given up: verifier ended with status 65" in told.stderr, "nor can a verifier start with it, and a client is told that",
               told.stderr)
        status = ended(service.process)
        log = service.log_text()
        tap.ok(status == DATAERR and "signal 7" not in log,
               f"and the service ends with status {DATAERR}", f"{status}\n{log}")
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
