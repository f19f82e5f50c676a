#!/usr/bin/env python3
"""What happens to the programs through the shell and the file system: closed descriptors, output that cannot be written, things that
are no files in the place of files, a missing /proc. Tables of all programs against all of these."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from outrider_test import SANITIZED, TARGET, Service, Tap, ended, finish, program, prompts, run, until

tap = Tap()
if not TARGET.exists():
    tap.skip("accidents", f"{TARGET.name} is not there")
    tap.done()

DAEMONS = ("outrider-verifier", "outrider-drafter", "outrider-expert-cache", "outrider-policy")
PROGRAMS = ("outrider", "outriderctl", "outrider-model", "outrider-bench", *DAEMONS)
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-")
# A program that waits for what never comes is the fault that is looked for.
SOON = 60


def shell(redirections, *command):
    return ["sh", "-c", f'exec "$@" {redirections}', "sh", *map(str, command)]


def start(*command):
    return subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait(process):
    out, err = finish(process, SOON)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# ---- Closed descriptors ----

def check_closed(directory):
    for closed in CLOSED:
        runtime = directory / "closed"
        shutil.rmtree(runtime, ignore_errors=True)
        up = start(*shell(closed, program("outrider"), "up", "--model", TARGET, "--runtime-dir", runtime))
        ready = until(lambda: run(program("outrider"), "status", "--runtime-dir", runtime).returncode == 0)
        held = (runtime / "up.pid").read_text() if ready else None
        second = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", runtime)
        down = run(program("outrider"), "down", "--runtime-dir", runtime)
        wait(up)
        tap.ok(ready and held == f"{up.pid}\n" and second.returncode == 69 and f"process {up.pid}" in second.stderr and down.returncode == 0 and
               up.returncode == 0 and os.listdir(runtime) == ["policy.journal"], f"up {closed} is found, is the only one, and ends with down",
               f"{held} {second} {down} {up.returncode} {os.listdir(runtime)}")
        begun = run(*shell(closed, program("outrider"), "up", "--detach", "--model", TARGET, "--runtime-dir", runtime))
        down = run(program("outrider"), "down", "--runtime-dir", runtime)
        tap.ok(begun.returncode == 0 and down.returncode == 0 and "policy: ready: policy yield" in (runtime / "up.log").read_text(), f"up --detach {closed} too",
               f"{begun} {down}")
    for name, more in (("outrider-policy", ()), ("outrider-drafter", ()), ("outrider-expert-cache", ("--model", TARGET)),
                       ("outrider-verifier", ("--model", TARGET))):
        runtime = directory / name
        process = start(*shell("<&- >&- 2>&-", program(name), *more, "--runtime-dir", runtime))
        short = name.removeprefix("outrider-")
        lock, standard = runtime / f"{short}.lock", []
        up = until(lambda: lock.exists() and lock.read_text() == f"{process.pid}\n")
        for fd in range(3):
            standard.append(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
        process.terminate()
        tap.ok(up and standard == ["/dev/null"] * 3 and ended(process) == 0, f"{name} without any has /dev/null", standard)
        wait(process)
    for name in PROGRAMS:
        for closed in CLOSED:
            result = run(*shell(closed, program(name), "--version"))
            expected = 74 if ">&-" in closed.replace("2>&-", "") else 0
            tap.ok(result.returncode == expected, f"{name} --version {closed} ends with {expected}", result)


# ---- Output that cannot be written ----

def commands_of(name):
    """The commands that its help lists."""
    return re.findall(r"^  ([a-z]+) ", run(program(name), "--help").stdout, re.M)


def all_output(service, directory):
    """Every way to print: the program, its words; all of them succeed where output goes somewhere."""
    for name in PROGRAMS:
        yield name, "--help"
        yield name, "--version"
    for name in DAEMONS:
        yield name, "--print-config"
    for name in ("outrider", "outrider-model", "outrider-bench"):
        yield name, "help"
        for word in commands_of(name):
            yield name, word, "--help"
    for words in (("help", "--json"), ("help", "run"), ("--version", "--json"), ("run", "--help", "--json"), ("status", "--help", "--json")):
        yield "outrider", *words
    listed = json.loads(run(program("outriderctl"), "help", "--json").stdout)["commands"]
    for command in listed:
        yield "outriderctl", *command["name"].split(), "--help"
        yield "outriderctl", *command["name"].split(), "--help", "--json"
    at = ("--runtime-dir", service.runtime)
    trace = directory / "trace.json"
    run(program("outrider"), "run", "--max-tokens", 3, "hi", *at)
    for words in (("status",), ("sessions",), ("policy", "get"), ("policy", "get", "--all"), ("policy", "watch", "--once", "--all"),
                  ("policy", "explain"), ("policy", "plot"), ("knob", "list"), ("knob", "get", "k_max"), ("knob", "history"),
                  ("knob", "set", "k_max=4"), ("knob", "reset", "k_max"), ("knob", "complete", "any", "k"), ("cache", "stats"),
                  ("cache", "stats", "--layers"), ("cache", "set", "spin=1us"), ("cache", "hot"), ("cache", "top", "--once"),
                  ("top", "--once"), ("trace", "10ms", trace), ("policy", "set", "yield")):
        yield "outriderctl", *words, *at
        if words[1] != "watch" if len(words) > 1 else True:
            yield "outriderctl", *words, *at, "--json"
    yield "outrider", "status", *at
    yield "outrider", "status", "--json", *at
    yield "outrider", "run", "--max-tokens", 3, "hi", *at
    yield "outrider", "run", "--max-tokens", 3, "hi", "--json", *at
    ids = ("--model", TARGET, "--tokens", "1,2,3", "--quiet")
    for words in (("info", TARGET), ("check", TARGET), ("logits", *ids), ("logits", *ids, "--format", "text"), ("routes", *ids),
                  ("generate", *ids, "--max-tokens", 2), ("generate", *ids, "--max-tokens", 2, "--format", "text"),
                  ("tokenize", "--model", TARGET), ("synth", "qwen3-0.6b", directory / "synth.gguf", "--layers", 1, "--vocabulary", 300,
                                                    "--sparse", "--force")):
        yield "outrider-model", *words
    yield "outrider-bench", "machine"


def check_output(service, directory):
    wrong = {"/dev/full": [], "a closed pipe": [], "a closed descriptor": []}
    n = 0
    for name, *words in all_output(service, directory):
        command = [program(name), *map(str, words)]
        well = run(*command, stdin="")
        if well.returncode or not well.stdout:
            if name != "outrider-model" or words[0] not in ("check", "synth"):
                wrong["/dev/full"].append(f"{command}: {well}")
            continue
        n += 1
        for where in wrong:
            readable, writable = os.pipe()
            os.close(readable)
            with open("/dev/full", "w") as full:
                to = {"/dev/full": full, "a closed pipe": writable, "a closed descriptor": None}[where]
                process = subprocess.Popen(shell(">&-", *command) if to is None else command, stdin=subprocess.DEVNULL, stdout=to,
                                           stderr=subprocess.PIPE, text=True)
            os.close(writable)
            _, err = finish(process, SOON)
            if process.returncode != 74 or err.count("standard output: ") != 1:
                wrong[where].append(f"{name} {words}: {process.returncode}: {err}")
    tap.note(f"{n} ways to print")
    for where, found in wrong.items():
        tap.ok(n > 130 and not found, f"whatever is printed to {where} ends with 74, and says so", "\n".join(found))
    for line in ("hi\n", "/help\n"):
        with open("/dev/full", "w") as full:
            chat = subprocess.Popen([program("outrider"), "chat", "--max-tokens", "3", "--runtime-dir", str(service.runtime)],
                                    stdin=subprocess.PIPE, stdout=full, stderr=subprocess.PIPE, text=True)
        _, err = finish(chat, SOON, line * 3)
        tap.ok(chat.returncode == 74 and err == "outrider: standard output: No space left on device\n",
               f"chat, asked {line.strip()}, to /dev/full ends at the first", f"{chat.returncode} {err}")
    for more in ((), ("--json",)):
        watch = subprocess.Popen([program("outriderctl"), "policy", "watch", "--all", "--runtime-dir", str(service.runtime), *more],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watch.stdout.close()
        watch.stdout = None
        status = None
        for i in range(20):
            service.swarm([{"tokens": prompts(1)[0], "max_tokens": 60, "ignore_eos": True, "seed": i}])
            if until(lambda: watch.poll() is not None, 1):
                status = watch.returncode
                break
        if status is None:
            watch.kill()
        _, err = finish(watch, SOON)
        tap.ok(status == 74 and "Broken pipe" in err, f"policy watch {' '.join(more)} ends when nobody reads it any more", f"{status} {err}")


# ---- What is no file ----

def make(kind, path):
    """Something else than a file; a link leads to a file that must stay as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
    elif kind == "a link to a device":
        path.symlink_to("/dev/full")
    elif kind == "a link that leads nowhere":
        path.symlink_to(path.parent / "nowhere")
    else:
        target = path.parent / "elsewhere"
        target.write_text("as it was")
        target.chmod(0o600)
        path.symlink_to(target)


