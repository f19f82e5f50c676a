#include "shared/base/clock.h"
#include "shared/ipc/ring.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct message {
	uint64_t number;
	uint64_t words[7]; /* each number * (i + 2): a torn slot shows */
};

static struct message message_of(uint64_t number)
{
	struct message m = {.number = number};

	for (uint64_t i = 0; i < 7; i++)
		m.words[i] = number * (i + 2);
	return m;
}

static void assert_message(const struct message *m, uint64_t number)
{
	struct message want = message_of(number);

	assert_memory_equal(m, &want, sizeof want);
}

static void *shared_memory(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(mem != MAP_FAILED);
	return mem;
}

/* A ring of n slots whose counters both stand at `at`, and a view for each side. */
static void make(struct ring *producer, struct ring *consumer, size_t n, uint64_t at)
{
	size_t bytes = ring_bytes(sizeof(struct message), n);
	struct ring_shared *shared = shared_memory(bytes);

	ring_format(shared, sizeof(struct message), n);
	atomic_store(&shared->head, at);
	atomic_store(&shared->tail, at);
	assert_int_equal(ring_attach(producer, shared, bytes, sizeof(struct message), NULL), 0);
	assert_int_equal(ring_attach(consumer, shared, bytes, sizeof(struct message), NULL), 0);
}

static void drop_memory(struct ring *ring)
{
	munmap(ring->shared, ring_bytes(ring->slot_bytes, (size_t)ring->mask + 1));
}

static void sizes_that_cannot_be_are_refused(void **state)
{
	struct ring ring;
	struct error err;
	size_t bytes = ring_bytes(64, 8);
	struct ring_shared *shared = shared_memory(bytes);

	(void)state;
	assert_int_equal(ring_bytes(0, 8), 0);
	assert_int_equal(ring_bytes(63, 8), 0);
	assert_int_equal(ring_bytes(64, 0), 0);
	assert_int_equal(ring_bytes(64, 12), 0);
	assert_int_equal(bytes, 4 * CACHE_LINE + 8 * 64);
	assert_int_equal(ring_attach(&ring, shared, bytes, 64, &err), -EINVAL);
	assert_non_null(strstr(err.text, "magic"));
	ring_format(shared, 64, 8);
	assert_int_equal(ring_attach(&ring, shared, bytes, 128, &err), -EINVAL);
	assert_non_null(strstr(err.text, "64 bytes, expected 128"));
	assert_int_equal(ring_attach(&ring, shared, bytes - 1, 64, &err), -EINVAL);
	assert_int_equal(ring_attach(&ring, (char *)shared + 8, bytes - 8, 64, &err), -EINVAL);
	shared->n_slots = 1u << 31; /* a peer that lies about its length */
	assert_int_equal(ring_attach(&ring, shared, bytes, 64, &err), -EINVAL);
	shared->n_slots = 7;
	assert_int_equal(ring_attach(&ring, shared, bytes, 64, &err), -EINVAL);
	shared->n_slots = 8;
	assert_int_equal(ring_attach(&ring, shared, bytes, 0, &err), 0);
	assert_int_equal(ring.slot_bytes, 64);
	munmap(shared, bytes);
}

static void holds_exactly_its_slots_in_order(void **state)
{
	(void)state;
	for (size_t n = 1; n <= 64; n *= 2) {
		struct ring producer, consumer;
		struct message m;

		make(&producer, &consumer, n, 0);
		for (uint64_t round = 0; round < 5; round++) {
			assert_false(ring_pop(&consumer, &m));
			for (uint64_t i = 0; i < n; i++) {
				m = message_of(round * n + i);
				assert_true(ring_push(&producer, &m));
			}
			assert_null(ring_reserve(&producer));
			assert_int_equal(ring_length(&consumer), n);
			for (uint64_t i = 0; i < n; i++) {
				assert_true(ring_pop(&consumer, &m));
				assert_message(&m, round * n + i);
			}
			assert_null(ring_peek(&consumer));
		}
		drop_memory(&producer);
	}
}

static void counters_cross_the_end_of_64_bits(void **state)
{
	(void)state;
	for (uint64_t before = 0; before <= 9; before++) {
		struct ring producer, consumer, late_producer, late_consumer;
		struct message m;

		make(&producer, &consumer, 8, UINT64_MAX - before);
		for (uint64_t i = 0; i < 8; i++) {
			m = message_of(i);
			assert_true(ring_push(&producer, &m));
			/* A successor that attaches at this very place continues the same way. */
			assert_int_equal(ring_attach(&late_producer, producer.shared,
						 ring_bytes(64, 8), 64, NULL),
				0);
			assert_int_equal(ring_attach(&late_consumer, producer.shared,
						 ring_bytes(64, 8), 64, NULL),
				0);
			assert_int_equal(ring_reserve(&late_producer) == NULL, i == 7);
			assert_message(ring_peek(&late_consumer), 0);
			assert_false(ring_broken(&late_consumer));
		}
		assert_false(ring_push(&producer, &m));
		for (uint64_t i = 0; i < 24; i++) {
			assert_true(ring_pop(&consumer, &m));
			assert_message(&m, i);
			m = message_of(i + 8);
			assert_true(ring_push(&producer, &m));
		}
		drop_memory(&producer);
	}
}

