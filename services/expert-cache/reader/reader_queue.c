/* The requests of a reader: held back by priority, cut into pieces or merged, and repeated where
 * that helps. */
#include "services/expert-cache/reader/reader_internal.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/slots.h"

#include <string.h>

enum {
	RETRIES_MAX = 4,
	/* Held-back requests that are examined as neighbours of a short one. */
	NEIGHBOURS_MAX = 64,
};

/* A sample of the rate: long enough to average over, short enough to follow changes. */
#define RATE_BYTES (8ull << 20)
/* Bytes that had arrived before somebody looked come all at once, and tell nothing. */
#define RATE_NS 2000000ull

/* ---- Lists. ---- */

static void hold(struct reader *reader, struct read_request *request)
{
	struct held *held = &reader->held[request->priority];
	request->next = NULL;
	request->before = held->last;
	*(held->last != NULL ? &held->last->next : &held->first) = request;
	held->last = request;
	request->held = true;
	reader->n_held++;
}

/* Something of it was read in vain, so it goes before all others of its priority. */
static void hold_first(struct reader *reader, struct read_request *request)
{
	struct held *held = &reader->held[request->priority];
	request->before = NULL;
	request->next = held->first;
	*(held->first != NULL ? &held->first->before : &held->last) = request;
	held->first = request;
	request->held = true;
	reader->n_held++;
}

static void unhold(struct reader *reader, struct read_request *request)
{
	struct held *held = &reader->held[request->priority];
	*(request->before != NULL ? &request->before->next : &held->first) = request->next;
	*(request->next != NULL ? &request->next->before : &held->last) = request->before;
	request->held = false;
	reader->n_held--;
}

static void end_request(struct reader *reader, struct read_request *request)
{
	request->next = NULL;
	*reader->finished_last = request;
	reader->finished_last = &request->next;
}

static struct read_request *take_finished(struct reader *reader)
{
	struct read_request *request = reader->finished;
	if (request == NULL)
		return NULL;
	reader->finished = request->next;
	if (reader->finished == NULL)
		reader->finished_last = &reader->finished;
	reader->busy--;
	return request;
}

/* ---- The rate. ---- */

static bool saturated(const struct reader *reader)
{
	return reader->n_held > 0 || reader->n_started >= reader->prefetch_depth;
}

static void follow_rate(struct reader *reader, long bytes)
{
	reader->rate_bytes += bytes > 0 ? (uint64_t)bytes : 0;
	uint64_t now_ns = reader->rate_bytes >= RATE_BYTES ? clock_ns() : 0;
	if (reader->rate_ns != 0 && now_ns > reader->rate_ns + RATE_NS) {
		double rate = (double)reader->rate_bytes * 1e9 / (double)(now_ns - reader->rate_ns);
		double old = reader_rate(reader);
		atomic_store_explicit(&reader->rate,
			(uint64_t)(old > 0 ? old + (rate - old) / 8 : rate), memory_order_relaxed);
		reader->rate_ns = now_ns;
		reader->rate_bytes = 0;
	}
	if (!saturated(reader)) {
		reader->rate_ns = 0;
	} else if (reader->rate_ns == 0) {
		reader->rate_ns = clock_ns();
		reader->rate_bytes = 0;
	}
}

/* ---- Pieces. ---- */

static void start(struct reader *reader, struct read_piece *piece)
{
	reader->n_started++;
	reader->ops->start(reader->io, piece);
}

static void pause_piece(struct reader *reader, struct read_piece *piece)
{
	piece->again_ns = clock_ns() + (reader->pause_ns << (piece->retries - 1));
	piece->next = reader->paused;
	reader->paused = piece;
}

/* Continues pieces whose pause is over, as far as there is room. Returns the shortest remaining
 * pause; UINT64_MAX: none. */
static uint64_t start_paused(struct reader *reader)
{
	uint64_t now_ns = reader->paused != NULL ? clock_ns() : 0, next_ns = UINT64_MAX;
	struct read_piece **at = &reader->paused;
	while (*at != NULL) {
		struct read_piece *piece = *at;
		if (piece->again_ns <= now_ns && reader->n_started < reader->depth_max) {
			*at = piece->next;
			start(reader, piece);
			continue;
		}
		/* A piece that waits for room continues when a read ends. */
		if (piece->again_ns > now_ns && piece->again_ns - now_ns < next_ns)
			next_ns = piece->again_ns - now_ns;
		at = &piece->next;
	}
	return next_ns;
}

/* Appends the next stretch of a request to the piece. */
static void append(
	struct read_piece *piece, struct read_request *request, size_t bytes, size_t shared)
{
	unsigned i = piece->n_requests++;
	piece->request[i] = request;
	piece->shares[i] = shared > 0;
	piece->iov[piece->n_iov++] =
		(struct iovec){request->to + request->issued + shared, bytes - shared};
	size_t end = request->issued + bytes;
	size_t need = end < request->need ? bytes : request->need - request->issued;
	/* All requests before it are whole. */
	piece->need = piece->done + need - shared;
	piece->done += bytes - shared;
	request->issued = end;
	request->pieces++;
}

