#!/usr/bin/env python3
"""Renders the cases of behaviours.json with jinja2 (3.1.6), set up as transformers 5.23.0 sets it up, and writes what
came out into the file: "text", or "fails" for what jinja2 refuses. Without --write it only says what differs.

usage: tests/data/templates/make.py [--write]"""
import datetime
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE = Path(__file__).parent / "behaviours.json"
NOW = datetime.datetime(2026, 1, 15, 12, 0, 0)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = NOW.strftime


def render(case, shared):
    data = {**shared, **case.get("data", {})}
    try:
        return {"text": environment.from_string(case["template"]).render(**data)}
    except Exception as e:
        return {"fails": f"{type(e).__name__}: {e}"[:100]}


def main():
    content = json.loads(FILE.read_text())
    differences = 0
    for case in content["cases"]:
        result = render(case, content["data"])
        if any(case.get(key) != result.get(key) for key in ("text", "fails")):
            differences += 1
            print(f"{case['name']}: {result}")
            case.pop("text", None)
            case.pop("fails", None)
            case.update(result)
    if "--write" in sys.argv[1:]:
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    elif differences:
        sys.exit(1)


if __name__ == "__main__":
    main()
