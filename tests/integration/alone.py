"""One process of the service by itself: how it is started, and what each of them must do alike."""
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from outrider_test import ROOT, finish, program, until


class Daemon:
    """It with a notify socket, as the service manager has one, and a runtime directory of its own."""

    def __init__(self, name, *arguments):
        self.name = name
        self.directory = tempfile.TemporaryDirectory(prefix="outrider-alone-")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = Path(self.directory.name) / "notify"
        self.notify.bind(str(path))
        self.notify.settimeout(1)
        self.environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
        self.runtime = str(Path(self.directory.name) / "run")
        self.start(*arguments)

    def start(self, *arguments):
        self.process = subprocess.Popen([program(self.name), "--runtime-dir", self.runtime, *map(str, arguments)],
                                        env=self.environment, stderr=subprocess.PIPE, text=True)
        if not until(self.is_ready):
            self.kill()
            raise TimeoutError(f"{self.name} does not become ready")

    def is_ready(self):
        try:
            return "READY=1" in self.notify.recv(65536).decode().split("\n")
        except TimeoutError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def stop(self):
        """Its exit status and what it logged."""
        self.process.send_signal(signal.SIGTERM)
        log = finish(self.process, 60)[1]
        self.notify.close()
        self.directory.cleanup()
        return self.process.returncode, log


def common(tap, name, run, settings, allowed, unknown, option):
    """What each must do. run(*arguments) runs it to its end; settings: what is refused, each with a word of why; allowed: one
    that is not; unknown: a file with a key in line 3 that nobody knows, and the key; option: a line of --help."""
    @tap.test
    def it_becomes_ready_alone_and_stops_on_sigterm():
        status, log = Daemon(name).stop()
        assert status == 0, (status, log)

    @tap.test
    def a_second_one_in_the_same_directory_is_refused():
        first = Daemon(name)
        second = run("--runtime-dir", first.runtime)
        assert second.returncode == 69 and str(first.process.pid) in second.stderr, second
        assert first.stop()[0] == 0

    @tap.test
    def a_killed_one_can_be_started_again():
        daemon = Daemon(name)
        daemon.kill()
        daemon.start()
        status, log = daemon.stop()
        assert status == 0, log

    @tap.test
    def wrong_settings_are_refused_with_their_range():
        for setting, word in (*settings, ("colour=red", "colour")):
            refused = run("-n", "--set", setting)
            assert refused.returncode == 78 and word in refused.stderr, (setting, refused)
        assert run("-n", "--set", allowed).returncode == 0
        assert run("--frobnicate").returncode == 64
        assert run("extra").returncode == 64

    @tap.test
    def the_shipped_configuration_is_what_the_daemon_prints():
        path = ROOT / "config" / f"{name.removeprefix('outrider-')}.conf"
        printed = run("--print-config")
        assert printed.returncode == 0 and path.read_text() == printed.stdout
        assert run("-n", "--config", path).returncode == 0

    @tap.test
    def an_unknown_key_in_a_file_is_named_with_its_line():
        text, key = unknown
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write(text)
            f.flush()
            refused = run("-n", "--config", f.name)
            assert refused.returncode == 78 and f"{f.name}:3" in refused.stderr and key in refused.stderr, refused
        assert run("-n", "--config", "/no/such.conf").returncode == 66

    @tap.test
    def help_and_version_go_to_stdout():
        helped = run("--help")
        assert helped.returncode == 0 and option in helped.stdout
        version = run("--version")
        assert version.returncode == 0 and version.stdout.startswith(f"{name} ")
