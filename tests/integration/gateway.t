#!/usr/bin/env python3
"""outrider-gateway: OpenAI's HTTP interface in front of real services: answers with the bytes of the engine alone, whatever drafts; a
verifier that is killed in the middle of a stream; errors that name their field; clients that go away, and hostile ones."""
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import QUESTION, Gateway, free_port, text_of  # noqa: E402
from outrider_test import DRAFTS, PATIENCE, TARGET, Service, Tap, program, run, run_json, until  # noqa: E402

tap = Tap()
ok = tap.ok


def alone(prompt, tokens, *sampling):
    return run_json(program("outrider-model"), "generate", "--model", TARGET, "--prompt", prompt, "--max-tokens", tokens, "--format", "json",
                    *map(str, sampling))["text"]


def check_same_bytes(gateway):
    """Greedy and sampled, streamed and not, for every K and way to draft."""
    prompt, tokens = "In the beginning", 40
    for heat, seed in ((0, 1), (0.8, 11)):
        expected = alone(prompt, tokens, "--temperature", heat, "--seed", seed)
        wrong = []
        for k in (0, 3, 15):
            for method in ("none", "ngram", "model"):
                body = {"prompt": prompt, "max_tokens": tokens, "temperature": heat, "seed": seed, "outrider": {"k": k, "draft_method": method}}
                status, answer = gateway.post("/v1/completions", body)
                if status != 200 or answer["choices"][0]["text"] != expected:
                    wrong.append((k, method, status, answer))
                if text_of(gateway.events("/v1/completions", body)) != expected:
                    wrong.append((k, method, "stream"))
        ok(not wrong, f"the same bytes as without services, temperature {heat}, for every K and drafter, streamed or not", wrong[:2])


def check_shapes(gateway):
    status, answer = gateway.chat(temperature=0, max_tokens=200)
    message = answer["choices"][0]["message"]
    ok(status == 200 and message["role"] == "assistant" and message["content"].rstrip().endswith("The answer is 6791.") and
       answer["choices"][0]["finish_reason"] == "stop" and answer["object"] == "chat.completion", "a chat is answered", answer)
    usage = answer["usage"]
    ok(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["completion_tokens"] > 20 and
       {"seed", "drafted", "accepted", "iterations", "restarts", "lossy"} <= set(answer["outrider"]) and
       answer["timings"]["predicted_n"] == usage["completion_tokens"], "with its usage, and with what speculation did", answer)
    events = gateway.events("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "max_tokens": 200,
                                                     "stream_options": {"include_usage": True}})
    ok(events[-1] == "[DONE]" and events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and
       text_of(events) == message["content"] and events[-3]["choices"][0]["finish_reason"] == "stop" and
       events[-2]["choices"] == [] and events[-2]["usage"] == usage, "a stream has the same text, an end, and the usage when asked", events[-3:])
    status, answer = gateway.chat(temperature=1, max_tokens=20, n=3, seed=5)
    texts = [c["message"]["content"] for c in answer["choices"]]
    singles = [gateway.chat(temperature=1, max_tokens=20, seed=5 + i)[1]["choices"][0]["message"]["content"] for i in range(3)]
    ok(status == 200 and texts == singles, "n answers are those of n seeds", (texts, singles))
    status, answer = gateway.post("/v1/completions", {"prompt": "One two three", "temperature": 0, "max_tokens": 50, "stop": ["the"]})
    ok(status == 200 and "the" not in answer["choices"][0]["text"], "a stop string ends it", answer)
    status, answer = gateway.post("/v1/completions", {"prompt": "x", "max_tokens": 4, "temperature": 0, "logit_bias": {"300": 100}})
    ok(status == 200, "a bias is taken", answer)
    # Half a character, three times: JSON has no place for such bytes.
    half = gateway.post("/tokenize", {"content": "\u00ff"})[1]["tokens"][0]
    bad = []
    for path, asked in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": QUESTION})):
        body = {**asked, "max_tokens": 3, "temperature": 0, "logit_bias": {str(half): 100}}
        status, answer = gateway.post(path, body)
        said = [c.get("text") or c["message"]["content"] for c in answer.get("choices", ())]
        if status != 200 or said != ["\ufffd" * 3] or text_of(gateway.events(path, body)) != said[0]:
            bad.append((path, status, answer, gateway.events(path, body)))
    ok(not bad, "bytes that are no UTF-8 become U+FFFD, streamed or not", bad)
    name = TARGET.name.removesuffix(".gguf")
    listed = json.loads(gateway.get("/v1/models")[2])["data"]
    ok([m["id"] for m in listed] == [name] and gateway.chat(model=name, max_tokens=1)[0] == 200, "the model has the name of its file", listed)
    page = gateway.get("/metrics")[2].decode()
    ok('outrider_http_responses_total{status="200"}' in page and "outrider_time_to_first_token_seconds_count" in page and
       "outrider_ready 1" in page, "metrics count", page[:500])


