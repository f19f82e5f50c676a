"""Draws a log of train.py as SVG: the losses, and how often each draft is right if those before it are.

  plot.py ADAPTER.log OUT.svg

Needs gnuplot.
"""
import json
import subprocess
import sys
from pathlib import Path

STYLE = """set terminal svg size 900,420 font "sans,11" background "white"
set output "{out}"
set multiplot layout 1,2
set grid
set xlabel "step"
set key top right
set title "Loss"
plot {losses}
set title "Drafts that are right if those before them are"
set yrange [0:1]
set key bottom right
{accepted}
unset multiplot
"""


def block(name, rows):
    return f"${name} << EOD\n" + "\n".join(" ".join(map(str, row)) for row in rows) + "\nEOD\n"


def script(rows, out):
    """What gnuplot is told. rows: those of the log."""
    losses = [(r["step"], r["sampler"], r["plain"], r["latent"]) for r in rows if "loss" in r]
    accepted = [(r["step"], *r["accepted"]["all"]["right_if_reached"]) for r in rows if "accepted" in r]
    if not losses:
        raise ValueError("the log has no line with a loss yet")
    drawn = lambda block, names: ", ".join(f'${block} using 1:{i + 2} with lines lw 2 title "{name}"' for i, name in enumerate(names))
    second = 'set label "not measured: --answers" at graph 0.3, 0.5\nplot [0:1] -1 notitle'
    if accepted:
        second = "plot " + drawn("accepted", [f"draft {j + 1}" for j in range(len(accepted[0]) - 1)])
    return block("losses", losses) + (block("accepted", accepted) if accepted else "") + STYLE.format(
        out=out, losses=drawn("losses", ("sampler", "plain head", "latent")), accepted=second)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    try:
        subprocess.run(["gnuplot"], input=script(rows, sys.argv[2]), text=True, check=True)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"plot.py: {error}")


if __name__ == "__main__":
    main()
