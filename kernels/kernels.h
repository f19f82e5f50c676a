/*
 * The ops table of a backend, and the definition of every result to the bit.
 *
 * Batch invariance: the value of an output element is computed in the order written here whatever the batch
 * size, the place in the batch, the thread count or the instruction set. Scalar, AVX2 and AVX-512 agree to the
 * bit because each does exactly these float32 operations; integer sums are exact in any order.
 * fma(a, b, c) is one rounding everywhere; a*b + c written apart is two. Nothing here calls libm.
 *
 * LANES: a float32 sum over k = 0..n-1 keeps 16 partial sums, lane[k % 16], each filled in ascending k by
 * lane = fma(a_k, b_k, lane), starting from +0; then lanes fold: 16 -> 8 (lane[i] + lane[i + 8]), -> 4 (i, i + 4),
 * -> 2 (i, i + 2), -> 1. n needs not be a multiple of 16 (missing terms are not added at all).
 *
 * BLOCKS: a product of a quantised weight row with an 8-bit activation row is one chain over runs of 32 weights in
 * ascending order, starting from +0. A run has integers q, float32 scales d and (some types) m, and integer factors
 * c, e of its first and last 16 weights (c_0, c_1; 1 where the table has none). For each run
 *   acc = fma(d * d_x, (float)isum, acc)             isum = c_0 * sum q q_x (first 16) + c_1 * sum q q_x (last 16)
 *   acc = fma(m, d_x * (float)esum, acc)             types with m: esum = e_0 * sum_x (first 16) + e_1 * sum_x (last 16)
 * where isum and esum are exact and below 2^24, and every other operation rounds once:
 *   type             q                 d                    m               c, e
 *   Q8_0             int8              d
 *   Q4_0, Q5_0       q - 8, q - 16     d
 *   Q4_1, Q5_1       0..15, 0..31      d                    m
 *   IQ4_NL           table             d
 *   MXFP4            2 * FP4 value     2^(exponent - 128)
 *   IQ4_XS           table             d * (scale - 32)
 *   Q4_K, Q5_K       0..15, 0..31      d * scale            -(dmin * min)
 *   Q2_K             0..3              d                    -dmin           c = scale, e = min
 *   Q3_K             -4..3             d                                    c = scale - 32
 *   Q6_K             -32..31           d                                    c = scale
 *   IQ1_S            8 g + s           d / 8 * (2 scale + 1)
 *   IQ1_M            8 g + s           d / 8                                c = 2 scale + 1
 *   IQ2_XXS          s g               d / 8 * (2 scale + 1)
 *   IQ2_XS, IQ2_S    s g               d / 8                                c = 2 scale + 1
 *   IQ3_XXS          s g               d / 4 * (2 scale + 1)
 *   IQ3_S            s g               d * (2 scale + 1)
 *   TQ1_0, TQ2_0     -1..1, -1..2      d
 *   NVFP4            2 * FP4 value     scale / 2, of 16 weights
 * g is the number that the weight's index finds in a grid (kernels/cpu/grids.h): -1, 0 or 1 in IQ1; 8, 25 or 43 in IQ2; 4 to
 * 62 in IQ3_XXS; odd, 1 to 15, in IQ3_S. s is the weight's sign, 1 or -1; in IQ1 it is the sign of the shift, an eighth, that
 * the file gives a run or eight weights. IQ2 has the largest isum of these types: 31 * 43 * 127 * 32 = 5,417,312. NVFP4 has a
 * scale for each 16 weights, an unsigned E4M3 number; its top bit is not read, and 0x7f, a NaN, counts as 0, as in ggml. So a
 * run of NVFP4 adds two links to the chain, one for each half:
 *   acc = fma(d_0 * d_x, (float)sum q q_x (first 16), acc), then acc = fma(d_1 * d_x, (float)sum q q_x (last 16), acc)
 * A weight's float32 value is (d * c) * q + m * e: the products are exact, the sum rounds once.
 * A row in a lane or a row at a time: same value. So layouts (GGUF rows, rows interleaved) may change freely.
 *
 * Activations are quantised per row in blocks of 32: amax = max |x|, d = amax / 127, q = round-to-nearest-even of
 * x * (127 / amax) (both divisions and the product in float32). amax < 2^-110 gives d = 0, q = 0 (127 / amax must
 * stay finite). A block that holds an infinity or a NaN has q = 0 and d = inf, or NaN if there is a NaN, so that its
 * products are NaN. A row's result depends on that row only.
 *
 * float16 and bfloat16 are widened exactly and rounded to nearest even, subnormals included. Where a result is NaN it
 * is NaN in every backend, but its sign and payload are open. All of this needs the default rounding mode and
 * subnormals switched on (neither FTZ nor DAZ).
 *
 * Instructions that are left out: AVX-512 BF16's vdpbf16ps adds two products to a sum at once, takes subnormals for
 * zero and rounds in its own way, whatever the mode; no fma gives its bits, so that other backends, which have
 * nothing like it, could not agree with it. VBMI permutes bytes across a whole register: weights lie so that a row's
 * stay in its lane, and tables of weights have 16 entries, for which AVX-512 BW's vpshufb is enough. Grids have up to 2048,
 * in memory.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GGUF's tensor type ids, those the engine computes with. */