def clear(path):
    for p in (path, path.parent / "elsewhere", path.parent / "nowhere"):
        if p.is_dir() and not p.is_symlink():
            p.rmdir()
        elif p.is_symlink() or p.exists():
            p.unlink()


KINDS = ("a FIFO", "a directory", "a socket", "a link to a device", "a link that leads nowhere", "a link to another file")
WORDS = {"a FIFO": "a pipe, not a regular file", "a directory": "a directory, not a regular file", "a socket": "a socket, not a regular file"}


def check_own_files(directory):
    """Files of the runtime directory. *: the service goes on without it, which it says."""
    for name, options, status in (("up.pid", (), 73), ("up.log", ("--detach",), 73), ("verifier.lock", (), 73), ("expert-cache.lock", (), 73),
                                  ("policy.lock", (), 73)):
        for kind in KINDS:
            path = directory / "own" / name
            shutil.rmtree(path.parent, ignore_errors=True)
            make(kind, path)
            path.parent.chmod(0o700)
            result = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", path.parent, *options, timeout=SOON)
            elsewhere = path.parent / "elsewhere"
            tap.ok(result.returncode == status and f"{path}: {WORDS.get(kind, 'a symbolic link, not a regular file')}" in result.stderr and
                   (not elsewhere.exists() or elsewhere.read_text() == "as it was") and not (path.parent / "nowhere").exists(),
                   f"{kind} as {name} is refused by name", result)
    for kind in KINDS:
        runtime = directory / "own"
        shutil.rmtree(runtime, ignore_errors=True)
        for name in ("policy.knobs.jsonl", "policy.journal", "given-up.new", "given-up"):
            make(kind, runtime / name)
            (runtime / "elsewhere").unlink(missing_ok=True)
        (runtime / "elsewhere").write_text("as it was")
        runtime.chmod(0o700)
        if (runtime / "given-up").is_dir() and not (runtime / "given-up").is_symlink():
            (runtime / "given-up").rmdir()
            (runtime / "given-up.new").rmdir()
        log = directory / "said"
        with open(log, "w") as to:
            up = subprocess.Popen([program("outrider"), "up", "--model", str(TARGET), "--runtime-dir", str(runtime)], stdout=to, stderr=to)
        ready = until(lambda: "ready: verifier" in log.read_text())
        changed = [run(program("outriderctl"), "knob", "set", f"k_max={k}", "--runtime-dir", runtime, timeout=SOON).returncode for k in (4, 5, 6)]
        said = f"{runtime}/policy.knobs.jsonl: {WORDS.get(kind, 'a symbolic link, not a regular file')}: changes are made" in log.read_text()
        up.send_signal(signal.SIGTERM)
        tap.ok(ready and changed == [0, 0, 0] and said and ended(up) == 0 and not (runtime / "nowhere").exists() and
               (runtime / "elsewhere").read_text() == "as it was" and (runtime / "policy.knobs.jsonl").is_symlink() == ("link" in kind) and
               "policy.journal cannot be written: it is no regular file" in log.read_text(),
               f"{kind} as a journal stops nothing, and stays what it is", f"{ready} {changed}\n{log.read_text()}")


