/*
 * outrider-model synth: a file with the architecture, shapes, types and metadata of a published
 * model, and random weights. The speed of an engine, and what it reads, follow from the shapes and
 * the routing, so they can be measured with such a file; the model's output is noise. A tensor's
 * bytes depend only on seed, name and type. Memory is bounded whatever the size.
 *
 * Router skew S: an expert's popularity in a layer falls with its rank about as rank^-S. The first
 * 32 components of every embedding are a positive constant (the anchor), which random updates
 * hardly change. The router's row of the expert of rank r adds -S ln r times that to a random logit
 * with the deviation of a Gumbel variable (with Gumbel noise the first choice would follow rank^-S
 * exactly).
 *
 * With --countdown row t of the output matrix is the embedding of token t + 1. The residual stream
 * stays near the embedding of the newest token, so each token is followed by the one before it in the
 * vocabulary, whichever experts computed it: answers with an expert budget have the tokens of those
 * without, and so the same drafts are accepted.
 */
#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "shared/base/columns.h"
#include "shared/base/new_file.h"
#include "client/model/synth_blocks.h"
#include "client/model/synth_shapes.h"
#include "client/model/synth_vocabulary.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { CHUNK_BYTES = 8 << 20, ANCHOR = 32, VOCAB_MIN = 260 };

#define GUMBEL_DEVIATION 1.2825498 /* pi / sqrt(6) */
/* A layer's contribution to the residual stream, relative to unit size. At full size the averages
 * of attention, which all tokens share, would pull the hidden states of all tokens together within
 * a few layers, and so the routing. */
#define UPDATE_SCALE 0.1

struct scheme {
	const char *name;
	uint32_t matrix, file_type; /* GGUF type of most matrices; general.file_type */
	/* mixes: the type of attn_v and ffn_down in some layers; otherwise = matrix */
	uint32_t more;
};

/* Types as llama.cpp's quantiser chooses them, without an importance matrix. */
static const struct scheme schemes[] = {
	{"f32", 0, 0, 0},
	{"f16", 1, 1, 1},
	{"bf16", 30, 32, 30},
	{"q8_0", 8, 7, 8},
	{"q4_0", 2, 2, 2},
	{"q4_1", 3, 3, 3},
	{"q5_0", 6, 8, 6},
	{"q5_1", 7, 9, 7},
	{"q2_k", 10, 10, 10},
	{"q3_k", 11, 11, 11},
	{"q4_k", 12, 14, 12},
	{"q4_k_m", 12, 15, 14},
	{"q5_k", 13, 16, 13},
	{"q5_k_m", 13, 17, 14},
	{"q6_k", 14, 18, 14},
	{"iq4_nl", 20, 25, 20},
	{"iq4_xs", 23, 30, 23},
	{"mxfp4", 39, 38, 39},
	{"iq1_s", 19, 24, 19},
	{"iq1_m", 29, 31, 29},
	{"iq2_xxs", 16, 19, 16},
	{"iq2_xs", 17, 20, 17},
	{"iq2_s", 22, 28, 22},
	{"iq3_xxs", 18, 23, 18},
	{"iq3_s", 21, 26, 21},
	{"tq1_0", 34, 36, 34},
	{"tq2_0", 35, 37, 35},
	{"nvfp4", 40, 39, 40},
};

enum { Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, MXFP4 = 39 };

struct synth {
	struct synth_shape shape;
	const struct scheme *scheme, *output; /* output NULL: the scheme's own choice */
	const char *path;
	uint64_t seed;
	float skew;
	bool sparse, quiet, force, countdown;
	struct synth_tensors tensors;
	struct gguf_write header;
	FILE *file;
	unsigned char *chunk;
	float anchor; /* mean of the anchor after an RMS norm */
	uint64_t written, shown;
};

static bool has(const char *name, const char *part)
{
	return strstr(name, part) != NULL;
}

/* Reads the N of "blk.N."; false if the name is not of a layer. */
static bool layer_of(const char *name, unsigned *layer)
{
	char *end;
	if (strncmp(name, "blk.", 4) != 0)
		return false;
	*layer = (unsigned)strtoul(name + 4, &end, 10);
	return *end == '.';
}

