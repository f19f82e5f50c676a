#!/usr/bin/env python3
"""The page at / of outrider-gateway: what it is made of, its Content-Security-Policy, and, in headless Chromium where that is installed:
it complains of nothing, shows what the service does, an answer of the chat arrives, and it asks for a key where one is needed.
OUTRIDER_TEST_PICTURES names a folder for screenshots."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402
from gateway_test import QUESTION, Gateway  # noqa: E402
from outrider_test import DRAFTS, PROCESSES, ROOT, TARGET, Service, Tap, until  # noqa: E402

tap = Tap()
ok = tap.ok
FILES = {"/": "index.html", "/page/page.js": "page.js", "/page/page.css": "page.css", "/page/icon.svg": "icon.svg"}
PICTURES = os.environ.get("OUTRIDER_TEST_PICTURES")


def check_files(gateway):
    for path, name in FILES.items():
        status, headers, data = gateway.ask("GET", path)
        ok(status == 200 and data == (ROOT / "services/gateway/page" / name).read_bytes() and headers["X-Content-Type-Options"] == "nosniff",
           f"{path} is {name}", (status, headers))
    policy = gateway.ask("GET", "/")[1].get("Content-Security-Policy", "")
    ok("default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy and "http" not in policy, "its policy is strict", policy)
    html = (ROOT / "services/gateway/page/index.html").read_text()
    script = (ROOT / "services/gateway/page/page.js").read_text()
    style = (ROOT / "services/gateway/page/page.css").read_text()
    outside = re.findall(r"(?:src|href)=\"(?!/page/)[^\"]*|url\([^)]*\)|@import[^;]*", html + style)
    ok(not outside and not re.search(r"\bstyle=|\son\w+=|<script>|<style", html), "it gets nothing from elsewhere, and has nothing inline", outside)
    ok(not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", script), "nothing becomes markup")


def text(page, where):
    return page.run(f"document.querySelector({json.dumps(where)})?.innerText ?? ''")


def picture(page, name):
    if PICTURES:
        page.picture(os.path.join(PICTURES, name + ".png"))


def start_stream(gateway):
    peer = gateway.connection()
    peer.request("POST", "/v1/completions", json.dumps({"prompt": "In the beginning", "max_tokens": 900, "ignore_eos": True, "temperature": 1,
                                                        "seed": 2, "stream": True}))
    return peer, peer.getresponse()


def check_figures(page, gateway):
    ok(until(lambda: text(page, "#state") == "ready"), "it says that the service is ready", text(page, "body"))
    ok(TARGET.name.removesuffix(".gguf") in text(page, "#model"), "and which model", text(page, "#model"))
    ok(all(name in text(page, "#processes") for name in PROCESSES), "and names the processes", text(page, "#processes"))
    # So many that they run for longer than the page takes between two looks.
    streams = [start_stream(gateway) for _ in range(16)]
    rows = "[...document.querySelectorAll('#sessions tbody tr:not(.ended)')].length"
    ok(until(lambda: page.run(rows) > 0), "a session that runs is in the table", text(page, "#sessions"))
    ok(until(lambda: float("0" + re.sub(r"[^\d.]", "", text(page, "#figures .figure b"))) > 0), "tokens per second move", text(page, "#figures"))
    picture(page, "running")
    for peer, reply in streams:
        while reply.readline():
            pass
        peer.close()
    ok(until(lambda: len(page.run("document.querySelector('#chart-tokens_per_s .curve').getAttribute('d')") or "") > 20),
       "the timeline has a curve")


def check_chat(page):
    page.run("document.querySelector('#greedy').checked = true")
    page.run(f"document.querySelector('#question').value = {json.dumps(QUESTION[0]['content'])}")
    page.run("document.querySelector('#send').click()")
    ok(until(lambda: "The answer is 6791." in text(page, "#chat .turn.assistant") and "seed" in text(page, "#chat .told"), 60),
       "an answer of the chat arrives, with what speculation did", text(page, "#chat"))
    ok(until(lambda: page.run("document.querySelector('#send').textContent") == "Send"), "and the next can be asked")
    page.run("document.querySelector('#question').value = '<img src=x onerror=alert(1)>'")
    page.run("document.querySelector('#send').click()")
    ok(until(lambda: page.run("document.querySelectorAll('.turn.user').length") == 2) and page.run("document.querySelectorAll('#chat img').length") == 0,
       "what is typed stays text")
    until(lambda: page.run("document.querySelector('#send').textContent") == "Send", 60)


def check_dark(page):
    light = page.run("getComputedStyle(document.body).backgroundColor")
    picture(page, "light")
    page.dark(True)
    ok(page.run("getComputedStyle(document.body).backgroundColor") != light, "it is dark where that is wished")
    picture(page, "dark")
    page.call("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=True)
    ok(page.run("document.documentElement.scrollWidth") <= 420, "it fits a narrow screen", page.run("document.documentElement.scrollWidth"))
    picture(page, "narrow")
    page.dark(False)


def check_key(page, service):
    keys = service.directory / "keys"
    keys.write_text("secret\n")
    gateway = Gateway(service, "--set", f"keys={keys}")
    ok(gateway.get("/")[0] == 200 and gateway.get("/status")[0] == 401, "with keys the page is there, and its figures need one")
    page.go(f"http://127.0.0.1:{gateway.port}/")
    ok(until(lambda: page.run("document.querySelector('#key-dialog')?.open") is True), "it asks for the key")
    page.run("document.querySelector('#key').value = 'wrong'; document.querySelector('#key-use').click()")
    ok(until(lambda: page.run("document.querySelector('#key-dialog').open && !document.querySelector('#key-wrong').hidden")), "says that one is wrong")
    page.run("document.querySelector('#key').value = 'secret'; document.querySelector('#key-use').click()")
    ok(until(lambda: text(page, "#state") == "ready"), "and works with the right one")
    check_chat(page)
    gateway.stop()


with Service(model=TARGET, draft=DRAFTS["small"]) as service:
    gateway = Gateway(service)
    check_files(gateway)
    if browser.found():
        page = browser.Browser()
        page.go(f"http://127.0.0.1:{gateway.port}/")
        check_figures(page, gateway)
        check_chat(page)
        check_dark(page)
        ok(not page.errors, "the browser complains of nothing", page.errors)
        gateway.stop()
        ok(until(lambda: text(page, "#state") == "the gateway does not answer"), "it says when the gateway does not answer")
        page.call("Emulation.setDeviceMetricsOverride", width=1280, height=1000, deviceScaleFactor=1, mobile=False)
        check_key(page, service)
        page.close()
    else:
        tap.skip("the page in a browser", "chromium is not installed")
        gateway.stop()
tap.done()
