/* The expert-cache's reader: what it reads and in which order, and what it does when a read fails. */
#include "services/expert-cache/reader/reader_io.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/slots.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILE_BYTES = 10 * SLOTS_PAGE + 100, READS = 20 };
/* For what comes at once, unless the disk is busy. */
#define LONG_NS UINT64_C(60000000000)

static void make_file(char *path)
{
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	unsigned char *bytes = malloc(FILE_BYTES);
	for (size_t i = 0; i < FILE_BYTES; i++)
		bytes[i] = (unsigned char)(i * 31 + i / 4096);
	assert_int_equal(write(fd, bytes, FILE_BYTES), FILE_BYTES);
	free(bytes);
	close(fd);
}

static void expect_bytes(const struct read_request *request)
{
	for (size_t i = 0; i < request->need; i++) {
		size_t at = (size_t)request->offset + i;
		assert_int_equal(request->to[i], (unsigned char)(at * 31 + at / 4096));
	}
}

/* Pages from everywhere, the last ones past the end, all in flight at once. */
static void read_all_over(enum io_choice io, enum auto_choice direct, const char *link)
{
	char path[] = "/var/tmp/outrider-reader-XXXXXX";
	make_file(path);
	struct reader *reader;
	struct error err = {.text = ""};
	struct reader_options options = {.io = io, .direct = direct, .depth = READS};
	int status = reader_open(&(struct reader_file){.path = path}, 1, &options, &reader, &err);
	if (status != 0 && io == IO_URING) {
		unlink(path);
		print_message("# no io_uring here: %s\n", err.text);
		skip();
	}
	assert_int_equal(status, 0);
	if (link != NULL)
		assert_string_equal(reader_link(reader), link);
	static struct read_request requests[READS];
	unsigned char *memory = aligned_alloc(SLOTS_PAGE, (size_t)READS * 4 * SLOTS_PAGE);
	for (size_t i = 0; i < READS; i++) {
		size_t offset = i % 10 * SLOTS_PAGE, bytes = (1 + i % 4) * SLOTS_PAGE;
		size_t left = FILE_BYTES - offset;
		requests[i] = (struct read_request){.offset = offset,
			.bytes = bytes,
			.need = bytes < left ? bytes : left,
			.to = memory + i * 4 * SLOTS_PAGE};
		reader_submit(reader, &requests[i]);
	}
	assert_int_equal(reader_busy(reader), READS);
	unsigned n = 0;
	while (reader_busy(reader) > 0) {
		struct read_request *finished[7];
		unsigned k = reader_wait(reader, LONG_NS, finished, 7);
		for (unsigned i = 0; i < k; i++) {
			assert_int_equal(finished[i]->status, 0);
			expect_bytes(finished[i]);
		}
		n += k;
	}
	assert_int_equal(n, READS);
	/* The file is cut short: what is gone is an error, what is left is not. */
	assert_int_equal(reader_check(reader, &err), 0);
	assert_int_equal(truncate(path, 5 * SLOTS_PAGE), 0);
	assert_int_equal(reader_check(reader, &err), -ESTALE);
	struct read_request *finished;
	reader_submit(reader, &requests[9]);
	assert_int_equal(reader_wait(reader, LONG_NS, &finished, 1), 1);
	assert_int_equal(finished->status, -ESTALE);
	reader_submit(reader, &requests[0]);
	assert_int_equal(reader_wait(reader, LONG_NS, &finished, 1), 1);
	assert_int_equal(finished->status, 0);
	/* Without a name it is as short as before. */
	unlink(path);
	assert_int_equal(reader_check(reader, &err), -ESTALE);
	free(memory);
	reader_close(&reader);
}

static void io_uring_reads_pages_and_reports_a_file_cut_short(void **state)
{
	(void)state;
	read_all_over(IO_URING, CHOICE_AUTO, NULL);
}

static void io_uring_reads_through_the_page_cache(void **state)
{
	(void)state;
	read_all_over(IO_URING, CHOICE_NO, "io_uring");
}

static void threads_read_pages_and_report_a_file_cut_short(void **state)
{
	(void)state;
	read_all_over(IO_PREAD, CHOICE_AUTO, NULL);
}

static void threads_read_through_the_page_cache(void **state)
{
	(void)state;
	read_all_over(IO_PREAD, CHOICE_NO, "pread");
}

static void a_file_that_is_not_there_is_named(void **state)
{
	(void)state;
	struct reader *reader;
	struct error err;
	const struct reader_file file = {.path = "/nowhere/x"};
	assert_int_equal(
		reader_open(&file, 1, &(struct reader_options){0}, &reader, &err), -ENOENT);
	assert_non_null(strstr(err.text, "/nowhere/x"));
}

