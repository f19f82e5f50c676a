"""Headless Chromium, spoken to through two pipes (the DevTools protocol: JSON, each message ended by a NUL)."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from outrider_test import PATIENCE


def found():
    return shutil.which("chromium")


class Browser:
    """One page. errors: what the page's console and the browser complain of."""

    def __init__(self, width=1280, height=1000):
        self.folder = tempfile.mkdtemp(prefix="outrider-browser-")
        to, self.write_fd = os.pipe()
        self.read_fd, back = os.pipe()

        def pipes():
            os.dup2(to, 200)
            os.dup2(back, 201)
            os.dup2(200, 3)
            os.dup2(201, 4)
        self.process = subprocess.Popen([found(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                                         "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={self.folder}",
                                         f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"],
                                        preexec_fn=pipes, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.number, self.rest, self.errors, self.session, self.answers = 0, b"", [], None, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60 * PATIENCE
        while self.number not in self.answers:
            self.listen(until - time.monotonic())
        answer = self.answers.pop(self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def listen(self, seconds):
        """Takes what has come, and waits for something first."""
        if not select.select([self.read_fd], [], [], max(seconds, 0))[0]:
            raise TimeoutError("the browser does not answer")
        data = os.read(self.read_fd, 1 << 20)
        if not data:
            raise RuntimeError("the browser has ended")
        *messages, self.rest = (self.rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.take(message["method"], message["params"])

    def take(self, method, event):
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in event["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(f"{event['entry']['level']}: {event['entry']['text']} {event['entry'].get('url', '')}")

    def go(self, url):
        self.call("Page.navigate", url=url)

    def run(self, expression):
        """What an expression of JavaScript in the page gives."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        shutil.rmtree(self.folder, ignore_errors=True)
