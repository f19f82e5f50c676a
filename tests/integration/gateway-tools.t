#!/usr/bin/env python3
"""outrider-gateway beyond plain chat: texts and tokens, calls of functions, responses. The demo model is too small to call anything by
itself: where a call is required, the grammar makes it one."""
import json
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import QUESTION, Gateway, text_of  # noqa: E402
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


TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
                                      "required": ["city", "days"], "additionalProperties": False}}},
         {"type": "function", "function": {
             "name": "add", "strict": True,
             "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
                            "additionalProperties": False}}}]
RATHER = {"temperature": 0.9, "seed": 11, "max_tokens": 150}


def good(call):
    """Whether a call is one of TOOLS."""
    arguments = json.loads(call["function"]["arguments"])
    if call["type"] != "function" or not call["id"].startswith("call_"):
        return False
    if call["function"]["name"] == "weather":
        return set(arguments) == {"city", "days"} and isinstance(arguments["city"], str) and arguments["days"] in (1, 2, 3)
    return call["function"]["name"] == "add" and 0 <= arguments["a"] <= 99


def parts_of(events):
    """The parts of calls in the chunks of a stream."""
    return [part for event in events if event != "[DONE]" for choice in event["choices"] for part in choice["delta"].get("tool_calls", ())]


def calls_of(events):
    """Calls put together from the chunks of a stream: the first of each has its id and its name, the others more of its arguments."""
    calls = {}
    for part in parts_of(events):
        if "id" in part:
            calls[part["index"]] = {**{k: part[k] for k in ("id", "type")}, "function": dict(part["function"])}
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return [calls[i] for i in sorted(calls)]


def check_tools(gateway):
    for choice, names in (("required", {"weather", "add"}), ({"type": "function", "function": {"name": "add"}}, {"add"})):
        wrong = []
        for seed in range(6):
            status, answer = gateway.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, **{**RATHER, "seed": seed})
            message = answer["choices"][0]["message"] if status == 200 else {}
            calls = message.get("tool_calls", [])
            if len(calls) != 1 or not good(calls[0]) or calls[0]["function"]["name"] not in names or message["content"] is not None or \
                    answer["choices"][0]["finish_reason"] != "tool_calls":
                wrong.append(answer)
        ok(not wrong, f"tool_choice {choice}: every answer is a call that matches its schema", wrong[:1])
    status, answer = gateway.chat(tools=TOOLS, tool_choice="required", **RATHER)
    calls = answer["choices"][0]["message"]["tool_calls"]
    ok(status == 200 and calls and all(map(good, calls)) and len({c["id"] for c in calls}) == len(calls), "several calls may come", answer)
    events = gateway.events("/v1/chat/completions", {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", **RATHER})
    ok(calls_of(events) == calls and events[-2]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"] and
       text_of(events) == (answer["choices"][0]["message"]["content"] or ""),
       "a stream has the same calls, ids too", (calls_of(events), calls))
    for fields in ({}, {"tool_choice": "auto", "parallel_tool_calls": False}):
        status, answer = gateway.chat(tools=TOOLS, temperature=0, max_tokens=40, **fields)
        ok(status == 200 and answer["choices"][0]["message"]["content"], f"without need there is an answer {fields}", answer)
    plain = gateway.chat(temperature=0, max_tokens=40)[1]["choices"][0]["message"]["content"]
    status, answer = gateway.chat(tools=TOOLS, tool_choice="none", temperature=0, max_tokens=40)
    ok(status == 200 and answer["choices"][0]["message"]["content"] == plain, "tool_choice none is as if there were no tools", answer)
    turns = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": calls},
             *({"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in calls)]
    status, answer = gateway.post("/v1/chat/completions", {"messages": turns, "tools": TOOLS, "temperature": 0, "max_tokens": 20})
    ok(status == 200 and answer["choices"][0]["message"]["content"], "results of calls are taken", answer)
    status, answer = gateway.post("/apply-template", {"messages": turns, "tools": TOOLS})
    prompt = answer.get("prompt", "")
    ok(all(word in prompt for word in ('"name": "weather"', "<tool_call>\n{", "<tool_response>\nsunny\n</tool_response>")),
       "a template without tools gets them in words", answer)
    status, answer = gateway.chat(tools=TOOLS, tool_choice="auto", temperature=0.7, seed=2, max_tokens=60, parallel_tool_calls=False,
                                  response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 9,
                                                                                                                 "minimum": 0}}})
    message = answer["choices"][0]["message"]
    ok(status == 200 and (message.get("tool_calls") or message["content"].isdigit()), "content has its form beside tools", answer)


def check_same_calls(gateway, service):
    """The same bytes for every K and drafter, and when the verifier is killed in the middle of a stream."""
    body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", **RATHER, "max_tokens": 300}
    expected = gateway.post("/v1/chat/completions", {**body, "outrider": {"k": 0, "draft_method": "none"}})[1]["choices"]
    wrong = []
    for k in (0, 3, 15):
        for method in ("none", "ngram", "model"):
            drafted = {**body, "outrider": {"k": k, "draft_method": method}}
            status, answer = gateway.post("/v1/chat/completions", drafted)
            events = gateway.events("/v1/chat/completions", drafted)
            calls = expected[0]["message"]["tool_calls"]
            parts = parts_of(events)
            if status != 200 or answer["choices"] != expected or calls_of(events) != calls or len(parts) < 2 * len(calls) or \
                    [p["index"] for p in parts] != sorted(p["index"] for p in parts):
                wrong.append((k, method, answer))
    ok(not wrong and all(map(good, expected[0]["message"]["tool_calls"])), "the same calls for every K and drafter, streamed", wrong[:1] or expected)
    calls = expected[0]["message"]["tool_calls"]
    alone = {**body, "outrider": {"k": 0, "draft_method": "none"}}
    events = eventually(lambda: gateway.events("/v1/chat/completions", alone), lambda events: len(parts_of(events)) > 2 * len(calls))
    ok(calls_of(events) == calls and len(parts_of(events)) > 2 * len(calls), "as they are written", events[-3:])
    ok(len(expected[0]["message"]["tool_calls"]) >= 2, "and there are two at least", expected)
    wrong = []

    def stream_under_kill():
        def on_event(n):
            if n == 1:
                service.kill("verifier")
        until(lambda: gateway.get("/health")[0] == 200)
        events = gateway.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, on_event)
        if calls_of(events) != calls or events[-1] != "[DONE]":
            wrong.append(events)
        return events
    # A fast verifier has often written the whole answer before the kill arrives.
    events = eventually(stream_under_kill, lambda events: events[-2]["outrider"]["restarts"] >= 1)
    ok(not wrong and events[-2]["outrider"]["restarts"] >= 1, "kill -9 of the verifier changes no call of a stream", (wrong[:1], events[-2:]))
    until(lambda: gateway.get("/health")[0] == 200)


