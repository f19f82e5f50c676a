/*
 * The interface of a back end: the machine that a forward pass runs on. One table, struct
 * backend_ops, lists what a back end must implement. There are `cpu`
 * (kernels/cpu/steps/backend_cpu.h), and `simt` and `cuda` (kernels/gpu/backend.h). The caller,
 * shared/model/pass, queues steps (kernels/steps.h). It knows nothing of threads, instruction sets
 * or devices: it describes a step by numbers, by rows of buffers and by weights, and each step
 * takes a whole batch.
 *
 * The order of a pass. First `embed`. Then for each layer: norm, products (queries, keys, values),
 * one of attend, mla and delta, products (output), and norm again, which first adds the output to
 * the residual stream x. A dense layer ends with dense_ffn. A layer with experts goes on: products
 * (router), route (and budget, where rows have an expert budget), then the caller waits for a ticket and reads which experts were chosen;
 * dense_ffn (the shared expert, if there is one); experts, once or several times, as the weights
 * become available; combine. After the last layer: logits, and pick. For models with delta nets,
 * replay follows between two passes, when it is known which drafts were accepted.
 *
 * Memory. A batch's rows and numbers lie in buffers. Numbers (positions, cells, the router's
 * choice) lie in buffers that the host and the back end both see. Weights, and vectors that belong
 * to them, are passed by the address that they have in this process (struct matrix, const float *):
 * in the mapping of the file, or in a packed copy. They must have been placed (`place`): a device
 * computes with copies of its own.
 *
 * Order and lifetime. The steps of one queue take effect in the order in which they were queued. A
 * queue may run behind its caller: the rows and weights that a step reads must stay unchanged until
 * a ticket taken after the step is reached. The descriptor itself, and the arrays of descriptors
 * that it points to, are the caller's again when the call returns. `behind` tells whether the back
 * end's queues run behind. The CPU's do not: each step runs, on the queue's threads, before its
 * call returns.
 *
 * A queue belongs to the thread that created it. numerics.md defines the result of every step to
 * the bit, whatever the batch, the threads and the back end.
 */
#pragma once

#include "kernels/steps.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend_ops;

/* A device with memory of its own, for messages. Strings that nobody knows are empty. */
struct backend_device {
	char name[96]; /* such as "NVIDIA H100 PCIe" */
	char uuid[48]; /* "GPU-..." */
	char driver[32]; /* the driver's version */
};

/* Memory of a device, in bytes. Other programs may have taken some of it. */
struct backend_memory {
	uint64_t bytes, free;
};

/* A back end's own struct begins with this. */
struct backend {
	const struct backend_ops *ops;
	const char *variant; /* for messages: which variant of its code runs, such as "avx512" */
	const struct backend_device *device; /* NULL: it computes in the host's memory */
};

/* The sizes for which a queue allocates memory. Steps must keep to them. */
struct queue_limits {
	uint32_t products; /* products, or experts, in one step */
	/* in one `products` step: the sum over its products of their rows of inputs */
	uint32_t pairs;
	/* in one feed-forward step: the sum over its feed-forwards (experts) of their rows of
	 * inputs */
	uint32_t ffn_pairs;
	uint32_t ffn_width; /* widest hidden layer of a feed-forward; a multiple of Q8_BLOCK */
	/* some feed-forward has a plain `down` matrix, which takes float32 inputs */
	bool ffn_plain;
	uint32_t adapt_rank; /* greatest rank of an addition; 0: none */
	uint32_t n_experts; /* experts in a layer */
	uint32_t n_known; /* experts of all layers, for know_experts; 0: it is not used */
	/* Attention in one layer and batch: */
	uint32_t n_tokens, n_kv_heads, n_heads; /* n_heads: query heads per KV head */
	uint32_t k_dim, v_dim; /* values in a key and in a value; k_dim 0: no layer attends */
	/* latent attention: values of a query that go to the latent space; 0: none */
	uint32_t mla_nope;
	/* Delta nets: */
	uint32_t delta_channels, delta_d_k; /* 0: none */
	uint32_t delta_drafts; /* drafts of one lane */
	uint32_t pick_vocab; /* logits in a row that tokens are picked from; 0: no pick */
	/* For steps with fast rows: rows of one run, and the most columns and rows of a matrix; 0:
	 * no step has any. */
	uint32_t fast_rows, fast_cols, fast_outputs;
};

/* Bytes of a text that names what the bits of fast products depend on. */
#define BACKEND_FAST_NAME 128

enum { GRAPH_REACH_MIN = 256 }; /* a power of two */

struct queue {
	const struct backend_ops *ops;
	struct backend *backend;
};

/* A point in a queue: 1, 2, 3, ... */
typedef uint64_t ticket;

