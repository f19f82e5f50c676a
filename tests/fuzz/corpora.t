#!/bin/sh
# Every fuzz target over its seed corpus: a seed that crashes its target fails here.
B=${B:-build}
n=0
for source in tests/fuzz/fuzz_*.c; do
	name=$(basename "$source" .c)
	n=$((n + 1))
	if output=$("$B/fuzz-replay/$name" 2>&1); then
		echo "ok $n - $name survives its seeds"
	else
		echo "not ok $n - $name survives its seeds"
		echo "$output" | tail -30 | sed 's/^/# /'
	fi
done
echo "1..$n"