def check_logprobs(gateway):
    """Every token of the answer has its log probability, those of calls too; streams tell the same."""
    body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "logprobs": True, "top_logprobs": 2, **RATHER}
    status, answer = gateway.post("/v1/chat/completions", body)
    choice = answer["choices"][0]
    told = choice["logprobs"]["content"]
    written = b"".join(bytes(entry["bytes"]) for entry in told).decode()
    at = [written.find(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    ok(status == 200 and written.startswith("<tool_call>") and -1 not in at and at == sorted(at) and
       all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in told), "tokens of calls have log probabilities", (written, at))
    events = gateway.events("/v1/chat/completions", body)
    streamed = [entry for event in events if event != "[DONE]" for c in event["choices"] if c["logprobs"] for entry in c["logprobs"]["content"]]
    ok(streamed == told and calls_of(events) == choice["message"]["tool_calls"], "and so in a stream", (len(streamed), len(told)))


def check_tool_refusals(gateway):
    function = {"type": "function", "function": {"name": "f"}}
    for fields, param, word in (
            ({"tools": 3}, "tools", "array"), ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
            ({"tools": [function, function]}, "tools[1].function.name", "no other"), ({"tool_choice": "required"}, "tool_choice", "tools"),
            ({"tools": [function], "tool_choice": "some"}, "tool_choice", "required"),
            ({"tools": [function], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", '"g"'),
            ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}], "tool_choice": "required"}, None, "tools[0]"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "id"),
            ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]}, "messages[0].tool_calls",
             "string"),
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]},
             "messages", "messages[0].content[1]: the type image_url is not supported")):
        status, answer = gateway.chat(**fields)
        error = answer.get("error", {})
        ok(status == 400 and error.get("param") == param and word in error.get("message", ""), f"{fields} is refused", answer)


def eventually(ask, wanted):
    """The first stream of up to 20 that is as wanted, or the last: how much arrives at once depends on the machine."""
    for _ in range(20):
        events = ask()
        if wanted(events):
            break
    return events


def deltas_of(events):
    """The parts of each call's arguments in a stream of /v1/responses, by item."""
    deltas = {}
    for kind, e in events:
        if kind == "response.function_call_arguments.delta":
            deltas.setdefault(e["item_id"], []).append(e["delta"])
    return deltas