/* Two files of whole pages and one after them: every request finds its file, none reaches into the next. */
static void parts_of_a_split_model_are_read_from_their_files(void **state)
{
	(void)state;
	enum { PART_BYTES = 11 * SLOTS_PAGE, PARTS = 3 };
	static const enum io_choice ios[] = {IO_PREAD, IO_AUTO};
	char paths[PARTS][40];
	struct reader_file files[PARTS];
	for (int p = 0; p < PARTS; p++) {
		strcpy(paths[p], "/var/tmp/outrider-reader-XXXXXX");
		make_file(paths[p]);
		/* The parts differ in their first byte. */
		int fd = open(paths[p], O_WRONLY);
		assert_int_equal(pwrite(fd, "ABC" + p, 1, 0), 1);
		close(fd);
		files[p] = (struct reader_file){.path = paths[p], .base = (uint64_t)p * PART_BYTES};
	}
	unsigned char *memory = aligned_alloc(SLOTS_PAGE, PART_BYTES);
	for (size_t i = 0; i < 2 * PARTS; i++) {
		struct reader *reader;
		struct error err = {.text = ""};
		struct reader_options options = {.io = ios[i / PARTS], .depth = 8};
		assert_int_equal(reader_open(files, PARTS, &options, &reader, &err), 0);
		uint64_t base = i % PARTS * PART_BYTES;
		struct read_request request = {
			.offset = base, .bytes = PART_BYTES, .need = FILE_BYTES, .to = memory};
		struct read_request *finished;
		reader_submit(reader, &request);
		assert_int_equal(reader_wait(reader, LONG_NS, &finished, 1), 1);
		assert_int_equal(finished->status, 0);
		assert_int_equal(memory[0], "ABC"[i % PARTS]);
		for (size_t at = 1; at < FILE_BYTES; at++)
			assert_int_equal(memory[at], (unsigned char)(at * 31 + at / 4096));
		/* Behind this part's end lies no other. */
		request.need = PART_BYTES;
		reader_submit(reader, &request);
		assert_int_equal(reader_wait(reader, LONG_NS, &finished, 1), 1);
		assert_int_equal(finished->status, -ESTALE);
		assert_int_equal(reader_check(reader, &err), 0);
		reader_close(&reader);
	}
	free(memory);
	for (int p = 0; p < PARTS; p++)
		unlink(paths[p]);
}

/* ---- An io that reads when it is asked, one piece after the other, and writes down which. ---- */

enum { SEEN_MAX = 8192 };

static struct fake {
	int fd;
	struct read_piece *first, **last;
	unsigned n_started, in_flight, in_flight_max;
	size_t in_flight_bytes, in_flight_bytes_max;
	struct {
		uint64_t position;
		size_t bytes;
		unsigned n_requests;
	} seen[SEEN_MAX];
	uintptr_t lowest, end; /* of all targets */
	/* What happens to a read that begins at or before `bad` and goes beyond it, `times` times; and to all reads. */
	uint64_t bad;
	int code;
	unsigned times;
	size_t bytes_max;
	bool refuses_direct;
	unsigned looks; /* so often nothing has ended yet */
	struct doorbell *rung; /* at the last of them */
} fake;

static int fake_open(const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err)
{
	(void)n_files;
	(void)depth;
	(void)err;
	fake.fd = fds[0];
	fake.last = &fake.first;
	*io = &fake;
	return 0;
}

static void fake_close(void *io)
{
	(void)io;
}

static void fake_start(void *io, struct read_piece *piece)
{
	(void)io;
	assert_true(fake.n_started < SEEN_MAX);
	size_t bytes = 0;
	for (unsigned i = piece->first_iov; i < piece->n_iov; i++) {
		uintptr_t at = (uintptr_t)piece->iov[i].iov_base, end = at + piece->iov[i].iov_len;
		bytes += piece->iov[i].iov_len;
		fake.lowest = fake.lowest == 0 || at < fake.lowest ? at : fake.lowest;
		fake.end = end > fake.end ? end : fake.end;
	}
	fake.seen[fake.n_started].position = piece->position;
	fake.seen[fake.n_started].bytes = bytes;
	fake.seen[fake.n_started++].n_requests = piece->n_requests;
	piece->next = NULL;
	*fake.last = piece;
	fake.last = &piece->next;
	if (++fake.in_flight > fake.in_flight_max)
		fake.in_flight_max = fake.in_flight;
	fake.in_flight_bytes += bytes;
	if (fake.in_flight_bytes > fake.in_flight_bytes_max)
		fake.in_flight_bytes_max = fake.in_flight_bytes;
}

static long fake_read(struct read_piece *piece)
{
	struct iovec iov = piece->iov[piece->first_iov];
	size_t bytes = 0;
	for (unsigned i = piece->first_iov; i < piece->n_iov; i++)
		bytes += piece->iov[i].iov_len;
	fake.in_flight_bytes -= bytes;
	if (fake.refuses_direct && !piece->plain)
		return -EINVAL;
	if (fake.times > 0 && piece->position <= fake.bad && fake.bad < piece->position + bytes) {
		fake.times--;
		return -fake.code;
	}
	if (fake.bytes_max != 0) {
		iov.iov_len = iov.iov_len < fake.bytes_max ? iov.iov_len : fake.bytes_max;
		ssize_t n = preadv(fake.fd, &iov, 1, (off_t)piece->position);
		return n < 0 ? -errno : n;
	}
	ssize_t n = preadv(fake.fd, &piece->iov[piece->first_iov],
		(int)(piece->n_iov - piece->first_iov), (off_t)piece->position);
	return n < 0 ? -errno : n;
}

