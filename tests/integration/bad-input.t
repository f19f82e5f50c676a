#!/usr/bin/env python3
"""Bad input: each gets an error that names what and where, a status that says which kind (sysexits), and leaves the
rest running with the right bytes."""
import contextlib
import errno
import json
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import rubbish
from outrider_test import (DRAFTS, PATIENCE, PROCESSES, ROOT, SANITIZED, TARGET, Service, Tap, difference, finish, program,
                           prompts, reference, run, seeded, until)

USAGE, DATA, NOINPUT, UNAVAILABLE, OSERR, CANTCREATE, TEMPFAIL, NOPERM, CONFIG = 64, 65, 66, 69, 71, 73, 75, 77, 78
GOLDEN = ROOT / "tests" / "data" / "golden" / "models"
MESSAGE_MAX, MESSAGE_CUT = 4 << 20, 32 << 20  # LIMIT_MESSAGE_BYTES, LIMIT_MESSAGE_CUT of shared/base/limits.h
tap = Tap()
random = seeded()
folder = Path(tempfile.mkdtemp(prefix="outrider-bad-", dir="/tmp"))
ids = prompts(4, longest=60)
expected = [reference(p, 30, extra=("--ignore-eos",)) for p in ids]


def refused(name, status, words, *command, **more):
    """The command ends with that status and a message that has all the words."""
    try:
        result = run(*command, timeout=60, **more)
    except subprocess.TimeoutExpired as e:
        return tap.ok(False, name, f"did not end: {e}")
    statuses = status if isinstance(status, tuple) else (status,)
    missing = [w for w in words if str(w) not in result.stderr + result.stdout]
    return tap.ok(result.returncode in statuses and not missing, name,
                  f"status {result.returncode}, expected {status}; missing {missing}:\n{result.stderr[-1500:]}")


def up(*options, model=TARGET):
    return (program("outrider"), "up", "--model", model, "--runtime-dir", folder / "up", *options)


def daemon(name, *options, runtime="alone"):
    return (program(f"outrider-{name}"), "--runtime-dir", folder / runtime, *options)


def model_files():
    data = TARGET.read_bytes()
    files = {"gone.gguf": (NOINPUT, None), "empty.gguf": (DATA, b""), "text.gguf": (DATA, b"hello\n" * 400),
             "cut-header.gguf": (DATA, data[:1000]), "cut-data.gguf": (DATA, data[:3000000]),
             "short-by-one.gguf": (DATA, data[:-1]), "other-arch.gguf": (DATA, data.replace(b"qwen3moe", b"qwen9moe", 1)),
             "folder.gguf": (NOINPUT, None)}
    (folder / "folder.gguf").mkdir()
    for name, (status, content) in files.items():
        path = folder / name
        if content is not None:
            path.write_bytes(content)
        words = [name] + (["qwen9moe"] if name.startswith("other") else [])
        refused(f"up with {name}", status, words, *up(model=path))
        refused(f"up with {name} as draft", status, words, *up("--draft", path))
        refused(f"verifier alone with {name}", status, words, *daemon("verifier", "--model", path))
        # An expert-cache reads the layout of experts alone; what else is wrong with a model is for the verifier to say.
        refused(f"expert-cache alone with {name}", status, words, *daemon("expert-cache", "--model", path))
        refused(f"drafter alone with {name}", status, words, *daemon("drafter", "--draft", path))
        refused(f"drafter -n with {name}", status, words, *daemon("drafter", "--draft", path, "-n"))
        refused(f"verifier -n with {name}", status, words, *daemon("verifier", "--model", path, "-n"))
        refused(f"outrider-model with {name}", status, words, program("outrider-model"), "logits", "--model", path,
                "--tokens", "1")


