#!/bin/sh
# Checks the back end for GPUs on a device, in one go: the unit tests of its kernels, the golden models, memory that is exported
# and outlives a killed process, and compute-sanitizer where it is installed. Under 8 minutes on a machine with 8 cores, as
# estimated: it has never run on a device. Ends with 77 where there is none.
# usage: B=build tools/gpu_check.sh
set -u
B=${B:-build}
model=tests/data/golden/models/llama-dense.f32.gguf
failed=0

say=$("$B/outrider-model" generate --model "$model" --tokens 1,2,3 --max-tokens 1 --quiet --backend cuda 2>&1 >/dev/null) || {
	echo "gpu-check: nothing was checked: $say" >&2
	exit 77
}
step() {
	name=$1; shift
	printf '%-60s ' "$name"
	if timeout 120 "$@" >"$B/gpu-check.log" 2>&1; then echo ok; else echo FAILED; tail -20 "$B/gpu-check.log"; failed=1; fi
}
export OUTRIDER_TEST_BACKEND=cuda CMOCKA_MESSAGE_OUTPUT=TAP
for test in "$B"/tests/gpu/test_*; do
	case $test in
	*.d | */test_simt | */test_memory) ;; # of the emulation
	*) step "$(basename "$test")" "$test" ;;
	esac
done
same() {
	for backend in cpu cuda; do
		"$B/outrider-model" generate --model "$1" --tokens 1,5,9,20,31,7,7,3 --max-tokens 8 --ignore-eos --logits-hash \
			--logprobs 3 --quiet --backend $backend > "$B/gpu-check.$backend" || return 1
	done
	cmp "$B/gpu-check.cpu" "$B/gpu-check.cuda"
}
for file in tests/data/golden/models/*.gguf tests/data/golden/quants/*.gguf; do
	printf '%-60s ' "$(basename "$file")"
	if same "$file" >"$B/gpu-check.log" 2>&1; then echo "the CPU's bytes"; else echo FAILED; tail -5 "$B/gpu-check.log"; failed=1; fi
done
step "exported memory outlives a process that is killed" "$B/tests/gpu/test_export"
if command -v compute-sanitizer >/dev/null; then
	for tool in memcheck racecheck synccheck; do
		step "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 1 \
			"$B/outrider-model" generate --model "$model" --tokens 1,2,3 --max-tokens 2 --quiet --backend cuda
	done
else
	echo "compute-sanitizer is not installed: not run"
fi
exit $failed