def check_sampling(gateway):
    """Log probabilities, penalties, and what of the prompt was there."""
    same, seen = {}, set()
    for k in (0, 3, 15):
        for method in ("none", "ngram", "model"):
            own = {"k": k, "draft_method": method}
            for key, fields in (("greedy", {"temperature": 0}), ("penalties", {"temperature": 0, "presence_penalty": 1, "frequency_penalty": 1}),
                                ("sampled", {"temperature": 1, "seed": 3, "presence_penalty": 0.5, "top_n_sigma": 1.5, "xtc_probability": 0.5})):
                fields = {"max_tokens": 20, "logprobs": True, "top_logprobs": 2, "outrider": own, **fields}
                status, answer = gateway.chat(**fields)
                choice = answer["choices"][0]
                content = choice["logprobs"]["content"]
                events = gateway.events("/v1/chat/completions", {"messages": QUESTION, **fields})
                streamed = [t for e in events if e != "[DONE]" for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
                same.setdefault(key, []).append((content == streamed, "".join(t["token"] for t in content) == choice["message"]["content"] ==
                                                 text_of(events), all(len(t["top_logprobs"]) == 2 for t in content)))
                seen.add((key, json.dumps(content)))
    ok(all(all(s) for of in same.values() for s in of) and len(seen) == 3,
       "log probabilities and penalties: the same for every K and drafter, streamed or not, and the tokens are the text", (same, len(seen)))
    status, answer = gateway.post("/v1/completions", {"prompt": "In the beginning", "max_tokens": 5, "temperature": 0, "logprobs": 3})
    found, text = answer["choices"][0]["logprobs"], answer["choices"][0]["text"]
    ok("".join(found["tokens"]) == text and found["text_offset"] == [len("".join(found["tokens"][:i])) for i in range(len(found["tokens"]))] and
       all(max(top.values()) == p for top, p in zip(found["top_logprobs"], found["token_logprobs"])), "completions have theirs", found)
    long = {"messages": [{"role": "user", "content": "Add 1354 and 5437 digit by digit. " * 6}], "temperature": 0}
    cached = [0]

    def shares():
        """Asks again while the first answer is still being written: pages are shared between running sessions."""
        def ask(events):
            if events == 1:
                usage = gateway.post("/v1/chat/completions", {**long, "max_tokens": 1})[1]["usage"]
                cached[0] = usage["prompt_tokens_details"]["cached_tokens"]
        gateway.events("/v1/chat/completions", {**long, "max_tokens": 1000, "ignore_eos": True}, ask)
        return cached[0]
    until(shares)
    ok(cached[0] and cached[0] % 32 == 0, "the usage says how much of the prompt was there", cached)
    for fields, name in (({"presence_penalty": 3}, "-2 to 2"), ({"frequency_penalty": "x"}, "a number"), ({"logprobs": True, "top_logprobs": 21}, "0 to 20"),
                         ({"top_logprobs": 2}, "logprobs must be true"), ({"logprobs": 3}, "true or false"), ({"xtc_threshold": 0.6}, "up to 0.5"),
                         ({"dry_multiplier": -1}, "0 to 100"), ({"dry_allowed_length": 0}, "1 to 256"), ({"dry_sequence_breakers": []}, "not empty")):
        status, answer = gateway.chat(**fields)
        ok(status == 400 and name in answer["error"]["message"] and answer["error"]["param"] in fields, f"{fields} is refused", answer)


def check_lossy(gateway):
    """An answer with an expert budget says that it is lossy; the same one without does not."""
    body = {"prompt": "In the beginning", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    asked = {"k": 7, "draft_method": "model"}
    status, exact = gateway.post("/v1/completions", {**body, "outrider": asked})
    ok(status == 200 and exact["outrider"]["lossy"] == [] and exact["outrider"]["accepted"] > 0, "without a budget nothing is lossy", exact)
    status, lossy = gateway.post("/v1/completions", {**body, "outrider": {**asked, "budget_experts": 4, "budget_coverage": "truncation"}})
    said = lossy["outrider"]["lossy"] if status == 200 else []
    ok(len(said) == 1 and said[0].startswith("expert budget 4 of 32 (router, truncation), which affected ") and " 0 of " not in said[0],
       "an answer with an expert budget says so, with B, the rule, and how many tokens were affected", lossy)
    events = gateway.events("/v1/completions", {**body, "stream_options": {"include_usage": True},
                                                "outrider": {**asked, "budget_experts": 4, "budget_coverage": "truncation"}})
    ends = [e["outrider"]["lossy"] for e in events if e != "[DONE]" and "outrider" in e]
    ok(len(ends) == 1 and len(ends[0]) == 1 and ends[0][0].startswith("expert budget 4 of 32"), "so does a stream, at its end", events[-3:])
    status, layered = gateway.post("/v1/completions", {**body, "outrider": {**asked, "budget_experts": "0:4,2-:8"}})
    said = layered["outrider"]["lossy"] if status == 200 else []
    ok(len(said) == 1 and said[0].startswith("expert budget 0:4,2-:8 of 32"), "a budget may have a number for each layer", layered)
    for more, word in (({"budget_experts": 33}, "1..32"), ({"budget_experts": 0}, "0 is not 1.."), ({"budget_ranking": "router"}, "budget_experts"),
                       ({"budget_experts": "2:0"}, "layer 2: 0 is not 1.."), ({"budget_experts": "0-:4,1:3"}, "layer 1 is named twice"),
                       ({"budget_experts": [4]}, "an integer or a string"), ({"audit": "yes"}, "audit (true or false)"),
                       ({"budget_experts": 4, "budget_ranking": "static"}, "budget_profile"), ({"class": "urgent"}, "allowed are default"),
                       ({"class": ""}, "1 to 31 characters")):
        status, answer = gateway.post("/v1/completions", {**body, "outrider": more})
        ok(status == 400 and word in answer["error"]["message"], f"{more} is refused", answer)
    status, answer = gateway.post("/v1/completions", {**body, "outrider": {**asked, "class": "default"}})
    ok(status == 200 and answer["choices"] == exact["choices"], "a class does not change the answer", answer)
    check_audit(gateway, body, {**asked, "budget_experts": 4, "budget_coverage": "truncation"}, exact, lossy)


def check_audit(gateway, body, budget, exact, lossy):
    """What a budget changed, as the request asks for it. Behind its own beginning the model picks the exact answer's next token."""
    status, answer = gateway.post("/v1/completions", {**body, "outrider": {**budget, "audit": True}})
    audits = answer["outrider"]["audit"] if status == 200 else []
    changed = audits[0].get("changed", []) if len(audits) == 1 else []
    def tokens(of):
        return gateway.post("/tokenize", {"content": of["choices"][0]["text"], "add_special": False})[1]["tokens"]
    ours, theirs = (tokens(of) for of in (answer, exact))
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
    ok(answer["choices"] == lossy["choices"] and audits[0]["tokens"] == 60 and changed and all(c["token"] != c["picked"] for c in changed),
       "an audit leaves the answer as it is, and names the tokens that a budget changed", answer)
    ok(changed and changed[0] == {"index": first, "token": ours[first], "picked": theirs[first]},
       "the first of them is where the exact answer goes on in another way", (changed[:1], first, ours[first], theirs[first]))
    status, answer = gateway.post("/v1/completions", {**body, "n": 2, "outrider": {"audit": True}})
    ok(status == 200 and answer["outrider"]["audit"] == [{"tokens": 60, "changed": []}] * 2, "without a budget none is changed, in each choice", answer)
    asked = {**body, "stream": True, "outrider": {**budget, "audit": True}}
    events = gateway.events("/v1/completions", {**asked, "stream_options": {"include_usage": True}})
    ends = [e["outrider"]["audit"] for e in events if e != "[DONE]" and "outrider" in e]
    ok(ends == [[{"tokens": 60, "changed": changed}]] and events[-1] == "[DONE]", "a stream says it in its last chunk", events[-3:])
    events = gateway.events("/v1/responses", {"input": "In the beginning", "max_output_tokens": 8, "temperature": 0, "outrider": {"k": 0, "audit": True}})
    ends = [e["response"]["outrider"]["audit"] for e in events if e != "[DONE]" and "outrider" in e.get("response", {})]
    ok(len(ends) == 1 and ends[0][0]["changed"] == [], "so does a response", events[-2:])
    for more, word in (({"stream": True}, "include_usage"), ({"response_format": {"type": "json_object"}}, "not with a grammar")):
        status, answer = gateway.post("/v1/completions", {**body, **more, "outrider": {"audit": True}})
        ok(status == 400 and word in answer["error"]["message"], f"an audit with {more} is refused", answer)


def check_audit_waits(gateway, service):
    """Audits wait for room as answers do. What cannot be audited in its time is answered all the same, and says why."""
    body = {"prompt": "In the beginning", "temperature": 0, "ignore_eos": True, "outrider": {"k": 0, "audit": True}}
    service.ctl("knob", "set", "sessions_max=1", "queue_max=0")
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(gateway.post("/v1/completions", {**body, "max_tokens": 60, "n": 2}))) for _ in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    service.ctl("knob", "reset", "sessions_max", "queue_max")
    ok([(status, answer.get("outrider", {}).get("audit")) for status, answer in answers] == [(200, [{"tokens": 60, "changed": []}] * 2)] * 4,
       "audits wait for room, and none is left out", answers)

    # No audit begins any more once all of these answers have.
    for seconds in (3, 12, 48):  # a machine that is slow, or stands still, needs some of it until all have begun
        service.ctl("knob", "set", f"gateway.answer_timeout={seconds}s")
        peer = gateway.connection()
        peer.request("POST", "/v1/completions", json.dumps({**body, "n": 8, "max_tokens": 900, "stream": True, "stream_options": {"include_usage": True}}))
        reply, begun, last, text = peer.getresponse(), set(), None, ""
        for line in reply:
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            last = event.get("outrider", last)
            for choice in event.get("choices", []):
                text += choice["text"] if choice["index"] == 0 else ""
                begun.add(choice["index"])
            if len(begun) == 8:
                begun.add("all")
                service.ctl("knob", "set", "admit=no")
        peer.close()
        service.ctl("knob", "reset", "admit", "gateway.answer_timeout")
        audits = (last or {}).get("audit", [])
        if "all" in begun and len(audits) == 8 and all("error" in audit for audit in audits):
            break
    ok(len(audits) == 8 and all(set(audit) == {"error"} and "answer_timeout" in audit["error"] for audit in audits) and len(text) > 100,
       "audits without room until the time of the answer is over say so, and the answers stand", (last, text[-80:]))
    status, answer = gateway.post("/v1/completions", {**body, "max_tokens": 60})
    ok(status == 200 and answer["outrider"]["audit"] == [{"tokens": 60, "changed": []}], "the next one is audited", answer)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}


