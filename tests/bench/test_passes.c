/* outrider-bench model: what passes are held against, and what memory they are said to take. */
#include "bench/src/passes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char smaps[] = "7f0000000000-7f0000400000 r--p 00000000 00:00 1    /models/a.gguf\n"
			    "Size:               4096 kB\nRss:                3072 kB\n"
			    "7f0000400000-7f0000600000 rw-p 00000000 00:00 0\n"
			    "Rss:                2048 kB\n"
			    "7f0000600000-7f0000a00000 r--p 00400000 00:00 1    /models/a.gguf\n"
			    "Rss:                1024 kB\n";

static void write_temporary(char path[32], const char *text)
{
	snprintf(path, 32, "/tmp/test-passes-XXXXXX");
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void check_memory(const char *status, uint64_t wanted)
{
	char status_path[32], smaps_path[32];
	uint64_t peak, mapped;

	write_temporary(status_path, status);
	write_temporary(smaps_path, smaps);
	passes_memory(status_path, smaps_path, &peak, &mapped);
	unlink(status_path);
	unlink(smaps_path);
	assert_int_equal(peak, wanted);
	assert_int_equal(mapped, 4 << 20);
}

/* Weights in the huge-page pool are no part of the resident set. */
static void pages_of_the_pool_are_memory_too(void **state)
{
	(void)state;
	check_memory("Name:\tx\nVmPeak:\t  999999 kB\nVmHWM:\t  20480 kB\nVmRSS:\t   10240 kB\n"
		     "HugetlbPages:\t  262144 kB\n",
		(20 << 20) + (256 << 20));
	check_memory("VmHWM:\t  20480 kB\nHugetlbPages:\t       0 kB\n", 20 << 20);
	check_memory("VmHWM:\t  20480 kB\n", 20 << 20);
}

static void without_files_nothing_is_said(void **state)
{
	uint64_t peak = 1, mapped = 1;

	(void)state;
	passes_memory("/nowhere", "/nowhere", &peak, &mapped);
	assert_int_equal(peak, 0);
	assert_int_equal(mapped, 0);
}

/* numerics.md: bfloat16 is widened, and multiplied as float32. */
static void weights_are_held_against_the_arithmetic_they_are_computed_with(void **state)
{
	const struct peaks peaks = {.int8_gop_s = 400, .f32_gop_s = 100, .bf16_gop_s = 200};

	(void)state;
	assert_true(peaks_gop_s(&peaks, tensor_type_info(TENSOR_Q4_K)) == 400);
	assert_true(peaks_gop_s(&peaks, tensor_type_info(TENSOR_F16)) == 100);
	assert_true(peaks_gop_s(&peaks, tensor_type_info(TENSOR_BF16)) == 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_of_the_pool_are_memory_too),
		cmocka_unit_test(without_files_nothing_is_said),
		cmocka_unit_test(weights_are_held_against_the_arithmetic_they_are_computed_with),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