/* The type that a scheme gives a matrix. Rows whose length is no multiple of 256 get the nearest
 * type with blocks of 32. */
static uint32_t matrix_type(const struct synth *s, const struct synth_tensor *t)
{
	const struct scheme *scheme = s->scheme;
	uint32_t type = scheme->matrix;
	unsigned layer = 0;
	bool is_output = strcmp(t->name, "output.weight") == 0 ||
			 (s->shape.tied && t->fill == FILL_EMBEDDING);
	if (is_output && s->output)
		return s->output->matrix;
	if (scheme->matrix == MXFP4) {
		type = has(t->name, "_exps.") ? (uint32_t)MXFP4 : (uint32_t)Q8_0;
	} else if ((is_output && synth_type_find(type)->block > 1 && type != Q8_0) ||
		   (t->fill == FILL_EMBEDDING && !synth_type_has_anchor(synth_type_find(type)))) {
		type = Q6_K;
	} else if (scheme->more != scheme->matrix && layer_of(t->name, &layer)) {
		unsigned n = s->shape.layers, eighth = n / 8;
		bool more = layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2;
		if (s->shape.experts == 8 && (has(t->name, "attn_k.") || has(t->name, "attn_v.")))
			type = Q8_0;
		else if (more && (has(t->name, "attn_v.") || has(t->name, "ffn_down")))
			type = scheme->more;
	}
	if (t->ne[0] % synth_type_find(type)->block == 0)
		return type;
	return type == Q4_K ? Q5_0 : type == Q5_K ? Q5_1 : type == Q6_K ? Q8_0 : IQ4_NL;
}

/* The deviation of a matrix's weights with which inputs of unit variance give results of unit
 * variance. Tied embeddings are small, as in real models, because otherwise every token would
 * predict itself. */
static float deviation(const struct synth *s, const struct synth_tensor *t)
{
	if (t->fill == FILL_EMBEDDING)
		return s->shape.tied ? 0.02f : 1.0f;
	bool adds = has(t->name, "attn_output.") || has(t->name, "ffn_down");
	return (float)((adds ? UPDATE_SCALE : 1) / sqrt((double)t->ne[0]));
}

static const struct synth_tensor *embedding_of(const struct synth *s)
{
	return &s->tensors.list[0];
}

static bool counts_down(const struct synth *s, const struct synth_tensor *t)
{
	return s->countdown && strcmp(t->name, "output.weight") == 0;
}

static int plan(struct synth *s, struct error *err)
{
	struct gguf_write *w = &s->header;
	int rc = gguf_write_init(w, err);
	if (rc)
		return rc;
	gguf_write_key_string(w, "general.architecture", s->shape.arch);
	gguf_write_key_string(w, "general.name", s->shape.title);
	gguf_write_key_u32(w, "general.quantization_version", 2);
	gguf_write_key_u32(w, "general.file_type", s->scheme->file_type);
	gguf_write_key_u32(w, "general.alignment", GGUF_WRITE_ALIGNMENT);
	synth_shape_keys(&s->shape, w);
	synth_vocabulary(w, s->shape.vocab, s->shape.pre);
	gguf_write_key_u32(w, "shape.seed", (uint32_t)s->seed);
	gguf_write_key_f32(w, "shape.router_skew", s->skew);
	synth_shape_tensors(&s->shape, &s->tensors);
	if (s->tensors.failed)
		return error_set(err, ENOMEM, "no memory for the list of tensors");
	for (size_t i = 0; i < s->tensors.n; i++) {
		struct synth_tensor *t = &s->tensors.list[i];
		if (t->fill == FILL_MATRIX || t->fill == FILL_EMBEDDING) {
			t->type = counts_down(s, t) ? embedding_of(s)->type : matrix_type(s, t);
			const struct synth_type *type = synth_type_find(t->type);
			t->bytes = t->ne[0] / type->block * type->bytes * t->rows;
		}
		gguf_write_tensor(w, t->name, t->n_dims, t->ne, t->type, t->bytes);
	}
	return 0;
}