def check_forms(gateway):
    """Answers that match a schema, whatever drafts."""
    formats = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for heat in (0, 1):
        texts = set()
        for k in (0, 3, 15):
            for method in ("none", "ngram", "model"):
                status, answer = gateway.chat(temperature=heat, seed=4, response_format=formats, outrider={"k": k, "draft_method": method})
                texts.add(answer["choices"][0]["message"]["content"] if status == 200 else str(answer))
        try:
            found = json.loads(next(iter(texts)))
        except json.JSONDecodeError:
            found = {}
        ok(len(texts) == 1 and set(found) == {"name", "age"} and isinstance(found["name"], str) and 0 <= found["age"] <= 120,
           f"json_schema: one valid answer for every K and drafter, temperature {heat}", texts)
    status, answer = gateway.chat(temperature=0, grammar='root ::= "yes" | "no"')
    ok(status == 200 and answer["choices"][0]["message"]["content"] in ("yes", "no"), "grammar: one of its words", answer)
    status, answer = gateway.chat(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}})
    ok(status == 400 and "not" in answer["error"]["message"], "a keyword that is not understood is refused by name", answer)


def check_refusals(gateway):
    for body, status, param, word in (
            (b"{", 400, None, "not JSON"), (b"[1]", 400, None, "not a JSON object"), (b'{"messages": "\xff"}', 400, None, "not JSON"),
            ({}, 400, "messages", "messages"), ({"messages": []}, 400, "messages", "not empty"),
            ({"messages": QUESTION, "temperature": "hot"}, 400, "temperature", "a number"),
            ({"messages": QUESTION, "temperature": -1}, 400, "temperature", "0"),
            ({"messages": QUESTION, "top_p": 7}, 400, "top_p", "1"), ({"messages": QUESTION, "n": 99}, 400, "n", "1 to 8"),
            ({"messages": QUESTION, "stop": [1]}, 400, "stop", "strings"),
            ({"messages": QUESTION, "logit_bias": {"a": 1}}, 400, "logit_bias", "number of a token"),
            ({"messages": QUESTION, "no_such_field": 1}, 400, "no_such_field", "Unrecognized"),
            ({"messages": QUESTION, "audio": {"voice": "x"}}, 400, "audio", "not supported"),
            ({"messages": QUESTION, "model": "gpt-9"}, 404, "model", "gpt-9"),
            ({"messages": [{"role": "user", "content": "a " * 4000}]}, 400, None, "token")):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        got, answer = gateway.post("/v1/chat/completions", data)
        error = answer.get("error", {})
        ok(got == status and error.get("param") == param and word in error.get("message", "") and {"type", "code"} <= set(error),
           f"{data[:60]} is refused with {status}", (got, answer))
    ok(gateway.get("/nothing")[0] == 404 and gateway.ask("PUT", "/v1/models")[0] == 405, "unknown paths and methods are refused")
    status, _, data = gateway.ask("POST", "/v1/completions", b" " * (5 << 20))
    ok(status == 413 and b"4194304" in data, "a body that is too large is refused", (status, data[:200]))


