/* The emulation's graphs. What is queued while a graph is recorded is kept, and queued at its end.
 * A replay queues what was kept; what its caller queues is compared with that, and dropped. */
#include "machine.h"

#include <cassert>

void *stream_push(struct stream *s, size_t bytes, void (*run)(void *at, unsigned seed),
	stream_differs *differs)
{
	size_t all = record_bytes(bytes);
	struct record *r;

	if (s->mode != GRAPH_NONE && !differs)
		simt::die("a ticket, a flag or a call comes between the two ends of a graph");
	if (s->mode == GRAPH_NONE) {
		r = ring_push(s, all);
	} else {
		assert(all <= RECORD_BYTES);
		r = reinterpret_cast<struct record *>(s->now);
	}
	*r = {run, differs, all, false};
	return r + 1;
}

/* The next record of the graph that is being recorded. */
static void record(struct stream *s)
{
	struct recorded *graph = s->graph;
	size_t bytes = reinterpret_cast<const struct record *>(s->now)->bytes;

	if (graph->bytes + bytes > graph->room) {
		size_t room = graph->room ? 2 * graph->room : 1 << 16;
		unsigned char *more = static_cast<unsigned char *>(aligned_alloc(64, room));

		if (!more)
			simt::die("no memory for a graph of %zu bytes", room);
		if (graph->bytes > 0)
			memcpy(more, graph->records, graph->bytes);
		free(graph->records);
		graph->records = more;
		graph->room = room;
	}
	memcpy(graph->records + graph->bytes, s->now, bytes);
	graph->bytes += bytes;
}

static struct stream_moved moved_of(const struct stream *s)
{
	return {s->arrays, s->arrays_used, s->graphs.memory + s->graph->args - s->arrays};
}

/* The record at hand must be the graph's next one. */
static void compare(struct stream *s)
{
	struct record *now = reinterpret_cast<struct record *>(s->now);
	const struct record *r = reinterpret_cast<struct record *>(s->graph->records + s->at);
	const struct stream_moved moved = moved_of(s);
	bool there = s->at < s->graph->bytes;
	const char *what = there && r->run == now->run && r->bytes == now->bytes
				   ? now->differs(r + 1, now + 1, &moved)
				   : now->differs(now + 1, now + 1, &moved);

	if (!there || r->run != now->run || r->bytes != now->bytes)
		simt::die("graph %llx is replayed with another step than it was recorded with%s%s",
			static_cast<unsigned long long>(s->key), what ? ": " : "",
			what ? what : "");
	if (what)
		simt::die("graph %llx: what kernel %s was given by value has changed since it was "
			  "recorded",
			static_cast<unsigned long long>(s->key), what);
	s->at += r->bytes;
}

void stream_commit(struct stream *s)
{
	if (s->mode == GRAPH_NONE)
		ring_commit(s);
	else if (s->mode == GRAPH_RECORDS)
		record(s);
	else
		compare(s);
}

/* The ring has copies of its own of what it still has to run, but not of the arrays. */
void forget_graphs(struct stream *s)
{
	for (unsigned i = 0; i < s->graphs.n; i++) {
		struct recorded *graph = static_cast<struct recorded *>(s->graphs.of[i].graph);

		free(graph->records);
		free(graph);
	}
	s->graphs.n = 0;
	s->graphs.used = 0;
}

/* Arrays begin as zeros: what lies between their fields, and between one array and the next, is compared
 * in graphs, and searched for addresses. */
void *stream_args(struct stream *s, size_t bytes)
{
	size_t all = (bytes + 63) / 64 * 64;
	void *at;

	if (s->mode == GRAPH_NONE) {
		at = args_ring_take(&s->args, s, bytes);
	} else if (s->mode == GRAPH_RECORDS) {
		at = graph_list_take(&s->graphs, bytes);
	} else {
		at = s->arrays + s->arrays_used;
		s->arrays_used += all;
		assert(s->arrays_used <= GRAPH_ARGS_ONE);
	}
	return memset(at, 0, all);
}

bool stream_same(
	const void *recorded, const void *now, size_t bytes, const struct stream_moved *moved)
{
	const unsigned char *one = static_cast<const unsigned char *>(recorded);
	const unsigned char *two = static_cast<const unsigned char *>(now);
	size_t i = 0;

	for (; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
		uintptr_t a, b, first = reinterpret_cast<uintptr_t>(moved->from);

		memcpy(&a, one + i, sizeof(a));
		memcpy(&b, two + i, sizeof(b));
		if (b >= first && b < first + moved->bytes)
			b += static_cast<uintptr_t>(moved->by);
		if (a != b)
			return false;
	}
	return memcmp(one + i, two + i, bytes - i) == 0;
}

bool stream_graph_begin(struct stream *s, uint64_t key)
{
	s->key = key;
	s->graph = static_cast<struct recorded *>(graph_list_find(&s->graphs, key));
	s->mode = s->graph ? GRAPH_REPLAYS : GRAPH_RECORDS;
	s->at = 0;
	s->arrays_used = 0;
	if (s->graph)
		return true;
	s->mode = GRAPH_NONE;
	if (graph_list_full(&s->graphs)) {
		(void)stream_wait(s, stream_ticket(s));
		forget_graphs(s);
	}
	s->mode = GRAPH_RECORDS;
	s->graph = static_cast<struct recorded *>(calloc(1, sizeof(*s->graph)));
	if (!s->graph)
		simt::die("no memory for a graph");
	s->graph->args = s->graphs.used;
	return true;
}

/* The arrays of the replay must be those of the graph. */
static void compare_arrays(const struct stream *s)
{
	const struct recorded *graph = s->graph;
	const struct stream_moved moved = moved_of(s);

	if (s->at != graph->bytes)
		simt::die("graph %llx is replayed without its last steps",
			static_cast<unsigned long long>(s->key));
	if (s->arrays_used != graph->args_bytes ||
		!stream_same(s->graphs.memory + graph->args, s->arrays, s->arrays_used, &moved))
		simt::die("graph %llx: an array that its kernels read has changed since it was "
			  "recorded",
			static_cast<unsigned long long>(s->key));
}

void stream_graph_end(struct stream *s)
{
	struct recorded *graph = s->graph;

	if (s->mode == GRAPH_REPLAYS) {
		compare_arrays(s);
	} else {
		graph->args_bytes = s->graphs.used - graph->args;
		assert(graph->args_bytes <= GRAPH_ARGS_ONE);
		graph_list_add(&s->graphs, s->key, graph);
	}
	s->mode = GRAPH_NONE;
	for (size_t at = 0; at < graph->bytes;) {
		const struct record *r =
			reinterpret_cast<const struct record *>(graph->records + at);

		memcpy(ring_push(s, r->bytes), r, r->bytes);
		ring_commit(s);
		at += r->bytes;
	}
}
