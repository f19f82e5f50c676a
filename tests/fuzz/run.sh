#!/bin/sh
# usage: B=BUILD_DIR PKGS="pkg-config names" FUZZ_LIBS="libraries" tests/fuzz/run.sh SECONDS TARGET...
# Builds the fuzz targets with libFuzzer, ASan and UBSan and runs each for SECONDS from its seed corpus. New inputs
# go to BUILD_DIR/corpus, not into the tree; a crash leaves its input in BUILD_DIR/crashes and fails.
set -eu
seconds=$1
shift
B=${B:-build-fuzz}
CC=${FUZZ_CC:-clang}
CXX=${FUZZ_CXX:-clang++}
san=address,undefined
archives=
objects=
for l in $FUZZ_LIBS; do archives="$archives $B/lib$l.a"; done
for t in "$@"; do objects="$objects $B/obj/tests/fuzz/$t.o"; done
make --no-print-directory -j2 B="$B" CC="$CC" CXX="$CXX" OPT="-O1 -g" SAN=fuzzer-no-link,$san $archives $objects >/dev/null
# shellcheck disable=SC2086
pkg_libs=$(pkg-config --libs $PKGS)
failed=0
mkdir -p "$B/crashes"
for t in "$@"; do
	mkdir -p "$B/corpus/$t"
	# shellcheck disable=SC2086
	"$CC" -fsanitize=fuzzer,$san -fno-sanitize-recover=all -o "$B/$t" "$B/obj/tests/fuzz/$t.o" \
		-Wl,--start-group $archives -Wl,--end-group $pkg_libs -lpthread -lm
	echo "# $t for $seconds s"
	if "$B/$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$B/crashes/$t-" "$B/corpus/$t" "tests/fuzz/corpus/$t" >"$B/$t.log" 2>&1; then
		grep -E 'number_of_executed_units|DONE' "$B/$t.log"
	else
		tail -40 "$B/$t.log"
		failed=1
	fi
done
exit $failed
