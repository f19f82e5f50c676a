#!/usr/bin/env python3
"""Starts and stops outrider-policy alone: readiness, refusals, exit statuses, configuration."""
import os, signal, socket, subprocess, sys, tempfile, time

B = os.environ.get("B", "build")
DAEMON = os.path.join(B, "outrider-policy")
tests = []


def test(fn):
    tests.append(fn)
    return fn


def run(*args, timeout=60):
    p = subprocess.run([DAEMON, *args], capture_output=True, text=True, timeout=timeout)
    return p.returncode, p.stdout, p.stderr


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
def it_becomes_ready_alone_and_stops_on_sigterm():
    d = Daemon()
    d.wait_ready()
    status, err = d.stop()
    assert status == 0, (status, err)


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
def wrong_settings_are_refused_with_their_range():
    for setting, words in (("policy=fastest", "yield, or static:K with K 0 to 15"), ("policy=static:16", "0 to 15"),
                           ("k_max=0", "1 to 15"), ("k_start=9", "1 to k_max (7)"),
                           ("set_max=8", "set (16) to 65536"), ("converge=2", "0 to 1"),
                           ("threshold=0.1", "0.5 to 2"), ("colour=red", "colour")):
        status, _, err = run("-n", "--set", setting)
        assert status == 78 and words in err, (setting, status, err)
    assert run("-n", "--set", "policy=static:3")[0] == 0
    assert run("--frobnicate")[0] == 64
    assert run("extra")[0] == 64


@test
def the_shipped_configuration_is_what_the_daemon_prints():
    status, out, _ = run("--print-config")
    assert status == 0
    with open("config/policy.conf") as f:
        assert f.read() == out
    assert run("-n", "--config", "config/policy.conf")[0] == 0


@test
def an_unknown_key_in_a_file_is_named_with_its_line():
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("# comment\nk_max = 5\nk_min = 5\n")
        f.flush()
        status, _, err = run("-n", "--config", f.name)
        assert status == 78 and f"{f.name}:3" in err and "k_min" in err, (status, err)
    assert run("-n", "--config", "/no/such.conf")[0] == 66


@test
def an_idle_one_takes_no_cpu_time():
    d = Daemon()
    d.wait_ready()
    def ticks():
        fields = open(f"/proc/{d.p.pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    # What starting takes may go on for a while on a machine that is busy.
    for _ in range(5):
        before = ticks()
        time.sleep(3)
        used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
        if used <= 0.03:
            break
    assert used <= 0.03, f"{used} s of CPU time in 3 s"
    assert d.stop()[0] == 0


@test
def help_and_version_go_to_stdout():
    status, out, _ = run("--help")
    assert status == 0 and "--config FILE" in out
    status, out, _ = run("--version")
    assert status == 0 and out.startswith("outrider-policy ")


print(f"1..{len(tests)}")
failed = 0
for number, fn in enumerate(tests, 1):
    try:
        fn()
        print(f"ok {number} - {fn.__name__}", flush=True)
    except Exception as e:
        failed = 1
        print(f"not ok {number} - {fn.__name__}\n# {e!r}", flush=True)
sys.exit(failed)