static int write_bytes(struct synth *s, const void *data, size_t n, struct error *err)
{
	if (fwrite(data, 1, n, s->file) != n)
		return error_set(err, errno ? errno : EIO, "%s: cannot be written: %s", s->path,
			strerror(errno));
	s->written += n;
	if (!s->quiet && s->written - s->shown >= (128 << 20)) {
		s->shown = s->written;
		fprintf(stderr, "\r%.1f of %.1f GiB", (double)s->written / (1 << 30),
			(double)s->header.data_bytes / (1 << 30));
	}
	return 0;
}

static int write_blocks(struct synth *s, const struct synth_tensor *t, struct error *err)
{
	struct synth_random random;
	struct synth_blocks blocks;
	const struct synth_type *type = synth_type_find(t->type);
	const size_t per_row = t->ne[0] / type->block, row_bytes = per_row * type->bytes;
	synth_random_seed(&random, s->seed, t->name, t->type);
	synth_blocks_init(&blocks, type, deviation(s, t));
	uint64_t at_once = CHUNK_BYTES / row_bytes;
	int rc = 0;
	for (uint64_t row = 0; !rc && row < t->rows; row += at_once) {
		uint64_t n = t->rows - row < at_once ? t->rows - row : at_once;
		synth_blocks_draw(&blocks, &random, s->chunk, n * per_row);
		for (uint64_t r = 0; t->fill == FILL_EMBEDDING && r < n; r++)
			synth_blocks_anchor(&blocks, s->chunk + r * row_bytes);
		rc = write_bytes(s, s->chunk, n * row_bytes, err);
	}
	return rc;
}

/* Draws the n rows of the embedding that write_blocks draws together. */
static void draw_embedding(
	struct synth *s, const struct synth_blocks *blocks, struct synth_random *random, uint64_t n)
{
	const size_t per_row = embedding_of(s)->ne[0] / blocks->type->block;

	synth_blocks_draw(blocks, random, s->chunk, n * per_row);
	for (uint64_t r = 0; r < n; r++)
		synth_blocks_anchor(blocks, s->chunk + r * per_row * blocks->type->bytes);
}

/* The rows of the embedding, from the second one on, and then the first one. */
static int write_countdown(struct synth *s, struct error *err)
{
	const struct synth_tensor *t = embedding_of(s);
	const struct synth_type *type = synth_type_find(t->type);
	const size_t row_bytes = t->ne[0] / type->block * type->bytes;
	const uint64_t most = CHUNK_BYTES / row_bytes, at_once = t->rows < most ? t->rows : most;
	struct synth_random random;
	struct synth_blocks blocks;
	int rc = 0;

	synth_blocks_init(&blocks, type, deviation(s, t));
	synth_random_seed(&random, s->seed, t->name, t->type);
	for (uint64_t row = 0; !rc && row < t->rows; row += at_once) {
		uint64_t n = t->rows - row < at_once ? t->rows - row : at_once, skip = row == 0;

		draw_embedding(s, &blocks, &random, n);
		rc = write_bytes(s, s->chunk + skip * row_bytes, (n - skip) * row_bytes, err);
	}
	synth_random_seed(&random, s->seed, t->name, t->type);
	draw_embedding(s, &blocks, &random, at_once);
	return rc ? rc : write_bytes(s, s->chunk, row_bytes, err);
}

/* {columns, experts}: see the head of this file. */
static void router_row(const struct synth *s, struct synth_random *random, uint64_t columns,
	uint32_t rank, float *out)
{
	float popularity = -s->skew * logf((float)rank) / (ANCHOR * s->anchor);
	for (uint64_t c = 0; c < columns; c++)
		out[c] = synth_random_normal(random) *
			 (float)(GUMBEL_DEVIATION / sqrt((double)columns));
	for (int c = 0; c < ANCHOR && s->skew > 0; c++)
		out[c] = popularity;
}

/* A ranking of the experts, 1 to n. */
static void shuffle(struct synth_random *random, uint32_t *rank, uint32_t n)
{
	rank[0] = 1;
	for (uint32_t i = 1; i < n; i++) {
		uint32_t j = (uint32_t)(synth_random_next(random) % (i + 1));
		rank[i] = rank[j];
		rank[j] = i + 1;
	}
}

