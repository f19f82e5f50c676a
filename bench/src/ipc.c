#include "bench/src/histogram.h"
#include "bench/src/ipc.h"

#include "shared/base/clock.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/region.h"
#include "shared/ipc/ring.h"

#include <getopt.h>
#include <jansson.h>
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

/* Each measurement is a mode the answering process is in. */
enum mode { MODE_SPIN, MODE_SLEEP, MODE_EXPERT, MODE_ZMQ, MODES, MODE_STOP };

static const struct {
	const char *name, *text;
	int hops; /* the round trip is divided by it */
} measurements[MODES] = {
	[MODE_SPIN] = {"ring_hop", "ring, both sides spinning: one hop", 2},
	[MODE_SLEEP] = {"doorbell_hop", "ring and doorbell, both sides asleep: one hop", 2},
	[MODE_EXPERT] = {"expert_lookup", "expert demand -> state word flips: round trip", 1},
	[MODE_ZMQ] = {"zeromq_round_trip", "ZeroMQ ipc:// DEALER-ROUTER: round trip", 1},
};

struct message {
	uint64_t number;
	uint64_t words[7];
};

struct demand {
	uint16_t layer, expert, tokens, promote;
	uint64_t iteration;
};

struct shared {
	_Atomic uint32_t mode, entered; /* asked for by the one, announced by the other */
	alignas(CACHE_LINE) struct doorbell arrivals;
	alignas(CACHE_LINE) _Atomic uint64_t table[TABLE_WORDS];
};

struct options {
	double seconds;
	uint64_t spin_ns;
	bool json;
};

/* One side. */
struct side {
	struct region region;
	struct shared *shared;
	struct ring requests, replies, demands;
	void *zmq, *socket;
	uint64_t spin_ns;
	bool sleeping; /* one core: nobody can answer while we spin */
	pid_t other; /* the answering process; 0 in it */
};

static size_t rings_offset(void)
{
	return (sizeof(struct shared) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static size_t payload_bytes(void)
{
	return rings_offset() + 3 * ring_bytes(sizeof(struct message), SLOTS);
}

static int attach(struct side *side, struct error *err)
{
	struct ring *rings[] = {&side->requests, &side->replies, &side->demands};
	size_t bytes = ring_bytes(sizeof(struct message), SLOTS);
	unsigned char *at = region_payload(&side->region);

	side->shared = (struct shared *)at;
	at += rings_offset();
	for (size_t i = 0; i < 3; i++, at += bytes) {
		int code = ring_attach(rings[i], at, bytes, sizeof(struct message), err);

		if (code < 0)
			return code;
	}
	return 0;
}

static uint32_t mode_of(const struct side *side)
{
	return atomic_load_explicit(&side->shared->mode, memory_order_acquire);
}

/* Whether the answering process has ended. It then stays ended: its pid is not asked for again. */
static bool is_gone(struct side *side)
{
	if (side->other > 0 && waitpid(side->other, NULL, WNOHANG) != 0)
		side->other = -1;
	return side->other < 0;
}

/* The oldest message, or NULL when the mode changed (the answering side) or the other side died (the asking one). */
static const void *await_message(struct side *side, struct ring *ring, enum mode mode)
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

static void answer_messages(struct side *side, enum mode mode)
{
	const void *message;

	while ((message = await_message(side, &side->requests, mode))) {
		ring_push(&side->replies, message);
		ring_release(&side->requests);
	}
}

static void answer_demands(struct side *side)
{
	const struct demand *demand;

	while ((demand = await_message(side, &side->demands, MODE_EXPERT))) {
		size_t word = ((size_t)demand->layer * 64 + demand->expert) % TABLE_WORDS;

		/* Release pairs with the acquire in ask_expert: what was loaded is there before it is READY. */
		atomic_store_explicit(
			&side->shared->table[word], demand->iteration, memory_order_release);
		doorbell_ring(&side->shared->arrivals);
		ring_release(&side->demands);
	}
}

static void answer_zmq(struct side *side)
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
	/* Refused in some containers; then the scheduler chooses. */
	(void)sched_setaffinity(0, sizeof set, &set);
}

static _Noreturn void run_answering(struct side *side, const char *endpoint, int cpu)
{
	struct error err = {""};
	int fd = dup(side->region.fd);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	side->other = 0;
	side->zmq = zmq_ctx_new();
	if (region_attach(fd, "bench", LAYOUT, 0, true, &side->region, &err) < 0 ||
		attach(side, &err) < 0 ||
		bus_server(side->zmq, endpoint, &side->socket, &err) < 0) {
		fprintf(stderr, "outrider-bench: %s\n", err.text);
		_exit(EX_OSERR);
	}
	/* After ZeroMQ has started its thread: that one may run where it likes. */
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

static bool ask_ring(struct side *side, enum mode mode, uint64_t number, uint64_t *ns)
{
	struct message message = {.number = number};
	const struct message *reply;
	uint64_t start_ns;
	uint32_t looks = 0;

	/* Only a sleeper that sleeps is measured as one. */
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

static bool ask_expert(struct side *side, uint64_t number, uint64_t *ns)
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

static bool ask_zmq(struct side *side, uint64_t number, uint64_t *ns)
{
	struct message message = {.number = number}, reply = {0};
	uint64_t start_ns = clock_ns();

	/* The socket has a receive timeout: a dead peer ends the wait. */
	if (zmq_send(side->socket, &message, sizeof message, 0) < 0 ||
		zmq_recv(side->socket, &reply, sizeof reply, 0) != sizeof reply)
		return false;
	*ns = clock_ns() - start_ns;
	return reply.number == number;
}

static bool enter(struct side *side, uint32_t mode)
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

static bool run_slice(struct side *side, enum mode mode, uint64_t *number, struct histogram *h)
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
		if (i > 0) /* the first finds cold lines, or the other side on its way */
			histogram_record(h, ns);
	}
	return true;
}

/* The first two cores we may run on. */
static int usable_cpus(int cpus[2])
{
	cpu_set_t set;
	int n = 0;

	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return 1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET((size_t)cpu, &set)) {
			if (n < 2)
				cpus[n] = cpu;
			n++;
		}
	return n;
}