enum tensor_type {
	TENSOR_F32 = 0,
	TENSOR_F16 = 1,
	TENSOR_Q4_0 = 2,
	TENSOR_Q4_1 = 3,
	TENSOR_Q5_0 = 6,
	TENSOR_Q5_1 = 7,
	TENSOR_Q8_0 = 8,
	TENSOR_Q2_K = 10,
	TENSOR_Q3_K = 11,
	TENSOR_Q4_K = 12,
	TENSOR_Q5_K = 13,
	TENSOR_Q6_K = 14,
	TENSOR_IQ2_XXS = 16,
	TENSOR_IQ2_XS = 17,
	TENSOR_IQ3_XXS = 18,
	TENSOR_IQ1_S = 19,
	TENSOR_IQ4_NL = 20,
	TENSOR_IQ3_S = 21,
	TENSOR_IQ2_S = 22,
	TENSOR_IQ4_XS = 23,
	TENSOR_IQ1_M = 29,
	TENSOR_BF16 = 30,
	TENSOR_TQ1_0 = 34,
	TENSOR_TQ2_0 = 35,
	TENSOR_MXFP4 = 39,
	TENSOR_NVFP4 = 40,
};

struct tensor_type_info {
	enum tensor_type type;
	const char *name;
	uint32_t block_weights; /* weights per block; 1 for plain types */
	uint32_t block_bytes;
	bool quantised; /* multiplied with 8-bit activations; else with float32 ones (LANES) */
};

/* NULL when the engine cannot compute with the type. */
const struct tensor_type_info *tensor_type_info(uint32_t type);

/* The names of all types, "F32, F16, ...", for messages. As snprintf: cut short to fit, the whole length returned. */
#define TENSOR_TYPE_NAMES 224
size_t tensor_type_names(char *text, size_t bytes);

#define Q8_BLOCK 32
/* 32 activations of one row. */
struct q8_block {
	float d;
	/* What products would otherwise work out again for every row, from d and the sum of q: */
	float d_sum; /* d * (float)sum, NaN where d is not finite */
	int32_t minus_128; /* -128 * sum: where a product took signed weights 128 higher */
	int16_t sums[2]; /* of the first and the last 16 of q */
	int8_t q[Q8_BLOCK];
};

/* Of all its q. */
static inline int32_t q8_sum(const struct q8_block *x)
{
	return x->sums[0] + x->sums[1];
}

/* How the blocks of a matrix lie: row after row as in the file, or sixteen rows interleaved (kernels/tiles.h). */
enum matrix_layout { LAYOUT_ROWS = 0, LAYOUT_TILES };

/* A weight matrix: rows = outputs, cols = inputs; a row takes row_bytes in either layout. data is borrowed and
 * read-only. */
struct matrix {
	enum tensor_type type;
	uint32_t rows, cols;
	size_t row_bytes;
	const void *data;
	enum matrix_layout layout;
	bool scaled; /* products and values are multiplied by scale last, one more rounding */
	float scale;
};

/* Whether no weight of the row is infinite or NaN, which for blocks means: no scale is. row < rows. */
bool tensor_row_finite(const struct matrix *w, uint32_t row);

/* One activation row in both forms; q8 may be NULL when only plain types will be multiplied, f32 when only
 * quantised ones will. cols and cols / 32 elements. */
struct activation {
	const float *f32;
	const struct q8_block *q8;
};

enum kv_type { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2, KV_Q16_0 = 3 };