static void float_row(const struct synth_tensor *t, struct synth_random *random, float *out)
{
	const uint64_t n = t->ne[0];
	for (uint64_t c = 0; c < n; c++) {
		float x = synth_random_normal(random), at = (float)c / (float)n;
		/* Rope factors as in longrope: near 1; long ones up to 32 for the slow dimensions.
		 */
		out[c] = t->fill == FILL_NORM	? 1 + 0.05f * x
			 : t->fill == FILL_ROPE ? 1 + at * at * (has(t->name, "long") ? 31 : 0.5f)
						: 0.02f * x;
	}
}

static int write_floats(struct synth *s, const struct synth_tensor *t, struct error *err)
{
	struct synth_random random;
	uint32_t rank[1024] = {0};
	float *row = (float *)(void *)s->chunk;
	int rc = 0;
	synth_random_seed(&random, s->seed, t->name, t->type);
	if (t->fill == FILL_ROUTER)
		shuffle(&random, rank, s->shape.experts);
	for (uint64_t r = 0; !rc && r < t->rows; r++) {
		if (t->fill == FILL_ROUTER)
			router_row(s, &random, t->ne[0], rank[r], row);
		else
			float_row(t, &random, row);
		rc = write_bytes(s, row, t->ne[0] * sizeof(*row), err);
	}
	return rc;
}

static int write_tensors(struct synth *s, struct error *err)
{
	static const unsigned char zeros[GGUF_WRITE_ALIGNMENT];
	struct synth_blocks blocks;
	const struct synth_tensor *embedding = embedding_of(s);
	int rc = 0;
	/* A row of the embedding after normalisation: the anchor's share of its squares, and the
	 * rest. */
	synth_blocks_init(&blocks, synth_type_find(embedding->type), deviation(s, embedding));
	float mean = blocks.anchor / blocks.std, share = ANCHOR / (float)s->shape.embd;
	s->anchor = mean / sqrtf(share * mean * mean + 1 - share);
	for (size_t i = 0; !rc && i < s->tensors.n; i++) {
		const struct synth_tensor *t = &s->tensors.list[i];
		bool matrix = t->fill == FILL_MATRIX || t->fill == FILL_EMBEDDING;
		rc = counts_down(s, t) ? write_countdown(s, err)
		     : matrix	       ? write_blocks(s, t, err)
				       : write_floats(s, t, err);
		if (!rc)
			rc = write_bytes(s, zeros, -t->bytes % GGUF_WRITE_ALIGNMENT, err);
	}
	if (!s->quiet && s->shown)
		fputs("\r\033[K", stderr);
	return rc;
}

static int write_file(struct synth *s, struct error *err)
{
	struct new_file out;
	uint64_t header_bytes = 0;
	int rc = new_file_open(&out, s->path, s->force, s->sparse ? 0 : s->header.data_bytes, err);
	s->file = out.file;
	if (!rc)
		rc = gguf_write_header(&s->header, s->file, &header_bytes, err);
	if (!rc && !s->sparse)
		rc = write_tensors(s, err);
	if (!rc && fflush(s->file) != 0)
		rc = error_set(err, errno, "%s: %s", s->path, strerror(errno));
	if (!rc && s->sparse &&
		ftruncate(out.fd, (off_t)(header_bytes + s->header.data_bytes)) != 0)
		rc = error_set(err, errno, "%s: %s", s->path, strerror(errno));
	return new_file_close(&out, rc, err);
}

static const struct scheme *find_scheme(const char *name)
{
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		if (strcmp(schemes[i].name, name) == 0)
			return &schemes[i];
	return NULL;
}

static void add_name(char *list, size_t bytes, const char *name)
{
	size_t n = strlen(list);
	snprintf(list + n, bytes - n, "%s%s", n ? " " : "", name);
}

static void help_text(const struct arg *args)
{
	puts("usage: outrider-model synth SHAPE FILE [OPTIONS]\n\n"
	     "Writes a model with the shape of a published model and random weights.\n");
	args_help(args, stdout);
	char shapes[1024] = "", types[1024] = "";
	for (const struct synth_shape *s = synth_shapes; s->name; s++)
		add_name(shapes, sizeof(shapes), s->name);
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		add_name(types, sizeof(types), schemes[i].name);
	columns_fold(stdout, shapes, printf("\nshapes: ") - 1, 8);
	columns_fold(stdout, types, printf("types:  "), 8);
}

struct wishes {
	const char *shape, *type, *output;
	uint32_t layers, vocab;
};

