/* The GGUF reader on files built here, byte by byte. */
#include "shared/model/gguf/gguf.h"
#include "tests/model/gguf_build.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct build file;

static struct gguf *open_built(void)
{
	struct error err = {""};
	struct gguf *gguf;
	if (gguf_open_memory(file.bytes, file.n, &gguf, &err))
		fail_msg("%s", err.text);
	return gguf;
}

/* Copied to the heap, so that a read behind the end is seen. */
static void assert_refused(const char *name)
{
	struct error err = {""};
	struct gguf *gguf;
	unsigned char *copy = malloc(file.n ? file.n : 1);
	assert_non_null(copy);
	memcpy(copy, file.bytes, file.n);
	int rc = gguf_open_memory(copy, file.n, &gguf, &err);
	free(copy);
	if (!rc)
		fail_msg("accepted; it should name %s", name);
	assert_null(gguf);
	if (!strstr(err.text, name))
		fail_msg("the message does not name %s: %s", name, err.text);
}

static void test_every_value_type_reads_back(void **state)
{
	(void)state;
	uint64_t u;
	double d;
	bool b;
	struct gguf_string s;
	enum gguf_value_type type;
	build_header(&file, 3, 0, 12);
	build_key(&file, "u8", 0);
	build_bytes(&file, "\xfe", 1);
	build_key(&file, "i8", 1);
	build_bytes(&file, "\xfe", 1);
	build_key(&file, "u16", 2);
	build_bytes(&file, "\xff\xfe", 2);
	build_key(&file, "i32", 5);
	build_u32(&file, 77);
	build_key(&file, "f32", 6);
	build_bytes(&file, "\0\0\xc0\x3f", 4);
	build_key(&file, "true", 7);
	build_bytes(&file, "\1", 1);
	build_key_string(&file, "string", "text");
	build_key(&file, "u64", 10);
	build_u64(&file, UINT64_MAX);
	build_key(&file, "f64", 12);
	build_bytes(&file, "\0\0\0\0\0\0\xf8\x3f", 8);
	build_key(&file, "strings", 9);
	build_u32(&file, 8);
	build_u64(&file, 3);
	build_string(&file, "one");
	build_string(&file, "");
	build_string(&file, "three");
	build_key(&file, "i16s", 9);
	build_u32(&file, 3);
	build_u64(&file, 2);
	build_bytes(&file, "\xff\xff\2\0", 4);
	build_key(&file, "none", 9);
	build_u32(&file, 12);
	build_u64(&file, 0);
	struct gguf *g = open_built();
	assert_int_equal(gguf_get_u64(g, "u8", 0, 255, &u, NULL), 0);
	assert_int_equal(u, 0xfe);
	assert_int_equal(gguf_get_u64(g, "i8", 0, UINT64_MAX, &u, NULL), -EINVAL);
	assert_int_equal(gguf_get_u64(g, "u16", 0, 65535, &u, NULL), 0);
	assert_int_equal(u, 0xfeff);
	assert_int_equal(gguf_get_u64(g, "i32", 0, 77, &u, NULL), 0);
	assert_int_equal(gguf_get_u64(g, "i32", 0, 76, &u, NULL), -EINVAL);
	assert_int_equal(gguf_get_u64(g, "i32", 78, 90, &u, NULL), -EINVAL);
	assert_int_equal(gguf_get_u64(g, "u64", 0, UINT64_MAX, &u, NULL), 0);
	assert_true(u == UINT64_MAX);
	assert_int_equal(gguf_get_f64(g, "f32", &d, NULL), 0);
	assert_true(d == 1.5);
	assert_int_equal(gguf_get_f64(g, "f64", &d, NULL), 0);
	assert_true(d == 1.5);
	assert_int_equal(gguf_get_bool(g, "true", &b, NULL), 0);
	assert_true(b);
	assert_int_equal(gguf_get_string(g, "string", &s, NULL), 0);
	assert_int_equal(s.bytes, 4);
	assert_memory_equal(s.data, "text", 4);
	assert_int_equal(gguf_get_array(g, "strings", &type, &u, NULL), 0);
	assert_int_equal(type, GGUF_STRING);
	assert_int_equal(u, 3);
	assert_int_equal(gguf_array_string(g, "strings", 1).bytes, 0);
	assert_memory_equal(gguf_array_string(g, "strings", 2).data, "three", 5);
	assert_int_equal(gguf_array_i64(g, "i16s", 0), -1);
	assert_int_equal(gguf_array_i64(g, "i16s", 1), 2);
	assert_int_equal(gguf_get_array(g, "none", &type, &u, NULL), 0);
	assert_int_equal(u, 0);
	gguf_close(&g);
	assert_null(g);
}

