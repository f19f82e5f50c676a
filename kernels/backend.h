/*
 * What a forward pass runs on. One table, backend_ops, says what a back end can do; `cpu` (kernels/cpu/steps/backend_cpu.h) is the only
 * one so far. Whoever queues steps knows nothing of threads, instruction sets or devices: it describes a step by numbers,
 * by rows of buffers and by weights, and a step takes a whole batch at once.
 *
 * Memory is buffers. Weights, and the vectors that go with them, are given by address (struct matrix, const float *): a
 * back end gets a model whose addresses it can read, which for the CPU is the mapping of the file or a packed copy.
 * The numbers of a batch (positions, cells, what the router chose) lie in buffers that host and back end both see.
 *
 * Steps of one queue take effect in the order in which they were queued. A queue may run behind its caller: what a step reads
 * stays as it is until a ticket taken behind the step is reached. That holds for rows and weights. A descriptor itself, and the
 * arrays of descriptors that it points to, are the caller's again when the call returns. `behind` says whether a
 * back end's queues do: the CPU's run each step before the call returns, on its threads.
 *
 * A queue is used by the thread that made it. What a step computes is laid down in numerics.md to the bit, whatever the batch,
 * the threads and the back end.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend_ops;

/* The first member of a back end's own. */
struct backend {
	const struct backend_ops *ops;
	const char *variant; /* for messages: which of its forms runs, such as "avx512" */
};

/* What a queue has memory for. */
struct queue_limits {
	uint32_t products; /* of one step */
	uint32_t pairs; /* of a row of inputs and a product that takes it, of one step */
	uint32_t ffn_pairs; /* the same of a row and a feed-forward */
	uint32_t ffn_width; /* the widest; a multiple of Q8_BLOCK */
	bool ffn_plain; /* some take float32 values to their last product */
	uint32_t n_experts; /* of a layer */
	/* Of attention, of one layer and batch: */
	uint32_t n_tokens, n_kv_heads, n_heads; /* n_heads: per KV head */
	uint32_t k_dim, v_dim; /* 0: no layer attends */
	uint32_t mla_nope; /* of latent attention: queries that go to the latent; 0 without */
	/* Of delta nets: */
	uint32_t delta_channels, delta_d_k; /* 0 without */
	uint32_t delta_drafts; /* of one lane */
	uint32_t pick_vocab; /* logits of a row that is picked from; 0: none is */
};

struct queue {
	const struct backend_ops *ops;
	struct backend *backend;
};

/* A point of a queue. */
typedef uint64_t ticket;

struct backend_ops {
	const char *name; /* "cpu" */
	/* Queues run behind their callers, which have time for something else until they wait. */
	bool behind;
	void (*destroy)(struct backend *backend);

	/* Memory. -ENOMEM. */
	int (*alloc)(struct backend *backend, size_t bytes, enum buffer_kind kind,
		struct buffer *out, struct error *err);
	/* Memory of the host that the caller keeps, and unmaps after free. */
	int (*wrap)(struct backend *backend, void *memory, size_t bytes, struct buffer *out,
		struct error *err);
	/* A descriptor for another process, the caller's to close. -ENOTSUP for buffers of other kinds than BUFFER_SHARED. */
	int (*export_fd)(const struct buffer *buffer, struct error *err);
	/* The memory behind a descriptor, which stays the caller's; write: not only to be read. -EINVAL where it has fewer bytes. */
	int (*import_fd)(struct backend *backend, int fd, size_t bytes, bool write,
		struct buffer *out, struct error *err);
	/* Of all of these. No step that is queued uses it any more. */
	void (*free)(struct buffer *buffer);

	/* The weights of a matrix in Q8_0, rows as in a file, to memory of the host: rows * kv_vector_bytes(KV_Q8_0, cols) bytes,
	 * where cols is whole blocks. In no queue, by any thread. -ENOMEM. */
	int (*requantise)(
		struct backend *backend, const struct matrix *from, void *to, struct error *err);

	/* A queue allocates here, and nowhere else. */
	int (*queue)(struct backend *backend, const struct queue_limits *limits, struct queue **out,
		struct error *err);
	size_t (*queue_bytes)(const struct backend *backend, const struct queue_limits *limits);
	void (*queue_free)(struct queue *q);

	/* How long a queue's threads spin for its next step before they sleep; until another time is set. Nothing where there
	 * are none. For the queue's thread. */
	void (*set_spin)(struct queue *q, uint64_t spin_ns);

	/* Copies, and flags: words of 32 bits at multiples of 4 in buffers that host and back end see. wait_value waits until the
	 * word is at least `value`, counted around (the difference, as a signed number, is not negative); write_value comes
	 * behind everything that was queued before it. */
	void (*copy)(struct queue *q, struct place to, struct place from, size_t bytes);
	void (*wait_value)(struct queue *q, struct place word, uint32_t value);
	void (*write_value)(struct queue *q, struct place word, uint32_t value);

	/* Behind everything that was queued so far; tickets of one queue ascend from 1 on, and a later one that is reached says
	 * that all before it are. wait blocks until it is reached; -errno when the back end has failed since. */
	ticket (*ticket)(struct queue *q);
	bool (*reached)(struct queue *q, ticket t);
	int (*wait)(struct queue *q, ticket t);

	/* Steps between them are, with the same key, the same steps on the same rows and weights whenever they come: only what lies
	 * in the buffers is another. A device keeps them as a graph. Calls do not nest. */
	void (*graph_begin)(struct queue *q, uint64_t key);
	void (*graph_end)(struct queue *q);

	void (*embed)(struct queue *q, const struct step_embed *step);
	void (*norm)(struct queue *q, const struct step_norm *step);
	void (*products)(struct queue *q, const struct step_products *step);
	void (*attend)(struct queue *q, const struct step_attend *step);
	void (*mla)(struct queue *q, const struct step_mla *step);
	void (*delta)(struct queue *q, const struct step_delta *step);
	void (*replay)(struct queue *q, const struct step_replay *step);
	void (*dense_ffn)(struct queue *q, const struct step_dense_ffn *step);
	void (*route)(struct queue *q, const struct step_route *step);
	void (*experts)(struct queue *q, const struct step_experts *step);
	void (*combine)(struct queue *q, const struct step_combine *step);
	void (*logits)(struct queue *q, const struct step_logits *step);
	void (*pick)(struct queue *q, const struct step_pick *step);
};
