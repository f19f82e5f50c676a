#!/usr/bin/env python3
"""What programs of others make of outrider-gateway: OpenAI's own package (sync and async), LiteLLM, and two agent frameworks that drive a
tool over several turns. Not part of `make check`, which needs no packages of PyPI:

    python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai litellm openai-agents 'pydantic-ai-slim[openai]'
    build/outrider up --model models/outrider-demo-moe-q8_0.gguf --http 127.0.0.1:8080 --detach
    /tmp/clients/bin/python tests/clients/openai_clients.py http://127.0.0.1:8080/v1

The demo model knows nothing of tools; tool_choice makes it call. A package that is not installed is skipped, by name.
"""
import asyncio
import importlib.metadata
import json
import os
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
os.environ.update({"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
QUESTION = [{"role": "user", "content": "Add 1354 and 5437 digit by digit."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": SCHEMA}}]
FLAT = [{"type": "function", "name": "weather", "strict": True, "parameters": SCHEMA}]
failures = []


def check(name, packages, function):
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"skip - {name}: {package} is not installed")
            return
    try:
        function()
        print(f"ok - {name} ({', '.join(versions)})")
    except Exception:
        failures.append(name)
        print(f"not ok - {name} ({', '.join(versions)})\n{traceback.format_exc()}")


def openai_sync():
    import openai
    from pydantic import BaseModel
    from typing import Literal

    client = openai.OpenAI()
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    text = answer.choices[0].message.content
    assert "6791" in text and answer.usage.total_tokens > answer.usage.prompt_tokens, answer
    stream = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text and chunks[-1].usage == answer.usage
    assert client.completions.create(model=model, prompt="In the beginning", max_tokens=5).choices[0].text
    # Tools, over two turns.
    answer = client.chat.completions.create(model=model, messages=QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                                            max_tokens=100, seed=1)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), answer
    turns = [*QUESTION, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(model=model, messages=turns, tools=TOOLS, max_tokens=8).choices[0].message.content
    with client.chat.completions.stream(model=model, messages=QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                                        max_tokens=100, seed=1) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds and final.choices[0].message.tool_calls[0].id == call.id, (kinds, final)

    # Structured output.
    class City(BaseModel):
        name: Literal["Rome", "Oslo"]
    parsed = client.chat.completions.parse(model=model, messages=QUESTION, response_format=City, max_tokens=200, seed=2, temperature=0)
    assert isinstance(parsed.choices[0].message.parsed, City), parsed
    # Errors.
    for fields, kind, param in (({"temperature": -1}, openai.BadRequestError, "temperature"), ({"model": "gpt-9"}, openai.NotFoundError, "model"),
                                ({"tools": [{"type": "x"}]}, openai.BadRequestError, "tools[0].type")):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **fields})
            raise AssertionError(f"{fields} was taken")
        except kind as error:
            assert error.body["param"] == param, error.body


def openai_responses():
    import openai
    from pydantic import BaseModel
    from typing import Literal

    client = openai.OpenAI()
    answer = client.responses.create(model="outrider", input=QUESTION[0]["content"], temperature=0)
    assert "6791" in answer.output_text and answer.status == "completed" and answer.usage.output_tokens > 0, answer
    with client.responses.stream(model="outrider", input=QUESTION[0]["content"], temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == answer.output_text and stream.get_final_response().output_text == text
    items = [{"role": "user", "content": "Weather?"}]
    answer = client.responses.create(model="outrider", input=items, tools=FLAT, tool_choice="required", parallel_tool_calls=False,
                                     max_output_tokens=100, store=False)
    call = answer.output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Rome", "Oslo"), answer
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert client.responses.create(model="outrider", input=items, tools=FLAT, max_output_tokens=8).output_text

    class City(BaseModel):
        name: Literal["Rome", "Oslo"]
    parsed = client.responses.parse(model="outrider", input="A city?", text_format=City, temperature=0, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, City), parsed
    try:
        client.responses.create(model="outrider", input="x", previous_response_id="resp_1")
        raise AssertionError("previous_response_id was taken")
    except openai.BadRequestError as error:
        assert error.body["param"] == "previous_response_id", error.body


def openai_async():
    import openai

    async def main():
        client = openai.AsyncOpenAI()
        answers = await asyncio.gather(*(client.chat.completions.create(model="outrider", messages=QUESTION, temperature=0) for _ in range(8)))
        assert len({a.choices[0].message.content for a in answers}) == 1, answers
        stream = await client.chat.completions.create(model="outrider", messages=QUESTION, temperature=0, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == answers[0].choices[0].message.content
        async with client.responses.stream(model="outrider", input="Weather?", tools=FLAT, tool_choice="required", parallel_tool_calls=False,
                                           max_output_tokens=100) as stream:
            kinds = [event.type async for event in stream]
        assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed", kinds
    asyncio.run(main())


def openai_retries():
    """The package asks again where it is told 429, through a proxy that says so twice."""
    import openai
    import urllib.request
    seen = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.path)
            if len(seen) < 3:
                self.send_response(429)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            request = urllib.request.Request(URL.removesuffix("/v1") + self.path, body, {"Content-Type": "application/json"})
            data = urllib.request.urlopen(request).read()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass
    server = HTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", max_retries=3)
    assert client.chat.completions.create(model="outrider", messages=QUESTION, max_tokens=3).choices and len(seen) == 3, seen


def litellm_tools():
    import litellm

    def ask(**fields):
        return litellm.completion(model="openai/outrider", api_base=URL, api_key="none", **fields)
    assert "6791" in ask(messages=QUESTION, temperature=0).choices[0].message.content
    turns = list(QUESTION)
    for turn in range(3):
        message = ask(messages=turns, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=100, seed=turn).choices[0].message
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), message
        turns += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert ask(messages=turns, tools=TOOLS, max_tokens=8).choices[0].message.content
    chunks = list(ask(messages=QUESTION, temperature=0, stream=True))
    assert "6791" in "".join(c.choices[0].delta.content or "" for c in chunks)


def agents(use_responses):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from pydantic import BaseModel
    from typing import Literal
    import openai
    asked = []

    class City(BaseModel):
        name: Literal["Rome", "Oslo"]

    @function_tool
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"
    kind = OpenAIResponsesModel if use_responses else OpenAIChatCompletionsModel
    model = kind(model="outrider", openai_client=openai.AsyncOpenAI())
    # The first turn must call; then the choice is reset, and the model answers in its form.
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[weather], output_type=City,
                  model_settings=ModelSettings(tool_choice="required", max_tokens=150, temperature=0.0, parallel_tool_calls=False, store=False))
    result = Runner.run_sync(agent, "Weather?", max_turns=4)
    assert asked and isinstance(result.final_output, City), (asked, result)


def pydantic_ai():
    from pydantic import BaseModel
    from typing import Literal
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Sum(BaseModel):
        total: Literal[3, 6]
    agent = Agent(OpenAIChatModel("outrider", provider=OpenAIProvider(base_url=URL, api_key="none")), output_type=Sum,
                  model_settings={"max_tokens": 150, "temperature": 0.0})
    first = agent.run_sync("Add 1 and 2.")
    second = agent.run_sync("Add 3 to it.", message_history=first.all_messages())
    assert isinstance(first.output, Sum) and isinstance(second.output, Sum), (first, second)


check("openai: chat, streams, tools, structured output, errors", ["openai"], openai_sync)
check("openai: responses", ["openai"], openai_responses)
check("openai: async", ["openai"], openai_async)
check("openai: retries", ["openai"], openai_retries)
check("LiteLLM: tools over several turns", ["litellm"], litellm_tools)
check("openai-agents: a tool, by chat completions", ["openai-agents"], lambda: agents(False))
check("openai-agents: a tool, by responses", ["openai-agents"], lambda: agents(True))
check("pydantic-ai: answers by a tool, over two turns", ["pydantic-ai-slim"], pydantic_ai)
sys.exit(bool(failures))
