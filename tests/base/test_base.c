/* shared/base: errors, random numbers, configuration. */
#include "shared/base/clock.h"
#include "shared/base/config.h"
#include "shared/base/log.h"
#include "shared/base/error.h"
#include "shared/base/file.h"
#include "shared/base/nearest.h"
#include "shared/base/options.h"
#include "shared/base/rand.h"
#include "shared/base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <cmocka.h>

struct settings {
	int64_t count, bytes, wait_ns;
	double ratio;
	bool on;
	char path[512];
	int mode;
};

static const char *const modes[] = {"slow", "fast", NULL};
#define FIELD(name) offsetof(struct settings, name)
static const struct config_key keys[] = {
	{"", "count", CONFIG_INT, FIELD(count), 0, 1, 10, NULL, "3", NULL, "How many.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "bytes", CONFIG_BYTES, FIELD(bytes), 0, 0, 1ll << 40, NULL, "64K", "bytes",
		"How large.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "wait", CONFIG_NS, FIELD(wait_ns), 0, 0, 60e9, NULL, "5ms", "time", "How long.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "ratio", CONFIG_DOUBLE, FIELD(ratio), 0, 0, 1, NULL, "0.5", NULL, "How much.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "on", CONFIG_BOOL, FIELD(on), 0, 0, 0, NULL, "no", NULL, "Whether.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "path", CONFIG_STRING, FIELD(path), 512, 0, 0, NULL, "", NULL, "Where.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"deep", "mode", CONFIG_ENUM, FIELD(mode), 0, 0, 0, modes, "slow", NULL, "Which way.",
		KNOB_LIVE, KNOB_GLOBAL},
	{0},
};

static char directory[64];

static int make_directory(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/outrider-test-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command); /* NOLINT(cert-env33-c): a fixed path of ours */
}

static const char *write_file(const char *name, const char *text)
{
	static char path[256];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	return path;
}

static void defaults_are_those_of_the_table(void **state)
{
	(void)state;
	struct settings s;
	memset(&s, 0xff, sizeof(s));
	config_defaults(keys, &s);
	assert_int_equal(s.count, 3);
	assert_int_equal(s.bytes, 65536);
	assert_int_equal(s.wait_ns, 5000000);
	assert_true(s.ratio == 0.5);
	assert_false(s.on);
	assert_string_equal(s.path, "");
	assert_int_equal(s.mode, 0);
}

static void a_file_then_its_drop_ins_then_assignments_win(void **state)
{
	(void)state;
	struct settings s;
	struct error err;
	char base[256];
	config_defaults(keys, &s);
	snprintf(base, sizeof(base), "%s",
		write_file("a.conf", "# words\ncount = 4\nbytes=2M\n[deep]\nmode = fast\n"));
	char drop[256 + 4];
	snprintf(drop, sizeof(drop), "%s.d", base);
	assert_int_equal(mkdir(drop, 0700), 0);
	write_file("a.conf.d/20-b.conf", "count = 6\n");
	write_file("a.conf.d/10-a.conf", "count = 5\nwait = 20us\non = yes\n");
	write_file("a.conf.d/ignored.txt", "count = 9\n");
	assert_int_equal(config_load(base, false, keys, &s, &err), 0);
	assert_int_equal(s.count, 6);
	assert_int_equal(s.bytes, 2 << 20);
	assert_int_equal(s.wait_ns, 20000);
	assert_true(s.on);
	assert_int_equal(s.mode, 1);
	assert_int_equal(config_set("deep.mode=slow", "command line", keys, &s, &err), 0);
	assert_int_equal(s.mode, 0);
}

