/* Sleeping on reads and on a doorbell at once: either ends it, however often and in whatever order. */
#include "services/expert-cache/reader/reader_io.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

/* Who is not woken is killed with the test. */
#define FOR_EVER_NS 1000000000000ull
#define ROUNDS 2000
enum { RIG_DEPTH = 4 }; /* a power of two, which a ring has no more entries than */

/* A read of a pipe ends when the test wants it to. */
struct rig {
	void *io;
	int pipe[2];
	struct doorbell bell;
	pthread_t thread; /* of meanwhile */
	_Atomic bool stop;
	char byte;
	struct read_piece piece;
};

static bool rig_start(struct rig *rig)
{
	struct error err = {""};
	memset(rig, 0, sizeof(*rig));
	assert_int_equal(pipe(rig->pipe), 0);
	int fds[2] = {rig->pipe[0], -1};
	return reader_io_uring.open(fds, 1, RIG_DEPTH, &rig->io, &err) == 0;
}

static void rig_stop(struct rig *rig)
{
	reader_io_uring.close(rig->io);
	close(rig->pipe[0]);
	close(rig->pipe[1]);
}

static void start_read(struct rig *rig)
{
	rig->piece = (struct read_piece){
		.plain = true, .n_iov = 1, .iov = {{&rig->byte, sizeof(rig->byte)}}};
	reader_io_uring.start(rig->io, &rig->piece);
}

static void meanwhile(struct rig *rig, void *(*run)(void *))
{
	atomic_store(&rig->stop, false);
	assert_int_equal(pthread_create(&rig->thread, NULL, run, rig), 0);
}

static void no_longer(struct rig *rig)
{
	atomic_store(&rig->stop, true);
	pthread_join(rig->thread, NULL);
}

static struct read_piece *wait_or_ring(struct rig *rig, uint32_t seen)
{
	return reader_io_uring.next(
		rig->io, FOR_EVER_NS, &(struct doorbell_seen){&rig->bell, seen});
}

/* As soon as somebody is counted asleep, which may be a moment before he is. */
static void *ringer(void *arg)
{
	struct rig *rig = arg;
	while (!atomic_load(&rig->stop))
		if (atomic_load(&rig->bell.sleepers) > 0)
			doorbell_ring(&rig->bell);
		else
			sched_yield();
	return NULL;
}

static void skip_without_both(struct rig *rig)
{
	if (!rig_start(rig))
		skip();
	start_read(rig);
	/* A kernel that cannot comes back by itself. */
	meanwhile(rig, ringer);
	uint32_t seen = doorbell_read(&rig->bell);
	assert_null(wait_or_ring(rig, seen));
	bool rung = doorbell_read(&rig->bell) != seen;
	no_longer(rig);
	if (!rung)
		skip();
}

static void a_ring_ends_the_wait_for_a_read(void **state)
{
	(void)state;
	struct rig rig;
	skip_without_both(&rig);
	meanwhile(&rig, ringer);
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t seen = doorbell_read(&rig.bell);
		struct read_piece *piece = wait_or_ring(&rig, seen);
		assert_null(piece);
	}
	no_longer(&rig);
	assert_int_equal(atomic_load(&rig.bell.sleepers), 0);
	rig_stop(&rig);
}

static void *writer(void *arg)
{
	struct rig *rig = arg;
	while (!atomic_load(&rig->stop))
		if (atomic_load(&rig->bell.sleepers) > 0)
			assert_int_equal(write(rig->pipe[1], "x", 1), 1);
		else
			sched_yield();
	return NULL;
}

static void a_read_ends_the_wait_for_a_ring(void **state)
{
	(void)state;
	struct rig rig;
	skip_without_both(&rig);
	meanwhile(&rig, writer);
	for (int i = 0; i < ROUNDS; i++) {
		struct read_piece *piece = wait_or_ring(&rig, doorbell_read(&rig.bell));
		assert_ptr_equal(piece, &rig.piece);
		assert_int_equal(piece->result, 1);
		start_read(&rig);
	}
	no_longer(&rig);
	rig_stop(&rig);
}

