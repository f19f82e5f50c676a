#!/bin/sh
# python-proto.sh DIR: the Python modules for proto/*.proto, which `make python` puts into client/python and a test compares. As part of
# the package their files have its name: outrider/_proto/client.proto, which no other package registers.
set -eu
to=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/in/outrider/_proto" "$work/out" "$to"
for file in proto/*.proto; do
	sed 's|^import "proto/|import "outrider/_proto/|' "$file" >"$work/in/outrider/_proto/$(basename "$file")"
done
protoc -I"$work/in" --python_out="$work/out" --pyi_out="$work/out" "$work"/in/outrider/_proto/*.proto
# protoc leaves the type of an empty list to be guessed.
sed -i "s/__slots__ = \[\]/__slots__: list[str] = []/" "$work"/out/outrider/_proto/*.pyi
cp "$work"/out/outrider/_proto/* "$to/"