static void test_absent_and_mistyped_keys_are_told_apart(void **state)
{
	(void)state;
	struct error err = {""};
	uint64_t u;
	double d;
	build_header(&file, 2, 0, 1);
	build_key_string(&file, "name", "x");
	struct gguf *g = open_built();
	assert_int_equal(gguf_version(g), 2);
	assert_int_equal(gguf_get_u64(g, "other", 0, 1, &u, &err), -ENOENT);
	assert_string_equal(err.text, "");
	assert_int_equal(gguf_get_u64(g, "name", 0, 1, &u, &err), -EINVAL);
	assert_non_null(strstr(err.text, "key name is of type string"));
	assert_int_equal(gguf_get_f64(g, "name", &d, &err), -EINVAL);
	gguf_close(&g);
}

static void test_elements_out_of_range_read_as_nothing(void **state)
{
	(void)state;
	build_header(&file, 3, 0, 1);
	build_key(&file, "a", 9);
	build_u32(&file, 4);
	build_u64(&file, 1);
	build_u32(&file, 9);
	struct gguf *g = open_built();
	assert_int_equal(gguf_array_i64(g, "a", 0), 9);
	assert_int_equal(gguf_array_i64(g, "a", 1), 0);
	assert_int_equal(gguf_array_i64(g, "a", UINT64_MAX), 0);
	assert_int_equal(gguf_array_string(g, "a", 0).bytes, 0);
	assert_true(gguf_array_f64(g, "absent", 0) == 0);
	assert_null(gguf_array_raw(g, "absent"));
	gguf_close(&g);
}

static void test_tensors_are_found_with_their_data(void **state)
{
	(void)state;
	const uint64_t ne[] = {4, 2};
	build_header(&file, 3, 2, 0);
	build_tensor(&file, "b", 2, ne, 0, 0);
	build_tensor(&file, "a", 1, ne, 0, 32);
	build_pad(&file, 32);
	size_t data = file.n;
	build_zeros(&file, 48);
	file.bytes[data + 32] = 7;
	struct gguf *g = open_built();
	assert_int_equal(gguf_n_tensors(g), 2);
	const struct gguf_tensor *a = gguf_tensor_find(g, "a"), *b = gguf_tensor_find(g, "b");
	assert_ptr_equal(b, gguf_tensor_at(g, 0));
	assert_int_equal(b->bytes, 32);
	assert_int_equal(b->offset, data);
	assert_int_equal(a->bytes, 16);
	assert_int_equal(a->ne[1], 1);
	assert_int_equal(*(const unsigned char *)gguf_tensor_data(g, a), 7);
	assert_null(gguf_tensor_find(g, "c"));
	assert_null(gguf_tensor_at(g, 2));
	assert_null(gguf_tensor_data(g, NULL));
	gguf_close(&g);
}

static void test_counts_and_lengths_beyond_the_file_are_refused(void **state)
{
	(void)state;
	/* CVE-2024-32878, CVE-2025-49847, CVE-2026-33298 and their like: numbers that wrap when multiplied or added. */
	static const uint64_t counts[] = {
		1ull << 61, 1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX / 8, 3};
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		for (uint32_t element = 0; element <= 12; element++) {
			if (element == 9 || (element != 8 && element != 10 && counts[i] == 3))
				continue;
			build_header(&file, 3, 0, 1);
			build_key(&file, "x.array", 9);
			build_u32(&file, element);
			build_u64(&file, counts[i]);
			build_zeros(&file, 20);
			assert_refused("x.array");
		}
		build_header(&file, 3, 0, 1);
		build_key(&file, "x.string", 8);
		build_u64(&file, counts[i] == 3 ? 30 : counts[i]);
		build_zeros(&file, 20);
		assert_refused("x.string");
		build_header(&file, 3, counts[i] == 3 ? 1u << 20 : counts[i], 0);
		build_zeros(&file, 200);
		assert_refused("n_tensors");
		build_header(&file, 3, 0, counts[i] == 3 ? 1u << 20 : counts[i]);
		build_zeros(&file, 200);
		assert_refused("n_kv");
	}
}

static void test_tensor_sizes_that_wrap_are_refused(void **state)
{
	(void)state;
	/* CVE-2025-53630, CVE-2025-52566: sizes and offsets whose sums or products wrap around. */
	static const uint64_t ne[][4] = {
		{INT64_MAX, 2, 1, 1},
		{1ull << 32, 1ull << 32, 1, 1},
		{1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16},
		{1ull << 62, 1, 1, 1},
		{UINT64_MAX, UINT64_MAX, 1, 1},
		{0, 1, 1, 1},
		{4, 0, 1, 1},
	};
	for (size_t i = 0; i < sizeof(ne) / sizeof(ne[0]); i++) {
		build_header(&file, 3, 1, 0);
		build_tensor(&file, "weight", 4, ne[i], 0, 0);
		build_pad(&file, 32);
		build_zeros(&file, 256);
		assert_refused("weight");
	}
	static const uint64_t offsets[] = {1ull << 63, UINT64_MAX - 31, 1ull << 40, 256, 16};
	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		build_header(&file, 3, 1, 0);
		build_tensor(&file, "weight", 1, (const uint64_t[]){8}, 0, offsets[i]);
		build_pad(&file, 32);
		build_zeros(&file, 256);
		assert_refused("weight");
	}
}

