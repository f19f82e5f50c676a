/*
 * The step `pick`. The host makes jobs of the rows and finds the changes of logits; the kernels do
 * what touches a whole row. Results come back through memory that both see, and are written to the
 * caller's when the queue has come that far.
 */
#include "kernels/gpu/kernels/pick_draw.cuh"
#include "kernels/gpu/kernels/pick_scale.cuh"
#include "kernels/gpu/steps/pick_jobs.h"
#include "kernels/gpu/steps/steps.h"

/* A wave has as many rows as there is scratch for. */
enum { PICK_WAVE = 16, PICK_WAVE_JOBS = 2 * PICK_WAVE };

/* What the queue keeps for its picks: q->pick. */
struct pick_queue {
	struct sampler_marks marks;
	pick_change *changes; /* [pick_changes_max] of one row */
	/* Memory that host and kernels see, for what the kernels read of a wave's rows. */
	struct buffer rows;
	size_t rows_used;
	ticket used; /* behind the last wave that read it; 0: none has */
	pick_args scratch; /* of a wave */
};

/* A row of a wave: its array is the caller's again when the step is queued. */
struct wave_row {
	struct pick_row row;
	struct pick_result *result;
	int32_t choice, score; /* jobs, or -1 */
};

struct wave {
	struct gpu_queue *q;
	uint32_t n_vocab;
	pick_job *jobs; /* [PICK_WAVE_JOBS] */
	pick_out *out; /* of each job */
	struct wave_row *rows; /* [PICK_WAVE] */
	uint32_t n_jobs, n_rows, flags; /* flags: of any job */
};

static void add_job(struct wave *w, const pick_job *job, const float *logits,
	const uint64_t *allowed, int32_t *index)
{
	*index = -1;
	if (!job->flags)
		return;
	pick_job *to = &w->jobs[w->n_jobs];
	*to = *job;
	to->logits = logits;
	to->allowed = job->flags & PICK_CHOOSES ? allowed : NULL;
	to->out = &w->out[w->n_jobs];
	w->flags |= job->flags;
	*index = (int32_t)w->n_jobs++;
}

/* A copy of memory of the host that the kernels can read. */
static const void *copied(struct pick_queue *p, const void *from, size_t bytes)
{
	size_t at = p->rows_used;

	if (bytes == 0)
		return nullptr;
	p->rows_used += (bytes + 15) / 16 * 16;
	assert(p->rows_used <= p->rows.bytes);
	memcpy(p->rows.host + at, from, bytes);
	return p->rows.device + at;
}

static size_t allowed_bytes(uint32_t n_vocab)
{
	return SAMPLER_ALLOWED_WORDS(n_vocab) * sizeof(uint64_t);
}

/* Bytes that the kernels read of one row, at most. */
static size_t row_bytes_max(uint32_t n_vocab)
{
	return pick_changes_max(n_vocab) * sizeof(pick_change) + allowed_bytes(n_vocab) + 32;
}

/* Makes the jobs of row `at` of the step. */
static void add_row(struct wave *w, const struct step_pick *step, uint32_t at)
{
	struct pick_queue *p = (struct pick_queue *)w->q->pick;
	const struct pick_row *of = &step->rows[step->first + at];
	const float *logits = (const float *)(step->logits.buffer->device + step->logits.offset +
					      step->which[at] * step->logits.stride);
	struct wave_row *row = &w->rows[w->n_rows++];
	const uint64_t *allowed = nullptr;
	uint32_t n = 0;
	pick_row_jobs jobs;

	pick_jobs_of(step->rows, step->first + at, w->n_vocab, &p->marks, p->changes, &jobs);
	for (uint32_t what = 0; what < SAMPLER_CHANGES; what++)
		n += jobs.choice.n_changes[what];
	jobs.choice.changes = (const pick_change *)copied(p, p->changes, n * sizeof(pick_change));
	if (of->params && of->allowed)
		allowed = (const uint64_t *)copied(p, of->allowed, allowed_bytes(w->n_vocab));
	row->row = *of;
	row->result = &step->results[step->first + at];
	add_job(w, &jobs.choice, logits, allowed, &row->choice);
	add_job(w, &jobs.score, logits, nullptr, &row->score);
}

static void launch_wave(const struct wave *w)
{
	struct gpu_queue *q = w->q;
	pick_args a = ((struct pick_queue *)q->pick)->scratch;
	unsigned n = w->n_jobs, flags = w->flags;
	simt_dim tiles = {a.tiles, n, 1}, each = {n, 1, 1};

	a.jobs = w->jobs;
	LAUNCH(q->stream, pick_scale, tiles, PICK_THREADS, sizeof(pick_scale_shared), a, false);
	if (flags & PICK_ADJUSTS) {
		LAUNCH(q->stream, pick_adjust, each, PICK_THREADS, 0, a);
		LAUNCH(q->stream, pick_scale, tiles, PICK_THREADS, sizeof(pick_scale_shared), a,
			true);
	}
	LAUNCH(q->stream, pick_top, each, PICK_THREADS, sizeof(pick_top_shared), a);
	if (flags & PICK_SIGMA) {
		LAUNCH(q->stream, pick_spread, each, 32, 0, a);
		LAUNCH(q->stream, pick_cut, tiles, PICK_THREADS, 0, a);
	}
	if (flags & PICK_SUM_FIRST)
		LAUNCH(q->stream, pick_sums, tiles, PICK_THREADS, 0, a, (uint32_t)PICK_SUM_FIRST);
	if (flags & PICK_XTC) {
		LAUNCH(q->stream, pick_xtc, each, PICK_THREADS, sizeof(keep_shared), a);
		LAUNCH(q->stream, pick_sums, tiles, PICK_THREADS, 0, a, (uint32_t)PICK_SUM_LAST);
	}
	if (flags & PICK_DRAWS)
		LAUNCH(q->stream, pick_race, tiles, PICK_THREADS, sizeof(pick_race_shared), a);
	if (flags & PICK_HASHES)
		LAUNCH(q->stream, pick_hash, each, PICK_THREADS, sizeof(pick_hash_shared), a);
	LAUNCH(q->stream, pick_finish, each, PICK_THREADS, sizeof(keep_shared), a);
}

