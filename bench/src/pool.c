#include "bench/src/pool.h"

#include "bench/src/machine.h"
#include "shared/base/median.h"
#include "bench/src/options.h"
#include "shared/measure/hand_over.h"
#include "shared/measure/peaks.h"
#include "client/model/engine.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/base/cpus.h"
#include "shared/base/limits.h"

#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

enum {
	HAND_OVERS = 4000,
	WAKES = 100,
	MEMORY = 256 << 20,
	RUN_BYTES = 8 << 20, /* about what a layer's products read */
	RUNS = 256, /* in one round: as many as in some tokens */
	CUTS = 3,
	ROUNDS = 31,
};

static const uint32_t cuts[CUTS] = {1, 4, 16}; /* items per thread */

struct options {
	const char *pin_text, *format;
	uint32_t threads, rounds, spin_us;
	bool pin, json, help;
};

struct bench {
	struct options options;
	struct pool *pool;
	struct peaks_memory memory;
	double hand_over_us[HAND_OVERS], wake_us[WAKES]; /* in order, once measured */
	double read_gb_s[2][CUTS][ROUNDS]; /* [alone, with a busy process] */
};

struct reading {
	const unsigned char *data;
	size_t item_bytes;
	_Atomic uint64_t sink;
};

static void read_item(void *arg, uint32_t item, uint32_t thread)
{
	struct reading *r = arg;
	const uint64_t *p = (const uint64_t *)(r->data + item * r->item_bytes);
	uint64_t sum[8] = {0};

	(void)thread;
	for (size_t i = 0; i < r->item_bytes / sizeof(*p); i += 8)
		for (size_t j = 0; j < 8; j++)
			sum[j] += p[i + j];
	atomic_fetch_xor_explicit(&r->sink,
		sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7],
		memory_order_relaxed);
}

static double read_gb_s(struct bench *b, uint32_t items)
{
	struct reading r = {.item_bytes = RUN_BYTES / items / CACHE_LINE * CACHE_LINE};
	uint64_t start = clock_ns();

	for (uint32_t run = 0; run < RUNS; run++) {
		r.data = b->memory.data + (size_t)run * RUN_BYTES % MEMORY;
		pool_run(b->pool, read_item, &r, items);
	}
	return (double)RUNS * (double)r.item_bytes * items / (double)(clock_ns() - start);
}

/* Starts a process that keeps the last of our CPUs busy and ends with this one. */
static pid_t keep_busy(const cpu_set_t *cpus)
{
	pid_t pid = fork();

	if (pid == 0) {
		size_t last = CPU_SETSIZE - 1;
		cpu_set_t one;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!CPU_ISSET(last, cpus))
			last--;
		CPU_ZERO(&one);
		CPU_SET(last, &one);
		sched_setaffinity(0, sizeof(one), &one);
		for (;;)
			clock_relax();
	}
	return pid;
}

static void measure(struct bench *b, const cpu_set_t *cpus)
{
	for (int i = 0; i < HAND_OVERS; i++)
		b->hand_over_us[i] = hand_over_us(b->pool);
	for (int i = 0; i < WAKES; i++) {
		usleep(b->options.spin_us + 1000);
		b->wake_us[i] = hand_over_us(b->pool);
	}
	(void)median(b->hand_over_us, HAND_OVERS); /* sorts */
	for (uint32_t round = 0; round < b->options.rounds; round++) {
		for (int busy = 0; busy < 2; busy++) {
			pid_t pid = busy ? keep_busy(cpus) : 0;

			for (int cut = 0; cut < CUTS; cut++)
				b->read_gb_s[busy][cut][round] =
					read_gb_s(b, cuts[cut] * b->options.threads);
			if (pid > 0) {
				kill(pid, SIGKILL);
				waitpid(pid, NULL, 0);
			}
		}
	}
}