static void expect_refusal(const char *text, const char *says)
{
	struct settings s;
	struct error err = {""};
	config_defaults(keys, &s);
	assert_true(config_load(write_file("bad.conf", text), false, keys, &s, &err) < 0);
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void what_is_wrong_is_named_with_file_line_and_range(void **state)
{
	(void)state;
	expect_refusal("count = 3\ncont = 4\n", "bad.conf:2: unknown key cont");
	expect_refusal("count = 11\n", "bad.conf:1: count = 11 is too large; count takes 1 to 10");
	expect_refusal("count = 1.5\n", "count = 1.5 is no whole number");
	expect_refusal("count = 0x5\n", "count = 0x5 is not allowed");
	expect_refusal("count = \n", "count = \"\" is empty; count takes 1 to 10");
	expect_refusal("[deep]\nmode =\n", "mode = \"\" is empty; mode takes slow, fast");
	expect_refusal(
		"wait = 5\n", "wait = 5 has no unit (ns, us, ms, s, m, h, d); wait takes 0 to 1m");
	expect_refusal("wait = 1d\n", "wait = 1d is too large");
	expect_refusal("count = 0\n", "count = 0 is too small");
	expect_refusal("bytes = 5Q\n", "0 to 1T");
	expect_refusal("on = maybe\n", "yes or no");
	expect_refusal("ratio = nan\n", "0 to 1");
	expect_refusal("[deep]\nmode = odd\n", "slow, fast");
	expect_refusal("[other]\nmode = fast\n", "unknown key other.mode");
	expect_refusal("verifier.count = 3\n", "unknown key verifier.count; did you mean count?");
	expect_refusal("just words\n", "bad.conf:1");
	/* An indented line is one of its own: not more of the value above, which it would replace. */
	expect_refusal("count = 3\n  4\n", "bad.conf:2");
	expect_refusal("on = yes\n\tcount = 11\n", "bad.conf:2: count = 11");
	struct settings s;
	struct error err = {""};
	/* Bytes that are no text, and a directory. */
	static char binary[] = "count = 3\0\nbytes = 1M\n";
	FILE *file = fmemopen(binary, sizeof(binary) - 1, "r");
	config_defaults(keys, &s);
	assert_true(config_read(file, "binary.conf", keys, &s, &err) < 0);
	assert_non_null(strstr(err.text, "binary.conf:1: a byte of value 0"));
	fclose(file);
	assert_int_equal(config_load("/", false, keys, &s, &err), -EISDIR);
	assert_int_equal(config_load("/nonexistent/x.conf", false, keys, &s, &err), -ENOENT);
	assert_int_equal(config_load("/nonexistent/x.conf", true, keys, &s, &err), 0);
	assert_true(config_set("count", "command line", keys, &s, &err) < 0);
	assert_non_null(strstr(err.text, "key=value"));
}

/* Each would wait for somebody, or never end. */
static void what_is_no_regular_file_is_refused_at_once(void **state)
{
	(void)state;
	struct settings s;
	struct error err = {""};
	char path[128], drop_in[160];
	FILE *file;
	snprintf(path, sizeof(path), "%s/pipe.conf", directory);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(file_open(path, &file, &err), -EBADMSG);
	assert_null(file);
	assert_non_null(strstr(err.text, "pipe.conf: a pipe, not a regular file"));
	assert_int_equal(file_open("/dev/zero", &file, &err), -EBADMSG);
	assert_int_equal(file_open("/", &file, &err), -EISDIR);
	config_defaults(keys, &s);
	assert_int_equal(config_load(path, true, keys, &s, &err), -EBADMSG);
	assert_int_equal(config_load("/dev/null", false, keys, &s, &err), 0);
	/* A drop-in, too. */
	write_file("whole.conf", "count = 4\n");
	snprintf(path, sizeof(path), "%s/whole.conf", directory);
	snprintf(drop_in, sizeof(drop_in), "%s.d", path);
	assert_int_equal(mkdir(drop_in, 0700), 0);
	strcat(drop_in, "/10-a.conf");
	assert_int_equal(mkfifo(drop_in, 0600), 0);
	assert_int_equal(config_load(path, true, keys, &s, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "10-a.conf"));
}

static void a_file_is_read_whole_up_to_a_size(void **state)
{
	(void)state;
	struct error err = {""};
	char *text;
	const char *path = write_file("whole.txt", "ninebytes");
	size_t bytes;
	assert_int_equal(file_read(path, 9, &text, &bytes, &err), 0);
	assert_int_equal(bytes, 9);
	assert_string_equal(text, "ninebytes");
	free(text);
	assert_int_equal(file_read(path, 8, &text, &bytes, &err), -E2BIG);
	assert_null(text);
	assert_non_null(strstr(err.text, "whole.txt: more than 8 bytes"));
	assert_int_equal(file_read("/dev/zero", 1 << 20, &text, &bytes, &err), -E2BIG);
	assert_int_equal(file_read("/", 8, &text, &bytes, &err), -EISDIR);
	assert_int_equal(file_read("/nonexistent", 8, &text, &bytes, &err), -ENOENT);
	assert_int_equal(file_read("/dev/null", 8, &text, &bytes, &err), 0);
	assert_int_equal(bytes, 0);
	assert_string_equal(text, "");
	free(text);
}

static void utf8_is_what_the_standard_says(void **state)
{
	static const struct {
		const char *text;
		size_t length;
	} cases[] = {{"a", 1}, {"\x7f", 1}, {"\xc2\x80", 2}, {"\xdf\xbf!", 2}, {"\xe0\xa0\x80", 3},
		{"\xed\x9f\xbf", 3}, {"\xee\x80\x80", 3}, {"\xf0\x90\x80\x80", 4},
		{"\xf4\x8f\xbf\xbf", 4},
		/* Overlong, surrogates, beyond U+10FFFF, cut off, none. */
		{"\xc1\xbf", 0}, {"\xe0\x9f\xbf", 0}, {"\xf0\x8f\xbf\xbf", 0}, {"\xed\xa0\x80", 0},
		{"\xf4\x90\x80\x80", 0}, {"\xf5\x80\x80\x80", 0}, {"\xc2", 0}, {"\xe2\x82", 0},
		{"\xe2(\xa1", 0}, {"\x80", 0}, {"\xff", 0}, {"", 0}};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(
			utf8_sequence(cases[i].text, strlen(cases[i].text)), cases[i].length);
}

/* Every string of one to four of these bytes, which are the ends of all ranges that UTF-8 tells apart. The hash is that of what
 * Python's bytes.decode("utf-8", "replace") makes of them, in the same order, each with a NUL behind it. */
static void what_is_no_utf8_is_replaced_as_python_replaces_it(void **state)
{
	static const unsigned char bytes[] = {0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
		0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5,
		0xff};
	enum { N = sizeof(bytes) };
	uint64_t hash = 0xcbf29ce484222325u;
	size_t all = 1;
	(void)state;
	for (size_t length = 1; length <= 4; length++) {
		all *= N;
		for (size_t i = 0; i < all; i++) {
			char text[4];
			size_t rest = i, n;
			for (size_t at = length; at-- > 0; rest /= N)
				text[at] = (char)bytes[rest % N];
			char *clean = utf8_clean(text, length, &n);
			assert_non_null(clean);
			for (size_t at = 0; at <= n; at++)
				hash = (hash ^ (unsigned char)clean[at]) * 0x100000001b3u;
			free(clean);
		}
	}
	assert_true(hash == 0xe155651c93d2f865u);
}

static void a_folder_of_settings_may_have_drop_ins_alone(void **state)
{
	(void)state;
	const struct options_spec spec = {.program = "test",
		.summary = "",
		.config_path = "/etc/none/only.conf",
		.keys = keys};
	static char program[] = "test", flag[] = "--config-dir", both[] = "--config",
		    nowhere[] = "/nonexistent";
	char *arguments[] = {program, flag, directory, NULL, NULL, NULL};
	static struct options options;
	struct settings s;
	struct error err = {""};
	char path[128];
	snprintf(path, sizeof(path), "%s/only.conf.d", directory);
	assert_int_equal(mkdir(path, 0700), 0);
	write_file("only.conf.d/10-a.conf", "count = 7\n");
	assert_int_equal(options_read(&spec, 3, arguments, &options, &s, stdout, &err), 1);
	assert_int_equal(s.count, 7);
	snprintf(path, sizeof(path), "%s/only.conf", directory);
	assert_string_equal(options.config_path, path);
	arguments[3] = both;
	arguments[4] = path;
	assert_int_equal(options_read(&spec, 5, arguments, &options, &s, stdout, &err), -EINVAL);
	arguments[2] = nowhere;
	assert_int_equal(options_read(&spec, 3, arguments, &options, &s, stdout, &err), -ENOENT);
	assert_non_null(strstr(err.text, nowhere));
}

static void the_option_that_is_wrong_is_named(void **state)
{
	static const struct {
		const char *arguments[4], *message;
	} cases[] = {
		{{"-nxv"}, "unknown option -x; see --help"},
		{{"--check", "-xn"}, "unknown option -x; see --help"},
		{{"-nx", "--check"}, "unknown option -x; see --help"},
		{{"-n", "--nonsense", "-v"}, "unknown option --nonsense; see --help"},
		{{"--check=1"}, "unknown option --check=1, which takes no value; see --help"},
		{{"-n", "--set"}, "--set needs a value; see --help"},
		{{"-n", "word"}, "word: unexpected argument; see --help"},
	};
	const struct options_spec spec = {
		.program = "test", .summary = "", .config_path = "/etc/none", .keys = keys};
	static struct options options;
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char words[4][32] = {"test"}, *argv[6] = {words[0]};
		int argc = 1;
		for (int k = 0; k < 3 && cases[i].arguments[k]; k++, argc++) {
			snprintf(words[argc], sizeof(words[0]), "%s", cases[i].arguments[k]);
			argv[argc] = words[argc];
		}
		struct settings s;
		struct error err = {""};
		assert_int_equal(
			options_read(&spec, argc, argv, &options, &s, stdout, &err), -EINVAL);
		assert_string_equal(err.text, cases[i].message);
	}
}

