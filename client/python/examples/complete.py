#!/usr/bin/env python3
"""Answers one prompt, and shows the text as it comes.

    pip install ./client/python
    client/python/examples/complete.py "In the beginning"
"""
import sys

import outrider

try:
    with outrider.Client() as client:
        with client.stream(" ".join(sys.argv[1:]) or "In the beginning", max_tokens=64, temperature=0.7, seed=1) as stream:
            for event in stream:
                print(event.text, end="", flush=True)
        print()
        if stream.usage:
            print(f"{stream.usage.output_tokens} tokens, {stream.usage.accepted} of them drafted", file=sys.stderr)
except outrider.OutriderError as e:
    sys.exit(f"complete.py: {e}")