def check_kill(gateway, service):
    """kill -9 of the verifier while a stream runs."""
    body = {"prompt": "And God said", "max_tokens": 600, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    expected = text_of(gateway.events("/v1/completions", body))
    killed = []

    def on_event(n):
        if n == 5:
            killed.append(service.end("verifier"))
    got = gateway.events("/v1/completions", {**body, "stream_options": {"include_usage": True}}, on_event)
    ok(killed and text_of(got) == expected and got[-1] == "[DONE]", "kill -9 of the verifier changes no byte of a stream", got[-2:])
    ok(until(lambda: gateway.get("/health")[0] == 200), "and the service is healthy again")


def check_again(gateway, service):
    """The gateway dies in the middle of an answer; the same request with its Idempotency-Key, of its successor, gets the same one."""
    body = {"prompt": "And there was light", "max_tokens": 500, "temperature": 0.9, "ignore_eos": True}
    key = {"Idempotency-Key": "one-of-mine"}
    connection = gateway.connection()
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode(), key)
    seen = connection.getresponse().read(400)
    gateway.process.kill()
    gateway.process.wait()
    connection.close()
    second = Gateway(service)
    status, answer = second.post("/v1/completions", body, headers=key)
    whole = answer["choices"][0]["text"] if status == 200 else ""
    begun = "".join(json.loads(line[6:])["choices"][0]["text"] for line in seen.decode().split("\n\n")[:-1])
    ok(status == 200 and begun and whole.startswith(begun) and answer["usage"]["completion_tokens"] == 500,
       "after the gateway's death the request with its Idempotency-Key gets the same answer", (begun, answer))
    status, again = second.post("/v1/completions", body, headers=key)
    ok(status == 200 and again["choices"][0]["text"] == whole, "and again", again)
    status, other = second.post("/v1/completions", {**body, "prompt": "Another"}, headers=key)
    ok(status == 409 and "error" in other, "another request under that key is refused", other)
    return second


