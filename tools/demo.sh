#!/bin/sh
# `make demo`: see tools/demo.py.
exec python3 "$(dirname "$0")/demo.py" "$@"