def configuration():
    wanted = {"verifier": ("threads", "9999", "0 to 256"), "drafter": ("chunk", "1", "16 to 2048"),
              "expert-cache": ("queue_depth", "many", "auto, or 1 to 1024"), "policy": ("k_max", "64", "1 to 63")}
    for name, (key, value, allowed) in wanted.items():
        model = ("--model", TARGET) if name in ("verifier", "expert-cache") else ()
        # The whole file with one line wrong, so that its number means something.
        lines = (ROOT / "config" / f"{name}.conf").read_text().splitlines()
        (folder / "good.conf").write_text("\n".join(lines) + "\n")
        result = run(*daemon(name, *model, "--config", folder / "good.conf", "-n"))
        tap.ok(result.returncode == 0, f"{name} -n: the configuration that is shipped is right", result.stderr)
        for what, line, words in (("an unknown key", "nonsense = 1", ("nonsense", "unknown")),
                                  ("a value out of range", f"{key} = {value}", (key, value, allowed)),
                                  ("a line without a key", "just words", ("not a",))):
            (folder / "bad.conf").write_text("\n".join([*lines, line]) + "\n")
            where = f"bad.conf:{len(lines) + 1}"
            for n in ((), ("-n",)):
                refused(f"{name} {''.join(n)}: {what} is named with its line", CONFIG, (where, *words),
                        *daemon(name, *model, "--config", folder / "bad.conf", *n))
        (folder / "bad.conf.d").mkdir(exist_ok=True)
        (folder / "bad.conf").write_text("")
        (folder / "bad.conf.d" / "90-mine.conf").write_text("\n\nnonsense = 1\n")
        refused(f"{name}: so it is in a drop-in", CONFIG, ("90-mine.conf:3", "nonsense"),
                *daemon(name, *model, "--config", folder / "bad.conf", "-n"))
        (folder / "bad.conf.d" / "90-mine.conf").unlink()
        refused(f"{name}: an unknown --set key", CONFIG, ("nonsense",), *daemon(name, *model, "--set", "nonsense=1"))
        refused(f"{name}: a value out of range in --set", CONFIG, (key, value, allowed),
                *daemon(name, *model, "--set", f"{key}={value}"))
        refused(f"{name}: a configuration file that is not there", NOINPUT, ("gone.conf",),
                *daemon(name, *model, "--config", folder / "gone.conf"))
        refused(f"{name}: an unknown option", USAGE, ("--frobnicate",), *daemon(name, *model, "--frobnicate"))
        refused(f"{name}: a word too many", USAGE, ("surplus",), *daemon(name, *model, "surplus"))
    refused("verifier without a model", (CONFIG, USAGE, DATA), ("model",), *daemon("verifier"))
    for options, status, words in (
            (("--set", "drafter.nonsense=1"), CONFIG, ("nonsense",)), (("--set", "nobody.key=1"), USAGE, ("nobody",)),
            (("--set", "verifier.kv_type=f64"), CONFIG, ("kv_type", "f64", "f16")),
            (("--budget", "1"), CONFIG, ("budget", "min")), (("--budget", "lots"), CONFIG, ("lots",)),
            (("--policy", "magic"), CONFIG, ("magic", "cascade")), (("--threads", "x"), CONFIG, ("threads", "x")),
            (("--draft-method", "magic"), CONFIG, ("magic", "ngram")),
            (("--context", "2000"), (CONFIG, DATA), ("2000", "1024")),
            (("--set", "verifier.queue_max=500"), (CONFIG, DATA), ("sessions_max", "512")),
            (("surplus",), USAGE, ("surplus",)), (("--watchdog", "never"), USAGE, ("watchdog", "never"))):
        refused(f"up {' '.join(options)}", status, words, *up(*options))
    refused("up without a model", USAGE, ("--model",), program("outrider"), "up", "--runtime-dir", folder / "up")