static struct read_piece *fake_next(void *io, uint64_t timeout_ns, const struct doorbell_seen *seen)
{
	(void)io;
	(void)seen;
	struct read_piece *piece = fake.first;
	if (fake.looks > 0 && timeout_ns > 0) {
		if (--fake.looks == 0 && fake.rung != NULL)
			doorbell_ring(fake.rung);
		return NULL;
	}
	if (piece == NULL || (fake.rung != NULL && timeout_ns == 0))
		return NULL;
	fake.first = piece->next;
	if (fake.first == NULL)
		fake.last = &fake.first;
	fake.in_flight--;
	piece->result = fake_read(piece);
	return piece;
}

static const struct reader_io_ops fake_ops = {
	.name = "fake",
	.depth_max = 64,
	.open = fake_open,
	.close = fake_close,
	.start = fake_start,
	.next = fake_next,
};

struct bench {
	char path[40];
	struct reader *reader;
	unsigned char *memory; /* [READS][4 pages] */
	struct read_request requests[READS];
};

static void bench_start_pausing(
	struct bench *bench, unsigned depth, size_t read_bytes, uint64_t pause_ns)
{
	struct error err = {.text = ""};
	memset(bench, 0, sizeof(*bench));
	memset(&fake, 0, sizeof(fake));
	strcpy(bench->path, "/var/tmp/outrider-reader-XXXXXX");
	make_file(bench->path);
	struct reader_options options = {
		.depth = depth, .read_bytes = read_bytes, .ops = &fake_ops, .pause_ns = pause_ns};
	struct reader_file file = {.path = bench->path};
	assert_int_equal(reader_open(&file, 1, &options, &bench->reader, &err), 0);
	bench->memory = aligned_alloc(SLOTS_PAGE, (size_t)READS * 4 * SLOTS_PAGE);
	memset(bench->memory, 0xee, (size_t)READS * 4 * SLOTS_PAGE);
}

static void bench_start(struct bench *bench, unsigned depth, size_t read_bytes)
{
	bench_start_pausing(bench, depth, read_bytes, 1);
}

static void bench_stop(struct bench *bench)
{
	reader_close(&bench->reader);
	unlink(bench->path);
	free(bench->memory);
}

static void ask(struct bench *bench, unsigned i, size_t first_page, size_t n_pages,
	enum read_priority priority)
{
	size_t offset = first_page * SLOTS_PAGE, left = FILE_BYTES - offset;
	size_t bytes = n_pages * SLOTS_PAGE;
	bench->requests[i] = (struct read_request){.offset = offset,
		.bytes = bytes,
		.need = bytes < left ? bytes : left,
		.to = bench->memory + (size_t)i * 4 * SLOTS_PAGE,
		.priority = priority};
	reader_submit(bench->reader, &bench->requests[i]);
}

/* All that come, checked: those that succeed have the file's bytes. Returns how many. */
static unsigned take_all(struct bench *bench)
{
	struct read_request *finished[3];
	unsigned n = 0;
	while (reader_busy(bench->reader) > 0) {
		unsigned k = reader_wait(bench->reader, 1000, finished, 3);
		for (unsigned i = 0; i < k; i++)
			if (finished[i]->status == 0)
				expect_bytes(finished[i]);
		n += k;
	}
	return n;
}

static void long_requests_are_cut_and_no_more_than_the_depth_is_in_the_kernel(void **state)
{
	(void)state;
	struct bench bench;
	bench_start(&bench, 3, 2 * SLOTS_PAGE);
	for (unsigned i = 0; i < 8; i++)
		ask(&bench, i, i, 3, READ_DEMAND);
	assert_int_equal(take_all(&bench), 8);
	assert_int_equal(fake.n_started, 16);
	assert_int_equal(fake.in_flight_max, 3);
	bench_stop(&bench);
}

static void a_demand_overtakes_prefetches_that_are_held_back(void **state)
{
	(void)state;
	struct bench bench;
	struct read_request *finished;
	bench_start(&bench, 4, SLOTS_PAGE);
	for (unsigned i = 0; i < 6; i++)
		ask(&bench, i, i, 1, i < 3 ? READ_PRELOAD : READ_PREFETCH);
	assert_int_equal(reader_wait(bench.reader, 0, &finished, 1), 1);
	/* Half of the depth is for prefetches, and they come before preloads. */
	assert_ptr_equal(finished, &bench.requests[3]);
	assert_int_equal(fake.in_flight_max, 2);
	unsigned before = fake.n_started;
	ask(&bench, 6, 8, 1, READ_DEMAND);
	ask(&bench, 7, 9, 1, READ_DEMAND);
	assert_int_equal(take_all(&bench), 7);
	assert_int_equal(fake.in_flight_max, 4);
	assert_int_equal(fake.seen[before].position, 8 * SLOTS_PAGE);
	assert_int_equal(fake.seen[before + 1].position, 9 * SLOTS_PAGE);
	bench_stop(&bench);
}