static const char *fruit_at(size_t i)
{
	static const char *const fruit[] = {"apple", "pear", "plum", NULL};
	return fruit[i];
}

static void the_nearest_name_is_suggested_when_it_is_near(void **state)
{
	(void)state;
	assert_string_equal(nearest_of("aplpe", fruit_at), "apple");
	assert_string_equal(nearest_of("plums", fruit_at), "plum");
	assert_null(nearest_of("cherry", fruit_at));
}

static void a_long_value_is_read_whole_or_refused(void **state)
{
	(void)state;
	char text[700];
	struct settings s;
	struct error err;
	config_defaults(keys, &s);
	memset(text, 'x', sizeof(text));
	memcpy(text, "path = /", 8);
	strcpy(text + 8 + 400, "\n");
	int r = config_load(write_file("long.conf", text), false, keys, &s, &err);
	if (r == 0)
		assert_int_equal(strlen(s.path), 401);
	else
		assert_non_null(strstr(err.text, "long.conf:1"));
	memset(text, 'x', sizeof(text));
	memcpy(text, "path=/", 6);
	text[600] = '\0';
	assert_true(config_set(text, "command line", keys, &s, &err) < 0);
}

static void the_commented_file_reads_back_as_the_defaults(void **state)
{
	(void)state;
	char *text;
	size_t bytes;
	FILE *memory = open_memstream(&text, &bytes);
	config_print(keys, memory);
	fclose(memory);
	assert_non_null(strstr(text, "# How long.\n# 0 to 1m, time; default: 5ms\n#wait = 5ms\n"));
	for (char *p = text; (p = strstr(p, "\n#")) != NULL; p++)
		if (p[2] != ' ')
			memmove(p + 1, p + 2, strlen(p + 2) + 1);
	struct settings s = {.path = "unset"}, expected;
	struct error err = {""};
	config_defaults(keys, &expected);
	if (config_load(write_file("printed.conf", text), false, keys, &s, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(s.count, expected.count);
	assert_int_equal(s.wait_ns, expected.wait_ns);
	assert_int_equal(s.bytes, expected.bytes);
	assert_string_equal(s.path, "");
	free(text);
}

static void a_time_is_written_as_a_person_would(void **state)
{
	(void)state;
	char text[CONFIG_TIME_BYTES];
	assert_string_equal(config_time(UINT64_C(3600000000000), text, sizeof(text)), "1h");
	assert_string_equal(config_time(UINT64_C(600000000000), text, sizeof(text)), "10m");
	assert_string_equal(config_time(UINT64_C(172800000000000), text, sizeof(text)), "2d");
	assert_string_equal(config_time(1500000000, text, sizeof(text)), "1500ms");
}

static void a_size_is_binary_or_decimal_as_its_unit_says(void **state)
{
	static const struct {
		const char *text;
		int64_t bytes;
		const char *written;
	} cases[] = {{"2G", (int64_t)2 << 30, "2G"}, {"2GiB", (int64_t)2 << 30, "2G"},
		{"2GB", 2000000000, "2GB"}, {"1.5kb", 1500, "1500"}, {"3mib", 3 << 20, "3M"},
		{"7B", 7, "7"}};
	struct error err;
	char value[CONFIG_VALUE_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct settings s = {0};

		assert_int_equal(config_assign(&keys[1], cases[i].text, "", &s, &err), 0);
		assert_true(s.bytes == cases[i].bytes);
		config_value(&keys[1], &s, value, sizeof(value));
		assert_string_equal(value, cases[i].written);
	}
	assert_true(
		config_factor(CONFIG_BYTES, "GB") == 1e9 && config_factor(CONFIG_BYTES, "") == 1);
	assert_true(
		config_factor(CONFIG_BYTES, "Gb/s") == 0 && config_factor(CONFIG_BYTES, "X") == 0);
}

static void a_text_says_what_it_takes(void **state)
{
	(void)state;
	struct config_key key = {.name = "spin",
		.type = CONFIG_STRING,
		.size = 32,
		.fallback = "auto",
		.unit = CONFIG_SPIN_RANGE};
	char range[64];
	config_range(&key, range, sizeof(range));
	assert_string_equal(range, "auto, or 0 to 1s");
	assert_string_equal(config_unit(&key), "");
	key.unit = NULL;
	config_range(&key, range, sizeof(range));
	assert_string_equal(range, "up to 31 characters");
}

static void times_and_sizes_have_their_unit_by_their_type(void **state)
{
	(void)state;
	const struct config_key time = {.name = "wait", .type = CONFIG_NS},
				size = {.name = "size", .type = CONFIG_BYTES},
				share = {.name = "share", .type = CONFIG_DOUBLE, .unit = "share"},
				on = {.name = "on", .type = CONFIG_BOOL};
	assert_string_equal(config_unit(&time), "time");
	/* "0 to 1s" needs none. */
	assert_string_equal(config_range_unit(&time), "");
	assert_string_equal(config_unit(&size), "bytes");
	assert_string_equal(config_range_unit(&size), "bytes");
	assert_string_equal(config_range_unit(&share), "share");
	assert_string_equal(config_unit(&on), "");
}

static void a_word_may_stand_for_zero(void **state)
{
	(void)state;
	static const char *const names[] = {"auto", NULL};
	static const struct config_key one[] = {{.section = "",
							.name = "depth",
							.type = CONFIG_BYTES,
							.size = sizeof(int64_t),
							.min = 4096,
							.max = 1 << 20,
							.names = names,
							.fallback = "auto",
							.unit = "bytes",
							.help = "How deep."},
		{0}};
	int64_t depth = 7;
	struct error err = {.text = ""};
	char text[32];
	config_defaults(one, &depth);
	assert_int_equal(depth, 0);
	config_value(one, &depth, text, sizeof(text));
	assert_string_equal(text, "auto");
	assert_int_equal(config_set("depth=8K", "command line", one, &depth, &err), 0);
	assert_int_equal(depth, 8192);
	config_value(one, &depth, text, sizeof(text));
	assert_string_equal(text, "8K");
	assert_int_equal(config_set("depth=Auto", "command line", one, &depth, &err), 0);
	assert_int_equal(depth, 0);
	/* The number itself is no other way to write it. */
	assert_true(config_set("depth=0", "command line", one, &depth, &err) < 0);
	assert_non_null(strstr(err.text, "depth takes auto, or 4K to 1M bytes"));
}

/* Known answers of the paper's reference implementation (Random123, kat_vectors, philox4x32 10 rounds). */
static void philox_gives_the_published_vectors(void **state)
{
	(void)state;
	uint32_t out[4];
	rand_philox(0, 0, 0, 0, out);
	const uint32_t zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
	assert_memory_equal(out, zero, sizeof(zero));
	rand_philox(~0ull, (enum rand_stream)0xffffffffu, ~0ull, 0xffffffffu, out);
	const uint32_t ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
	assert_memory_equal(out, ones, sizeof(ones));
	/* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 */
	rand_philox(0x299f31d0a4093822ull, (enum rand_stream)0x85a308d3u, 0x0370734413198a2eull,
		0x243f6a88u, out);
	const uint32_t pi[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
	assert_memory_equal(out, pi, sizeof(pi));
}

static void uniforms_stay_inside_the_open_interval(void **state)
{
	(void)state;
	double sum = 0;
	for (uint32_t i = 0; i < 100000; i++) {
		double u = rand_uniform(7, RAND_GUMBEL, i, 3);
		assert_true(u > 0 && u < 1);
		sum += u;
	}
	assert_true(sum > 49500 && sum < 50500);
}

static void an_error_keeps_its_code_and_takes_a_prefix(void **state)
{
	(void)state;
	struct error err;
	assert_int_equal(error_set(&err, EINVAL, "%s is odd", "this"), -EINVAL);
	assert_int_equal(error_prefix(&err, -EINVAL, "file %d", 3), -EINVAL);
	assert_string_equal(err.text, "file 3: this is odd");
	char longest[1000];
	memset(longest, 'y', sizeof(longest));
	longest[999] = '\0';
	error_set(&err, EINVAL, "%s", longest);
	error_prefix(&err, -EINVAL, "start");
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
	assert_memory_equal(err.text, "start: yyy", 10);
	assert_int_equal(error_exit_status(-ENOEXEC), EX_CONFIG);
	assert_int_equal(error_exit_status(0), EX_OK);
}

static void the_clock_does_not_go_back(void **state)
{
	(void)state;
	uint64_t before = clock_ns();
	for (int i = 0; i < 1000; i++) {
		uint64_t now = clock_ns();
		assert_true(now >= before);
		before = now;
	}
}

/* What the calls wrote to stderr, counted in lines. */
static int lines_of(struct log_limit *limit, int n)
{
	FILE *file = tmpfile();
	int kept = dup(STDERR_FILENO), c, lines = 0;

	assert_non_null(file);
	dup2(fileno(file), STDERR_FILENO);
	for (int i = 0; i < n; i++)
		log_limit_write(limit, LOG_LEVEL_NOTICE, "rubbish %d", i);
	dup2(kept, STDERR_FILENO);
	close(kept);
	rewind(file);
	while ((c = getc(file)) != EOF)
		lines += c == '\n';
	fclose(file);
	return lines;
}

static void what_others_can_repeat_is_logged_a_few_times(void **state)
{
	struct log_limit limit = {0};

	(void)state;
	unsetenv("JOURNAL_STREAM");
	log_init("test", 0);
	assert_int_equal(lines_of(&limit, 3), 3);
	assert_int_equal(lines_of(&limit, 1000), LOG_LIMIT_LINES - 3);
	/* When the time is over, one line says how many there were. */
	limit.begun_ns -= LOG_LIMIT_NS + 1;
	assert_int_equal(lines_of(&limit, 1), 2);
}

static void a_time_to_spin_is_auto_or_a_time(void **state)
{
	(void)state;
	struct error err = {.text = ""};
	uint64_t ns = 0;
	assert_int_equal(config_spin("spin", "auto", 7000, &ns, &err), 0);
	assert_int_equal(ns, 7000);
	assert_int_equal(config_spin("spin", "20us", 7000, &ns, &err), 0);
	assert_int_equal(ns, 20000);
	assert_true(config_spin("spin", "2s", 7000, &ns, &err) < 0);
	assert_true(config_spin("spin", "fast", 7000, &ns, &err) < 0);
	assert_non_null(strstr(err.text, "spin"));
	assert_string_equal(err.text, "spin = fast is not allowed; spin takes auto, or 0 to 1s");
}

static void a_path_is_shown_from_the_root_on_with_its_name_kept(void **state)
{
	char here[4096], path[4200], want[4200];
	(void)state;
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(chdir(directory), 0);
	/* A link is not followed: the parts of a split model lie beside it under its name. */
	assert_int_equal(symlink("/dev/null", "link"), 0);
	snprintf(want, sizeof want, "%s/link", directory);
	for (int i = 0; i < 3; i++) {
		const char *const forms[] = {"link", "./link", want};
		char *absolute = file_absolute(forms[i]);
		assert_string_equal(absolute, want);
		free(absolute);
	}
	snprintf(path, sizeof path, "%s/none/link", directory);
	assert_null(file_absolute(path));
	char *root = file_absolute("/link");
	assert_string_equal(root, "/link");
	free(root);
	unlink("link");
	assert_int_equal(chdir(here), 0);
}

static void final_statuses_are_few(void **state)
{
	(void)state;
	for (int status = 0; status < 256; status++)
		assert_int_equal(error_status_is_final(status),
			status == 64 || status == 65 || status == 71 || status == 77 ||
				status == 78);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_is_shown_from_the_root_on_with_its_name_kept),
		cmocka_unit_test(defaults_are_those_of_the_table),
		cmocka_unit_test(a_file_then_its_drop_ins_then_assignments_win),
		cmocka_unit_test(what_is_wrong_is_named_with_file_line_and_range),
		cmocka_unit_test(what_is_no_regular_file_is_refused_at_once),
		cmocka_unit_test(a_folder_of_settings_may_have_drop_ins_alone),
		cmocka_unit_test(the_option_that_is_wrong_is_named),
		cmocka_unit_test(a_file_is_read_whole_up_to_a_size),
		cmocka_unit_test(utf8_is_what_the_standard_says),
		cmocka_unit_test(what_is_no_utf8_is_replaced_as_python_replaces_it),
		cmocka_unit_test(the_nearest_name_is_suggested_when_it_is_near),
		cmocka_unit_test(a_long_value_is_read_whole_or_refused),
		cmocka_unit_test(the_commented_file_reads_back_as_the_defaults),
		cmocka_unit_test(times_and_sizes_have_their_unit_by_their_type),
		cmocka_unit_test(a_word_may_stand_for_zero),
		cmocka_unit_test(a_time_is_written_as_a_person_would),
		cmocka_unit_test(a_size_is_binary_or_decimal_as_its_unit_says),
		cmocka_unit_test(a_text_says_what_it_takes),
		cmocka_unit_test(philox_gives_the_published_vectors),
		cmocka_unit_test(uniforms_stay_inside_the_open_interval),
		cmocka_unit_test(an_error_keeps_its_code_and_takes_a_prefix),
		cmocka_unit_test(the_clock_does_not_go_back),
		cmocka_unit_test(final_statuses_are_few),
		cmocka_unit_test(a_time_to_spin_is_auto_or_a_time),
		cmocka_unit_test(what_others_can_repeat_is_logged_a_few_times),
	};
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