/* A stretch of a queue's time, for pictures of it: steps, a wait for flags, or copies. */
enum queue_work { QUEUE_STEPS, QUEUE_FLAG, QUEUE_COPY };
struct queue_span {
	uint64_t start_ns, end_ns; /* clock_ns */
	enum queue_work work;
	uint32_t part; /* as `mark` had it */
};
/* The most stretches that a queue keeps the times of. */
enum { QUEUE_SPANS = 4095 };

struct backend_ops {
	const char *name; /* such as "cpu" */
	/* True when queues run behind their callers, which then have time for other work until they
	 * wait. */
	bool behind;
	void (*destroy)(struct backend *backend);

	/* Memory. Any thread, also while queues run. */

	/* Allocates a buffer. -ENOMEM. */
	int (*alloc)(struct backend *backend, size_t bytes, enum buffer_kind kind,
		struct buffer *out, struct error *err);
	/* Makes a buffer of host memory that stays the caller's. Free the buffer before unmapping
	 * the memory. */
	int (*wrap)(struct backend *backend, void *memory, size_t bytes, struct buffer *out,
		struct error *err);
	/* The same for weights, which stay as they are as long as the buffer exists: a device may
	 * make a copy, and then kernels read that. host is `memory` in any case. -ENOMEM. */
	int (*wrap_weights)(struct backend *backend, const void *memory, size_t bytes,
		struct buffer *out, struct error *err);
	/* Returns a descriptor of the buffer for another process, the caller's to close. -ENOTSUP
	 * for kinds other than BUFFER_SHARED. */
	int (*export_fd)(const struct buffer *buffer, struct error *err);
	/* Maps the memory behind a descriptor, which stays the caller's. write: for writing too.
	 * -EINVAL when it has fewer bytes; -ESTALE when it has ended with its maker
	 * (buffer.ends_with_maker). */
	int (*import_fd)(struct backend *backend, int fd, size_t bytes, bool write,
		struct buffer *out, struct error *err);
	/* Frees a buffer, whichever function made it. No queued step may use it any more. */
	void (*free)(struct buffer *buffer);

	/* Weights that steps are given by address. place: from now on steps may read the `bytes`
	 * bytes at `at`, which do not change until forget is called with the same values. A device
	 * copies them, to a multiple of 256. Each call of place has its call of forget. -ENOMEM
	 * names what there is. Steps that read weights that were not placed fail. */
	int (*place)(struct backend *backend, const void *at, size_t bytes, struct error *err);
	void (*forget)(struct backend *backend, const void *at, size_t bytes);

	/* Memory of the device now; zeros where `device` is NULL. */
	void (*memory)(const struct backend *backend, struct backend_memory *out);
	/* The reason why waits fail: -ENODEV when the device is lost, which stays so as long as
	 * the process lives; 0 when nothing has failed. */
	int (*failure)(struct backend *backend, struct error *err);

	/* Converts a matrix to Q8_0. Writes its rows, in the file's layout, to `to`: rows *
	 * kv_vector_bytes(KV_Q8_0, cols) bytes of host memory. cols must be a multiple of the block
	 * size. Uses no queue; any thread. -ENOMEM. */
	int (*requantise)(
		struct backend *backend, const struct matrix *from, void *to, struct error *err);

	/* Makes fast products possible (struct step_fast): loads the library that computes them.
	 * Before the first queue that has limits for them. Writes to `name` what their bits depend on,
	 * such as the versions of library and device. -ENOTSUP: the back end has none; -ENOENT: the
	 * library is not installed. */
	int (*fast)(struct backend *backend, char name[BACKEND_FAST_NAME], struct error *err);

	/* Creates a queue for the calling thread. A queue allocates nothing after that. queue_bytes
	 * returns how many bytes it takes in all, without the stacks of its threads. */
	int (*queue)(struct backend *backend, const struct queue_limits *limits, struct queue **out,
		struct error *err);
	size_t (*queue_bytes)(const struct backend *backend, const struct queue_limits *limits);
	void (*queue_free)(struct queue *q);

	/* Sets how long the queue's threads spin for its next step before they sleep. Does nothing
	 * in a back end without threads. Call from the queue's thread. */
	void (*set_spin)(struct queue *q, uint64_t spin_ns);

	/* Copies, and flags. No pass uses these yet, nor export_fd and import_fd. They are for a
	 * back end that works beside another process: data is copied, then a flag announces it. A
	 * flag is a 32-bit word at a multiple of 4 in a buffer that host and back end see.
	 * wait_value holds up the queue until the word is at least `value`, modulo 2^32: the
	 * difference, as a signed number, is not negative. In a back end that does not run behind,
	 * the call itself blocks, so another thread or process must write the word. write_value
	 * stores the word after everything that was queued before it. */
	void (*copy)(struct queue *q, struct place to, struct place from, size_t bytes);
	void (*wait_value)(struct queue *q, struct place word, uint32_t value);
	void (*write_value)(struct queue *q, struct place word, uint32_t value);

