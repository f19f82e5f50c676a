#!/bin/sh
# `make bench`: see bench/run.py.
exec python3 "$(dirname "$0")/run.py" "$@"
