#include "services/policy-controller/records.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define SILENCE 4 /* iterations without a record, after which the thread sleeps on the doorbell */
#define SILENCE_MIN_NS 500000
#define POLL_MAX_NS 10000000
#define POLL_MIN_NS 50000
/* longest wait for its budget; the ring has room for much longer */
#define OVERDRAWN_MAX_NS 40000000
/* of this thread's timers; the kernel's default of 50 us would be half an iteration */
#define SLACK_NS 5000u
/* sleep on a doorbell that nobody rings, before it checks whether to stop */
#define SLEEP_NS 500000000u
#define ALIVE_NS 5000000000u
/* A look at the ring takes about 30 us of processor time, most of it the timer's and the
 * scheduler's; an iteration of a small model takes 100 us. So the thread may use 1 / BUDGET_PARTS
 * of a core, and up to BUDGET_NS at once: some thirty looks in a row, when a session begins or a
 * trial runs. When this is used up, it waits longer, even if a record is due; records meanwhile
 * wait in the ring. (With a look every 10 ms, the records of sixteen sessions took 1.1 % of a
 * core.) */
#define BUDGET_PARTS 160
#define BUDGET_NS 1000000

/* Says how many records were lost, but blames nobody: the verifier never waits for this process,
 * which was late or stopped. */
static void tell_lost(struct records *records, uint64_t lost)
{
	if (lost == records->lost)
		return;
	journal_add_loss(records->journal, lost - records->lost);
	log_limited(LOG_LEVEL_NOTICE,
		"%" PRIu64
		" records of iterations were dropped because this process was late; %" PRIu64
		" in all; answers do not change",
		lost - records->lost, lost);
	records->lost = lost;
}

uint32_t records_drain(struct records *records)
{
	struct iteration_record record;
	uint32_t n = 0;
	pthread_mutex_lock(&records->mutex);
	/* Records lost until now found the ring full: their place is behind the records in it. */
	uint64_t lost = ring_dropped(&records->ring);
	/* Bounded, so that an admin request gets its turn. */
	while (n < POLICY_RECORD_SLOTS && ring_get(&records->ring, &record, sizeof(record))) {
		const struct policy_state *s = controller_record(records->controller, &record);
		journal_add(records->journal, &record, s);
		n++;
	}
	controller_settle(records->controller);
	if (n == 0 && ring_mend_consumer(&records->ring))
		log_limited(
			LOG_LEVEL_NOTICE, "the ring of records was corrupt; it starts again empty");
	tell_lost(records, lost);
	pthread_mutex_unlock(&records->mutex);
	return n;
}

/* Processor time that the thread may use, as of at_ns. */
struct budget {
	int64_t left_ns, cpu_ns, at_ns;
};

/* Updates the budget. Returns how long the next look must wait. */
static int64_t spend(struct budget *budget)
{
	int64_t now = (int64_t)clock_ns(), cpu = (int64_t)clock_thread_cpu_ns();
	budget->left_ns += (now - budget->at_ns) / BUDGET_PARTS - (cpu - budget->cpu_ns);
	if (budget->left_ns > BUDGET_NS)
		budget->left_ns = BUDGET_NS;
	if (budget->left_ns < -BUDGET_NS)
		budget->left_ns = -BUDGET_NS;
	budget->at_ns = now;
	budget->cpu_ns = cpu;
	return budget->left_ns < 0 ? -budget->left_ns * BUDGET_PARTS : 0;
}

static void pause_ns(int64_t ns)
{
	struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	nanosleep(&time, NULL);
}

/* Time until the next look; 0: until the verifier rings, because no session decodes. A session that
 * begins then is seen with its first record, and the verifier makes one system call per silence.
 *
 * With a slow model a look may be late by a quarter of an iteration. With a fast one many
 * iterations fit in `poll`; the thread then looks when the record is due from which something will
 * be decided. After that, and when nothing was found, each look waits half as long again as all
 * before it. */