/* Every look of the caller's would be a round of the transfer worker. */
static void a_bell_that_is_polled_ends_the_wait_only_when_it_is_rung(void **state)
{
	(void)state;
	struct bench bench;
	struct read_request *finished;
	struct doorbell bell = {0};
	bench_start(&bench, 1, SLOTS_PAGE);
	ask(&bench, 0, 0, 1, READ_DEMAND);
	struct doorbell_seen seen = {&bell, doorbell_read(&bell)};
	fake.looks = 5;
	fake.rung = &bell;
	assert_int_equal(reader_wait_or_ring(bench.reader, &seen, 3600000000000, &finished, 1), 0);
	assert_int_equal(fake.looks, 0);
	fake.looks = 5;
	fake.rung = NULL;
	seen.sequence = doorbell_read(&bell);
	assert_int_equal(reader_wait_or_ring(bench.reader, &seen, 3600000000000, &finished, 1), 1);
	assert_int_equal(fake.looks, 0);
	bench_stop(&bench);
}

static void a_promoted_prefetch_goes_on_as_a_demand(void **state)
{
	(void)state;
	struct bench bench;
	struct read_request *finished;
	bench_start(&bench, 2, SLOTS_PAGE);
	ask(&bench, 0, 0, 1, READ_PREFETCH);
	ask(&bench, 1, 1, 1, READ_PREFETCH);
	ask(&bench, 2, 2, 4, READ_PREFETCH);
	ask(&bench, 3, 6, 1, READ_PREFETCH);
	ask(&bench, 4, 7, 1, READ_PREFETCH);
	assert_int_equal(reader_wait(bench.reader, 0, &finished, 1), 1);
	reader_promote(bench.reader, &bench.requests[4], READ_DEMAND);
	reader_promote(
		bench.reader, &bench.requests[0], READ_DEMAND); /* is done: nothing happens */
	unsigned before = fake.n_started;
	assert_int_equal(take_all(&bench), 4);
	assert_int_equal(fake.seen[before].position, 7 * SLOTS_PAGE);
	assert_int_equal(bench.requests[4].priority, READ_DEMAND);
	bench_stop(&bench);
}

static void what_is_not_in_the_kernel_yet_can_be_taken_back(void **state)
{
	(void)state;
	struct bench bench;
	struct read_request *finished;
	bench_start(&bench, 2, SLOTS_PAGE);
	ask(&bench, 0, 0, 1, READ_DEMAND);
	ask(&bench, 1, 1, 4, READ_DEMAND);
	ask(&bench, 2, 5, 1, READ_DEMAND);
	assert_int_equal(reader_wait(bench.reader, 0, &finished, 1), 1);
	assert_true(reader_cancel(bench.reader, &bench.requests[2]));
	assert_int_equal(bench.requests[2].status, -ECANCELED);
	assert_false(reader_cancel(bench.reader, &bench.requests[0])); /* has been returned */
	/* Begun: it comes back when what is in the kernel has ended, and is not read to its end. */
	unsigned before = fake.n_started;
	assert_false(reader_cancel(bench.reader, &bench.requests[1]));
	assert_int_equal(take_all(&bench), 1);
	assert_int_equal(bench.requests[1].status, -ECANCELED);
	assert_int_equal(fake.n_started, before);
	/* Closing takes back what waits. */
	ask(&bench, 3, 1, 4, READ_PRELOAD);
	bench_stop(&bench);
	assert_int_equal(bench.requests[3].status, -ECANCELED);
}

static void short_neighbours_are_read_together(void **state)
{
	(void)state;
	struct bench bench;
	bench_start(&bench, 1, 8 * SLOTS_PAGE);
	ask(&bench, 0, 0, 2, READ_DEMAND);
	ask(&bench, 1, 7, 1, READ_DEMAND); /* no neighbour of anything */
	ask(&bench, 2, 2, 2, READ_DEMAND); /* begins where 0 ends */
	ask(&bench, 3, 3, 2, READ_DEMAND); /* begins with the page that 2 ends with */
	ask(&bench, 4, 5, 1, READ_PREFETCH); /* a neighbour of 3, but not as urgent */
	ask(&bench, 5, 9, 2, READ_DEMAND); /* the end of the file */
	assert_int_equal(take_all(&bench), 6);
	assert_int_equal(fake.n_started, 4);
	assert_int_equal(fake.seen[0].n_requests, 3);
	assert_int_equal(fake.seen[0].bytes, 5 * SLOTS_PAGE);
	bench_stop(&bench);
}

