#!/usr/bin/env python3
"""Documents made by chance through masks alone satisfy their schemas, as python3-jsonschema sees it: schemas of the official suite
that are supported, and larger ones."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
sys.dont_write_bytecode = True
from outrider_test import Tap  # noqa: E402

SAMPLE = os.path.join(os.environ.get("B", "build"), "tests", "grammar-sample")
MODEL = "models/outrider-demo-moe-q4_0.gguf"
N = 12
tap = Tap()

LARGER = {
    "a record": {
        "type": "object", "additionalProperties": False, "required": ["id", "name", "when", "price", "tags", "kind"],
        "properties": {
            "id": {"type": "string", "format": "uuid"}, "name": {"type": "string", "minLength": 1, "maxLength": 40},
            "when": {"type": "string", "format": "date-time"}, "price": {"type": "number", "minimum": 0, "exclusiveMaximum": 1000, "multipleOf": 0.25},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 4},
            "kind": {"anyOf": [{"type": "null"}, {"const": "x"}, {"type": "integer", "minimum": -17, "maximum": 2345}]}, "note": {"type": "string", "pattern": "^[a-z]+( [a-z]+)*$"}}},
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                           "required": ["value"], "additionalProperties": False}}},
    "a union by a tag": {"oneOf": [
        {"type": "object", "properties": {"t": {"const": "a"}, "n": {"type": "integer"}}, "required": ["t", "n"], "additionalProperties": False},
        {"type": "object", "properties": {"t": {"const": "b"}, "s": {"type": "string", "maxLength": 5}}, "required": ["t"], "additionalProperties": False}]},
    "all of two": {"allOf": [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
        {"properties": {"a": {"maximum": 9}, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False}]},
    "patterns of properties": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}, "_y$": {"minimum": 5}}, "additionalProperties": {"type": "boolean"},
                               "minProperties": 2, "maxProperties": 3, "properties": {"x_": {"maximum": 7}}},
    "addresses": {"type": "array", "minItems": 3, "maxItems": 3, "prefixItems": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}],
                  "items": {"type": "string", "format": "email", "maxLength": 30}},
}


def suite():
    for path in sorted((ROOT / "tests/data/json-schema").glob("*.json")):
        if path.stem in ("format", "ecmascript-regex"):
            continue
        for group in json.loads(path.read_text()):
            yield f"{path.stem}: {group['description']}", group["schema"]


def main():
    try:
        import jsonschema
    except ImportError:
        tap.skip("documents satisfy their schemas", "python3-jsonschema is not installed")
        return
    n_schemas = n_documents = 0
    wrong, empty = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "schema.json"
        for name, schema in [*LARGER.items(), *suite()]:
            file.write_text(json.dumps(schema))
            made = subprocess.run([SAMPLE, MODEL, file, str(N)], capture_output=True, text=True, timeout=1500)
            if made.returncode == 2 and name not in LARGER:
                continue  # test_schema_suite says which are refused, and why
            if made.returncode != 0:
                wrong.append((name, made.returncode, made.stderr))
                continue
            n_schemas += 1
            check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
            documents = made.stdout.splitlines()
            if not documents:
                empty.append((name, made.stderr))
            for line in documents:
                n_documents += 1
                text = json.loads(line)
                try:
                    error = next(check.iter_errors(json.loads(text)), None)
                except ValueError as e:
                    error = e
                if error is not None:
                    wrong.append((name, text, str(error).splitlines()[0]))
    tap.ok(not wrong, "each document that masks let through satisfies its schema", wrong[:5])
    tap.ok(not empty, "each schema has documents that come to an end", empty[:5])
    tap.ok(n_schemas > 150 and n_documents > 1500, "there were schemas and documents to look at", (n_schemas, n_documents))


main()
tap.done()
