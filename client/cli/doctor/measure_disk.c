#include "client/cli/doctor/measure.h"

#include "services/expert-cache/reader/reader.h"
#include "shared/base/clock.h"
#include "shared/base/round.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIAL_NS 700000000ull /* for each of the three ways to read */
#define TRIAL_BYTES_MAX (2ull << 30)
#define CACHED_NS 300000000ull
#define FILE_BYTES_MIN \
	(4ull << 20) /* smaller files are not measured, because a disk returns them at once */

enum {
	PLAIN_BYTES = 1 << 20, /* of a read that is not an expert */
	MEMORY_BYTES = 64 << 20, /* where reads go; the content is not used */
	REQUESTS = 64,
	FILLED = 32, /* requests in the reader at a time: enough for any depth that it accepts */
};

struct trial {
	const struct facts *facts;
	struct reader *reader;
	const struct gguf_part *part; /* the largest */
	unsigned char *memory; /* [MEMORY_BYTES] */
	struct read_request requests[REQUESTS];
	uint32_t free[REQUESTS], n_free;
	uint64_t read, start_ns, at, seed;
	size_t place;
	int status;
};

static uint64_t chance(struct trial *t, uint64_t n)
{
	t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
	return (t->seed >> 33) % n;
}

static void submit(struct trial *t, uint64_t offset, size_t bytes, size_t need)
{
	struct read_request *request = &t->requests[t->free[--t->n_free]];

	if (t->place + bytes > MEMORY_BYTES)
		t->place = 0;
	*request = (struct read_request){.offset = offset,
		.bytes = bytes,
		.need = need,
		.to = t->memory + t->place,
		.priority = READ_DEMAND};
	t->place += bytes;
	reader_submit(t->reader, request);
}

static void submit_expert(struct trial *t, uint32_t layer, uint32_t expert)
{
	struct slots_read reads[EXPERT_PARTS];
	unsigned n = slots_reads(&t->facts->geometry->layers[layer], expert, reads);

	for (unsigned i = 0; i < n; i++)
		submit(t, reads[i].offset, reads[i].bytes, reads[i].need);
}

static uint32_t any_layer(struct trial *t)
{
	const struct slots_geometry *g = t->facts->geometry;
	uint32_t layer;

	do
		layer = (uint32_t)chance(t, g->n_layers);
	while (!g->layers[layer].moe);
	return layer;
}

/* Submits a read of PLAIN_BYTES, at a random place or the next one. */
static void submit_plain(struct trial *t, bool random)
{
	uint64_t pieces = t->part->bytes / PLAIN_BYTES;
	uint64_t piece = random ? chance(t, pieces) : t->at++ % pieces;

	submit(t, t->part->base + piece * PLAIN_BYTES, PLAIN_BYTES, PLAIN_BYTES);
}

/* Takes the reads that have finished; waits for the first. */
static void collect(struct trial *t)
{
	struct read_request *finished[REQUESTS];
	unsigned n = reader_wait(t->reader, 1000000000, finished, REQUESTS);

	for (unsigned i = 0; i < n; i++) {
		t->read += finished[i]->need;
		if (finished[i]->status != 0)
			t->status = finished[i]->status;
		t->free[t->n_free++] = (uint32_t)(finished[i] - t->requests);
	}
}

static void drain(struct trial *t)
{
	while (reader_busy(t->reader) > 0)
		collect(t);
}

static void begin(struct trial *t)
{
	t->read = 0;
	t->start_ns = clock_ns();
}

static bool goes_on(const struct trial *t)
{
	return t->status == 0 && clock_ns() - t->start_ns < TRIAL_NS && t->read < TRIAL_BYTES_MAX;
}

static double gb_s(const struct trial *t)
{
	return (double)t->read / (double)(clock_ns() - t->start_ns + 1);
}

