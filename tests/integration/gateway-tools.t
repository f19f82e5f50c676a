#!/usr/bin/env python3
"""outrider-gateway beyond plain chat: texts and tokens."""
import json
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import QUESTION, Gateway  # noqa: E402
from outrider_test import DRAFTS, TARGET, Service, Tap, program, run_json, until  # noqa: E402

tap = Tap()
ok = tap.ok


def check_texts(gateway):
    """Texts and tokens, beside what outrider-model says."""
    text = "In the beginning, naïve 😀<|im_end|>"
    for special in (True, False):
        status, answer = gateway.post("/tokenize", {"content": text, "parse_special": special})
        expected = run_json(program("outrider-model"), "tokenize", "--model", TARGET, "--format", "json", *(["--special"] if special else []),
                            "--text", text)["tokens"]
        ok(status == 200 and answer["tokens"] == expected, f"/tokenize, parse_special {special}", (answer, expected))
        status, back = gateway.post("/detokenize", {"tokens": expected})
        ok(status == 200 and back["content"] == text, "/detokenize gives the text again", back)
    status, answer = gateway.post("/tokenize", {"content": "a 😀", "with_pieces": True})
    whole = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in answer["tokens"])
    ok(whole == "a 😀".encode(), "pieces are strings, or bytes where they are parts of characters", answer)
    status, answer = gateway.post("/apply-template", {"messages": QUESTION})
    ok(status == 200 and answer["prompt"] == f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n",
       "/apply-template gives the prompt", answer)
    status, _, data = gateway.get("/props")
    props = json.loads(data)
    ok(status == 200 and props["default_generation_settings"]["n_ctx"] == 1024 and "<|im_start|>" in props["chat_template"] and
       props["eos_token"] == "<|im_end|>" and props["model_path"] == TARGET.name, "/props says what is served", props)
    for path, body, param in (("/tokenize", {}, "content"), ("/tokenize", {"content": "a", "nonsense": 1}, "nonsense"),
                              ("/tokenize", {"content": "a", "add_special": 3}, "add_special"), ("/detokenize", {"tokens": "a"}, "tokens"),
                              ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [99999]}, None),
                              ("/apply-template", {"messages": []}, "messages")):
        status, answer = gateway.post(path, body)
        ok(status == 400 and answer["error"]["param"] == param, f"{path} refuses {body}", (status, answer))


def check_hung(gateway, service):
    """While the verifier does not answer, questions wait and /health does not."""
    service.kill("verifier", signal.SIGSTOP)
    try:
        threads = [threading.Thread(target=lambda: gateway.ask("POST", "/tokenize", {"content": "a"})) for _ in range(20)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        status, _, data = gateway.get("/health")
        ok(status in (200, 503) and any(t.is_alive() for t in threads), "/health is answered while questions wait", data)
    finally:
        service.end("verifier", signal.SIGCONT)
    for thread in threads:
        thread.join()
    until(lambda: gateway.get("/health")[0] == 200)
    status, answer = gateway.post("/tokenize", {"content": "a"})
    ok(status == 200 and len(answer["tokens"]) == 1, "and questions are answered again", answer)


with Service(model=TARGET, draft=DRAFTS["small"]) as service:
    gateway = Gateway(service)
    check_texts(gateway)
    check_hung(gateway, service)
    ok(gateway.stop()[0] == 0, "SIGTERM ends it with status 0")
tap.done()
