#!/usr/bin/env python3
"""Answers each line of its input, all at once, and prints each answer when it is complete.

    printf 'Once\\nTwice\\n' | client/python/examples/many.py
"""
import asyncio
import sys

import outrider

AT_ONCE = 16  # the service takes 32 requests of one process, unless it is told otherwise


async def answer(client: outrider.AsyncClient, turn: asyncio.Semaphore, prompt: str) -> None:
    """Prints the answer to one prompt, or why there is none."""
    async with turn:
        try:
            async with client.stream(prompt, max_tokens=32) as stream:
                text = "".join([event.text async for event in stream])
            print(f"{prompt}|{text}", flush=True)
        except outrider.OutriderError as e:
            print(f"many.py: {prompt}: {e}", file=sys.stderr)


async def main() -> None:
    """One task for each line."""
    turn = asyncio.Semaphore(AT_ONCE)
    async with outrider.AsyncClient() as client:
        await asyncio.gather(*(answer(client, turn, line.rstrip("\n")) for line in sys.stdin if line.strip()))


asyncio.run(main())
