#include "bench/src/ipc_side.h"

#include "shared/base/clock.h"
#include "shared/ipc/bus.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>
#include <zmq.h>

enum {
	SLOTS = 256,
	TABLE_WORDS = 1024,
	SLICE_MS = 20, /* of one measurement, before the next has its turn */
	LOOKS_PER_CHECK = 1 << 22, /* of a spinning side, before it asks whether the other lives */
	LAYOUT = 1,
};

struct message {
	uint64_t number;
	uint64_t words[7];
};

struct demand {
	uint16_t layer, expert, tokens, promote;
	uint64_t iteration;
};

struct ipc_shared {
	_Atomic uint32_t mode, entered; /* requested by one side, announced by the other */
	alignas(CACHE_LINE) struct doorbell arrivals;
	alignas(CACHE_LINE) _Atomic uint64_t table[TABLE_WORDS];
};

static size_t rings_offset(void)
{
	return (sizeof(struct ipc_shared) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static size_t payload_bytes(void)
{
	return rings_offset() + 3 * ring_bytes(sizeof(struct message), SLOTS);
}

static int attach(struct ipc_side *side, struct error *err)
{
	struct ring *rings[] = {&side->requests, &side->replies, &side->demands};
	size_t bytes = ring_bytes(sizeof(struct message), SLOTS);
	unsigned char *at = region_payload(&side->region);

	side->shared = (struct ipc_shared *)at;
	at += rings_offset();
	for (size_t i = 0; i < 3; i++, at += bytes) {
		int code = ring_attach(rings[i], at, bytes, sizeof(struct message), err);

		if (code < 0)
			return code;
	}
	return 0;
}

static uint32_t mode_of(const struct ipc_side *side)
{
	return atomic_load_explicit(&side->shared->mode, memory_order_acquire);
}

/* Whether the answering process has ended. It then stays ended: its pid is not asked for again. */
static bool is_gone(struct ipc_side *side)
{
	if (side->other > 0 && waitpid(side->other, NULL, WNOHANG) != 0)
		side->other = -1;
	return side->other < 0;
}

/* The oldest message; NULL when the mode changed (on the answering side) or the other side died (on
 * the asking side). */
static const void *await_message(struct ipc_side *side, struct ring *ring, enum mode mode)
{
	struct doorbell *bell = &ring->shared->bell;
	bool sleep = side->sleeping || mode == MODE_SLEEP;
	const void *message;
	uint32_t looks = 0, seen = doorbell_read(bell);

	while (!(message = ring_peek(ring))) {
		if (mode_of(side) != (uint32_t)mode)
			return NULL;
		if (sleep)
			seen = doorbell_wait(bell, seen, side->spin_ns, 100000000);
		else
			clock_relax();
		looks++;
		if (side->other && (sleep || looks % LOOKS_PER_CHECK == 0) &&
			kill(side->other, 0) < 0)
			return NULL;
	}
	return message;
}

static void answer_messages(struct ipc_side *side, enum mode mode)
{
	const void *message;

	while ((message = await_message(side, &side->requests, mode))) {
		ring_push(&side->replies, message);
		ring_release(&side->requests);
	}
}

static void answer_demands(struct ipc_side *side)
{
	const struct demand *demand;

	while ((demand = await_message(side, &side->demands, MODE_EXPERT))) {
		size_t word = ((size_t)demand->layer * 64 + demand->expert) % TABLE_WORDS;

		/* Release pairs with the acquire in ask_expert: what was loaded is there before the
		 * slot is READY. */
		atomic_store_explicit(
			&side->shared->table[word], demand->iteration, memory_order_release);
		doorbell_ring(&side->shared->arrivals);
		ring_release(&side->demands);
	}
}

static int serve_zmq(struct ipc_side *side, const char *endpoint, struct error *err)
{
	side->zmq = zmq_ctx_new();
	side->socket = side->zmq ? zmq_socket(side->zmq, ZMQ_ROUTER) : NULL;
	if (!side->socket || zmq_bind(side->socket, endpoint) < 0)
		return error_set(err, errno, "%s: %s", endpoint, zmq_strerror(errno));
	return 0;
}

static void answer_zmq(struct ipc_side *side)
{
	while (mode_of(side) == MODE_ZMQ) {
		zmq_pollitem_t item = {.socket = side->socket, .events = ZMQ_POLLIN};
		char address[64];
		struct message message;
		int n;

		if (zmq_poll(&item, 1, 10) <= 0)
			continue;
		n = zmq_recv(side->socket, address, sizeof address, 0);
		if (n < 0 || (size_t)n > sizeof address ||
			zmq_recv(side->socket, &message, sizeof message, 0) < 0)
			continue;
		zmq_send(side->socket, address, (size_t)n, ZMQ_SNDMORE);
		zmq_send(side->socket, &message, sizeof message, 0);
	}
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	/* Some containers refuse it; then the scheduler chooses. */
	(void)sched_setaffinity(0, sizeof set, &set);
}

static _Noreturn void run_answering(struct ipc_side *side, const char *endpoint, int cpu)
{
	struct error err = {""};
	int fd = dup(side->region.fd);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	side->other = 0;
	if (region_attach(fd, "bench", LAYOUT, 0, true, &side->region, &err) < 0 ||
		attach(side, &err) < 0 || serve_zmq(side, endpoint, &err) < 0) {
		fprintf(stderr, "outrider-bench: %s\n", err.text);
		_exit(EX_OSERR);
	}
	/* After ZeroMQ has started its thread, which may run on any CPU. */
	if (cpu >= 0)
		pin(cpu);
	for (;;) {
		uint32_t mode = mode_of(side);

		atomic_store_explicit(&side->shared->entered, mode, memory_order_release);
		if (mode == MODE_SPIN || mode == MODE_SLEEP)
			answer_messages(side, (enum mode)mode);
		else if (mode == MODE_EXPERT)
			answer_demands(side);
		else if (mode == MODE_ZMQ)
			answer_zmq(side);
		else
			_exit(EX_OK);
	}
}

static bool ask_ring(struct ipc_side *side, enum mode mode, uint64_t number, uint64_t *ns)
{
	struct message message = {.number = number};
	const struct message *reply;
	uint64_t start_ns;
	uint32_t looks = 0;

	/* Waits until the other side sleeps, because that is what is measured. */
	while (mode == MODE_SLEEP && side->spin_ns == 0 && !side->sleeping &&
		atomic_load(&side->requests.shared->bell.sleepers) == 0)
		if (++looks % LOOKS_PER_CHECK == 0 && is_gone(side))
			return false;
	start_ns = clock_ns();
	ring_push(&side->requests, &message);
	reply = await_message(side, &side->replies, mode);
	*ns = clock_ns() - start_ns;
	if (!reply || reply->number != number)
		return false;
	ring_release(&side->replies);
	return true;
}

static bool ask_expert(struct ipc_side *side, uint64_t number, uint64_t *ns)
{
	struct demand demand = {
		.layer = (uint16_t)(number / 64 % 16), .expert = number % 64, .iteration = number};
	_Atomic uint64_t *word =
		&side->shared->table[((size_t)demand.layer * 64 + demand.expert) % TABLE_WORDS];
	uint32_t looks = 0, seen = doorbell_read(&side->shared->arrivals);
	uint64_t start_ns = clock_ns();

	ring_put(&side->demands, &demand, sizeof demand);
	while (atomic_load_explicit(word, memory_order_acquire) != number) {
		if (side->sleeping)
			seen = doorbell_wait(
				&side->shared->arrivals, seen, side->spin_ns, 100000000);
		else
			clock_relax();
		looks++;
		if ((side->sleeping || looks % LOOKS_PER_CHECK == 0) && is_gone(side))
			return false;
	}
	*ns = clock_ns() - start_ns;
	return true;
}

static bool ask_zmq(struct ipc_side *side, uint64_t number, uint64_t *ns)
{
	struct message message = {.number = number}, reply = {0};
	uint64_t start_ns = clock_ns();

	/* The socket has a receive timeout, so a dead peer ends the wait. */
	if (zmq_send(side->socket, &message, sizeof message, 0) < 0 ||
		zmq_recv(side->socket, &reply, sizeof reply, 0) != sizeof reply)
		return false;
	*ns = clock_ns() - start_ns;
	return reply.number == number;
}

static bool enter(struct ipc_side *side, uint32_t mode)
{
	atomic_store_explicit(&side->shared->mode, mode, memory_order_release);
	while (atomic_load_explicit(&side->shared->entered, memory_order_acquire) != mode) {
		doorbell_ring(&side->requests.shared->bell);
		doorbell_ring(&side->demands.shared->bell);
		if (is_gone(side))
			return false;
		sched_yield();
	}
	return true;
}

bool ipc_side_measure(struct ipc_side *side, enum mode mode, uint64_t *number, struct histogram *h)
{
	uint64_t end_ns;

	if (!enter(side, mode))
		return false;
	end_ns = clock_ns() + SLICE_MS * 1000000ull;
	for (int i = 0; clock_ns() < end_ns; i++) {
		uint64_t ns = 0;
		bool good;

		(*number)++;
		if (mode == MODE_ZMQ)
			good = ask_zmq(side, *number, &ns);
		else if (mode == MODE_EXPERT)
			good = ask_expert(side, *number, &ns);
		else
			good = ask_ring(side, mode, *number, &ns);
		if (!good)
			return false;
		if (i > 0) /* the first one finds cold cache lines, or a side that is not ready */
			histogram_record(h, ns);
	}
	return true;
}

int ipc_side_start(
	struct ipc_side *side, const char *endpoint, const int cpus[2], struct error *err)
{
	unsigned char *at;
	int wait_ms = 5000, linger = 0, code;

	code = region_create("bench", LAYOUT, payload_bytes(), 0, &side->region, err);
	if (code < 0)
		return code;
	at = (unsigned char *)region_payload(&side->region) + rings_offset();
	for (int i = 0; i < 3; i++)
		ring_format(at + (size_t)i * ring_bytes(sizeof(struct message), SLOTS),
			sizeof(struct message), SLOTS);
	code = attach(side, err);
	if (code < 0)
		return code;
	atomic_store(&side->shared->mode, MODE_ZMQ);
	atomic_store(&side->shared->entered, MODES);
	side->other = fork();
	if (side->other < 0)
		return error_set(err, errno, "fork: %s", strerror(errno));
	if (side->other == 0)
		run_answering(side, endpoint, side->sleeping ? -1 : cpus[1]);
	side->zmq = zmq_ctx_new();
	code = bus_client(side->zmq, endpoint, &side->socket, err);
	if (code < 0)
		return code;
	zmq_setsockopt(side->socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
	zmq_setsockopt(side->socket, ZMQ_LINGER, &linger, sizeof linger);
	if (!side->sleeping)
		pin(cpus[0]);
	return 0;
}

void ipc_side_stop(struct ipc_side *side)
{
	if (side->other > 0) {
		(void)enter(side, MODE_STOP);
		waitpid(side->other, NULL, 0);
	}
	bus_close(&side->socket);
	if (side->zmq)
		zmq_ctx_term(side->zmq);
	region_close(&side->region);
}