static void a_bad_place_fails_who_wants_it_and_nobody_beside(void **state)
{
	(void)state;
	struct bench bench;
	bench_start(&bench, 4, 8 * SLOTS_PAGE);
	fake.bad = 3 * SLOTS_PAGE + 5;
	fake.code = EIO;
	fake.times = 1000;
	for (unsigned i = 0; i < 4; i++)
		ask(&bench, i, 2 * i, 2, READ_DEMAND);
	assert_int_equal(take_all(&bench), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(bench.requests[i].status, i == 1 ? -EIO : 0);
	/* The disk is well again. */
	fake.times = 0;
	ask(&bench, 1, 2, 2, READ_DEMAND);
	assert_int_equal(take_all(&bench), 1);
	assert_int_equal(bench.requests[1].status, 0);
	bench_stop(&bench);
}

static void passing_faults_are_read_again(void **state)
{
	(void)state;
	/* The last line: what a disk's errors are called (blk_errors in Linux' block/blk-core.c). */
	static const int codes[] = {EIO, EAGAIN, EINTR, ENOMEM, EBADMSG, ENODEV, ENXIO, ECANCELED,
		ENODATA, ETIMEDOUT, ENOLINK, EREMOTEIO, ENOSPC, EBADE, EILSEQ, EBUSY, ETIME};
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		struct bench bench;
		bench_start(&bench, 2, 2 * SLOTS_PAGE);
		fake.bad = 2 * SLOTS_PAGE;
		fake.code = codes[i];
		fake.times = 3;
		ask(&bench, 0, 1, 4, READ_DEMAND);
		assert_int_equal(take_all(&bench), 1);
		assert_int_equal(bench.requests[0].status, 0);
		assert_int_equal(fake.times, 0);
		bench_stop(&bench);
	}
}

static void what_will_not_change_is_not_read_again(void **state)
{
	(void)state;
	static const int codes[] = {EBADF, EFAULT, EISDIR, ESTALE, EPERM, EOVERFLOW};
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		struct bench bench;
		bench_start(&bench, 2, 2 * SLOTS_PAGE);
		fake.bad = 2 * SLOTS_PAGE;
		fake.code = codes[i];
		fake.times = 1000;
		ask(&bench, 0, 1, 2, READ_DEMAND);
		assert_int_equal(take_all(&bench), 1);
		assert_int_equal(bench.requests[0].status, -codes[i]);
		assert_int_equal(fake.times, 999);
		bench_stop(&bench);
	}
}

/* More of them than may be in the kernel at once, and pauses that do not end. */
static void others_are_read_while_what_failed_pauses(void **state)
{
	(void)state;
	struct bench bench;
	bench_start_pausing(&bench, 2, SLOTS_PAGE, 3600000000000);
	fake.bad = 0;
	fake.code = ENODATA;
	fake.times = 1000;
	ask(&bench, 0, 0, 1, READ_DEMAND);
	ask(&bench, 1, 0, 1, READ_DEMAND);
	for (unsigned i = 2; i < 8; i++)
		ask(&bench, i, i, 1, i % 2 ? READ_DEMAND : READ_PRELOAD);
	struct read_request *finished[READS];
	unsigned n = 0;
	while (n < 6)
		n += reader_wait(bench.reader, 1000, finished + n, READS - n);
	assert_int_equal(n, 6);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(finished[i]->status, 0);
		expect_bytes(finished[i]);
	}
	assert_int_equal(reader_busy(bench.reader), 2);
	assert_int_equal(fake.n_started, 8);
	assert_int_equal(reader_wait(bench.reader, 1000, finished, READS), 0);
	/* Nobody waits an hour for the end. */
	bench_stop(&bench);
	assert_int_equal(fake.n_started, 8);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(bench.requests[i].status, -ENODATA);
}

static void short_reads_go_on_where_they_stopped(void **state)
{
	(void)state;
	static const size_t most[] = {100, SLOTS_PAGE, SLOTS_PAGE + 1000};
	for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
		struct bench bench;
		bench_start(&bench, 2, 4 * SLOTS_PAGE);
		fake.bytes_max = most[i];
		ask(&bench, 0, 0, 1, READ_DEMAND);
		ask(&bench, 1, 1, 1, READ_DEMAND);
		ask(&bench, 2, 9, 2, READ_DEMAND); /* ends with the file */
		assert_int_equal(take_all(&bench), 3);
		for (unsigned r = 0; r < 3; r++)
			assert_int_equal(bench.requests[r].status, 0);
		bench_stop(&bench);
	}
}

static void a_file_system_that_refuses_direct_reads_is_read_through_its_cache(void **state)
{
	(void)state;
	struct bench bench;
	bench_start(&bench, 2, 4 * SLOTS_PAGE);
	int fd = open(bench.path, O_RDONLY | O_DIRECT);
	assert_string_equal(reader_link(bench.reader), fd >= 0 ? "fake O_DIRECT" : "fake");
	if (fd >= 0)
		close(fd);
	fake.refuses_direct = true;
	for (unsigned i = 0; i < 5; i++)
		ask(&bench, i, i, 2, READ_DEMAND);
	assert_int_equal(take_all(&bench), 5);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(bench.requests[i].status, 0);
	assert_string_equal(reader_link(bench.reader), "fake");
	bench_stop(&bench);
	/* And one that does not even open so: /proc, as this kernel has it. */
	struct error err = {.text = ""};
	struct reader_file file = {.path = "/proc/version"};
	struct reader *reader;
	struct reader_options options = {.io = IO_PREAD, .direct = CHOICE_YES};
	assert_true(reader_open(&file, 1, &options, &reader, &err) < 0);
	assert_non_null(strstr(err.text, "/proc/version: cannot be read past the page cache"));
	options.direct = CHOICE_AUTO;
	assert_int_equal(reader_open(&file, 1, &options, &reader, &err), 0);
	assert_string_equal(reader_link(reader), "pread");
	reader_close(&reader);
}