static void print_text(struct bench *b, const char *cpu)
{
	char threads[MACHINE_THREADS_BYTES];

	printf("%s, %s%s, %u us of spinning\n", cpu, machine_threads(b->pool, threads),
		b->options.pin ? " bound to CPUs" : "", b->options.spin_us);
	printf("a run that all threads meet in: %.2f us (99%%: %.2f us); all asleep before: %.1f "
	       "us\n\n",
		b->hand_over_us[HAND_OVERS / 2], b->hand_over_us[HAND_OVERS * 99 / 100],
		median(b->wake_us, WAKES));
	printf("items per thread  GB/s alone  beside a busy process  left\n");
	for (int cut = 0; cut < CUTS; cut++) {
		double alone = median(b->read_gb_s[0][cut], b->options.rounds);
		double busy = median(b->read_gb_s[1][cut], b->options.rounds);

		printf("%16u %11.1f %22.1f %4.0f%%\n", cuts[cut], alone, busy, 100 * busy / alone);
	}
}

static void print_json(struct bench *b, const char *cpu)
{
	json_t *rows = json_array();
	double hand_over = b->hand_over_us[HAND_OVERS / 2];
	json_t *all = json_pack("{s:s, s:i, s:i, s:b, s:i, s:i, s:f, s:f, s:f}", "cpu", cpu,
		"threads", (int)b->options.threads, "active_threads", (int)pool_active(b->pool),
		"pin", b->options.pin, "spin_us", (int)b->options.spin_us, "rounds",
		(int)b->options.rounds, "hand_over_us", hand_over, "hand_over_us_99",
		b->hand_over_us[HAND_OVERS * 99 / 100], "wake_us", median(b->wake_us, WAKES));

	for (int cut = 0; cut < CUTS; cut++)
		json_array_append_new(rows,
			json_pack("{s:i, s:f, s:f}", "items_per_thread", (int)cuts[cut], "gb_s",
				median(b->read_gb_s[0][cut], b->options.rounds), "gb_s_busy",
				median(b->read_gb_s[1][cut], b->options.rounds)));
	json_object_set_new(all, "reads", rows);
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
}

static int parse(struct options *o, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"threads", ARG_U32, &o->threads, 1, LIMIT_THREADS, "N", ENGINE_THREADS_HELP},
		{"pin", ARG_STRING, &o->pin_text, 0, 0, "yes|no",
			"bind the threads to CPUs, default yes"},
		{"spin", ARG_U32, &o->spin_us, 0, 1000000, "US",
			"how long threads spin before they sleep, default 50"},
		{"rounds", ARG_U32, &o->rounds, 1, ROUNDS, "N", "default 5; medians are printed"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench pool [OPTIONS]\n\n"
		     "Measures a run of the pool until every thread has begun and ended, with\n"
		     "threads that spin or sleep before it. Measures reading memory in runs of\n"
		     "8 MiB, divided into 1, 4 and 16 items per thread: alone, and while another\n"
		     "process keeps the last CPU busy.\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = option_either("pin", o->pin_text, "yes", "no", &o->pin, err);
	return rc ? rc : option_format(o->format, &o->json, err);
}

static int run(struct bench *b, struct error *err)
{
	cpu_set_t cpus;
	char cpu[CPU_NAME_BYTES];
	int rc;

	cpus_mask(&cpus);
	cpu_name(cpu);
	machine_begin(NULL, NULL, &b->options.threads);
	rc = peaks_memory_get(&b->memory, MEMORY, err);
	if (rc == 0)
		rc = pool_create(b->options.threads, b->options.pin,
			(uint64_t)b->options.spin_us * 1000, &b->pool, err);
	if (rc < 0)
		return rc;
	measure(b, &cpus);
	if (b->options.json)
		print_json(b, cpu);
	else
		print_text(b, cpu);
	return 0;
}

int bench_pool(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};

	if (!b)
		return EX_OSERR;
	b->options =
		(struct options){.rounds = 5, .spin_us = 50, .pin_text = "yes", .format = "text"};
	int rc = parse(&b->options, argc, argv, &err);
	bool usage = rc < 0;
	if (rc == 0 && !b->options.help)
		rc = run(b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench pool: %s\n", err.text);
	pool_destroy(&b->pool);
	peaks_memory_put(&b->memory);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