def places():
    long = folder / ("x" * 120)
    (folder / "file").write_text("")
    others = (("outrider", ("up", "--model", TARGET)), ("outrider-verifier", ("--model", TARGET)), ("outrider-policy", ()),
              ("outrider-expert-cache", ("--model", TARGET)), ("outrider-drafter", ()))
    for name, options in others:
        refused(f"{name}: a runtime directory with too long a path", DATA, ("x" * 60, "bytes"), program(name), *options,
                "--runtime-dir", long)
        refused(f"{name}: a runtime directory that cannot be made", (NOPERM, NOINPUT, CANTCREATE), ("/proc/outrider",),
                program(name), *options, "--runtime-dir", "/proc/outrider/run")
        refused(f"{name}: a runtime directory that is a file", NOINPUT, (folder / "file",), program(name), *options,
                "--runtime-dir", folder / "file")
        open_to_all = folder / "open"
        open_to_all.mkdir(exist_ok=True)
        open_to_all.chmod(0o777)
        refused(f"{name}: a runtime directory that anybody may write to", NOPERM, (open_to_all,), program(name), *options,
                "--runtime-dir", open_to_all)
    refused("a client where no service is", UNAVAILABLE, ("nowhere",), program("outrider"), "run", "--runtime-dir",
            folder / "nowhere", "hello")


def limit_memory(bytes_max):
    def before():
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return before


def no_memory():
    """With less and less address space: it starts, or says what there was no memory for; it never dies of it."""
    if SANITIZED:
        return tap.skip("no memory", "a sanitizer needs more address space than there is to give")
    commands = {"verifier": ("--model", TARGET), "expert-cache": ("--model", TARGET), "policy": (),
                "drafter": ("--draft", DRAFTS["aligned"])}
    for name, options in commands.items():
        said, wrong = 0, []
        for megabytes in (24, 32, 40, 52, 64, 80, 100, 130, 180):
            # A slow machine may not have come to the handler of SIGTERM yet.
            for seconds in (0.5, 3, 20):
                process = subprocess.Popen([str(c) for c in daemon(name, *options, runtime=f"m{megabytes}")],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                           preexec_fn=limit_memory(megabytes << 20))
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    process.terminate()
                _, text = finish(process, 60)
                if process.returncode != -signal.SIGTERM:
                    break
            said += process.returncode in (OSERR, TEMPFAIL)
            if process.returncode not in (0, OSERR, TEMPFAIL, 127) or (process.returncode and not text.strip()):
                wrong.append(f"{megabytes} MB: status {process.returncode}: {text[-500:]}")
        tap.ok(not wrong and said, f"{name} without memory says so and ends", "\n".join(wrong) or "it always had enough")
    results = [subprocess.run([program("outrider-model"), "logits", "--model", str(TARGET), "--tokens", "1"], text=True,
                              capture_output=True, preexec_fn=limit_memory(m << 20), timeout=300 * PATIENCE) for m in range(8, 60, 3)]
    tap.ok(all(r.returncode in (0, 127) or r.returncode in (OSERR, TEMPFAIL) and r.stderr.startswith("outrider-model: ")
               for r in results) and OSERR in [r.returncode for r in results], "outrider-model too", results)


def clients_without_memory(service):
    """The SDK and the commands: never a signal, and the service does not notice."""
    if SANITIZED:
        return
    commands = {"run": ("outrider", "run", "--max-tokens", "3", "hello"), "status": ("outrider", "status"),
                "outriderctl": ("outriderctl", "sessions")}
    for name, (tool, *arguments) in commands.items():
        where = ("--runtime-dir", str(service.runtime))
        command = (arguments[0], *where, *arguments[1:]) if tool == "outrider" else (*where, *arguments)
        results = [subprocess.run([program(tool), *command], text=True, capture_output=True, timeout=300 * PATIENCE,
                                  preexec_fn=limit_memory(m << 20)) for m in range(16, 60, 4)]
        tap.ok(all(r.returncode in (0, OSERR, TEMPFAIL, 127) and (r.returncode == 0 or r.stderr) for r in results)
               and OSERR in [r.returncode for r in results], f"{name} without memory says so and ends",
               [(r.returncode, r.stderr) for r in results])
    service.unharmed("clients without memory")


