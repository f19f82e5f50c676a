#!/usr/bin/env python3
"""Starts and stops outrider-drafter alone: readiness, refusals, exit statuses, configuration."""
import os, signal, socket, subprocess, sys, tempfile

B = os.environ.get("B", "build")
DAEMON = os.path.join(B, "outrider-drafter")
MODEL = "models/outrider-demo-draft-small-q8_0.gguf"
tests = []


def test(fn):
    tests.append(fn)
    return fn


class Skip(Exception):
    pass


def run(*args, timeout=60):
    p = subprocess.run([DAEMON, *args], capture_output=True, text=True, timeout=timeout)
    return p.returncode, p.stdout, p.stderr


def need_model():
    if not os.path.exists(MODEL):
        raise Skip(f"{MODEL} is not here")


class Daemon:
    """The daemon with a notify socket, as the service manager has one."""

    def __init__(self, *args):
        self.dir = tempfile.TemporaryDirectory(prefix="od-")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = os.path.join(self.dir.name, "notify")
        self.notify.bind(path)
        self.notify.settimeout(60)
        self.env = dict(os.environ, NOTIFY_SOCKET=path)
        self.rt = os.path.join(self.dir.name, "rt")
        self.start(*args)

    def start(self, *args):
        self.p = subprocess.Popen([DAEMON, "--runtime-dir", self.rt, *args], env=self.env,
                                  stderr=subprocess.PIPE, text=True)

    def wait_ready(self):
        while True:
            if "READY=1" in self.notify.recv(65536).decode().split("\n"):
                return

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        err = self.p.communicate(timeout=60)[1]
        self.notify.close()
        self.dir.cleanup()
        return self.p.returncode, err


@test
def it_becomes_ready_without_a_verifier_and_stops_on_sigterm():
    d = Daemon()
    d.wait_ready()
    status, err = d.stop()
    assert status == 0, (status, err)


@test
def it_becomes_ready_with_a_draft_model():
    need_model()
    d = Daemon("--draft", MODEL)
    d.wait_ready()
    status, err = d.stop()
    assert status == 0 and MODEL in err, (status, err)


@test
def a_second_one_in_the_same_directory_is_refused():
    d = Daemon()
    d.wait_ready()
    status, _, err = run("--runtime-dir", d.rt)
    assert status == 69 and str(d.p.pid) in err, (status, err)
    assert d.stop()[0] == 0


@test
def a_killed_one_can_be_started_again():
    d = Daemon()
    d.wait_ready()
    d.p.kill()
    d.p.wait()
    d.p.stderr.close()
    d.start()
    d.wait_ready()
    status, err = d.stop()
    assert status == 0, err


@test
def a_draft_file_that_is_missing_or_rubbish_is_named():
    status, _, err = run("--draft", "/no/such/file.gguf")
    assert status == 66 and "/no/such/file.gguf" in err, (status, err)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        f.write(b"GGUF" + b"\xff" * 100)
        f.flush()
        status, _, err = run("--draft", f.name)
        assert status == 65 and f.name in err, (status, err)


@test
def wrong_settings_are_refused_with_their_range():
    for setting, words in (("ngram_min=0", "1 to 32"), ("ngram_min=9", "1 to ngram_max"),
                           ("chunk=4096", "16 to 2048"), ("run_ahead=maybe", "auto, on, off"),
                           ("spin=fast", "time or auto"), ("method=model", "draft = FILE"),
                           ("colour=red", "colour"), ("method=oracle", "ngram")):
        status, _, err = run("-n", "--set", setting)
        assert status == 78 and words in err, (setting, status, err)
    assert run("-n", "--set", "ngram_max=12")[0] == 0
    assert run("--frobnicate")[0] == 64
    assert run("extra")[0] == 64


@test
def the_shipped_configuration_is_what_the_daemon_prints():
    status, out, _ = run("--print-config")
    assert status == 0
    with open("config/drafter.conf") as f:
        assert f.read() == out
    assert run("-n", "--config", "config/drafter.conf")[0] == 0


@test
def an_unknown_key_in_a_file_is_named_with_its_line():
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("# comment\nchunk = 64\nchonk = 64\n")
        f.flush()
        status, _, err = run("-n", "--config", f.name)
        assert status == 78 and f"{f.name}:3" in err and "chonk" in err, (status, err)
    assert run("-n", "--config", "/no/such.conf")[0] == 66


@test
def help_and_version_go_to_stdout():
    status, out, _ = run("--help")
    assert status == 0 and "--draft FILE" in out
    status, out, _ = run("--version")
    assert status == 0 and out.startswith("outrider-drafter ")


print(f"1..{len(tests)}")
failed = 0
for number, fn in enumerate(tests, 1):
    try:
        fn()
        print(f"ok {number} - {fn.__name__}", flush=True)
    except Skip as reason:
        print(f"ok {number} - {fn.__name__} # SKIP {reason}", flush=True)
    except Exception as e:
        failed = 1
        print(f"not ok {number} - {fn.__name__}\n# {e!r}", flush=True)
sys.exit(failed)