/* Stored in blocks of integers with a scale each, and multiplied as integers. */
static inline bool kv_in_blocks(enum kv_type type)
{
	return type == KV_Q8_0 || type == KV_Q16_0;
}

/* Bytes of a stored value, its share of a block's scale not counted. */
static inline size_t kv_value_bytes(enum kv_type type)
{
	return type == KV_F32 ? 4 : type == KV_Q8_0 ? 1 : 2;
}

/* Bytes of a stored vector of n values. Of blocks: Q8_BLOCK values each, a scale of two bytes (KV_Q8_0: float16, KV_Q16_0:
 * bfloat16) and its integers; the last block is as short as what is left, so that any n can be stored. */
static inline size_t kv_vector_bytes(enum kv_type type, uint32_t n)
{
	size_t scales = kv_in_blocks(type) ? (n + Q8_BLOCK - 1) / Q8_BLOCK : 0;

	return n * kv_value_bytes(type) + 2 * scales;
}

/* The integers of KV_Q16_0, and those that stored ones are multiplied with: as large as the sum over a block of a score, or
 * over a chunk of weighted values, allows in 32 bits. */
#define KV_Q16_MOST 8191 /* of a stored value */
#define KV_Q16_QUERY_MOST 8190 /* of a query: 8190 * 8191 * Q8_BLOCK < 2^31 */
#define KV_WEIGHT_MOST 32767 /* of a weight */
#define KV_Q16_WEIGHTS_MOST \
	262000 /* of a chunk's together, half a one each for rounding: 262032 * 8191 < 2^31 */

/*
 * Vectors of KV_TURN cells may lie together, those of cells 16 * i and on at 16 * i times the bytes of one, so that attention
 * reads them as they lie. Of blocks, in either form first come the scales: for each block its 16 cells'.
 * Turned, for keys, so that a lane of scores is a cell: for each value its 16 cells' one after the other; of blocks, for each
 * four bytes of a block (or what is left of them), its 16 cells'.
 * Paired, for values of blocks: for each block and each two cells, value after value, the first cell's and the second's.
 */
#define KV_TURN 16

/* One query token of an attention job. */
struct attention_query {
	const float *q; /* [n_heads][k_dim], heads q_stride floats apart */
	uint32_t first,
		last; /* of job->cells: first..last-1 are attended to; none when first >= last */
};

/* What attention keeps of some cells for rows of queries: the weighted sum of their values, not yet divided by the sum
 * of the weights, both relative to the greatest score. Starts as most = -inf, sum = 0, out = 0; with a sink most is its
 * score and sum 1: gpt-oss's learned score per head takes weight and has no value (after Xiao et al., arXiv 2309.17453,
 * section 3.3, whose sinks are tokens of their own). */
struct attention_state {
	float *out; /* [rows][v_dim], rows out_stride floats apart */
	size_t out_stride;
	float *most, *sum; /* [rows] */
};

/* Attention of some query tokens, each with the query heads that share one KV head, over one split of positions. Row
 * token * n_heads + head; any tokens and heads may be together, a row's bits are its own. */
struct attention_job {
	uint32_t
		n_cells; /* <= ATTENTION_SPLIT; cells[0] is the one of the split's first position */
	uint32_t n_ahead; /* entries of cells behind them that will probably be the next job's */
	const uint32_t *
		cells; /* [n_cells + n_ahead], read between the first and the last that a query covers, and where n_ahead does */
	enum kv_type kv_type;
	const void *k, *v; /* cell c's vector of this layer and KV head at k + c * k_cell_bytes */
	size_t k_cell_bytes, v_cell_bytes;
	bool k_turned; /* the keys lie turned (KV_TURN), and k_cell_bytes is kv_vector_bytes of one */
	bool v_paired; /* the values lie paired, likewise; of blocks only */
	uint32_t k_dim, v_dim; /* v may be the first v_dim values of k */
	uint32_t n_tokens, n_heads; /* their product: 1..ATTENTION_ROWS */
	const struct attention_query *queries; /* [n_tokens] */
	size_t q_stride;
	bool q_kept; /* the job before this one with this scratch had the same vectors of queries, n_heads, types and dimensions */
	float scale; /* of the scores, 1 / sqrt(head dimension) mostly */
	struct attention_state
		part; /* the result, out_stride == v_dim; open for tokens without cells */
	float *scratch; /* kernels->attention_scratch(rows, k_dim, v_dim) floats */
};