static void short_objects_leave_no_old_bytes_behind(void **state)
{
	struct ring producer, consumer;
	struct message m = message_of(3);
	uint32_t small = 77;

	(void)state;
	make(&producer, &consumer, 1, 0);
	assert_true(ring_push(&producer, &m));
	assert_true(ring_pop(&consumer, &m));
	assert_true(ring_put(&producer, &small, sizeof small));
	assert_true(ring_pop(&consumer, &m));
	assert_int_equal(m.number, 77);
	for (int i = 0; i < 7; i++)
		assert_int_equal(m.words[i], 0);
	assert_true(ring_put(&producer, &small, sizeof small));
	small = 0;
	assert_true(ring_get(&consumer, &small, sizeof small));
	assert_int_equal(small, 77);
	drop_memory(&producer);
}

static void what_found_no_room_is_counted(void **state)
{
	struct ring producer, consumer;
	struct message m = message_of(1);

	(void)state;
	make(&producer, &consumer, 4, 0);
	for (int i = 0; i < 10; i++)
		if (!ring_push(&producer, &m))
			ring_drop(&producer);
	assert_int_equal(ring_dropped(&producer), 6);
	assert_int_equal(ring_dropped(&consumer), 6);
	drop_memory(&producer);
}

static void what_is_published_quietly_is_there_and_rings_no_bell(void **state)
{
	struct ring producer, consumer;
	struct message got;

	(void)state;
	/* Across the end of 64 bits, too. */
	make(&producer, &consumer, 8, UINT64_MAX - 9);
	uint32_t rung = doorbell_read(&producer.shared->bell), halves = 0;
	for (uint64_t i = 0; i < 16; i++) {
		struct message *m = ring_reserve(&producer);
		assert_non_null(m);
		*m = message_of(i);
		ring_publish_quietly(&producer);
		ring_prefetch(&producer);
		halves += ring_half_written(&producer);
		assert_true(ring_pop(&consumer, &got));
		assert_message(&got, i);
	}
	assert_int_equal(doorbell_read(&producer.shared->bell), rung);
	assert_int_equal(halves, 4);
	drop_memory(&producer);
}

static void counters_a_peer_corrupted_read_as_empty_and_full(void **state)
{
	static const uint64_t bad[] = {9, 1000, UINT64_MAX, 1ull << 63, 1ull << 32};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ring producer, consumer;
		struct message m;

		make(&producer, &consumer, 8, 100);
		atomic_store(&producer.shared->head,
			100 + bad[i]); /* as the consumer sees a hostile producer */
		assert_null(ring_peek(&consumer));
		assert_true(ring_broken(&consumer));
		assert_int_equal(ring_length(&consumer), 0);
		atomic_store(&producer.shared->head, 100);
		assert_false(ring_broken(&consumer));
		atomic_store(&producer.shared->tail,
			100 - bad[i]); /* as the producer sees a hostile consumer */
		assert_null(ring_reserve(&producer));
		assert_true(ring_broken(&producer));
		atomic_store(&producer.shared->tail, 100);
		m = message_of(5);
		assert_true(ring_push(&producer, &m));
		assert_true(ring_pop(&consumer, &m));
		assert_message(&m, 5);
		drop_memory(&producer);
	}
}

static void consume(struct ring *ring, uint64_t count, uint64_t spin_ns)
{
	uint64_t next = 0;

	while (next < count) {
		uint32_t seen = doorbell_read(&ring->shared->bell);
		const struct message *m = ring_peek(ring);

		if (!m) {
			doorbell_wait(&ring->shared->bell, seen, spin_ns, 1000000000);
			continue;
		}
		for (uint64_t i = 0; i < 7; i++)
			if (m->number != next || m->words[i] != next * (i + 2))
				_exit(1);
		ring_release(ring);
		next++;
	}
	_exit(0);
}