def named_events(gateway, body):
    """(event, object) of a stream of /v1/responses."""
    status, headers, data = gateway.ask("POST", "/v1/responses", {"stream": True, **body})
    lines = [block.split("\n") for block in data.decode().strip().split("\n\n") if block.startswith("event:")]
    return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in lines]


def check_responses(gateway):
    flat = [{"type": "function", **t["function"]} for t in TOOLS]
    status, answer = gateway.post("/v1/responses", {"input": QUESTION[0]["content"], "temperature": 0})
    chat = gateway.chat(temperature=0)[1]
    message = answer["output"][0]
    ok(status == 200 and answer["object"] == "response" and answer["status"] == "completed" and message["type"] == "message" and
       message["content"][0]["text"] == chat["choices"][0]["message"]["content"], "a response has the text of the chat", answer)
    usage, its = answer["usage"], chat["usage"]
    ok((usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) ==
       (its["prompt_tokens"], its["completion_tokens"], its["total_tokens"]) and answer["store"] is False and
       usage["output_tokens_details"] == its["completion_tokens_details"] == {"reasoning_tokens": 0}, "with its usage", usage)
    events = named_events(gateway, {"input": QUESTION[0]["content"], "temperature": 0})
    kinds = [kind for kind, _ in events]
    ok(kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"] and
       kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"] and
       [e["sequence_number"] for _, e in events] == list(range(len(events))) and all(kind == e["type"] for kind, e in events) and
       "".join(e["delta"] for kind, e in events if kind == "response.output_text.delta") == message["content"][0]["text"] and
       events[-1][1]["response"]["output"][0]["content"] == message["content"], "a stream tells it event by event", kinds)
    asked = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}], "tools": flat, "tool_choice": "required",
             "temperature": 0.9, "seed": 3, "max_output_tokens": 150}
    status, answer = gateway.post("/v1/responses", asked)
    calls = [item for item in answer.get("output", ()) if item["type"] == "function_call"]
    ok(status == 200 and calls and all(good({"id": c["call_id"], "type": "function", "function": c}) for c in calls), "calls are items", answer)
    events = eventually(lambda: named_events(gateway, asked), lambda events: any(len(d) > 1 for d in deltas_of(events).values()))
    deltas = deltas_of(events)
    arguments = [e["arguments"] for kind, e in events if kind == "response.function_call_arguments.done"]
    whole = [item for item in events[-1][1]["response"]["output"] if item["type"] == "function_call"]
    ok(arguments == [c["arguments"] for c in calls] == ["".join(d) for d in deltas.values()] == [c["arguments"] for c in whole] and
       any(len(d) > 1 for d in deltas.values()) and list(deltas) == [c["id"] for c in whole], "and so in a stream, as they are written", events[-3:])
    turns = asked["input"] + answer["output"] + [{"type": "function_call_output", "call_id": c["call_id"], "output": "rain"} for c in calls]
    status, answer = gateway.post("/v1/responses", {"input": turns, "tools": flat, "instructions": "Be brief.", "max_output_tokens": 5})
    ok(status == 200 and answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"} and
       answer["output"][0]["status"] == "incomplete", "results go back as items; a limit is told", answer)
    status, answer = gateway.post("/v1/responses", {"input": "A person?", "temperature": 0, "text": {"format": {
        "type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                                                                        "additionalProperties": False}}}})
    ok(status == 200 and json.loads(answer["output"][0]["content"][0]["text"])["n"] in (1, 2), "text has a form", answer)
    for fields, param, word in (
            ({"previous_response_id": "resp_1"}, "previous_response_id", "stored"), ({"input": []}, "input", "empty"), ({"nonsense": 1}, "nonsense", "Unrec"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "stored"), ({"background": True}, "background", "supported"),
            ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]", "texts"),
            ({"max_output_tokens": 0}, "max_output_tokens", "range"), ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function")):
        status, answer = gateway.post("/v1/responses", {"input": "x", **fields})
        error = answer.get("error", {})
        ok(status == 400 and error.get("param") == param and word in error.get("message", ""), f"{fields} is refused", answer)


with Service(model=TARGET, draft=DRAFTS["small"]) as service:
    gateway = Gateway(service)
    check_texts(gateway)
    check_tools(gateway)
    check_logprobs(gateway)
    check_tool_refusals(gateway)
    check_responses(gateway)
    check_same_calls(gateway, service)
    check_hung(gateway, service)
    ok(gateway.stop()[0] == 0, "SIGTERM ends it with status 0")
tap.done()