static double us(const struct histogram *h, int mode, double q)
{
	double ns = q < 1 ? histogram_quantile_ns(h, q) : (double)h->max_ns;

	return ns / measurements[mode].hops / 1000;
}

static void print_table(
	const struct histogram *h, const char *cpu, int n_cpus, const int cpus[2], bool sleeping)
{
	printf("%s, %d %s; ", cpu, n_cpus, n_cpus == 1 ? "core" : "cores");
	if (sleeping)
		printf("one core only: where it says spinning, both sides sleep\n");
	else
		printf("asking on core %d, answering on core %d\n", cpus[0], cpus[1]);
	printf("64-byte messages; microseconds\n\n");
	printf("%-48s %10s %8s %8s %8s %9s\n", "", "samples", "p50", "p90", "p99", "max");
	for (int m = 0; m < MODES; m++)
		printf("%-48s %10llu %8.3f %8.3f %8.3f %9.1f\n", measurements[m].text,
			(unsigned long long)h[m].n, us(&h[m], m, 0.5), us(&h[m], m, 0.9),
			us(&h[m], m, 0.99), us(&h[m], m, 1));
}

static void print_json(const struct histogram *h, const char *cpu, int n_cpus,
	const struct options *options, bool sleeping)
{
	json_t *results = json_array();
	json_t *all;

	for (int m = 0; m < MODES; m++)
		json_array_append_new(
			results, json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "name",
					 measurements[m].name, "what", measurements[m].text,
					 "samples", (json_int_t)h[m].n, "p50_us", us(&h[m], m, 0.5),
					 "p90_us", us(&h[m], m, 0.9), "p99_us", us(&h[m], m, 0.99),
					 "max_us", us(&h[m], m, 1)));
	all = json_pack("{s:s, s:i, s:b, s:f, s:I, s:o}", "cpu", cpu, "cores", n_cpus, "spinning",
		!sleeping, "seconds", options->seconds, "doorbell_spin_ns",
		(json_int_t)options->spin_ns, "results", results);
	if (all) {
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
	}
	json_decref(all);
}