/* The wait that the kernel queued in an earlier sleep serves a later one, though the bell was rung in between. */
static void what_was_rung_while_awake_wakes_nobody_and_loses_nothing(void **state)
{
	(void)state;
	struct rig rig;
	skip_without_both(&rig);
	for (int i = 0; i < ROUNDS; i++) {
		assert_int_equal(write(rig.pipe[1], "x", 1), 1);
		struct read_piece *piece = wait_or_ring(&rig, doorbell_read(&rig.bell));
		assert_ptr_equal(piece, &rig.piece);
		start_read(&rig);
		uint32_t seen = doorbell_read(&rig.bell);
		doorbell_ring(&rig.bell);
		assert_null(wait_or_ring(&rig, seen));
		if (i % 16 != 0)
			continue;
		meanwhile(&rig, ringer);
		assert_null(wait_or_ring(&rig, doorbell_read(&rig.bell)));
		no_longer(&rig);
	}
	rig_stop(&rig);
}

/* This thread alone gets `code` for io_uring_enter from now on. */
static bool refuse_enter(int code)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)code),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *wait_in_vain(void *arg)
{
	struct rig *rig = arg;
	if (!refuse_enter(EAGAIN))
		return NULL;
	struct doorbell_seen seen = {&rig->bell, doorbell_read(&rig->bell)};
	struct read_piece *piece = reader_io_uring.next(rig->io, 1000000, &seen);
	return piece == NULL ? arg : piece;
}

static void *open_in_vain(void *arg)
{
	struct rig *rig = arg;
	struct error err = {""};
	int fds[2] = {rig->pipe[0], -1};
	if (!refuse_enter(EPERM))
		return NULL;
	return reader_io_uring.open(fds, 1, RIG_DEPTH, &rig->io, &err) == -EPERM ? arg : &rig->io;
}

static void a_ring_that_may_be_made_and_not_used_is_none(void **state)
{
	(void)state;
	struct rig rig;
	void *result;
	if (!rig_start(&rig))
		skip();
	reader_io_uring.close(rig.io);
	meanwhile(&rig, open_in_vain);
	pthread_join(rig.thread, &result);
	close(rig.pipe[0]);
	close(rig.pipe[1]);
	if (result == NULL)
		skip();
	assert_ptr_equal(result, &rig);
}

/* As many reads as the ring was opened for, a wait for a bell, and a kernel that is short of memory. */
static void what_the_kernel_does_not_take_is_waited_for_no_longer_than_said(void **state)
{
	(void)state;
	struct rig rig;
	struct read_piece pieces[RIG_DEPTH];
	char bytes[RIG_DEPTH] = "";
	void *result;
	skip_without_both(&rig);
	rig_stop(&rig);
	assert_true(rig_start(&rig));
	for (int i = 0; i < RIG_DEPTH; i++) {
		pieces[i] = (struct read_piece){.plain = true, .n_iov = 1, .iov = {{&bytes[i], 1}}};
		reader_io_uring.start(rig.io, &pieces[i]);
	}
	meanwhile(&rig, wait_in_vain);
	pthread_join(rig.thread, &result);
	if (result == NULL)
		skip();
	assert_ptr_equal(result, &rig);
	/* And is read all the same when there is memory again. */
	assert_int_equal(write(rig.pipe[1], "abcd", RIG_DEPTH), RIG_DEPTH);
	for (int i = 0; i < RIG_DEPTH; i++) {
		struct read_piece *piece = reader_io_uring.next(rig.io, FOR_EVER_NS, NULL);
		assert_non_null(piece);
		assert_int_equal(piece->result, 1);
	}
	for (int i = 0; i < RIG_DEPTH; i++)
		assert_non_null(memchr(bytes, "abcd"[i], RIG_DEPTH));
	rig_stop(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_ring_ends_the_wait_for_a_read),
		cmocka_unit_test(a_read_ends_the_wait_for_a_ring),
		cmocka_unit_test(what_was_rung_while_awake_wakes_nobody_and_loses_nothing),
		cmocka_unit_test(a_ring_that_may_be_made_and_not_used_is_none),
		cmocka_unit_test(what_the_kernel_does_not_take_is_waited_for_no_longer_than_said),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