/* A held-back request that fits whole in `room` bytes and begins where the piece ends, or with the
 * page that the piece ends with. */
static struct read_request *neighbour(const struct reader *reader, const struct read_piece *piece,
	enum read_priority priority, size_t room, size_t *shared)
{
	uint64_t end = piece->position + piece->done;
	struct read_request *request = reader->held[priority].first;
	for (int i = 0; request != NULL && i < NEIGHBOURS_MAX; i++, request = request->next) {
		*shared = request->position < end ? SLOTS_PAGE : 0;
		if (request->file == piece->file && request->position + *shared == end &&
			request->issued == 0 && !request->alone && request->bytes > *shared &&
			request->bytes - *shared <= room)
			return request;
	}
	return NULL;
}

/* Issues the next piece of the first held-back request of a priority, with its short neighbours. */
static void issue(struct reader *reader, enum read_priority priority)
{
	struct read_request *first = reader->held[priority].first;
	struct read_piece *piece = reader->idle[--reader->n_idle];
	size_t left = first->bytes - first->issued;
	*piece = (struct read_piece){
		.file = first->file,
		.position = first->position + first->issued,
		.plain = !reader_is_direct(reader),
	};
	bool whole = first->issued == 0 && left <= reader->read_bytes && !first->alone;
	append(piece, first, left < reader->read_bytes ? left : reader->read_bytes, 0);
	if (first->issued == first->bytes)
		unhold(reader, first);
	while (whole && piece->n_requests < PIECE_REQUESTS && piece->done < reader->read_bytes) {
		size_t shared;
		struct read_request *next = neighbour(
			reader, piece, priority, reader->read_bytes - piece->done, &shared);
		if (next == NULL)
			break;
		append(piece, next, next->bytes, shared);
		unhold(reader, next);
	}
	piece->done = 0;
	start(reader, piece);
}

static void issue_all(struct reader *reader)
{
	for (int p = 0; p < READ_PRIORITIES; p++) {
		unsigned most = p == READ_DEMAND ? reader->depth : reader->prefetch_depth;
		while (reader->held[p].first != NULL && reader->n_idle > 0 &&
			reader->n_started < most)
			issue(reader, (enum read_priority)p);
	}
	if (reader->rate_ns == 0)
		follow_rate(reader, 0);
}

/* Removes what a piece has read from what is left of it. */
static void advance(struct read_piece *piece, size_t bytes)
{
	piece->done += bytes;
	piece->position += bytes;
	while (bytes > 0) {
		struct iovec *iov = &piece->iov[piece->first_iov];
		size_t n = bytes < iov->iov_len ? bytes : iov->iov_len;
		iov->iov_base = (unsigned char *)iov->iov_base + n;
		iov->iov_len -= n;
		bytes -= n;
		if (iov->iov_len == 0)
			piece->first_iov++;
	}
}

/* True for errors of the request or the file that will occur again. All others may pass: a bad
 * sector is ENODATA, a path to the disk that is down ENOLINK, a command that took too long
 * ETIMEDOUT, and drivers have more of them (blk_errors in Linux' block/blk-core.c). */
static bool is_final(int code)
{
	static const int final[] = {EBADF, EFAULT, EINVAL, EISDIR, ESPIPE, ESTALE, EOVERFLOW, EPERM,
		EACCES, ENOSYS, EOPNOTSUPP};
	for (size_t i = 0; i < sizeof(final) / sizeof(final[0]); i++)
		if (code == final[i])
			return true;
	return false;
}

enum verdict { OVER, GO_ON, LATER };

/* Decides what to do after a failed read. */
static enum verdict judge_failure(struct reader *reader, struct read_piece *piece)
{
	const struct file *file = &reader->files[piece->file];
	int code = (int)-piece->result;
	if (code == EINVAL && !piece->plain) {
		if (!atomic_exchange_explicit(&reader->refused_direct, true, memory_order_relaxed))
			log_notice("%s: O_DIRECT reads are refused: reading through the page cache",
				file->path);
		piece->plain = true;
		return GO_ON;
	}
	if (code == EINTR)
		return GO_ON;
	if (!is_final(code) && piece->retries < RETRIES_MAX && !reader->closing) {
		piece->retries++;
		return LATER;
	}
	/* Of several requests only the faulty ones fail, so each is read alone. */
	if (piece->n_requests == 1 && reader_worth_a_line(reader, file))
		log_error("%s: reading %zu bytes at %llu: %s", file->path,
			piece->iov[piece->first_iov].iov_len, (unsigned long long)piece->position,
			strerror(code));
	return OVER;
}