class Watched(Service):
    """A service that must go on: the same processes, ready, with the right bytes."""

    def __enter__(self):
        super().__enter__()
        self.pids = self.processes()
        return self

    def unharmed(self, after):
        result = self.swarm([{"tokens": p, "max_tokens": 30, "ignore_eos": True, "k": 3, "draft_method": "ngram"}
                             for p in ids], concurrent=4)
        why = "\n".join(filter(None, map(difference, result, expected)))
        self.wait_ready()
        now = self.processes()
        return tap.ok(not why and now == self.pids, f"after {after}: the same processes, the right bytes",
                      f"{why} {self.pids} {now}\n{self.log_text()[-1500:]}")


def in_use(service):
    refused("a second `up` in the same runtime directory", UNAVAILABLE, (service.runtime, service.process.pid),
            program("outrider"), "up", "--model", TARGET, "--runtime-dir", service.runtime)
    for name in PROCESSES:
        options = ("--model", TARGET) if name in ("verifier", "expert-cache") else ()
        refused(f"a second {name} in the same runtime directory", UNAVAILABLE, (service.runtime, service.pids[name]),
                program(f"outrider-{name}"), *options, "--runtime-dir", service.runtime)
    service.unharmed("sockets were asked for twice")


def requests_of_a_person(service):
    def asked(status, words, *arguments, **more):
        short = " ".join(str(a)[:24] for a in arguments)
        refused(f"run {short}", status, words, program("outrider"), "run", "--runtime-dir", service.runtime,
                "--max-tokens", 4, *arguments, **more)
    asked(DATA, ("1200", "1024"), "--tokens", ",".join(["5"] * 1200))
    asked(DATA, ("1024", "context"), "--tokens", ",".join(["5"] * 1024))
    asked(DATA, ("4096", "0..4095"), "--tokens", "1,4096")
    asked(DATA, ("-1",), "--tokens", "1,-1")
    asked(DATA, ("two",), "--tokens", "1,two")
    asked(DATA, ("99999999999",), "--tokens", "99999999999")
    asked(DATA, ("empty",), "--tokens", "")
    asked(DATA, ("empty",), "")
    asked(DATA, ("empty",), stdin="")
    asked(DATA, ("NUL",), stdin="a\0b")
    asked(NOINPUT, ("gone.txt",), "--file", folder / "gone.txt")
    (folder / "messages").write_text('[{"role": "nobody", "content": "x"}]')
    asked(DATA, ("nobody",), "--messages", folder / "messages")
    (folder / "messages").write_text('[{"role": ')
    asked(DATA, ("messages", "line 1"), "--messages", folder / "messages")
    for option, value, words in (("--temperature", "1e9", ("1e-30 to 100",)), ("--temperature", "nan", ("1e-30 to 100",)),
                                 ("--temperature", "-1", ("1e-30 to 100",)), ("--top-p", "0", ("top-p", "more than 0, up to 1")),
                                 ("--top-p", "1.5", ("top-p", "more than 0, up to 1")), ("--min-p", "-0.1", ("0 to 1",)),
                                 ("--top-k", "-1", ("top-k",)),
                                 ("--repeat-penalty", "0", ("repeat",)), ("--k", "64", ("63",)), ("--seed", "-1", ("seed",)),
                                 ("--draft-method", "magic", ("magic",)), ("--coupling", "magic", ("magic",)),
                                 ("--stop", "", ("stop",)), ("--stop", "x" * 4096, ("4095",)),
                                 ("--logit-bias", "5", ("logit-bias",)),
                                 ("--max-tokens", "-1", ("max-tokens",)), ("--timeout", "0", ("timeout",)),
                                 ("--frobnicate", "x", ("frobnicate",)), ("--format", "xml", ("xml",))):
        asked(USAGE, words, option, value, "hello")
    asked(DATA, ("5000", "4095"), "--logit-bias", "5000=1", "hello")
    mixed = [{"tokens": ids[0], "max_tokens": 30, "ignore_eos": True}, {"tokens": [5] * 2000, "max_tokens": 3},
             {"tokens": ids[1], "max_tokens": 30, "ignore_eos": True}, {"tokens": [70000], "max_tokens": 3},
             {"tokens": ids[2], "max_tokens": 30, "ignore_eos": True, "draft_method": "replay"},
             {"tokens": ids[3], "max_tokens": 30, "ignore_eos": True, "draft_method": "replay", "replay": [9999] * 9}]
    results = service.swarm(mixed, concurrent=6)
    tap.ok([r.get("code") for r in results] == [None, errno.E2BIG, None, errno.EINVAL, None, errno.EINVAL]
           and not any(difference(results[i], expected[n]) for n, i in enumerate((0, 2, 4))),
           "bad requests among good ones: only they are refused", results)
    service.unharmed("a person's mistakes")