/* tmpfs, which some kernels read past the cache and some do not. */
static void a_file_in_memory_is_read_with_what_there_is(void **state)
{
	(void)state;
	int fd = memfd_create("reader", MFD_CLOEXEC);
	char path[40];
	struct error err = {.text = ""};
	struct reader *reader;
	unsigned char *memory = aligned_alloc(SLOTS_PAGE, 2 * SLOTS_PAGE);
	memset(memory, 7, 2 * SLOTS_PAGE);
	assert_int_equal(write(fd, memory, 2 * SLOTS_PAGE), 2 * SLOTS_PAGE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	struct reader_file file = {.path = path};
	assert_int_equal(reader_open(&file, 1, &(struct reader_options){0}, &reader, &err), 0);
	struct read_request *finished,
		request = {.bytes = 2 * SLOTS_PAGE, .need = 2 * SLOTS_PAGE, .to = memory};
	memset(memory, 0, 2 * SLOTS_PAGE);
	reader_submit(reader, &request);
	assert_int_equal(reader_wait(reader, LONG_NS, &finished, 1), 1);
	assert_int_equal(request.status, 0);
	for (size_t i = 0; i < 2 * SLOTS_PAGE; i++)
		assert_int_equal(memory[i], 7);
	reader_close(&reader);
	close(fd);
	free(memory);
}

/* ---- What the kernel forbids. ---- */

/* Runs fn in a child and returns its standard error; the child must have ended well. */
static const char *in_child(int (*fn)(void))
{
	static char said[8192];
	int ends[2];
	assert_int_equal(pipe(ends), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		_exit(fn());
	}
	close(ends[1]);
	size_t n = 0;
	ssize_t k;
	while (n < sizeof(said) - 1 && (k = read(ends[0], said + n, sizeof(said) - 1 - n)) > 0)
		n += (size_t)k;
	said[n] = '\0';
	close(ends[0]);
	int status = -1;
	waitpid(pid, &status, 0);
	if (status != 0)
		fail_msg("the child ended with %x: %s", (unsigned)status, said);
	return said;
}

static bool read_once(struct reader *reader, unsigned char *to)
{
	struct read_request *finished,
		request = {.bytes = SLOTS_PAGE, .need = SLOTS_PAGE, .to = to};
	reader_submit(reader, &request);
	return reader_wait(reader, LONG_NS, &finished, 1) == 1 && request.status == 0 &&
	       to[31] == (unsigned char)(31 * 31);
}

enum { BURST = 9 };

/* Two bursts of failures: one that ends, one that the reader's end cuts off. */
static int fail_in_bursts(void)
{
	struct bench bench;
	bench_start(&bench, 4, SLOTS_PAGE);
	fake.bad = 0;
	fake.code = EISDIR;
	for (int burst = 0; burst < 2; burst++) {
		fake.times = BURST;
		for (unsigned i = 0; i < BURST; i++)
			ask(&bench, i, 0, 1, READ_DEMAND);
		if (take_all(&bench) != BURST)
			return 1;
		reader_tell(bench.reader, clock_ns());
		if (burst == 0)
			reader_tell(bench.reader, clock_ns() + 3600000000000);
	}
	bench_stop(&bench);
	return 0;
}

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;
	while ((text = strstr(text, what)) != NULL) {
		text += strlen(what);
		n++;
	}
	return n;
}

static void of_many_failures_a_few_are_logged_and_then_how_many_more(void **state)
{
	(void)state;
	const char *said = in_child(fail_in_bursts);
	assert_int_equal(count(said, "reading 4096 bytes at 0: Is a directory"), 8);
	assert_int_equal(count(said, "outrider-reader-"), 10);
	assert_int_equal(count(said, ": 5 more reads failed"), 2);
}

static char child_path[40];

static int forbid_io_uring_and_read(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the call */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = filter};
	struct reader_file file = {.path = child_path};
	struct reader *reader;
	struct error err = {.text = ""};
	struct reader_options options = {.io = IO_URING};
	static _Alignas(4096) unsigned char page[SLOTS_PAGE];
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		return 1;
	/* Who insists on it is told, who does not gets threads. */
	if (reader_open(&file, 1, &options, &reader, &err) != -EPERM ||
		!strstr(err.text, "io_uring"))
		return 2;
	options.io = IO_AUTO;
	if (reader_open(&file, 1, &options, &reader, &err) != 0)
		return 3;
	if (strncmp(reader_link(reader), "pread", 5) != 0 || !read_once(reader, page))
		return 4;
	reader_close(&reader);
	return 0;
}

static void without_io_uring_threads_read_and_the_log_says_so(void **state)
{
	(void)state;
	strcpy(child_path, "/var/tmp/outrider-reader-XXXXXX");
	make_file(child_path);
	const char *said = in_child(forbid_io_uring_and_read);
	assert_non_null(strstr(said, "reading with threads instead"));
	unlink(child_path);
}

enum { SLOTS = 4, SLOT_BYTES = 64 * SLOTS_PAGE };

