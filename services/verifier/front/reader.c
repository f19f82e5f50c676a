#include "services/verifier/front/reader.h"

#include "services/verifier/front/question.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct lane {
	struct reader *reader;
	pthread_t thread;
	bool started;
	struct reading *given; /* by the loop; NULL: the lane is idle. The loop's alone */
	pthread_mutex_t mutex; /* for the members below */
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

/* A copy of the message as bytes. */
static struct reading *create(const ProtobufCMessage *message, uint64_t now_ns)
{
	struct reading *reading = calloc(1, sizeof(*reading));

	if (reading == NULL)
		return NULL;
	reading->since_ns = now_ns;
	reading->packed_bytes = protobuf_c_message_get_packed_size(message);
	/* An empty message has no bytes. */
	reading->packed = malloc(reading->packed_bytes + 1);
	if (reading->packed == NULL) {
		free(reading);
		return NULL;
	}
	protobuf_c_message_pack(message, reading->packed);
	return reading;
}

struct reading *reading_create(const Outrider__Generate *generate, uint64_t now_ns)
{
	Outrider__Generate known = *generate;

	known.base.n_unknown_fields = 0;
	return create(&known.base, now_ns);
}

struct reading *reading_create_question(const Outrider__TextRequest *question, uint64_t now_ns)
{
	Outrider__TextRequest known = *question;

	known.base.n_unknown_fields = 0;
	struct reading *reading = create(&known.base, now_ns);
	if (reading != NULL)
		reading->is_question = true;
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
	if (reading->answer != NULL)
		outrider__text__free_unpacked(reading->answer, NULL);
	free(reading);
	*out = NULL;
}

static int no_memory(struct reading *reading)
{
	return error_set(&reading->err, ENOMEM, "no memory for a request of %zu bytes",
		reading->packed_bytes);
}

static void answer_question(struct reading *reading, const struct request_limits *limits)
{
	Outrider__TextRequest *question =
		outrider__text_request__unpack(NULL, reading->packed_bytes, reading->packed);

	if (question == NULL) {
		reading->rc = no_memory(reading);
		return;
	}
	reading->rc = question_answer(question, limits, &reading->answer, &reading->err);
	outrider__text_request__free_unpacked(question, NULL);
	free(reading->packed);
	reading->packed = NULL;
}

void reading_run(struct reading *reading, const struct request_limits *limits)
{
	if (reading->is_question) {
		answer_question(reading, limits);
		return;
	}
	Outrider__Generate *generate =
		outrider__generate__unpack(NULL, reading->packed_bytes, reading->packed);

	if (generate == NULL) {
		reading->rc = no_memory(reading);
		return;
	}
	reading->rc = request_read(generate, limits, reading->since_ns, &reading->request,
		&reading->input, &reading->err);
	reading->request.of_class = reading->of_class;
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