static void two_processes_pass_every_message_once(void **state)
{
	(void)state;
	for (size_t n = 1; n <= 256; n *= 16) {
		struct ring producer, consumer;
		const uint64_t count = 5000;
		int status;
		pid_t pid;

		make(&producer, &consumer, n, UINT64_MAX - 500);
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			consume(&consumer, count, n == 16 ? 20000 : 0);
		for (uint64_t i = 0; i < count; i++) {
			struct message m = message_of(i);

			while (!ring_push(&producer, &m))
				usleep(1);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		assert_int_equal(ring_length(&producer), 0);
		drop_memory(&producer);
	}
}

/* Between looks: on a machine with other work the peer may need this very core. */
static void patience(void)
{
	static unsigned looks;

	if (++looks % 256 == 0)
		sched_yield();
}

/* Writes slots as fast as it can, without end. */
static void produce_until_killed(struct ring *ring)
{
	for (uint64_t i = atomic_load(&ring->shared->head);; i++) {
		struct message *slot;

		while (!(slot = ring_reserve(ring)))
			patience();
		slot->number = i;
		for (uint64_t w = 0; w < 7; w++)
			slot->words[w] = i * (w + 2);
		ring_publish(ring);
	}
}

static void a_producer_killed_mid_write_leaves_only_whole_slots(void **state)
{
	struct ring producer, consumer;
	uint64_t next = 0;

	(void)state;
	make(&producer, &consumer, 8, 0);
	for (int life = 0; life < 20; life++) {
		pid_t pid = fork();
		uint64_t until = next + 50 + (uint64_t)rand() % 3000;
		struct message m;

		assert_true(pid >= 0);
		if (pid == 0) {
			ring_attach(&producer, producer.shared, ring_bytes(64, 8), 64, NULL);
			produce_until_killed(&producer);
		}
		while (next < until)
			if (ring_pop(&consumer, &m))
				assert_message(&m, next++);
			else
				patience();
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		while (ring_pop(&consumer, &m))
			assert_message(&m, next++);
		assert_false(ring_broken(&consumer));
		assert_int_equal(atomic_load(&consumer.shared->head), next);
	}
	drop_memory(&producer);
}

static void a_consumer_killed_mid_read_loses_at_most_what_it_held(void **state)
{
	struct ring producer, consumer;
	uint64_t pushed = 0;

	(void)state;
	make(&producer, &consumer, 8, 0);
	for (int life = 0; life < 20; life++) {
		uint64_t until = pushed + 50 + (uint64_t)rand() % 3000;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			ring_attach(&consumer, consumer.shared, ring_bytes(64, 8), 64, NULL);
			for (uint64_t i = atomic_load(&consumer.shared->tail);; i++) {
				const struct message *m;

				while (!(m = ring_peek(&consumer)))
					patience();
				if (m->number != i || m->words[6] != i * 8)
					_exit(1);
				ring_release(&consumer);
			}
		}
		while (pushed < until) {
			struct message m = message_of(pushed);

			if (ring_push(&producer, &m))
				pushed++;
			else
				patience();
		}
		assert_int_equal(kill(pid, SIGKILL), 0);
		{
			int status;

			assert_int_equal(waitpid(pid, &status, 0), pid);
			assert_true(WIFSIGNALED(status)); /* not ended by a wrong message */
		}
		assert_false(ring_broken(&producer));
	}
	drop_memory(&producer);
}

static void a_broken_ring_is_mended_by_either_side(void **state)
{
	static const uint64_t bad[] = {9, 1000, UINT64_MAX, 1ull << 63, 1ull << 32};

	(void)state;
	for (size_t i = 0; i < 4 * sizeof bad / sizeof bad[0]; i++) {
		struct ring producer, consumer;
		struct message m = message_of(1);
		bool head = i & 1, by_producer = i & 2;

		make(&producer, &consumer, 8, 100);
		assert_true(ring_push(&producer, &m));
		assert_false(ring_mend_producer(&producer));
		assert_false(ring_mend_consumer(&consumer));
		if (head)
			atomic_store(&producer.shared->head, 100 + bad[i / 4]);
		else
			atomic_store(&producer.shared->tail, 101 - bad[i / 4]);
		assert_true(by_producer ? ring_mend_producer(&producer)
					: ring_mend_consumer(&consumer));
		assert_false(ring_broken(&producer));
		assert_false(ring_broken(&consumer));
		/* What the other side has cached may be wrong for one lap; then everything comes through, in order. */
		for (uint64_t n = 0; n < 32; n++) {
			m = message_of(n);
			if (!ring_push(&producer, &m))
				while (ring_pop(&consumer, &m))
					;
		}
		while (ring_pop(&consumer, &m))
			;
		for (uint64_t n = 0; n < 100; n++) {
			m = message_of(n);
			assert_true(ring_push(&producer, &m));
			assert_true(ring_pop(&consumer, &m));
			assert_message(&m, n);
		}
		drop_memory(&producer);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_that_cannot_be_are_refused),
		cmocka_unit_test(holds_exactly_its_slots_in_order),
		cmocka_unit_test(counters_cross_the_end_of_64_bits),
		cmocka_unit_test(short_objects_leave_no_old_bytes_behind),
		cmocka_unit_test(what_found_no_room_is_counted),
		cmocka_unit_test(what_is_published_quietly_is_there_and_rings_no_bell),
		cmocka_unit_test(counters_a_peer_corrupted_read_as_empty_and_full),
		cmocka_unit_test(a_broken_ring_is_mended_by_either_side),
		cmocka_unit_test(two_processes_pass_every_message_once),
		cmocka_unit_test(a_producer_killed_mid_write_leaves_only_whole_slots),
		cmocka_unit_test(a_consumer_killed_mid_read_loses_at_most_what_it_held),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