/* Decides what becomes of a piece after its read ended; *status: its result. */
static enum verdict judge(struct reader *reader, struct read_piece *piece, int *status)
{
	*status = 0;
	if (piece->result < 0) {
		*status = (int)piece->result;
		return judge_failure(reader, piece);
	}
	advance(piece, (size_t)piece->result);
	if (piece->done >= piece->need)
		return OVER;
	if (piece->result == 0) {
		*status = -ESTALE;
		const struct file *file = &reader->files[piece->file];
		if (reader_worth_a_line(reader, file))
			log_error("%s: has no byte %llu, inside an expert: it was cut short while "
				  "open",
				file->path, (unsigned long long)piece->position);
		return OVER;
	}
	/* O_DIRECT continues only at a page. */
	if (piece->done % SLOTS_PAGE != 0)
		piece->plain = true;
	return GO_ON;
}

static void fail_request(struct reader *reader, struct read_request *request, int status)
{
	if (request->status == 0)
		request->status = status;
	if (request->held)
		unhold(reader, request);
}

/* Ends the requests of a piece after its last read. */
static void end_piece(struct reader *reader, struct read_piece *piece, int status)
{
	for (unsigned i = 0; i < piece->n_requests; i++) {
		struct read_request *request = piece->request[i];
		request->pieces--;
		if (status != 0 && piece->n_requests > 1 && !reader->closing) {
			request->issued = 0;
			request->alone = true;
			hold_first(reader, request);
			continue;
		}
		if (status != 0)
			fail_request(reader, request, status);
		else if (piece->shares[i])
			memcpy(request->to,
				piece->request[i - 1]->to + piece->request[i - 1]->bytes -
					SLOTS_PAGE,
				SLOTS_PAGE);
	}
	/* After the copies: the owner of a returned request may reuse its memory. */
	for (unsigned i = 0; i < piece->n_requests; i++)
		if (piece->request[i]->pieces == 0 && !piece->request[i]->held)
			end_request(reader, piece->request[i]);
	reader->idle[reader->n_idle++] = piece;
}

/* Handles a piece whose read has ended. */
static void take_ended(struct reader *reader, struct read_piece *piece)
{
	int status;
	follow_rate(reader, piece->result);
	reader->n_started--;
	switch (judge(reader, piece, &status)) {
	case GO_ON:
		start(reader, piece);
		return;
	case LATER:
		pause_piece(reader, piece);
		break;
	case OVER:
		end_piece(reader, piece, status);
		break;
	}
	issue_all(reader);
}

void reader_give_up(struct reader *reader)
{
	while (reader->paused != NULL) {
		struct read_piece *piece = reader->paused;
		reader->paused = piece->next;
		end_piece(reader, piece, (int)piece->result);
	}
}

/* ---- The interface. ---- */

void reader_submit(struct reader *reader, struct read_request *request)
{
	unsigned file = reader->n_files - 1;
	while (file > 0 && reader->files[file].base > request->offset)
		file--;
	request->file = file;
	request->position = request->offset - reader->files[file].base;
	request->status = 0;
	request->issued = 0;
	request->pieces = 0;
	request->alone = false;
	reader->busy++;
	/* It is issued by the next reader_wait: requests submitted together may become one read. */
	hold(reader, request);
}

void reader_promote(
	struct reader *reader, struct read_request *request, enum read_priority priority)
{
	if (!request->held) {
		request->priority = priority;
		return;
	}
	if (request->priority == priority)
		return;
	unhold(reader, request);
	request->priority = priority;
	/* A request that has begun is not overtaken by one that has not. */
	if (request->issued > 0)
		hold_first(reader, request);
	else
		hold(reader, request);
}

bool reader_cancel(struct reader *reader, struct read_request *request)
{
	if (!request->held)
		return false;
	unhold(reader, request);
	if (request->status == 0)
		request->status = -ECANCELED;
	if (request->pieces > 0)
		return false;
	reader->busy--;
	return true;
}

unsigned reader_wait_or_ring(struct reader *reader, const struct doorbell_seen *seen,
	uint64_t timeout_ns, struct read_request **finished, unsigned max)
{
	unsigned n = 0;
	uint64_t end_ns = timeout_ns > 0 ? clock_ns() + timeout_ns : 0;
	issue_all(reader);
	while (n < max && reader->busy > 0) {
		struct read_request *request = take_finished(reader);
		if (request != NULL) {
			finished[n++] = request;
			continue;
		}
		/* Pieces may end all the time without a request that does; the time limit applies
		 * all the same. */
		uint64_t now_ns = n == 0 && timeout_ns > 0 ? clock_ns() : 0;
		uint64_t left_ns = n == 0 && now_ns < end_ns ? end_ns - now_ns : 0;
		if (n == 0 && seen != NULL && doorbell_read(seen->bell) != seen->sequence)
			left_ns = 0;
		uint64_t pause_ns = start_paused(reader);
		struct read_piece *piece = reader->ops->next(
			reader->io, left_ns < pause_ns ? left_ns : pause_ns, seen);
		if (piece == NULL && left_ns == 0)
			break;
		/* It returned early, perhaps only to check the bell. */
		if (piece != NULL)
			take_ended(reader, piece);
	}
	return n;
}

unsigned reader_wait(
	struct reader *reader, uint64_t timeout_ns, struct read_request **finished, unsigned max)
{
	return reader_wait_or_ring(reader, NULL, timeout_ns, finished, max);
}