/* Nobody, who may lock two slots' worth of memory. */
static int read_with_little_locked_memory(void)
{
	struct rlimit limit = {2 * SLOT_BYTES + SLOTS_PAGE, 2 * SLOT_BYTES + SLOTS_PAGE};
	struct reader_file file = {.path = child_path};
	struct reader *reader;
	struct error err = {.text = ""};
	struct reader_options options = {.io = IO_URING};
	unsigned char *slots = mmap(NULL, (size_t)SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0))
		return 1;
	if (reader_open(&file, 1, &options, &reader, &err) != 0)
		return 2;
	reader_slots(reader, slots, SLOT_BYTES, SLOTS);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < SLOTS; i++)
			if (!read_once(reader, slots + i * SLOT_BYTES))
				return 3;
	reader_close(&reader);
	return 0;
}

static bool have_io_uring(void)
{
	struct reader_file file = {.path = "/proc/version"};
	struct reader *reader;
	struct error err;
	struct reader_options options = {.io = IO_URING, .direct = CHOICE_NO};
	if (reader_open(&file, 1, &options, &reader, &err) != 0)
		return false;
	reader_close(&reader);
	return true;
}

static void what_cannot_be_registered_is_read_all_the_same(void **state)
{
	(void)state;
	if (!have_io_uring()) {
		print_message("# no io_uring here\n");
		skip();
	}
	strcpy(child_path, "/var/tmp/outrider-reader-XXXXXX");
	make_file(child_path);
	assert_int_equal(chmod(child_path, 0644), 0);
	const char *said = in_child(read_with_little_locked_memory);
	const char *first = strstr(said, "of slots could be registered");
	assert_non_null(first);
	assert_non_null(strstr(said, "RLIMIT_MEMLOCK"));
	assert_null(strstr(first + 1, "of slots could be registered"));
	unlink(child_path);
}

static void slots_whose_pages_were_given_back_are_read_into_their_new_ones(void **state)
{
	(void)state;
	struct bench bench;
	struct error err = {.text = ""};
	struct reader *reader;
	bench_start(&bench, 1, SLOTS_PAGE); /* for its file */
	struct reader_file file = {.path = bench.path};
	assert_int_equal(reader_open(&file, 1, &(struct reader_options){0}, &reader, &err), 0);
	int fd = memfd_create("slots", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, SLOTS * SLOT_BYTES), 0);
	unsigned char *slots =
		mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	reader_slots(reader, slots, SLOT_BYTES, SLOTS);
	for (int round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < SLOTS; i++) {
			assert_true(read_once(reader, slots + i * SLOT_BYTES));
			reader_forget_slot(reader, i);
			assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						 i * SLOT_BYTES, SLOT_BYTES),
				0);
			assert_int_equal(slots[i * SLOT_BYTES + 31], 0);
		}
	}
	/* A target that reaches over two slots, or lies elsewhere, is read without. */
	assert_true(read_once(reader, bench.memory));
	reader_slots(reader, NULL, 0, 0);
	assert_true(read_once(reader, slots));
	reader_close(&reader);
	munmap(slots, SLOTS * SLOT_BYTES);
	close(fd);
	bench_stop(&bench);
}

static void depth_length_and_rate_are_measured_in_bounded_time(void **state)
{
	(void)state;
	char path[] = "/var/tmp/outrider-reader-XXXXXX";
	int fd = mkstemp(path);
	static unsigned char bytes[1 << 20];
	memset(bytes, 5, sizeof(bytes));
	for (int i = 0; i < 8; i++)
		assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	close(fd);
	static const enum io_choice ios[] = {IO_AUTO, IO_PREAD};
	for (size_t i = 0; i < 2; i++) {
		struct reader *reader;
		struct error err = {.text = ""};
		struct reader_options options = {.io = ios[i]};
		struct reader_file file = {.path = path};
		assert_int_equal(reader_open(&file, 1, &options, &reader, &err), 0);
		assert_in_range(reader_depth(reader), 4, 64);
		assert_in_range(reader_piece_bytes(reader), 128 << 10, 1 << 20);
		assert_true(reader_rate(reader) > 0);
		assert_int_equal(reader_busy(reader), 0);
		reader_close(&reader);
		/* What is given is not measured. */
		options.depth = 5;
		assert_int_equal(reader_open(&file, 1, &options, &reader, &err), 0);
		assert_int_equal(reader_depth(reader), 5);
		reader_close(&reader);
		options.read_bytes = 96 << 10;
		assert_int_equal(reader_open(&file, 1, &options, &reader, &err), 0);
		assert_int_equal(reader_piece_bytes(reader), 96 << 10);
		assert_true(reader_rate(reader) == 0);
		reader_close(&reader);
	}
	unlink(path);
}

/* A reader of a file of so many bytes, of holes, through `fake`. */
static struct reader *measured(unsigned depth, size_t read_bytes, off_t file_bytes)
{
	char path[] = "/var/tmp/outrider-reader-XXXXXX";
	int fd = mkstemp(path);
	assert_int_equal(ftruncate(fd, file_bytes), 0);
	close(fd);
	struct reader *reader;
	struct error err = {.text = ""};
	struct reader_options options = {
		.depth = depth, .read_bytes = read_bytes, .ops = &fake_ops};
	struct reader_file file = {.path = path};
	assert_int_equal(reader_open(&file, 1, &options, &reader, &err), 0);
	unlink(path);
	return reader;
}