def check_gone(gateway, service):
    """A client that goes away: its answer is cancelled."""
    body = json.dumps({"prompt": "And it came to pass", "max_tokens": 900, "ignore_eos": True, "stream": True, "outrider": {"k": 0}}).encode()
    for _ in range(8):
        peer = socket.create_connection(("127.0.0.1", gateway.port))
        peer.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        peer.recv(200)
        peer.close()

    def cancelled():
        sessions = service.ctl_json("sessions")["sessions"]
        return not any(s["state"] in ("running", "prefill", "queued") for s in sessions)
    ok(until(cancelled), "answers of clients that have gone are cancelled", service.ctl_json("sessions"))
    ok(until(lambda: 'outrider_http_responses_total{status="499"}' in gateway.get("/metrics")[2].decode()), "and counted")


def check_hostile(gateway):
    """Clients that send slowly, half, too much or nonsense; others are answered meanwhile."""
    idle = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(300)]
    for i, peer in enumerate(idle):
        peer.sendall((b"POST /v1/comp", b"GET /health HTTP/1.1\r\nX: ", b"\x00\xff\x16\x03", b"")[i % 4])
    begun = time.monotonic()
    status, answer = gateway.chat(temperature=0, max_tokens=8)
    ok(status == 200, "300 connections with half a request keep nobody else from an answer", (answer, time.monotonic() - begun))
    peer = socket.create_connection(("127.0.0.1", gateway.port))
    peer.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    peer.settimeout(300 * PATIENCE)
    seen = b""
    while seen.count(b"200 OK") < 20:
        data = peer.recv(65536)
        if not data:
            break
        seen += data
    ok(seen.count(b"200 OK") == 20, "pipelined requests are answered in turn", seen[-300:])
    peer.close()
    peer = socket.create_connection(("127.0.0.1", gateway.port))
    try:
        peer.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"a" * 200000 + b"\r\n\r\n")
        peer.settimeout(300 * PATIENCE)
        data = peer.recv(200)
    except OSError:
        data = b""
    ok(not data or b" 431 " in data or b" 400 " in data or b" 414 " in data or b" 413 " in data, "endless headers are refused", data)
    peer.close()
    for peer in idle:
        peer.close()
    ok(gateway.get("/health")[0] == 200 and gateway.process.poll() is None, "and it lives")