/* One token of one value head of a gated delta net (Yang, Kautz, Hatamizadeh, arXiv 2412.06464, eq. 10), on `columns`
 * columns of the head's state S [d_k][d_v]; a column depends on no other. */
struct delta_step {
	float *state; /* [d_k][columns], rows stride floats apart; updated */
	size_t stride;
	uint32_t d_k, columns;
	const float *q, *k; /* [d_k] normalised, q scaled */
	const float *v; /* [columns] */
	float decay, rate; /* of kernels->delta_gates */
	float *out; /* [columns], or NULL: the state is wanted alone, and q is not read */
};

/* Tokens of a vocabulary that the sampler looks at together. */
#define SAMPLE_CHUNK 64

/*
 * One backend. All functions are pure: they touch only their arguments, allocate nothing and may run on many
 * threads at once. Dimensions are validated when a model is loaded; kernels assert.
 */
struct kernels {
	const char *name; /* "scalar", "avx2", "avx512", "reference" */
	bool (*supported)(void); /* by this CPU */

	/* x[cols] -> out[cols / 32]; cols % 32 == 0. */
	void (*quantise_q8)(const float *x, uint32_t cols, struct q8_block *out);

	/* Rows first..last-1 of w times n activations: y[t][r] for all t < n. y[t] points to w->rows floats.
	 * A weight row comes from memory once for every 64 tokens. Any first and last give the same bits;
	 * multiples of 16 rows are fastest. */
	void (*matmul)(const struct matrix *w, uint32_t first, uint32_t last,
		const struct activation *x, uint32_t n, float *const *y);
	bool matmul_f32; /* it reads x->f32, whatever the weights are */

	/* out[cols] = row of w as float32 (embedding look-up). */
	void (*dequantise_row)(const struct matrix *w, uint32_t row, float *out);