def check_read_files(directory):
    """Settings, a profile and a model: refused by name, at once; of a link only what it leads to counts."""
    home = directory / "read"
    for kind in ("a FIFO", "a directory", "a socket", "a link to a device"):
        for name, command in (("policy.conf", ("outrider-policy", "--check", "--config-dir", home)),
                              ("policy.conf.d/10-x.conf", ("outrider-policy", "--check", "--config-dir", home)),
                              ("verifier.conf", ("outrider-verifier", "--check", "--model", TARGET, "--config-dir", home)),
                              ("profile", ("outrider-expert-cache", "--check", "--model", TARGET, "--set", f"profile={home}/profile")),
                              ("model", ("outrider-verifier", "--check", "--model", home / "model")),
                              ("model", ("outrider", "up", "--model", home / "model", "--runtime-dir", directory / "none"))):
            shutil.rmtree(home, ignore_errors=True)
            make(kind, home / name)
            result = run(program(command[0]), *command[1:], timeout=SOON)
            tap.ok(result.returncode not in (0, 1) and str(home / name) in result.stderr, f"{command[0]}: {kind} as {name} is refused by name", result)


def check_written_files(service, directory):
    """Files that a person names for a program to write."""
    home = directory / "written"
    model = directory / "small.gguf"
    run(program("outrider-model"), "synth", "olmoe-1b-7b", model, "--layers", 1, "--vocabulary", 300, "--sparse")
    routes = home.parent / "routes.trace"
    made = run(program("outrider-bench"), "cache", "synth", "--kind", "zipf", "--out", routes, timeout=SOON)
    tap.ok(made.returncode == 0, "a trace for a profile", made)
    outputs = [
        ("trace.json", ("outriderctl", "trace", "5ms", home / "trace.json", "--runtime-dir", service.runtime)),
        ("synth.gguf", ("outrider-model", "synth", "qwen3-0.6b", home / "synth.gguf", "--layers", 1, "--vocabulary", 300, "--sparse", "--force")),
        ("pack.gguf", ("outrider-model", "pack", TARGET, home / "pack.gguf", "--force")),
        ("routes", ("outrider-bench", "cache", "synth", "--kind", "zipf", "--out", home / "routes")),
        ("profile", ("outrider-bench", "cache", "profile", routes, "--out", home / "profile"))]
    if shutil.which("gnuplot"):
        outputs.append(("plot.svg", ("outriderctl", "policy", "plot", home / "plot.svg", "--runtime-dir", service.runtime)))
    for name, command in outputs:
        for kind in KINDS:
            shutil.rmtree(home, ignore_errors=True)
            path, target = home / name, home / "elsewhere"
            make(kind, path)
            before = os.lstat(path).st_mode
            result = run(program(command[0]), *command[1:], timeout=SOON)
            same = os.lstat(path).st_mode == before and not (home / "nowhere").exists() and not [p for p in os.listdir(home) if p.endswith(".part")]
            if kind == "a link to another file":
                tap.ok(result.returncode == 0 and same and target.read_bytes() != b"as it was" and target.stat().st_mode & 0o777 == 0o600,
                       f"{name} is written through {kind}, which stays, with its mode", f"{result} {os.listdir(home)}")
            else:
                tap.ok(result.returncode == 73 and same and str(path) in result.stderr, f"{name}: {kind} is refused by name",
                       f"{result} {os.listdir(home)}")
        shutil.rmtree(home, ignore_errors=True)