def knobs(service):
    def set_knob(status, words, *arguments):
        refused(f"policy set {' '.join(arguments)}", status, words, program("outriderctl"), "--runtime-dir",
                service.runtime, "policy", "set", *arguments)
    def get_knobs():
        state = json.loads(service.ctl("--format", "json", "policy",
                               "get").stdout)
        return state["policy"], state["knobs"]
    before = get_knobs()
    for argument, words in (("bogus=1", ("bogus",)), ("k_max=99", ("k_max", "99", "1 to 63")), ("k_max=", ("k_max",)),
                            ("threshold=nan", ("threshold", "0.5 to 2")), ("static:64", ("static:64", "63")),
                            ("static:", ("static",)), ("static:3x", ("static:3x",)), ("magic", ("magic", "cascade")),
                            ("trial=1e99", ("trial",)), ("k_max=3 4", ("k_max",)), ("=", ()), ("x" * 3000 + "=1", ())):
        set_knob(DATA, words, argument)
    set_knob(DATA, ("trial",), "k_max=5", "trial=0")
    after = get_knobs()
    tap.ok(before == after, "no knob has moved: one bad value and none is set", f"{before}\n{after}")
    service.unharmed("bad knobs")


def many_connections():
    """More than the usual limit of open files allows; the limit is put low, the connections are few to us."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= before[1] < 4096:
        return tap.skip("more connections than the soft limit of open files", f"the hard limit is {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    service = Watched()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    with service:
        rude = []
        for path in sockets(service, ".ctl", "client"):
            for _ in range(400):
                with contextlib.suppress(OSError):
                    rude.append(rubbish.connect(path))
        tap.ok(len(rude) > 1500, "many hundreds of connections", len(rude))
        service.unharmed("more connections than the soft limit of open files")
        for s in rude:
            s.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def sockets(service, *suffixes):
    return [p for p in sorted(service.runtime.iterdir()) if p.is_socket() and p.name.endswith(suffixes)]


def raw_bytes(service):
    """Not even ZeroMQ; half a greeting; half a message; frames of impossible size. Then many who connect and say nothing."""
    huge = struct.pack(">Q", 1 << 62)
    hellos = [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64, rubbish.GREETING[:11], rubbish.GREETING,
              rubbish.GREETING + b"\x04\xff", rubbish.GREETING + rubbish.ready(b"NONSENSE"),
              rubbish.GREETING + rubbish.frame(b"\x05READY\x0bSocket-Type\xff\xff\xff\xff", 4),
              rubbish.GREETING + rubbish.ready() + b"\x02" + huge, rubbish.GREETING + rubbish.ready() + b"\x00\xc8half",
              rubbish.GREETING + rubbish.ready() + b"\xf8\x01x",
              rubbish.GREETING + rubbish.ready() + b"\x02" + struct.pack(">Q", 5 << 20) + bytes(5 << 20)]
    hellos += [random.randbytes(random.randrange(1, 3000)) for _ in range(40)]
    hellos += [rubbish.GREETING + rubbish.ready() + random.randbytes(random.randrange(1, 600)) for _ in range(40)]
    paths = sockets(service, ".ctl", "client")
    tap.ok(len(paths) == 5, "four admin sockets and the clients'", paths)
    for path in paths:
        for data in hellos:
            with contextlib.suppress(OSError):
                s = rubbish.connect(path)
                s.sendall(data)
                s.close()
    service.unharmed("bytes that are no ZeroMQ, half messages, frames of impossible size")
    idle = [rubbish.connect(path) for path in paths for _ in range(60)]
    service.unharmed("300 connections that say nothing")
    for s in idle:
        s.close()


def envelopes(service):
    """ZeroMQ, but no Envelope: each is answered with a reason, or dropped."""
    bad = {"nothing": b"", "no protobuf": b"\xff" * 40, "half an envelope": rubbish.envelope(10, b"x" * 50)[:-20],
           "another version": rubbish.envelope(40, b"", version=99), "no body": rubbish.message((1, 1), (2, 1)),
           "an answer": rubbish.envelope(21, b""), "a kind from the future": rubbish.envelope(500, b"hello"),
           "3 MiB of zeros": bytes(3 << 20), "deep nesting": b"\x52\x7f" * 2000}
    for path in sockets(service, ".ctl", "client"):
        silent = []
        for name, data in bad.items():
            peer = rubbish.Peer(path)
            answer = peer.ask(data)
            if 30 not in answer or not rubbish.parse(answer[30]).get(2):
                silent.append(f"{name}: {answer}")
            peer.close()
        tap.ok(not silent, f"{path.name}: what is no Envelope is refused with a reason", "\n".join(silent))
        peer = rubbish.Peer(path)
        for _ in range(300):
            peer.send(*[random.randbytes(random.randrange(40)) for _ in range(random.randrange(1, 12))])
        for data in (rubbish.envelope(n, random.randbytes(random.randrange(80))) for n in range(10, 53) for _ in range(6)):
            peer.send(data)
        peer.close()
        peer = rubbish.Peer(path)
        answer = peer.ask(bytes(MESSAGE_MAX + 1))
        peer.close()
        tap.ok(30 in answer and b"byte" in rubbish.parse(answer[30]).get(2, b""),
               f"{path.name}: a message beyond the limit is refused with a reason", str(answer))
        with contextlib.suppress(OSError):
            peer = rubbish.Peer(path)
            peer.send(bytes(MESSAGE_CUT + 1))
            peer.receive()
            tap.ok(False, f"{path.name}: a message beyond all reason is taken")
        peer.close()
    service.unharmed("envelopes of every wrong kind")


def generates(service):
    """Well-formed requests for absurd things, past the SDK that would refuse them."""
    path, uid = service.runtime / "client", 1000
    good = {"tokens": (3, [5, 6, 7]), "max": (6, 4), "credit": (10, 100), "ignore": (7, 1)}
    sampling = rubbish.message
    nan, inf = float("nan"), float("inf")
    bad = {
        "no input": {"tokens": None}, "no tokens": {"tokens": (3, b"")}, "a negative token": {"tokens": (3, [5, -1])},
        "a token too high": {"tokens": (3, [4096])}, "an empty prompt": {"tokens": (2, "")},
        "a conversation of nobody": {"tokens": (4, b"")}, "K of 99": {"k": (11, 100)}, "K below -1": {"k": (11, -7)},
        "an unknown draft method": {"method": (12, 99)}, "a replay beyond the vocabulary": {"replay": (13, [70000])},
        "a replay error of NaN": {"replay": (13, [5]), "error": (14, nan)}, "a replay error of 3": {"error": (14, 3.0)},
        "an unknown coupling": {"s": (5, sampling((9, 77)))}, "a temperature of NaN": {"s": (5, sampling((1, nan)))},
        "an infinite temperature": {"s": (5, sampling((1, inf)))}, "a negative temperature": {"s": (5, sampling((1, -1.0)))},
        "a top-p of 7": {"s": (5, sampling((3, 7.0)))}, "a min-p of NaN": {"s": (5, sampling((4, nan)))},
        "a penalty of -2": {"s": (5, sampling((5, -2.0)))},
        "a bias of NaN": {"s": (5, sampling((8, sampling((1, 5), (2, nan)))))},
        "a bias beyond the vocabulary": {"s": (5, sampling((8, sampling((1, 1 << 30), (2, 1.0)))))},
        "1000 biases": {"s": (5, sampling(*[(8, sampling((1, i), (2, 1.0))) for i in range(1000)]))},
        "a stop string of 5000 bytes": {"stop": (8, "x" * 5000)}, "an empty stop string": {"stop": (8, "")},
        "300 stop strings": {f"stop{i}": (8, f"x{i}") for i in range(300)},
        "stop strings of 20 KB": {f"stop{i}": (8, f"{i}" * 4000) for i in range(5)},
        "more tokens held than the context": {"have": (16, 1 << 31)}, "session 0": {"uid": (1, 0)},
        "a million tokens": {"tokens": (3, [5] * 1000000)},
    }
    silent, peer = [], rubbish.Peer(path)
    for name, change in bad.items():
        uid += 1
        fields = [f for f in {"uid": (1, uid), **good, **change}.values() if f]
        answer = peer.ask(rubbish.envelope(10, rubbish.message(*fields)))
        if 30 not in answer or not rubbish.parse(answer[30]).get(2):
            silent.append(f"{name}: {answer}")
    tap.ok(not silent, f"{len(bad)} absurd requests are refused with a reason", "\n".join(silent))
    odd = {"a bias of infinity": {"s": (5, sampling((8, sampling((1, 5), (2, inf)))))}, "a top-k of 2^32-1":
           {"s": (5, sampling((1, 1.0), (2, (1 << 32) - 1)))},
           "a prompt that is not UTF-8": {"tokens": (2, b"\xff\xfe\x80")},
           "the largest seed, credit and deadline": {"s": (5, sampling((1, 1.0), (7, (1 << 64) - 1))), "credit":
                                                     (10, (1 << 32) - 1), "deadline": (9, (1 << 64) - 1)}}
    lost = []
    for name, change in odd.items():
        uid += 1
        fields = [f for f in {"uid": (1, uid), **good, **change}.values() if f]
        answer = peer.ask(rubbish.envelope(10, rubbish.message(*fields)))
        while not {22, 30} & set(answer):
            answer = rubbish.parse(peer.receive())
        lost += [f"{name}: {answer}"] if 30 in answer and not rubbish.parse(answer[30]).get(2) else []
    tap.ok(not lost, "odd ones are answered, or refused with a reason", "\n".join(lost))
    for body in (11, 12, 13):
        answer = {}
        peer.send(rubbish.envelope(body, rubbish.message((1, 987654321), (2, (1 << 32) - 1), (3, (1 << 32) - 1))))
        if body != 12:  # credit for a session that has just ended is no error
            answer = rubbish.parse(peer.receive())
        tap.ok(body == 12 or rubbish.parse(answer.get(30, b"")).get(1) == 2,
               f"{ {11: 'resume', 12: 'credit', 13: 'cancel'}[body] } of a session nobody has", answer)
    peer.close()
    service.unharmed("absurd requests")


def never_reads(service):
    """Tens of thousands of questions whose answers are not read; a stream that is not read, and no credit kept back."""
    rude = []
    for path in sockets(service, ".ctl", "client"):
        peer = rubbish.Peer(path)
        peer.socket.setblocking(False)
        # A status of an admin socket; of the clients' socket, a session it does not have.
        question = rubbish.frame(rubbish.envelope(40, b"") if path.suffix else
                                 rubbish.envelope(11, rubbish.message((1, 5))))
        with contextlib.suppress(BlockingIOError):
            for _ in range(30000):
                peer.socket.send(question)
        rude.append(peer)
    for n in range(4):
        peer = rubbish.Peer(service.runtime / "client")
        peer.send(rubbish.envelope(10, rubbish.message((1, 5000 + n), (3, ids[n]), (7, 1), (10, (1 << 32) - 1))))
        rude.append(peer)
    service.unharmed("four streams and 150000 answers that nobody reads")
    for peer in rude:
        peer.close()


def hellos(service):
    """The sockets that regions are handed over by."""
    good = rubbish.hello()
    packets = [b"x", good[:-1], good + b"x", bytes(88), rubbish.hello(magic=1), rubbish.hello(version=99),
               rubbish.hello(kind=77), rubbish.hello(name=b"intruder"), rubbish.hello(name=b"x" * 32),
               rubbish.hello(name=b"", region=b"y" * 32), rubbish.hello(kind=2, name=b"verifier", region=b"nothing"),
               rubbish.hello(kind=2, name=b"intruder", region=b"kv"), rubbish.hello(name=b"\xff\n\x1b[2J"), bytes(100000)]
    packets += [random.randbytes(random.randrange(1, 200)) for _ in range(30)]
    packets += [good[:at] + random.randbytes(4) + good[at + 4:] for at in range(0, 84, 4)]
    for path in sockets(service, ".sock"):
        answers = 0
        for packet in packets:
            with contextlib.suppress(OSError):
                s = rubbish.connect(path, socket.SOCK_SEQPACKET, timeout=2)
                if random.random() < 0.3:
                    socket.send_fds(s, [packet], [0, 1, 2][:random.randrange(1, 4)])
                else:
                    s.send(packet)
                answers += len(s.recv(4096)) > 0
                s.close()
        tap.ok(answers, f"{path.name}: wrong hellos get an answer", answers)
    tap.ok("\x1b" not in service.whole_log(),
           "a name made of control characters does not reach the log as such")
    service.unharmed("wrong hellos")
    # Places of a broker are few: who says nothing must not keep those out who belong there.
    idle = []
    for path in sockets(service, ".sock"):
        for _ in range(20):
            with contextlib.suppress(OSError):
                idle.append(rubbish.connect(path, socket.SOCK_SEQPACKET))
    for name in ("drafter", "policy"):
        service.renewed(name, service.end(name))
    service.pids = service.processes()

    def drafted():
        result = service.swarm([{"tokens": ids[0], "max_tokens": 30, "ignore_eos": True, "k": 3, "draft_method": "replay",
                                 "replay": expected[0]["tokens"]}])[0]
        return result["usage"]["accepted"] > 0
    tap.ok(until(drafted), "connections that say nothing do not keep a drafter out", service.log_text()[-1500:])
    for s in idle:
        s.close()
    service.unharmed("connections that say nothing")


def other_tokenizer():
    draft = GOLDEN / "qwen3.f32.gguf"
    refused("a draft with another tokenizer", 65, (draft.name, TARGET.name, "tokenizer"), *up("--draft", draft))
    service = Service(sets=(f"drafter.draft={draft}",))
    with contextlib.closing(SimpleNamespace(close=service.stop)):
        tap.ok(until(lambda: any("tokenizer" in p["state"] for p in service.status())) and draft.name in service.log_text()
               and TARGET.name in service.log_text(), "a draft with another tokenizer: the drafter says which files",
               f"{service.status()} {service.log_text()}")
        results = service.swarm([{"tokens": p, "max_tokens": 30, "ignore_eos": True, "k": 3, "draft_method": m}
                                 for m in ("model", "ngram") for p in ids], concurrent=8)
        tap.ok(not any(map(difference, results, expected * 2)), "and the rest serves the right bytes without it", results)


try:
    model_files()
    configuration()
    places()
    no_memory()
    with Watched() as service:
        for test in (in_use, clients_without_memory, requests_of_a_person, knobs, raw_bytes, envelopes, generates,
                     never_reads, hellos):
            test(service)
    many_connections()
    other_tokenizer()
finally:
    shutil.rmtree(folder, ignore_errors=True)
tap.done()
