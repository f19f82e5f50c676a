#include "shared/ipc/region.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES 10000

static struct region make(void)
{
	struct region r;
	struct error err = {""};

	assert_int_equal(region_create("sessions", 3, BYTES, 0, &r, &err), 0);
	return r;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* It may be longer than was asked for, by what fills the last page. */
static void a_region_of_huge_pages_is_like_any_other(void **state)
{
	struct region a, b;
	struct huge_pages pages;
	struct error err = {""};

	(void)state;
	assert_int_equal(region_create_huge("weights", 3, BYTES, &pages, &a, &err), 0);
	assert_true(a.bytes >= REGION_DATA + BYTES && a.bytes == pages.bytes);
	assert_int_equal(a.header->bytes, a.bytes);
	assert_int_equal(
		region_attach(dup(a.fd), "weights", 3, REGION_DATA + BYTES, true, &b, &err), 0);
	strcpy((char *)region_payload(&a) + BYTES - 5, "said");
	assert_string_equal((char *)region_payload(&b) + BYTES - 5, "said");
	assert_int_equal(ftruncate(a.fd, 0), -1);
	region_close(&a);
	region_close(&b);
}

static void two_mappings_share_the_bytes(void **state)
{
	struct region a = make(), b, c;
	struct error err = {""};

	(void)state;
	assert_int_equal(a.bytes, REGION_DATA + BYTES);
	assert_int_equal(atomic_load(&a.header->generation), 1);
	assert_int_equal(((unsigned char *)region_payload(&a))[BYTES - 1], 0);
	assert_true(fcntl(a.fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(region_attach(dup(a.fd), "sessions", 3, a.bytes, true, &b, &err), 0);
	assert_int_equal(region_attach(dup(a.fd), "sessions", 3, 0, false, &c, &err), 0);
	strcpy(region_payload(&b), "said");
	assert_string_equal(region_payload(&a), "said");
	assert_string_equal(region_payload(&c), "said");
	assert_int_equal(b.header->uid, a.header->uid);
	region_close(&a);
	assert_string_equal(region_payload(&b), "said");
	region_close(&b);
	region_close(&c);
	region_close(&c);
	assert_int_equal(c.fd, -1);
}

static void adopting_takes_the_next_generation(void **state)
{
	struct region a = make(), b;
	uint64_t uid = a.header->uid;

	(void)state;
	for (uint64_t generation = 2; generation < 5; generation++) {
		assert_int_equal(region_adopt(dup(a.fd), "sessions", 3, a.bytes, &b, NULL), 0);
		assert_int_equal(atomic_load(&a.header->generation), generation);
		assert_int_equal(b.header->uid, uid);
		region_close(&b);
	}
	region_close(&a);
	a = make();
	assert_int_not_equal(a.header->uid, uid);
	region_close(&a);
}

static int right_of(int fd)
{
	return fcntl(fd, F_GETFL) & O_ACCMODE;
}

/* A keeper cannot write, by mistake or otherwise, through what it has; the owner's successor can. */
static void a_descriptor_for_reading_is_enough_for_a_successor(void **state)
{
	struct region a = make(), b;
	struct error err = {""};
	struct stat st;
	int fd = region_read_only(a.fd);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(right_of(fd), O_RDONLY);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(pwrite(fd, "x", 1, REGION_DATA), -1);
	assert_ptr_equal(mmap(NULL, a.bytes, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(region_attach(dup(fd), "sessions", 3, 0, true, &b, &err), -EACCES);
	assert_non_null(strstr(err.text, "for reading alone"));
	assert_int_equal(region_attach(dup(fd), "sessions", 3, 0, false, &b, &err), 0);
	assert_int_equal(right_of(b.fd), O_RDONLY);
	region_close(&b);
	/* One that could write does not need it. */
	assert_int_equal(region_attach(dup(a.fd), "sessions", 3, 0, false, &b, &err), 0);
	assert_int_equal(right_of(b.fd), O_RDONLY);
	region_close(&b);
	assert_int_equal(region_adopt(fd, "sessions", 3, a.bytes, &b, &err), 0);
	assert_int_equal(right_of(b.fd), O_RDWR);
	strcpy(region_payload(&b), "by the successor");
	assert_string_equal(region_payload(&a), "by the successor");
	region_close(&a);
	region_close(&b);
}

static void refused(
	int fd, const char *name, uint32_t layout, size_t bytes_min, int code, const char *why)
{
	struct region r;
	struct error err = {""};

	assert_int_equal(region_attach(fd, name, layout, bytes_min, true, &r, &err), code);
	assert_non_null(strstr(err.text, why));
	assert_false(is_open(fd));
	assert_null(r.header);
}

static void what_is_not_the_region_asked_for_is_refused(void **state)
{
	struct region a = make();

	(void)state;
	refused(dup(a.fd), "draft", 3, 0, -EINVAL, "is named \"sessions\"");
	refused(dup(a.fd), "sessions", 4, 0, -EPROTO, "layout 3, expected 4");
	refused(dup(a.fd), "sessions", 3, a.bytes + 1, -EINVAL, "expected at least");
	a.header->bytes += 4096;
	refused(dup(a.fd), "sessions", 3, 0, -EINVAL, "header says");
	a.header->bytes -= 4096;
	memset(a.header->name, 'x', sizeof a.header->name); /* no end */
	refused(dup(a.fd), "sessions", 3, 0, -EINVAL, "is named");
	a.header->magic++;
	refused(dup(a.fd), "sessions", 3, 0, -EINVAL, "magic");
	region_close(&a);
}

static void a_file_its_maker_can_shrink_is_refused(void **state)
{
	struct region a = make();
	int fd = memfd_create("sessions", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	(void)state;
	assert_int_equal(ftruncate(fd, (off_t)a.bytes), 0);
	assert_int_equal(pwrite(fd, a.header, REGION_DATA, 0), REGION_DATA);
	refused(dup(fd), "sessions", 3, 0, -EPERM, "not sealed");
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(dup(fd), "sessions", 3, 0, -EPERM, "not sealed");
	close(fd);
	refused(open("/dev/null", O_RDWR | O_CLOEXEC), "sessions", 3, 0, -EPERM, "not sealed");
	/* And ours cannot be. */
	assert_int_equal(ftruncate(a.fd, 0), -1);
	assert_int_equal(ftruncate(a.fd, 1 << 20), -1);
	region_close(&a);
}

static void a_file_too_short_for_a_header_is_refused(void **state)
{
	int fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	(void)state;
	assert_int_equal(ftruncate(fd, REGION_DATA - 1), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	refused(fd, "short", 1, 0, -EINVAL, "127 bytes");
}

static void more_than_the_machine_has_is_refused_by_size(void **state)
{
	struct region r;
	struct error err = {""};

	(void)state;
	assert_int_equal(region_create("experts", 1, (size_t)1 << 46, 0, &r, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "experts"));
	assert_non_null(strstr(err.text, "67108864 MiB asked for"));
	assert_int_equal(region_create("experts", 1, SIZE_MAX - 4, 0, &r, &err), -ENOMEM);
	assert_null(r.header);
	assert_int_equal(region_create("", 1, 64, 0, &r, &err), -EINVAL);
	assert_int_equal(
		region_create("a-name-of-more-than-thirty-one-by", 1, 64, 0, &r, &err), -EINVAL);
	region_close(&r);
}

static void closing_what_was_never_opened_touches_no_descriptor(void **state)
{
	struct region r = {0};

	(void)state;
	region_close(&r);
	assert_true(is_open(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_mappings_share_the_bytes),
		cmocka_unit_test(a_region_of_huge_pages_is_like_any_other),
		cmocka_unit_test(adopting_takes_the_next_generation),
		cmocka_unit_test(a_descriptor_for_reading_is_enough_for_a_successor),
		cmocka_unit_test(what_is_not_the_region_asked_for_is_refused),
		cmocka_unit_test(a_file_its_maker_can_shrink_is_refused),
		cmocka_unit_test(a_file_too_short_for_a_header_is_refused),
		cmocka_unit_test(more_than_the_machine_has_is_refused_by_size),
		cmocka_unit_test(closing_what_was_never_opened_touches_no_descriptor),
	};

	return cmocka_run_group_tests_name("region", tests, NULL, NULL);
}
