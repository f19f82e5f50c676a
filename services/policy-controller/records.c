#include "services/policy-controller/records.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define SILENCE 4 /* iterations without a record, after which the doorbell is slept on */
#define SILENCE_MIN_NS 500000
#define POLL_MAX_NS 10000000
#define POLL_MIN_NS 50000
#define SLACK_NS 5000u /* of this thread's timers; the kernel's 50 us would be half an iteration */
#define SLEEP_NS 500000000u /* a doorbell nobody rings: look whether to stop */
#define ALIVE_NS 5000000000u

uint32_t records_drain(struct records *records)
{
	struct iteration_record record;
	uint32_t n = 0;
	pthread_mutex_lock(&records->mutex);
	/* Bounded, so that an admin request gets its turn. */
	while (n < POLICY_RECORD_SLOTS && ring_get(&records->ring, &record, sizeof(record))) {
		controller_record(records->controller, &record);
		journal_add(records->journal, &record,
			controller_session(records->controller, record.session));
		n++;
	}
	if (n == 0 && ring_mend_consumer(&records->ring))
		log_limited(LOG_LEVEL_NOTICE, "the ring of records was corrupt; it begins again");
	pthread_mutex_unlock(&records->mutex);
	return n;
}

static void pause_ns(int64_t ns)
{
	struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	nanosleep(&time, NULL);
}

/* How long until the next look; 0: until the verifier rings, because nobody decodes. What begins then is seen with its first
 * record, at a system call of the verifier per silence.
 *
 * A slow model needs no quick look: a quarter of an iteration late is soon enough. With a fast one many iterations lie in
 * `poll`: then the record that something will be decided from is looked for when it should come. After that, and where
 * nothing was found, each look waits half as long again as all before. */
static int64_t poll_period(struct records *records, bool found)
{
	const struct controller *c = records->controller;
	pthread_mutex_lock(&records->mutex);
	int64_t period = c->settings.poll_ns, quarter = (int64_t)(c->last_iteration_ns / 4);
	int64_t due = (int64_t)controller_due_ns(c), now = (int64_t)clock_ns();
	int64_t silent = now - (int64_t)c->last_ns, later = silent / 2;
	int64_t over = (int64_t)c->last_iteration_ns * SILENCE;
	pthread_mutex_unlock(&records->mutex);
	if (!found && silent > (over > SILENCE_MIN_NS ? over : SILENCE_MIN_NS))
		return 0;
	if (quarter > POLL_MAX_NS)
		quarter = POLL_MAX_NS;
	if (period > 0 && quarter > period)
		period = quarter;
	later = later > quarter ? later : quarter;
	/* A look that comes too early has to be repeated. */
	if (due > 0)
		due += quarter;
	int64_t wait = period;
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
	prctl(PR_SET_TIMERSLACK, SLACK_NS);
	while (!atomic_load_explicit(&records->stop, memory_order_acquire)) {
		atomic_store_explicit(&records->beat_ns, clock_ns(), memory_order_relaxed);
		uint32_t seen = doorbell_read(bell);
		int64_t poll_ns = poll_period(records, records_drain(records) > 0);
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