	/* RMSNorm (Zhang, Sennrich, arXiv 1910.07467, eq. 4):
	 * y[i] = x[i] * (1 / sqrt(ss / n + eps)) * w[i], ss = LANES sum of x*x; y may be x. The root and division are
	 * correctly rounded float32. */
	void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);

	/* LayerNorm (Ba, Kiros, Hinton, arXiv 1607.06450):
	 * mean = (LANES sum of x * 1) / n; d[i] = x[i] - mean; y[i] = fma(d[i] * (1 / sqrt(ss / n + eps)), w[i], b[i]), ss =
	 * LANES sum of d*d; y may be x, and holds d in between. */
	void (*layer_norm)(
		const float *x, const float *w, const float *b, float eps, uint32_t n, float *y);

	/* Rotary position embedding (Su et al., arXiv 2104.09864, section 3.4). Rotates pairs of a head in place.
	 * cos_sin[2 * i], [2 * i + 1] for pair i < n_rot / 2; neox: pair is (i, i + n_rot / 2), else (2i, 2i + 1).
	 * a' = fma(a, c, -(b * s)); b' = fma(a, s, b * c). */
	void (*rope)(float *head, const float *cos_sin, uint32_t n_rot, bool neox);

	/* SwiGLU with beta = 1 (Shazeer, arXiv 2002.05202, eq. 6):
	 * out[i] = g[i] * (1 / (1 + exp(-g[i]))) * u[i], multiplied left to right; out may be g. */
	void (*silu_mul)(const float *g, const float *u, uint32_t n, float *out);

	/* gpt-oss's form of it (OpenAI, arXiv 2508.10925: clamped, and u has one added), with the factor that
	 * makes x * sigmoid nearly a GELU (Hendrycks, Gimpel, arXiv 1606.08415): g' = min(g[i], 7), u' =
	 * min(max(u[i], -7), 7); out[i] = g' * (1 / (1 + exp(-(1.702 * g')))) * (u' + 1), multiplied left to right;
	 * out may be g. A NaN stays one. */
	void (*swiglu_oai)(const float *g, const float *u, uint32_t n, float *out);

	/* In place: 1 / (1 + exp(-x[i])). */
	void (*sigmoid)(float *x, uint32_t n);

	/* y[i] = y[i] + x[i]. */
	void (*add)(float *y, const float *x, uint32_t n);

	/* y[i] = fma(a, x[i], y[i]). */
	void (*axpy)(float *y, float a, const float *x, uint32_t n);

	/* In place: exp(x[i] - less), as kernels_exp has it. */
	void (*exp_less)(float *x, uint32_t n, float less);

	/* z[i] = sane(sane(x[i]) / divisor), divisor > 0, where sane makes a NaN -inf and +inf the largest float; most[c] is
	 * the greatest of z[SAMPLE_CHUNK * c ..] (of both zeros either). z may be x. */
	void (*scale_logits)(const float *x, uint32_t n, float divisor, float *z, float *most);

	/* out[i] = the top 24 bits of word 0 of rand_philox(seed, stream, position, first + i) (shared/base/rand.h). */
	void (*draws)(uint64_t seed, uint32_t stream, uint64_t position, uint32_t first,
		uint32_t out[SAMPLE_CHUNK]);

	/* In place; max, then e_i = exp(x_i - max), sum by LANES (of e_i * 1), then e_i * (1 / sum). */
	void (*softmax)(float *x, uint32_t n);

	/* out[i] = x[i] * (1 / (1 + exp(-g[i]))). */
	void (*sigmoid_mul)(const float *g, const float *x, uint32_t n, float *out);

	/* A causal convolution over time, each channel by itself: s = +0, then s = fma(rows[t][i], w[t][i], s) for
	 * t = 0..taps-1 (rows oldest first; w [taps][n]); out[i] = s * (1 / (1 + exp(-s))). */
	void (*conv_silu)(
		const float *const *rows, const float *w, uint32_t taps, uint32_t n, float *out);

	/* y[i] = (x[i] * (1 / sqrt(ss + eps))) * scale, ss = LANES sum of x*x; y may be x. */
	void (*l2_norm)(const float *x, float eps, float scale, uint32_t n, float *y);

	/* By value head: decay = exp(a * softplus(alpha + dt)), rate = 1 / (1 + exp(-beta)). softplus(x) is x beyond
	 * 20; else with e = exp(x), u = 1 + e: e where u is 1, else log(u) * (e / (u - 1)). */
	void (*delta_gates)(const float *a, const float *dt, const float *alpha, const float *beta,
		uint32_t n, float *decay, float *rate);

	/* By column j, i ascending: four partial sums r[i % 4] = fma(S[i][j], k[i], r[i % 4]) from +0, folded as
	 * m = (r0 + r2) + (r1 + r3); d = (v[j] - decay * m) * rate; S[i][j] = fma(k[i], d, S[i][j] * decay);
	 * out[j] = four partial sums of the new S[i][j] * q[i], in the same way. */
	void (*delta_step)(const struct delta_step *step);

	/* With the softmax's maximum and sum kept up as scores come (Milakov, Gimelshein, arXiv 1805.02867, algorithm 3)
	 * and the output with them, so that scores are never all in memory (FlashAttention: Dao et al., arXiv 2205.14135,
	 * and with the division left to the end, Dao, arXiv 2307.08691, algorithm 1). In splits of ATTENTION_SPLIT
	 * positions (0.., SPLIT.., ...), so that the bits depend on the positions attended to and on nothing else. A split,
	 * from most = -inf, sum = 0, out = 0, is taken in chunks of ATTENTION_CHUNK positions, counted like the splits
	 * (with a sliding window the first chunk is a part of one). In a chunk a score is s * scale after s = +0, s =
	 * fma(q[d], k[d], s) for ascending d; most' = max(most, scores), f = exp(most - most'), p = exp(score - most'), sum
	 * = fma(sum, f, LANES sum of p * 1), out[d] = out[d] * f, then for each cell in order out[d] = fma(p, v[d],
	 * out[d]). Stored keys and values are widened exactly.
	 *
	 * Of blocks both products are of integers, which need no order and go at twice the rate of float32's. A score is s *
	 * scale after s = +0, s = fma(d * e, the block's sum of products, s) for ascending blocks, of the key's scale d and
	 * integers and the query's: of KV_Q8_0 those of quantise_q8; of KV_Q16_0 e = a / KV_Q16_QUERY_MOST and x *
	 * (KV_Q16_QUERY_MOST / a) rounded to nearest even, with the greatest |x| of the block as a (all 0 where it is less than
	 * 2^-110), a short block as if zeros followed. Weights take the scales of the values with them. Their unit is u = max(g
	 * * (1 / KV_WEIGHT_MOST), h * (1 / KV_Q16_WEIGHTS_MOST)): over the chunk's cells, of p times the cell's greatest scale,
	 * or 0 where p is, g is the maximum, at least 2^-100, and h the LANES sum from the chunk's first position on, or 0 for
	 * KV_Q8_0. A cell's integer for a block is (p * (1 / u)) * d rounded to nearest even, and out[d] = fma(the sum of these
	 * times the values' integers, u, out[d] * f). A row in which a value whose scale is infinite or NaN has a p that is not
	 * 0 is NaN; where p is 0, so is the integer. (Zhang et al., SageAttention, arXiv 2410.02367, multiply queries and keys
	 * of 8 bits, and find these too few for weights and values; here weights have up to 15.) */
	void (*attention)(const struct attention_job *job);
	size_t (*attention_scratch)(uint32_t rows, uint32_t k_dim, uint32_t v_dim); /* floats */

	/* Parts of the positions are computed apart and joined by their maxima and sums, as Flash-Decoding does (Dao,
	 * Haziza, Massa, Sizov, 2023, crfm.stanford.edu/2023/10/12/flashdecoding.html); there the number of splits follows
	 * the machine, here never. Takes the next split, in ascending positions, into what those before it gave, by row:
	 * most' = max(most, part's), a = exp(most - most'), b = exp(part's most - most'), sum = fma(part's sum, b, sum *
	 * a), out[d] = fma(part's out[d], b, out[d] * a). */
	void (*attention_join)(const struct attention_state *into,
		const struct attention_state *part, uint32_t rows, uint32_t v_dim);

	/* After the last: out[d] = out[d] * (1 / sum). */
	void (*attention_finish)(
		const struct attention_state *state, uint32_t rows, uint32_t v_dim);

	/* float32 -> the KV type, kv_vector_bytes(type, n) of it. Float16 is rounded to nearest even. KV_Q8_0: a block is
	 * quantised as activations are (a short one as if zeros followed), its d rounded to float16 afterwards. KV_Q16_0: d is
	 * the greatest |x| / KV_Q16_MOST, rounded up to bfloat16, and the integers are x * (1 / d) rounded to nearest even;
	 * below 2^-110 all are 0, and with an infinity or NaN among x too and d infinite. */
	void (*kv_store)(const float *x, uint32_t n, enum kv_type type, void *out);

	/* The same values as the vector of a cell among turned or paired ones (KV_TURN), those of cell 0 and on at `cells`.
	 * Only its own bytes are written: threads may store to other cells meanwhile. Paired: types of blocks only. */
	void (*kv_store_turned)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
	void (*kv_store_paired)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
};