static int measure(
	struct side *side, const struct options *options, struct histogram *h, struct error *err)
{
	uint64_t start_ns = clock_ns(), number = 0;
	bool terminal = isatty(STDERR_FILENO);
	double elapsed = 0;

	while (elapsed < options->seconds) {
		for (int m = 0; m < MODES; m++)
			if (!run_slice(side, (enum mode)m, &number, &h[m]))
				return error_set(err, EPIPE,
					"%s: the answering process gave no answer",
					measurements[m].text);
		elapsed = (double)(clock_ns() - start_ns) / 1e9;
		if (terminal)
			fprintf(stderr, "\rmeasuring: %.0f of %.0f s ", elapsed, options->seconds);
	}
	if (terminal)
		fputs("\r\033[K", stderr);
	return 0;
}

static int start(struct side *side, const char *endpoint, const int cpus[2], struct error *err)
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

static void stop(struct side *side)
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

static int parse(int argc, char **argv, struct options *options)
{
	static const struct option longs[] = {
		{"seconds", required_argument, NULL, 's'},
		{"spin", required_argument, NULL, 'p'},
		{"format", required_argument, NULL, 'f'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	char *end = NULL;
	double value;
	int c;

	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 's':
		case 'p':
			value = strtod(optarg, &end);
			if (end == optarg || *end || !(value >= (c == 's' ? 0.1 : 0)) ||
				value > (c == 's' ? 600 : 1000000)) {
				fprintf(stderr, "outrider-bench ipc: --%s %s: allowed are %s\n",
					c == 's' ? "seconds" : "spin", optarg,
					c == 's' ? "0.1 to 600" : "0 to 1000000 (microseconds)");
				return EX_USAGE;
			}
			if (c == 's')
				options->seconds = value;
			else
				options->spin_ns = (uint64_t)(value * 1000);
			break;
		case 'f':
			options->json = strcmp(optarg, "json") == 0;
			if (options->json || strcmp(optarg, "text") == 0)
				break;
			fprintf(stderr, "outrider-bench ipc: --format %s: allowed are text, json\n",
				optarg);
			return EX_USAGE;
		case 'h':
			puts("usage: outrider-bench ipc [--seconds S] [--spin US] [--format "
			     "text|json]\n\n"
			     "  --seconds S  how long to measure in all (4)\n"
			     "  --spin US    how long the doorbell's waiters spin before they "
			     "sleep (0)\n"
			     "  --format F   text or json");
			return -1;
		default:
			return EX_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "outrider-bench ipc: unexpected argument \"%s\"\n", argv[optind]);
		return EX_USAGE;
	}
	return EX_OK;
}

int bench_ipc(int argc, char **argv)
{
	struct options options = {.seconds = 4};
	struct histogram *h = calloc(MODES, sizeof *h);
	struct side side = {.region.fd = -1};
	struct error err = {""};
	char endpoint[64], cpu[128];
	int cpus[2] = {0, 0}, n_cpus = usable_cpus(cpus), code,
	    status = parse(argc, argv, &options);

	if (status != EX_OK || !h) {
		free(h);
		return status < 0 ? EX_OK : status != EX_OK ? status : EX_OSERR;
	}
	snprintf(endpoint, sizeof endpoint, "ipc:///tmp/outrider-bench-%ld", (long)getpid());
	histogram_cpu_model(cpu, sizeof cpu);
	side.spin_ns = options.spin_ns;
	side.sleeping = n_cpus < 2;
	code = start(&side, endpoint, cpus, &err);
	if (code == 0)
		code = measure(&side, &options, h, &err);
	stop(&side);
	unlink(bus_ipc_path(endpoint));
	if (code < 0)
		fprintf(stderr, "outrider-bench ipc: %s\n", err.text);
	else if (options.json)
		print_json(h, cpu, n_cpus, &options, side.sleeping);
	else
		print_table(h, cpu, n_cpus, cpus, side.sleeping);
	free(h);
	return code < 0 ? error_exit_status(code) : EX_OK;
}