static int64_t poll_period(struct records *records, bool found)
{
	const struct controller *c = records->controller;
	pthread_mutex_lock(&records->mutex);
	/* Times from a peer may be invented: an iteration does not take more than an hour. */
	uint64_t iteration =
		c->last_iteration_ns < COST_NS_MAX ? c->last_iteration_ns : COST_NS_MAX;
	uint64_t due_ns = controller_due_ns(c), now_ns = clock_ns();
	int64_t period = c->settings.poll_ns, quarter = (int64_t)(iteration / 4);
	int64_t now = (int64_t)now_ns, silent = (int64_t)(now_ns - c->last_ns), later = silent / 2;
	int64_t over = (int64_t)iteration * SILENCE;
	pthread_mutex_unlock(&records->mutex);
	if (!found && silent > (over > SILENCE_MIN_NS ? over : SILENCE_MIN_NS))
		return 0;
	if (quarter > POLL_MAX_NS)
		quarter = POLL_MAX_NS;
	if (period > 0 && quarter > period)
		period = quarter;
	later = later > quarter ? later : quarter;
	/* A look that comes too early must be repeated. */
	int64_t due = due_ns > 0 ? (int64_t)(due_ns + (uint64_t)quarter) : 0, wait = period;
	if (due > now && due - now < wait)
		wait = due - now;
	if ((!found || (due > 0 && due <= now)) && later < wait)
		wait = later;
	wait = wait > POLL_MIN_NS ? wait : POLL_MIN_NS;
	return wait < period ? wait : period;
}

static void *run(void *arg)
{
	struct records *records = arg;
	struct doorbell *bell = &records->ring.shared->bell;
	struct budget budget = {BUDGET_NS, (int64_t)clock_thread_cpu_ns(), (int64_t)clock_ns()};
	prctl(PR_SET_TIMERSLACK, SLACK_NS);
	while (!atomic_load_explicit(&records->stop, memory_order_acquire)) {
		atomic_store_explicit(&records->beat_ns, clock_ns(), memory_order_relaxed);
		uint32_t seen = doorbell_read(bell);
		int64_t poll_ns = poll_period(records, records_drain(records) > 0);
		int64_t wait_ns = spend(&budget);
		wait_ns = wait_ns < OVERDRAWN_MAX_NS ? wait_ns : OVERDRAWN_MAX_NS;
		if (poll_ns > 0 && poll_ns < wait_ns)
			poll_ns = wait_ns;
		if (poll_ns > 0)
			pause_ns(poll_ns);
		else
			doorbell_wait(bell, seen, 0, SLEEP_NS);
	}
	return NULL;
}

int records_start(struct records *records, const struct ring *ring, struct controller *controller,
	struct journal *journal, struct error *err)
{
	memset(records, 0, sizeof(*records));
	records->ring = *ring;
	records->controller = controller;
	records->journal = journal;
	/* The predecessor has logged these, or they were lost while there was none. */
	records->lost = ring_dropped(ring);
	atomic_store(&records->beat_ns, clock_ns());
	doorbell_take_over(&ring->shared->bell);
	pthread_mutex_init(&records->mutex, NULL);
	int r = pthread_create(&records->thread, NULL, run, records);
	if (r != 0) {
		pthread_mutex_destroy(&records->mutex);
		return error_thread(err, r, "the records thread cannot be started");
	}
	return 0;
}

void records_stop(struct records *records)
{
	atomic_store_explicit(&records->stop, true, memory_order_release);
	doorbell_ring(&records->ring.shared->bell);
	pthread_join(records->thread, NULL);
	pthread_mutex_destroy(&records->mutex);
}

bool records_alive(void *arg)
{
	struct records *records = arg;
	uint64_t beat = atomic_load_explicit(&records->beat_ns, memory_order_relaxed);
	return clock_ns() - beat < ALIVE_NS;
}