/* Of the results that are laid down here: raised when any of their bits becomes another, so that an answer which began with
 * another one's is not gone on with. */
#define KERNELS_ARITHMETIC 2

#define ATTENTION_CHUNK 64
#define ATTENTION_SPLIT 256
#define ATTENTION_ROWS 128

/* The backends, best first, ended by NULL. The last, "reference", is only taken by name: scalar, but matmul of
 * quantised weights is LANES of their float32 values and x->f32, so its bits are not the others'. */
extern const struct kernels *const kernels_all[];
/* What a setting or an option may say to kernels_select, ended by NULL: the best, or one of those that give the same bits.
 * "reference", which gives others, is none of them: outrider-model has it for --activations f32. */
extern const char *const kernels_names[];

/* name "auto" or NULL: the best this CPU supports. NULL and *err when the name is unknown or unsupported. */
const struct kernels *kernels_select(const char *name, struct error *err);
/* A sentence for the log when the vector instructions are not used, and why; NULL when they are, and of "reference", which
 * nobody takes for its speed. name as above. */
const char *kernels_notice(const struct kernels *kernels, const char *name);

/* Our exp and log for float32, the same bits in every backend (kernels/cpu/math.h states the operations of exp and
 * says where its vector forms are). exp is within 1 ulp; of less than -87.3f it is 0, of more than 88.72283f inf, so
 * no result is subnormal. log is within 0.51 ulp, of 0 it is -inf, of less NaN. */
float kernels_exp(float x);
float kernels_log(float x);
/* sin and cos of angle = position * frequency, in double, ours, for rope tables: within 4e-16 relative for
 * |angle| <= 2^20, less exact beyond, NaN from 2^30. */
void kernels_sincos(double angle, double *sine, double *cosine);
/* base > 0 and normal; within 4e-16 relative. */
double kernels_pow(double base, double exponent);