static int settle(struct synth *s, const struct wishes *wish, struct error *err)
{
	if (!wish->shape || !s->path)
		return error_set(err, EINVAL, "a SHAPE and a FILE are needed");
	const struct synth_shape *shape = synth_shape_find(wish->shape);
	if (!shape)
		return error_set(
			err, EINVAL, "no shape \"%s\"; synth --help lists the shapes", wish->shape);
	s->shape = *shape;
	const char *type = wish->type				 ? wish->type
			   : strcmp(shape->arch, "gpt-oss") == 0 ? "mxfp4"
								 : "q4_0";
	s->scheme = find_scheme(type);
	s->output = wish->output ? find_scheme(wish->output) : NULL;
	if (!s->scheme || (wish->output && !s->output))
		return error_set(err, EINVAL, "no type \"%s\"; synth --help lists the types",
			s->scheme ? wish->output : type);
	if (s->output && !synth_type_has_anchor(synth_type_find(s->output->matrix)))
		return error_set(err, EINVAL,
			"--output-type %s: an embedding cannot be made in this type", wish->output);
	if (wish->layers)
		s->shape.layers = wish->layers;
	if (wish->vocab)
		s->shape.vocab = wish->vocab;
	if (s->countdown && shape->tied)
		return error_set(err, EINVAL,
			"--countdown: the output matrix of %s is its embedding", wish->shape);
	if (s->skew < 0)
		return error_set(
			err, EINVAL, "--router-skew: %g, allowed are 0 and more", (double)s->skew);
	return 0;
}

int command_synth(int argc, char **argv)
{
	static struct synth s = {.seed = 1};
	struct wishes wish = {0};
	struct error err = {""};
	bool help = false;
	const struct arg args[] = {
		{"SHAPE", ARG_FILE, &wish.shape, 0, 0, NULL,
			"the published model whose shape is used"},
		{"FILE", ARG_FILE, &s.path, 0, 0, NULL, "the GGUF file to write"},
		{"type", ARG_STRING, &wish.type, 0, 0, "TYPE",
			"type of the matrices, default q4_0, for gpt-oss mxfp4"},
		{"output-type", ARG_STRING, &wish.output, 0, 0, "TYPE",
			"type of the output matrix, default as llama.cpp's quantiser chooses"},
		{"layers", ARG_U32, &wish.layers, 1, LIMIT_LAYERS, "N", "default: the model's"},
		{"vocabulary", ARG_U32, &wish.vocab, VOCAB_MIN, LIMIT_VOCAB, "N",
			"tokens; default: the model's"},
		{"seed", ARG_U64, &s.seed, 0, 0, "N", "default 1"},
		{"router-skew", ARG_FLOAT, &s.skew, 0, 0, "S",
			"experts' popularity falls about as rank^-S; 0 is uniform"},
		{"countdown", ARG_FLAG, &s.countdown, 0, 0, NULL,
			"each token is followed by the one before it, whatever the experts "
			"compute"},
		{"sparse", ARG_FLAG, &s.sparse, 0, 0, NULL,
			"leave out the weights; the file has a hole instead"},
		{"force", ARG_FLAG, &s.force, 0, 0, NULL, "replace the file"},
		{"quiet", ARG_FLAG, &s.quiet, 0, 0, NULL, "no progress"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{.name = NULL},
	};
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		help_text(args);
		return EX_OK;
	}
	if (settle(&s, &wish, &err) < 0)
		return engine_usage(&err);
	s.quiet = s.quiet || !isatty(STDERR_FILENO);
	int rc = plan(&s, &err);
	s.chunk = malloc(CHUNK_BYTES);
	if (!rc && !s.chunk)
		rc = error_set(&err, ENOMEM, "no memory to write with");
	bool planned = !rc;
	if (!rc)
		rc = write_file(&s, &err);
	free(s.chunk);
	free(s.tensors.list);
	gguf_write_exit(&s.header);
	int status = rc ? engine_fail(rc, &err) : EX_OK;
	/* A missing directory, or one without permission, is no input error. */
	return planned && (status == EX_NOINPUT || status == EX_NOPERM || status == EX_SOFTWARE)
		       ? EX_CANTCREAT
		       : status;
}