static void test_duplicates_and_overlaps_are_refused_by_name(void **state)
{
	(void)state;
	build_header(&file, 3, 0, 2);
	build_key_u32(&file, "twice", 1);
	build_key_u32(&file, "twice", 1);
	assert_refused("twice");
	build_header(&file, 3, 2, 0);
	build_tensor(&file, "first", 1, (const uint64_t[]){16}, 0, 0);
	build_tensor(&file, "second", 1, (const uint64_t[]){16}, 0, 32);
	build_pad(&file, 32);
	build_zeros(&file, 256);
	assert_refused("second");
}

static void test_values_the_format_does_not_have_are_refused(void **state)
{
	(void)state;
	build_header(&file, 3, 0, 1);
	build_key(&file, "nested", 9);
	build_u32(&file, 9);
	build_u64(&file, 1);
	build_zeros(&file, 64);
	assert_refused("nested");
	build_header(&file, 3, 0, 1);
	build_key(&file, "maybe", 7);
	build_bytes(&file, "\2", 1);
	assert_refused("maybe");
	build_header(&file, 3, 0, 1);
	build_key_u32(&file, "general.alignment", 48);
	assert_refused("general.alignment");
	build_header(&file, 1, 0, 0);
	assert_refused("version 1");
	file.n = 0;
	assert_refused("offset 0");
}

static void test_names_cannot_break_a_message(void **state)
{
	(void)state;
	struct error err = {""};
	struct gguf *g;
	build_header(&file, 3, 0, 1);
	build_key(&file, "a\n\x1b[31m", 77);
	assert_int_not_equal(gguf_open_memory(file.bytes, file.n, &g, &err), 0);
	assert_null(strchr(err.text, '\n'));
	assert_null(strchr(err.text, 0x1b));
}

static void test_value_text_is_one_line_that_fits(void **state)
{
	(void)state;
	char text[16];
	build_header(&file, 3, 0, 3);
	build_key_string(&file, "s",
		"line\nof gr\xc3\xb6\xc3\x9f"
		"e");
	build_key(&file, "a", 9);
	build_u32(&file, 7);
	build_u64(&file, 2);
	build_bytes(&file, "\1\0", 2);
	/* A control character of two bytes, one byte that begins nothing, and one that is cut off. */
	build_key_string(&file, "b", "a\xc2\x9b\x80z\xc3");
	struct gguf *g = open_built();
	gguf_value_text(g, 0, text, 13);
	assert_string_equal(text, "line of gr\xc3\xb6");
	gguf_value_text(g, 0, text, 12);
	assert_string_equal(text, "line of gr");
	gguf_value_text(g, 1, text, sizeof(text));
	assert_string_equal(text, "bool[2]: true, ");
	gguf_value_text(g, 2, text, sizeof(text));
	assert_string_equal(text, "a ?z?");
	gguf_value_text(g, 3, text, sizeof(text));
	assert_string_equal(text, "");
	gguf_close(&g);
}

static void test_what_is_not_a_file_is_refused_with_its_path(void **state)
{
	(void)state;
	struct error err = {""};
	struct gguf *g;
	char dir[] = "/tmp/outrider-gguf-XXXXXX", path[64];
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/model.gguf", dir);
	assert_int_equal(gguf_open(path, &g, &err), -ENOENT);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(gguf_open(dir, &g, &err), -EISDIR);
	/* A FIFO nobody writes to must not make us wait. */
	assert_int_equal(mkfifo(path, 0600), 0);
	alarm(600);
	assert_int_equal(gguf_open(path, &g, &err), -EINVAL);
	alarm(0);
	unlink(path);
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	assert_int_equal(gguf_open(path, &g, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "empty"));
	build_header(&file, 3, 0, 1);
	build_key_u32(&file, "k", 5);
	assert_int_equal(write(fd, file.bytes, file.n), (ssize_t)file.n);
	close(fd);
	assert_int_equal(gguf_open(path, &g, &err), 0);
	assert_string_equal(gguf_path(g), path);
	assert_true(gguf_fd(g) >= 0);
	assert_int_equal(gguf_bytes(g), file.n);
	assert_memory_equal(gguf_data(g), file.bytes, file.n);
	gguf_close(&g);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_value_type_reads_back),
		cmocka_unit_test(test_absent_and_mistyped_keys_are_told_apart),
		cmocka_unit_test(test_elements_out_of_range_read_as_nothing),
		cmocka_unit_test(test_tensors_are_found_with_their_data),
		cmocka_unit_test(test_counts_and_lengths_beyond_the_file_are_refused),
		cmocka_unit_test(test_tensor_sizes_that_wrap_are_refused),
		cmocka_unit_test(test_duplicates_and_overlaps_are_refused_by_name),
		cmocka_unit_test(test_values_the_format_does_not_have_are_refused),
		cmocka_unit_test(test_names_cannot_break_a_message),
		cmocka_unit_test(test_value_text_is_one_line_that_fits),
		cmocka_unit_test(test_what_is_not_a_file_is_refused_with_its_path),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
