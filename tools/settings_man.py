#!/usr/bin/env python3
"""Writes man/outrider.conf.5 to standard output: every key of every process, from the programs' own tables as
`outriderctl knob list --json` prints them (no service is needed).  tools/settings_man.py BUILD > man/outrider.conf.5"""
import json
import subprocess
import sys

HEAD = """.Dd November 28, 2026
.Dt OUTRIDER.CONF 5
.Os
.Sh NAME
.Nm verifier.conf ,
.Nm drafter.conf ,
.Nm expert-cache.conf ,
.Nm policy.conf ,
.Nm gateway.conf
.Nd settings of an Outrider service
.Sh DESCRIPTION
Each process reads its own file in
.Pa /etc/outrider ,
or in the directory that
.Fl -config-dir
names.
It then reads the drop-ins
.Pa NAME.conf.d/*.conf
in the same directory, in the order of their names, and then its command line.
Later values override earlier ones.
.Pp
A line is
.Li key = value .
A line that begins with
.Li #
is a comment.
Times have a unit
.Pq Li ns , us , ms , s , m , h , d .
Sizes may have one
.Pq Li K , M , G No in powers of 1024 .
.Pp
A live key can be changed while its process runs, with
.Cm knob set
of
.Xr outriderctl 8 ,
and the change is in force from the next iteration on.
Other keys need a restart of their process.
The scope of a key is the whole process, the model that it serves, or one session.
.Cm knob set Fl -persist
and
.Fl -next-start
write
.Pa NAME.conf.d/90-knobs.conf .
"""
TAIL = """.Sh SEE ALSO
.Xr outrider 1 ,
.Xr outrider-drafter 8 ,
.Xr outrider-expert-cache 8 ,
.Xr outrider-gateway 8 ,
.Xr outrider-policy 8 ,
.Xr outrider-verifier 8 ,
.Xr outriderctl 8
"""
SCOPES = {"global": "the whole process", "model": "the model", "session": "one session, or all sessions"}


def plain(text):
    """roff takes a backslash for its own, and a point or an apostrophe at the beginning of a line."""
    text = text.replace("\\", "\\e")
    return "\\&" + text if text[:1] in (".", "'") else text


def entry(knob):
    # The range of a time has units of its own.
    unit = f" {knob['unit']}" if knob["unit"] and knob["type"] != "time" else ""
    default = plain(knob["default"]) or "empty"
    return (f".It Cm {knob['name']}\n{plain(knob['help'])}\n.br\n{plain(knob['range'])}{unit}; default {default}; "
            f"{'live' if knob['live'] else 'needs a restart'}; scope: {SCOPES[knob['scope']]}.\n")


def page(knobs):
    text = HEAD
    for process in dict.fromkeys(k["process"] for k in knobs):
        text += f".Sh {process.upper()}.CONF\n.Bl -tag -width Ds\n"
        text += "".join(entry(k) for k in knobs if k["process"] == process) + ".El\n"
    return text + TAIL


def main():
    listed = subprocess.run([f"{sys.argv[1]}/outriderctl", "--runtime-dir", "/nonexistent", "knob", "list", "--json"], check=True,
                            stdout=subprocess.PIPE)
    sys.stdout.write(page(json.loads(listed.stdout)["knobs"]))


main()