# ---- Runtime directories, lasting knobs, memory ----

def check_runtime_directories(directory):
    place = directory / "place"
    place.mkdir()
    clients = [("outrider", word, *more) for word, *more in (("up", "--model", TARGET), ("down",), ("run", "hi"), ("chat",), ("status",))]
    clients += [("outriderctl", "status"), ("outriderctl", "knob", "list"), ("outriderctl", "top"), ("outriderctl", "trace", "5ms", directory / "t")]
    clients += [(name, "--model", TARGET) if name in ("outrider-verifier", "outrider-expert-cache") else (name,) for name in DAEMONS]
    for mode, who in ((0o770, "its group"), (0o2770, "its group"), (0o720, "its group"), (0o777, "anybody"), (0o1777, "anybody"), (0o702, "anybody")):
        place.chmod(mode)
        found = []
        for name, *words in clients:
            result = run(program(name), *words, "--runtime-dir", place, stdin="hi\n", timeout=SOON)
            if result.returncode != 77 or f"runtime directory {place}: {who} may write to it (mode {mode:o})" not in result.stderr:
                found.append(f"{name} {words}: {result}")
        tap.ok(not found and not os.listdir(place), f"a runtime directory of mode {mode:o} is refused by every program", "\n".join(found))


def check_persist(directory):
    config = directory / "config"
    drop_in = config / "policy.conf.d" / "90-knobs.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("# why: the nightly batch\nk_max = 7 ; not more\n\n; and this one was asked for\nk_start=2\n")
    with Service(options=("--config-dir", config)) as service:
        set_ = service.ctl("knob", "set", "k_max=5", "--persist")
        tap.ok(set_.returncode == 0 and drop_in.read_text() ==
               "# why: the nightly batch\nk_max = 5 ; not more\n\n; and this one was asked for\nk_start=2\n", "--persist changes the line of its knob alone",
               f"{set_}\n{drop_in.read_text()}")
        reset = service.ctl("knob", "reset", "k_start", "k_max", "--persist")
        tap.ok(reset.returncode == 0 and drop_in.read_text() == "# why: the nightly batch\n\n; and this one was asked for\n",
               "a reset takes lines out, and nobody's comments", f"{reset}\n{drop_in.read_text()}")
        drop_in.write_text("# mine\nk_maxx = 3\n")
        refused = service.ctl("knob", "set", "k_max=5", "--persist")
        tap.ok(refused.returncode == 65 and f"{drop_in}:2: unknown key k_maxx" in refused.stderr and drop_in.read_text() == "# mine\nk_maxx = 3\n",
               "a line that no start would take is named, and stays", refused)
        drop_in.unlink()