def check_many(gateway):
    """200 streams at once, of which the service takes 32 at a time: every one whole."""
    n, results = 200, [None] * 200
    expected = text_of(gateway.events("/v1/completions", {"prompt": "In the beginning", "max_tokens": 6, "temperature": 0}))

    def one(i):
        results[i] = gateway.events("/v1/completions", {"prompt": "In the beginning", "max_tokens": 6, "temperature": 0})
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = [r and text_of(r) for r in results if not r or text_of(r) != expected or r[-1] != "[DONE]"]
    ok(not wrong, f"each of {n} streams at once is whole", (len(wrong), wrong[:2]))


def check_admission(service):
    """A service without room refuses with the reason and a time, and accepts again when it has room."""
    gateway = Gateway(service, "--set", "queue=0")
    ask = lambda: gateway.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    service.ctl("knob", "set", "sessions_max=1", "queue_max=0")
    for _ in range(20):  # a quick machine may complete the answer before the next is asked for
        peer = gateway.connection()
        peer.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}))
        reply = peer.getresponse()
        reply.readline()
        status, headers, data = ask()
        if status == 429:
            break
        peer.close()
        reply.close()
    error = json.loads(data)["error"]
    ok(status == 429 and 1 <= int(headers["Retry-After"]) <= 3600 and error["code"] == "queue_full" and "no room" in error["message"],
       "without a place a request is refused, with the reason and when to come again", (status, headers, data))
    peer.close()
    reply.close()
    ok(until(lambda: ask()[0] == 200), "when there is a place again, it is accepted")
    service.ctl("knob", "set", "admit=no")
    status, headers, data = ask()
    ok(status == 429 and int(headers["Retry-After"]) >= 1, "so is one while the service is drained", (status, headers, data))
    service.ctl("knob", "reset", "admit", "sessions_max", "queue_max")
    ok(until(lambda: ask()[0] == 200), "and accepted afterwards")
    gateway.stop()