/* Keeps the reader busy; the time ends with the last byte. */
static double trial_busy(struct trial *t, bool random)
{
	bool experts = random && t->facts->experts > 0;

	begin(t);
	while (goes_on(t)) {
		while (t->n_free > REQUESTS - FILLED) {
			if (experts)
				submit_expert(
					t, any_layer(t), (uint32_t)chance(t, t->facts->experts));
			else
				submit_plain(t, random);
		}
		collect(t);
	}
	drain(t);
	return gb_s(t);
}

/* Reads like a pass without hints: all experts that one token needs of a layer, then those of the
 * next layer. */
static double trial_layers(struct trial *t)
{
	begin(t);
	while (goes_on(t)) {
		uint32_t layer = any_layer(t), first = (uint32_t)chance(t, t->facts->experts);

		for (uint32_t i = 0; i < t->facts->used; i++) {
			while (t->n_free < EXPERT_PARTS)
				collect(t);
			/* Experts that are far from each other, and all different. */
			submit_expert(t, layer,
				(first + i * (t->facts->experts / t->facts->used)) %
					t->facts->experts);
		}
		drain(t);
	}
	return gb_s(t);
}

/* Reads from the page cache, which has the whole file: a copy by one thread. */
static double trial_cached(struct trial *t)
{
	uint64_t position = 0;

	begin(t);
	while (clock_ns() - t->start_ns < CACHED_NS) {
		ssize_t n = pread(t->part->fd, t->memory, PLAIN_BYTES, (off_t)position);

		if (n <= 0)
			break;
		t->read += (uint64_t)n;
		position = position + (uint64_t)n + PLAIN_BYTES > t->part->bytes
				   ? 0
				   : position + (uint64_t)n;
	}
	return gb_s(t);
}

static int open_reader(struct trial *t, struct error *err)
{
	const struct gguf *gguf = t->facts->model->gguf;
	struct reader_file files[GGUF_PARTS_MAX];
	const struct reader_options options = {.io = IO_AUTO, .direct = CHOICE_AUTO};
	size_t n = gguf_n_parts(gguf);

	t->part = gguf_part_at(gguf, 0);
	for (size_t i = 0; i < n; i++) {
		const struct gguf_part *part = gguf_part_at(gguf, i);

		files[i] = (struct reader_file){part->path, part->base, part};
		if (part->bytes > t->part->bytes)
			t->part = part;
	}
	return reader_open(files, (unsigned)n, &options, &t->reader, err);
}

static void run_trials(struct trial *t, bool cached, struct measured_disk *out)
{
	for (uint32_t i = 0; i < REQUESTS; i++)
		t->free[t->n_free++] = i;
	snprintf(out->link, sizeof(out->link), "%s", reader_link(t->reader));
	out->direct = strstr(out->link, "O_DIRECT") != NULL;
	out->depth = reader_depth(t->reader);
	out->piece_bytes = reader_piece_bytes(t->reader);
	out->random_gb_s = trial_busy(t, true);
	if (t->facts->experts > 0)
		out->layer_gb_s = trial_layers(t);
	out->sequential_gb_s = trial_busy(t, false);
	if (cached)
		out->cached_gb_s = trial_cached(t);
}

int measure_disk(
	const struct facts *facts, bool cached, struct measured_disk *out, struct error *err)
{
	struct trial *t = calloc(1, sizeof(*t));

	*out = (struct measured_disk){0};
	if (!t)
		return error_set(err, ENOMEM, "no memory to measure the disk");
	*t = (struct trial){.facts = facts,
		.seed = clock_ns(),
		.memory = aligned_alloc(SLOTS_PAGE, MEMORY_BYTES)};
	if (!t->memory) {
		free(t);
		return error_set(err, ENOMEM, "no memory to measure the disk");
	}
	int rc = open_reader(t, err);
	if (rc == 0 && t->part->bytes >= FILE_BYTES_MIN &&
		facts->geometry->slot_bytes <= MEMORY_BYTES) {
		run_trials(t, cached, out);
		if (t->status != 0)
			rc = error_set(err, -t->status, "%s: it cannot be read: %s", t->part->path,
				strerror(-t->status));
	}
	reader_close(&t->reader);
	free(t->memory);
	free(t);
	return rc;
}