def check_no_proc(directory):
    runtime = directory / "noproc"
    hidden = ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        tap.skip("a process without /proc", "no mount namespaces")
        return
    process = start(*hidden, program("outrider-policy"), "--runtime-dir", runtime)
    def states():
        return json.loads(run(program("outrider"), "status", "--json", "--runtime-dir", runtime).stdout or '{"processes": []}')["processes"]
    until(lambda: any(p["name"] == "policy" and p["state"] == "ready" for p in states()))
    for name in ("outrider", "outriderctl"):
        shown = json.loads(run(program(name), "status", "--json", "--runtime-dir", runtime).stdout)
        policy = [p for p in shown["processes"] if p["name"] == "policy"][0]
        text = run(program(name), "status", "--runtime-dir", runtime).stdout
        tap.ok(policy["rss_bytes"] is None and policy["uptime_ns"] and "unknown" in text and "0.0 MiB" not in text,
               f"{name} status does not know the memory of a process without /proc", f"{policy}\n{text}")
    text = run(program("outriderctl"), "top", "--once", "--runtime-dir", runtime).stdout
    tap.ok("unknown" in text and "0.0 MiB" not in text, "nor does top", text)
    process.terminate()
    wait(process)


with tempfile.TemporaryDirectory(prefix="outrider-accidents-", dir="/tmp") as place_:
    here = Path(place_)
    check_closed(here)
    check_own_files(here)
    check_read_files(here)
    check_runtime_directories(here)
    check_persist(here)
    check_no_proc(here)
    with Service() as service_:
        check_output(service_, here)
        check_written_files(service_, here)
tap.done()