def check_limits(gateway, service, keys):
    """Limits of keys: refused with 429 and when to come again; the file is read again when it changes."""
    def ask(key, **fields):
        status, headers, data = gateway.ask("POST", "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4, **fields},
                                            headers={"Authorization": f"Bearer {key}"})
        return status, headers, json.loads(data)
    keys.write_text("secret\nfew requests_per_minute=2\none concurrent=1\nshort tokens_per_minute=50\n")
    ok(until(lambda: ask("few")[0] == 200), "a key that is added to the file is allowed, without a restart")
    until(lambda: ask("few")[0] == 429)
    status, headers, answer = ask("few")
    error = answer["error"]
    ok(status == 429 and 1 <= int(headers["Retry-After"]) <= 60 and error["type"] == "rate_limit_error" and
       error["code"] == "rate_limit_exceeded" and "requests_per_minute is 2" in error["message"] and
       headers["x-ratelimit-limit-requests"] == "2", "requests beyond its limit are refused, with when to come again", (headers, answer))
    ok(all(gateway.get("/v1/models", headers={"Authorization": "Bearer few"})[0] == 200 for _ in range(9)), "looking is not counted")
    status, headers, answer = ask("short", max_tokens=40, ignore_eos=True)
    ok(status == 200 and answer["usage"]["completion_tokens"] == 40, "an answer is not cut short by its tokens", answer)
    status, headers, answer = ask("short")
    ok(status == 429 and "tokens_per_minute is 50" in answer["error"]["message"], "the next request is refused", (headers, answer))
    for _ in range(20):  # a quick machine may complete the answer before the next is asked for
        peer = gateway.connection()
        peer.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}),
                     {"Authorization": "Bearer one"})
        reply = peer.getresponse()
        status, headers, answer = ask("one")
        if status == 429:
            break
        peer.close()
        reply.close()
    ok(status == 429 and "concurrent is 1" in answer["error"]["message"], "so is a second at a time", (headers, answer))
    peer.close()
    reply.close()
    ok(until(lambda: ask("one")[0] == 200), "until the first has ended")
    ok(ask("secret")[0] == 200, "a key without limits has none")
    page = gateway.get("/metrics", headers={"Authorization": "Bearer secret"})[2].decode()
    ok(all(f'outrider_http_limited_total{{limit="{limit}"}} ' in page and f'{{limit="{limit}"}} 0\n' not in page
           for limit in ("requests_per_minute", "concurrent", "tokens_per_minute")), "refusals are counted by limit", page)
    keys.write_text("secret\nother\nthird\n")
    long = {"messages": [{"role": "user", "content": "Add 1354 and 5437 digit by digit. " * 6}]}
    until(lambda: ask("third")[0] == 200)
    found = [ask(key, **long)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] for key in ("secret", "secret", "other")]
    service.ctl("knob", "set", "share_prefixes=yes")
    shared = until(lambda: ask("third", **long)[2]["usage"]["prompt_tokens_details"]["cached_tokens"])
    service.ctl("knob", "reset", "share_prefixes")
    ok(found[0] == found[2] == 0 and found[1] > 0 and shared, "a prompt that was computed before is found with the same key, or as set", found)
    keys.write_text("secret\nbroken rpm=3\n")
    time.sleep(2)
    ok(ask("secret")[0] == 200 and ask("broken")[0] == 401, "a wrong file changes nothing")
    keys.write_text("secret\n")
    ok(until(lambda: ask("one")[0] == 401), "a key that is taken out is refused")
    keys.unlink()
    time.sleep(2)
    ok(ask("secret")[0] == 200, "without the file the keys stay")


