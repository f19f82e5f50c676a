#include "services/verifier/front/reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct lane {
	struct reader *reader;
	pthread_t thread;
	bool started;
	struct reading *given; /* by the loop; NULL: it is idle. The loop's alone */
	pthread_mutex_t mutex; /* of what follows */
	pthread_cond_t changed;
	struct reading *work; /* to be read; NULL: none, or it was read */
	bool stop;
};

struct reader {
	struct request_limits limits;
	void (*done)(void *arg);
	void *arg;
	struct lane lanes[READER_LANES];
};

struct reading *reading_create(const Outrider__Generate *generate, uint64_t now_ns)
{
	struct reading *reading = calloc(1, sizeof(*reading));
	Outrider__Generate known = *generate;

	if (reading == NULL)
		return NULL;
	known.base.n_unknown_fields = 0;
	reading->since_ns = now_ns;
	reading->packed_bytes = outrider__generate__get_packed_size(&known);
	reading->packed = malloc(reading->packed_bytes);
	if (reading->packed == NULL) {
		free(reading);
		return NULL;
	}
	outrider__generate__pack(&known, reading->packed);
	return reading;
}

void reading_free(struct reading **out)
{
	struct reading *reading = *out;

	if (reading == NULL)
		return;
	free(reading->packed);
	request_input_free(&reading->input);
	stop_match_free(&reading->match);
	constraint_free(&reading->constraint);
	free(reading);
	*out = NULL;
}

void reading_run(struct reading *reading, const struct request_limits *limits)
{
	Outrider__Generate *generate =
		outrider__generate__unpack(NULL, reading->packed_bytes, reading->packed);

	if (generate == NULL) {
		reading->rc = error_set(&reading->err, ENOMEM,
			"no memory for a request of %zu bytes", reading->packed_bytes);
		return;
	}
	reading->rc = request_read(generate, limits, reading->since_ns, &reading->request,
		&reading->input, &reading->err);
	outrider__generate__free_unpacked(generate, NULL);
	free(reading->packed);
	reading->packed = NULL;
	if (reading->rc == 0 &&
		stop_match_create(&reading->request, limits->n_context, &reading->match) != 0)
		reading->rc = error_set(&reading->err, ENOMEM, "no memory for stop strings");
	if (reading->rc == 0)
		reading->rc = constraint_create(
			&reading->request, limits->vocab, &reading->constraint, &reading->err);
}

static void *lane_main(void *arg)
{
	struct lane *lane = arg;
	bool is_long = lane == &lane->reader->lanes[READER_LONG];

	pthread_setname_np(pthread_self(), is_long ? "text" : "text-short");
	pthread_mutex_lock(&lane->mutex);
	while (!lane->stop) {
		struct reading *reading = lane->work;

		if (reading == NULL) {
			pthread_cond_wait(&lane->changed, &lane->mutex);
			continue;
		}
		pthread_mutex_unlock(&lane->mutex);
		reading_run(reading, &lane->reader->limits);
		pthread_mutex_lock(&lane->mutex);
		lane->work = NULL;
		pthread_mutex_unlock(&lane->mutex);
		lane->reader->done(lane->reader->arg);
		pthread_mutex_lock(&lane->mutex);
	}
	pthread_mutex_unlock(&lane->mutex);
	return NULL;
}

static int lane_open(struct reader *reader, struct lane *lane, struct error *err)
{
	lane->reader = reader;
	pthread_mutex_init(&lane->mutex, NULL);
	pthread_cond_init(&lane->changed, NULL);
	int rc = pthread_create(&lane->thread, NULL, lane_main, lane);
	if (rc != 0)
		return error_thread(err, rc, "the thread for texts cannot be started");
	lane->started = true;
	return 0;
}

static void lane_close(struct lane *lane)
{
	if (lane->reader == NULL)
		return;
	pthread_mutex_lock(&lane->mutex);
	lane->stop = true;
	pthread_cond_signal(&lane->changed);
	pthread_mutex_unlock(&lane->mutex);
	if (lane->started)
		pthread_join(lane->thread, NULL);
	pthread_cond_destroy(&lane->changed);
	pthread_mutex_destroy(&lane->mutex);
	reading_free(&lane->given);
}

int reader_create(const struct request_limits *limits, void (*done)(void *arg), void *arg,
	struct reader **out, struct error *err)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	int rc = 0;

	*out = reader;
	if (reader == NULL)
		return error_set(err, ENOMEM, "no memory for the threads that read texts");
	reader->limits = *limits;
	reader->done = done;
	reader->arg = arg;
	for (int i = 0; rc == 0 && i < READER_LANES; i++)
		rc = lane_open(reader, &reader->lanes[i], err);
	if (rc != 0)
		reader_destroy(out);
	return rc;
}

void reader_destroy(struct reader **out)
{
	if (*out == NULL)
		return;
	for (int i = 0; i < READER_LANES; i++)
		lane_close(&(*out)->lanes[i]);
	free(*out);
	*out = NULL;
}

bool reader_is_idle(const struct reader *reader, enum reader_lane lane)
{
	return reader->lanes[lane].given == NULL;
}

void reader_start(struct reader *reader, enum reader_lane which, struct reading *reading)
{
	struct lane *lane = &reader->lanes[which];

	lane->given = reading;
	pthread_mutex_lock(&lane->mutex);
	lane->work = reading;
	pthread_cond_signal(&lane->changed);
	pthread_mutex_unlock(&lane->mutex);
}

struct reading *reader_take(struct reader *reader, enum reader_lane which)
{
	struct lane *lane = &reader->lanes[which];
	struct reading *reading = lane->given;

	if (reading == NULL)
		return NULL;
	pthread_mutex_lock(&lane->mutex);
	bool busy = lane->work != NULL;
	pthread_mutex_unlock(&lane->mutex);
	if (busy)
		return NULL;
	lane->given = NULL;
	return reading;
}