/* In the order of the queue: what the kernels found becomes the caller's results. */
static void end_wave(void *at)
{
	const struct wave *w = (const struct wave *)at;

	for (uint32_t i = 0; i < w->n_rows; i++) {
		const struct wave_row *row = &w->rows[i];

		pick_result_of(&row->row, row->choice < 0 ? nullptr : &w->out[row->choice],
			row->score < 0 ? nullptr : &w->out[row->score], row->result);
	}
}

/* Picks rows first.. of the step: as many as a wave, and the memory for their rows, can take.
 * Returns how many. */
static uint32_t run_wave(struct gpu_queue *q, const struct step_pick *step, uint32_t first)
{
	struct pick_queue *p = (struct pick_queue *)q->pick;
	struct wave *w = stream_array<struct wave>(q->stream, 1);
	uint32_t n = 0;

	*w = wave{};
	w->q = q;
	w->n_vocab = q->limits.pick_vocab;
	w->jobs = stream_array<pick_job>(q->stream, PICK_WAVE_JOBS);
	w->out = stream_array<pick_out>(q->stream, PICK_WAVE_JOBS);
	w->rows = stream_array<struct wave_row>(q->stream, PICK_WAVE);
	/* Waves before this one may still read what they copied there. */
	if (p->rows.bytes - p->rows_used < row_bytes_max(w->n_vocab)) {
		(void)stream_wait(q->stream, p->used);
		p->rows_used = 0;
	}
	do
		add_row(w, step, first + n++);
	while (n < PICK_WAVE && first + n < step->n &&
		p->rows.bytes - p->rows_used >= row_bytes_max(w->n_vocab));
	launch_wave(w);
	stream_call(q->stream, end_wave, w);
	p->used = stream_ticket(q->stream);
	return n;
}

void gpu_pick(struct queue *queue, const struct step_pick *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct pick_queue *p = (struct pick_queue *)q->pick;

	assert(p);
	/* The last step has usually been waited for. */
	if (p->used && stream_reached(q->stream, p->used))
		p->rows_used = 0;
	for (uint32_t i = 0; i < step->n;)
		i += run_wave(q, step, i);
}

static pick_args scratch_at(uint32_t n_vocab, struct gpu_carve *c)
{
	const size_t jobs = PICK_WAVE_JOBS;
	pick_args a = {};

	a.n_vocab = n_vocab;
	a.chunks = (n_vocab + PICK_CHUNK - 1) / PICK_CHUNK;
	a.tiles = (n_vocab + PICK_TILE - 1) / PICK_TILE;
	a.z = (float *)gpu_carve(c, jobs * n_vocab * sizeof(*a.z));
	a.most = (float *)gpu_carve(c, jobs * a.chunks * sizeof(*a.most));
	a.sums = (float *)gpu_carve(c, jobs * a.chunks * sizeof(*a.sums));
	a.dist = (uint64_t *)gpu_carve(c, jobs * n_vocab * sizeof(*a.dist));
	a.race = (pick_score *)gpu_carve(c, jobs * a.tiles * sizeof(*a.race));
	a.bad = (uint32_t *)gpu_carve(c, jobs * a.tiles * sizeof(*a.bad));
	a.state = (pick_state *)gpu_carve(c, jobs * sizeof(*a.state));
	return a;
}

void gpu_pick_layout(struct gpu_queue *q, struct gpu_carve *c)
{
	struct pick_queue *p = (struct pick_queue *)q->pick;

	if (q->limits.pick_vocab == 0)
		return;
	pick_args scratch = scratch_at(q->limits.pick_vocab, c);
	if (p)
		p->scratch = scratch;
}

/* Room for the changes of one row whatever it is, and of usual rows many times. */
static size_t rows_bytes(uint32_t n_vocab)
{
	return row_bytes_max(n_vocab) + PICK_WAVE * (allowed_bytes(n_vocab) + 4096);
}

size_t gpu_pick_bytes(const struct queue_limits *limits)
{
	uint32_t n = limits->pick_vocab;

	if (n == 0)
		return 0;
	return sizeof(struct pick_queue) + rows_bytes(n) + 2 * n * sizeof(uint32_t) +
	       pick_changes_max(n) * sizeof(pick_change);
}

int gpu_pick_open(struct gpu_queue *q, struct error *err)
{
	uint32_t n = q->limits.pick_vocab;

	if (n == 0)
		return 0;
	struct pick_queue *p = (struct pick_queue *)calloc(1, sizeof(*p));
	q->pick = p;
	if (!p)
		return error_set(err, ENOMEM, "no memory for sampling");
	p->rows.fd = -1;
	p->changes = (pick_change *)malloc(pick_changes_max(n) * sizeof(*p->changes));
	if (sampler_marks_init(&p->marks, n) < 0 || !p->changes)
		return error_set(err, ENOMEM, "no memory for sampling from %u tokens", n);
	return runtime_alloc(q->runtime, rows_bytes(n), BUFFER_HOST, &p->rows, err);
}

void gpu_pick_close(struct gpu_queue *q)
{
	struct pick_queue *p = (struct pick_queue *)q->pick;

	if (!p)
		return;
	sampler_marks_exit(&p->marks);
	free(p->changes);
	runtime_free(q->runtime, &p->rows);
	free(p);
	q->pick = nullptr;
}