static void a_given_length_is_measured_within_its_memory(void **state)
{
	(void)state;
	/* Neither divides the 16 MiB that are read to. */
	static const size_t lengths[] = {400 << 10, 9 << 20};
	for (size_t i = 0; i < 2; i++) {
		memset(&fake, 0, sizeof(fake));
		struct reader *reader = measured(0, lengths[i], 40 << 20);
		assert_true(reader_rate(reader) > 0);
		assert_int_equal(reader_piece_bytes(reader), lengths[i]);
		assert_true(fake.end - fake.lowest <= 16 << 20);
		reader_close(&reader);
	}
}

static void reads_longer_than_the_file_are_not_measured(void **state)
{
	(void)state;
	memset(&fake, 0, sizeof(fake));
	struct reader *reader = measured(0, 16 << 20, 10 << 20);
	assert_int_equal(reader_piece_bytes(reader), 16 << 20);
	assert_int_equal(fake.n_started, 0);
	reader_close(&reader);
}

/* A disk of 100 MB/s would take minutes for a thousand reads of a mebibyte, time after time. */
static void the_deepest_queue_and_the_longest_reads_are_measured_with_few(void **state)
{
	(void)state;
	static const struct {
		unsigned depth;
		size_t read_bytes;
	} given[] = {{READER_DEPTH_MAX, 0}, {0, READER_BYTES_MAX}};
	for (size_t i = 0; i < 2; i++) {
		memset(&fake, 0, sizeof(fake));
		struct reader *reader = measured(given[i].depth, given[i].read_bytes, 64 << 20);
		assert_true(reader_rate(reader) > 0);
		assert_true(fake.in_flight_bytes_max <= 64 << 20);
		reader_close(&reader);
	}
}

static void what_is_given_stays_when_measuring_fails(void **state)
{
	(void)state;
	for (int given = 0; given < 2; given++) {
		/* A bad place in the middle of a file that is read all over: more retries than a read has. */
		memset(&fake, 0, sizeof(fake));
		fake.bad = 1 << 20;
		fake.code = EIO;
		fake.times = SEEN_MAX;
		struct reader *reader = measured(given ? 5 : 0, given ? 0 : 1 << 20, 2 << 20);
		assert_true(fake.times < SEEN_MAX);
		assert_true(reader_rate(reader) == 0);
		assert_int_equal(reader_depth(reader), given ? 5 : 16);
		assert_int_equal(reader_piece_bytes(reader), given ? 512 << 10 : 1 << 20);
		reader_close(&reader);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(io_uring_reads_pages_and_reports_a_file_cut_short),
		cmocka_unit_test(io_uring_reads_through_the_page_cache),
		cmocka_unit_test(threads_read_pages_and_report_a_file_cut_short),
		cmocka_unit_test(threads_read_through_the_page_cache),
		cmocka_unit_test(a_file_that_is_not_there_is_named),
		cmocka_unit_test(parts_of_a_split_model_are_read_from_their_files),
		cmocka_unit_test(long_requests_are_cut_and_no_more_than_the_depth_is_in_the_kernel),
		cmocka_unit_test(a_demand_overtakes_prefetches_that_are_held_back),
		cmocka_unit_test(a_bell_that_is_polled_ends_the_wait_only_when_it_is_rung),
		cmocka_unit_test(a_promoted_prefetch_goes_on_as_a_demand),
		cmocka_unit_test(what_is_not_in_the_kernel_yet_can_be_taken_back),
		cmocka_unit_test(short_neighbours_are_read_together),
		cmocka_unit_test(a_bad_place_fails_who_wants_it_and_nobody_beside),
		cmocka_unit_test(passing_faults_are_read_again),
		cmocka_unit_test(what_will_not_change_is_not_read_again),
		cmocka_unit_test(others_are_read_while_what_failed_pauses),
		cmocka_unit_test(of_many_failures_a_few_are_logged_and_then_how_many_more),
		cmocka_unit_test(short_reads_go_on_where_they_stopped),
		cmocka_unit_test(a_file_system_that_refuses_direct_reads_is_read_through_its_cache),
		cmocka_unit_test(a_file_in_memory_is_read_with_what_there_is),
		cmocka_unit_test(without_io_uring_threads_read_and_the_log_says_so),
		cmocka_unit_test(what_cannot_be_registered_is_read_all_the_same),
		cmocka_unit_test(slots_whose_pages_were_given_back_are_read_into_their_new_ones),
		cmocka_unit_test(depth_length_and_rate_are_measured_in_bounded_time),
		cmocka_unit_test(a_given_length_is_measured_within_its_memory),
		cmocka_unit_test(reads_longer_than_the_file_are_not_measured),
		cmocka_unit_test(the_deepest_queue_and_the_longest_reads_are_measured_with_few),
		cmocka_unit_test(what_is_given_stays_when_measuring_fails),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