def check_admin(gateway, service):
    """The gateway among the processes of its service, and its settings."""
    def entry():
        return next((p for p in service.status() if p["name"] == "gateway"), None)
    found = entry()
    ok(found and found["state"] == "ready" and found["details"]["listen"].endswith(str(gateway.port)) and
       {"open", "recent_responses", "errors", "connections"} <= set(found["details"]), "outrider status lists the gateway", found)
    for words in (("status",), ("top", "--once")):
        text = service.ctl(*words).stdout
        ok(f"127.0.0.1:{gateway.port}" in text and "requests open" in text and "/s in the last 10 s" in text and "error" in text,
           f"outriderctl {words[0]} says where it listens and what it does", text)
    knobs = {k["name"]: k for k in service.ctl_json("knob", "list", "gateway")["knobs"]}
    ok(knobs["body_max"]["live"] and knobs["body_max"]["value"] == "4M" and not knobs["listen"]["live"], "its settings are knobs", knobs)
    done = service.ctl("knob", "set", "gateway.body_max=1K")
    status, _, data = gateway.ask("POST", "/v1/completions", b" " * 2000)
    ok(done.returncode == 0 and status == 413 and b"1024" in data, "one that is set is in force at once", (done.stderr, status, data))
    refused = service.ctl("knob", "set", "gateway.body_max=1")
    ok(refused.returncode != 0 and "1K" in refused.stderr, "one that is out of range is refused", refused.stderr)
    both = service.ctl("knob", "set", "gateway.ping=5s", "policy.k_max=7")
    ok(both.returncode == 0 and service.ctl("knob", "reset", "gateway.ping", "gateway.body_max", "policy.k_max").returncode == 0,
       "also together with those of others", both.stderr)
    events = service.ctl_json("knob", "history", "gateway")["changes"]
    ok([(e["name"], e["new"]) for e in events][:2] == [("body_max", "1K"), ("ping", "5s")], "and knob history has them", events)
    bad = service.ctl("knob", "set", "gateway.keys=/nowhere/keys")
    ok(bad.returncode != 0 and "/nowhere/keys" in bad.stderr, "a file of keys that is not there is refused", bad.stderr)


with Service(model=TARGET, draft=DRAFTS["small"],
             sets=("verifier.sessions_max=8", "verifier.draft_wait=10s")) as service:
    gateway = Gateway(service)
    check_shapes(gateway)
    check_sampling(gateway)
    check_lossy(gateway)
    check_same_bytes(gateway)
    check_forms(gateway)
    check_refusals(gateway)
    check_many(gateway)
    check_hostile(gateway)
    check_gone(gateway, service)
    check_admin(gateway, service)
    check_audit_waits(gateway, service)
    check_kill(gateway, service)
    gateway = check_again(gateway, service)
    ok(gateway.stop()[0] == 0, "SIGTERM ends it with status 0")
    ok(all(p["name"] != "gateway" for p in service.status()) and "gateway" not in service.ctl("status").stdout and
       "gateway" not in service.ctl("knob", "history").stdout.replace("gateway.", ""), "a service without a gateway names none")
    keys = service.directory / "keys"
    keys.write_text("# mine\nsecret\n")
    gateway = Gateway(service, "--set", f"keys={keys}", "--set", "request_timeout=1s")
    status, answer = gateway.chat(max_tokens=1)
    ok(status == 401 and "API key" in answer["error"]["message"] and
       gateway.post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 1}, headers={"Authorization": "Bearer wrong"})[0] == 401,
       "without a valid key nothing is answered", answer)
    ok(gateway.post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 1}, headers={"Authorization": "Bearer secret"})[0] == 200,
       "with one it is")
    check_limits(gateway, service, keys)
    slow = socket.create_connection(("127.0.0.1", gateway.port))
    slow.sendall(b"GET /health HT")
    slow.settimeout(300 * PATIENCE)
    ok(slow.recv(100) == b"", "who takes too long to send a request is disconnected")
    gateway.stop()
    check_admission(service)
down = subprocess.Popen([program("outrider-gateway"), "--runtime-dir", "/tmp/outrider-nowhere-gateway", "--listen", f"127.0.0.1:{free_port()}"],
                        stderr=subprocess.PIPE, text=True)
port = down.args[-1].rpartition(":")[2]


def health():
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0


ok(until(lambda: health() == 503), "without a service /health says 503")
down.kill()
down.wait()
idle = run(program("outrider"), "up", "--model", TARGET, "--set", "gateway.ping=5s")
ok(idle.returncode == 64 and "--http" in idle.stderr, "a setting of a gateway that is not started is refused", idle.stderr)
for setting, word in (("listen=nonsense", "ADDRESS:PORT"), ("listen=127.0.0.1:99999999", "127.0.0.1"), ("keys=/nowhere/keys", "/nowhere/keys")):
    bad = run(program("outrider-gateway"), "--check", "--set", setting)
    ok(bad.returncode != 0 and word in bad.stderr, f"{setting} is refused", bad.stderr)
tap.done()
