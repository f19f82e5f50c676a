#!/bin/sh
# clang-tidy over the named files, one at a time: given several, its va_list check mixes them up.
# usage: tidy.sh GENERATED_DIR FILE...
generated=$1
shift
status=0
for file in "$@"; do
	clang-tidy --quiet --warnings-as-errors='*' "$file" -- -std=gnu11 -D_GNU_SOURCE -I. -I"$generated" \
		-Iclient/include -DOUTRIDER_VERSION='"0"' -DBACKEND_INTERFACE='"0"' -DOUTRIDER_SYSCONFDIR='"/etc"' \
		2>/dev/null || status=1
done
exit $status