	/* `ticket` returns a point behind everything queued so far. The tickets of one queue count
	 * up from 1; when one is reached, all before it are. `wait` blocks until t, which `ticket`
	 * must have returned, is reached. Steps report no errors: `wait` returns -errno if a step
	 * before t has failed. The results of the pass are then worthless, and every later wait
	 * fails as well. (The type is written out because C++ does not take a member of its name.)
	 */
	uint64_t (*ticket)(struct queue *q);
	bool (*reached)(struct queue *q, uint64_t t);
	int (*wait)(struct queue *q, uint64_t t);

	/* The steps, and copies, between graph_begin and graph_end are the same whenever the key is
	 * the same: the same steps on the same rows and weights, with the same numbers; only the
	 * content of buffers differs. A device records them as a graph, and replays it when the key
	 * comes again. What differs between passes they therefore read from buffers. attend and mla
	 * must know the tokens' maps by address (batch_cells.map_addresses), and the key must tell
	 * graph_reach of the greatest position. Between the two come no picks, budgets, tickets or
	 * flags. key 0: nothing is recorded. Calls do not nest. */
	void (*graph_begin)(struct queue *q, uint64_t key);
	void (*graph_end)(struct queue *q);

	/* The times of what a queue does, for pictures of it. All three are NULL in a back end that
	 * does not run behind. watch: from now on, until `times`, the queue takes them; graphs are
	 * neither recorded nor replayed meanwhile, so that steps can be told apart. Waits for what was
	 * queued before. Not between graph_begin and graph_end. The first call allocates memory;
	 * false: there is none. mark, only while watched: what is queued from now on belongs to this
	 * part, a number of the caller's. times: ends the watch, and calls show(arg, span), unless
	 * it is NULL, for each stretch of the same work and part, in order. A stretch ends where the
	 * next one begins, or at a ticket; when the queue has run dry in between, the time until the
	 * host queues more counts, too. A ticket behind everything queued must have been reached,
	 * and nothing have failed if there is a `show`. Of more than QUEUE_SPANS stretches the rest
	 * is missing. */
	bool (*watch)(struct queue *q);
	void (*mark)(struct queue *q, uint32_t part);
	void (*times)(
		struct queue *q, void (*show)(void *arg, const struct queue_span *span), void *arg);

	void (*embed)(struct queue *q, const struct step_embed *step);
	void (*norm)(struct queue *q, const struct step_norm *step);
	void (*products)(struct queue *q, const struct step_products *step);
	void (*attend)(struct queue *q, const struct step_attend *step);
	void (*mla)(struct queue *q, const struct step_mla *step);
	void (*delta)(struct queue *q, const struct step_delta *step);
	void (*replay)(struct queue *q, const struct step_replay *step);
	void (*dense_ffn)(struct queue *q, const struct step_dense_ffn *step);
	void (*route)(struct queue *q, const struct step_route *step);
	/* Only for passes with expert budgets. */
	void (*budget)(struct queue *q, const struct step_budget *step);
	void (*experts)(struct queue *q, const struct step_experts *step);
	/* Tells the queue where experts lie, and will lie until it is told otherwise, for steps that
	 * name none: n experts of one layer, the first..-th that it knows. NULL in a back end whose
	 * steps need to be told. */
	void (*know_experts)(struct queue *q, const struct ffn *shape, const struct step_expert *of,
		uint32_t first, uint32_t n);
	void (*combine)(struct queue *q, const struct step_combine *step);
	void (*logits)(struct queue *q, const struct step_logits *step);
	void (*pick)(struct queue *q, const struct step_pick *step);
	/* For gated adapters. */
	void (*adapt)(struct queue *q, const struct step_adapt *step);
	void (*silu_norm)(struct queue *q, const struct step_silu_norm *step);
};

/* Attention in a graph serves tokens at positions below this, which is the same for many positions. */
static inline uint32_t graph_reach(uint32_t position)
{
	uint32_t reach = GRAPH_REACH_MIN;

	while (reach <= position && reach < 1u << 31)
		reach *= 2;
	return reach;
}

/* The first of the steps, requantise included, that a table lacks, by name; NULL: it has all. A back
 * end that is unfinished must not get a model. */
const char *backend_lacks(const struct backend_ops *ops);

/* For back ends: sets the error that a device lacks `bytes` bytes of memory. -ENOMEM. */
int backend_no_memory(
	struct error *err, const char *device, uint64_t bytes, const struct backend_memory *memory);
