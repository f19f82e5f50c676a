/* Drafting with a model, through the draft thread: the small demo model against its own golden
 * output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/spec/accept.h"
#include "tests/drafter/fake_verifier.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define DRAFT "models/outrider-demo-draft-small-q8_0.gguf"
#define GOLDEN "models/golden/outrider-demo-draft-small-q8_0.json"

/* Golden prompts and outputs (float32 on dequantised weights), as far as no margin is small. */
enum { PROMPTS = 4, OUTPUT = 24 };
static struct golden {
	int32_t input[FAKE_CONTEXT], output[OUTPUT];
	uint32_t n_input, n_output;
} golden[PROMPTS];
static uint32_t n_golden;
static uint64_t fingerprint;
static uint32_t n_vocab;

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
};

static uint32_t read_ids(const json_t *from, int32_t *to, uint32_t most)
{
	uint32_t n = (uint32_t)json_array_size(from);
	n = n < most ? n : most;
	for (uint32_t i = 0; i < n; i++)
		to[i] = (int32_t)json_integer_value(json_array_get(from, i));
	return n;
}

static int load(void **state)
{
	(void)state;
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	struct error err;
	if (access(DRAFT, R_OK) != 0 || access(GOLDEN, R_OK) != 0) {
		print_message("# SKIP " DRAFT " or its golden output is not here\n");
		return 0;
	}
	assert_int_equal(gguf_open(DRAFT, &gguf, &err), 0);
	assert_int_equal(tokenizer_load(gguf, &tokenizer, &err), 0);
	fingerprint = tokenizer_fingerprint(tokenizer);
	n_vocab = tokenizer_n_vocab(tokenizer);
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
	json_t *root = json_load_file(GOLDEN, 0, NULL);
	assert_non_null(root);
	const json_t *prompts = json_object_get(root, "prompts");
	for (size_t i = 0; i < json_array_size(prompts) && n_golden < PROMPTS; i++) {
		const json_t *p = json_array_get(prompts, i);
		struct golden *g = &golden[n_golden];
		const json_t *small = json_object_get(p, "small_margin_steps");
		g->n_input = read_ids(json_object_get(p, "input_ids"), g->input, FAKE_CONTEXT / 2);
		g->n_output = read_ids(json_object_get(p, "output_ids"), g->output, OUTPUT);
		/* 8-bit activations may turn a step whose two best are this close. */
		if (json_array_size(small) > 0) {
			uint32_t first = (uint32_t)json_integer_value(json_array_get(small, 0));
			g->n_output = first < g->n_output ? first : g->n_output;
		}
		n_golden += g->n_output >= 12;
	}
	json_decref(root);
	return 0;
}

static int start(struct fixture *f, const char *const *settings)
{
	struct error err = {""};
	config_defaults(drafter_config_keys, &f->config);
	strcpy(f->config.draft, DRAFT);
	for (; *settings; settings++)
		assert_int_equal(
			config_set(*settings, "test", drafter_config_keys, &f->config, &err), 0);
	assert_int_equal(drafter_config_resolve(&f->config, &err), 0);
	int r = worker_init(&f->worker, &f->config, NULL, NULL, &err);
	if (r < 0)
		print_error("%s\n", err.text);
	return r < 0 ? r : worker_start(&f->worker, &err);
}

static struct fixture *make(const char *const *settings)
{
	static struct fixture f;
	if (n_golden == 0) {
		print_message("# SKIP no demo draft model\n");
		skip();
	}
	memset(&f, 0, sizeof(f));
	assert_int_equal(start(&f, settings), 0);
	fake_open(&f.fake, fingerprint);
	fake_offer(&f.fake, &f.worker);
	return &f;
}

static void end(struct fixture *f)
{
	worker_exit(&f->worker);
	fake_close(&f->fake);
}

static const char *const plain[] = {"run_ahead=off", NULL};
static const char *const ahead[] = {"run_ahead=on", NULL};

/* The target is the draft model itself, so that every draft is right: whatever number is asked
 * for and taken. */
static void check_golden(struct fixture *f)
{
	for (uint32_t i = 0; i < n_golden; i++) {
		const struct golden *g = &golden[i];
		struct session_page *page =
			fake_begin(&f->fake, i, 100 + i, DRAFT_MODEL, g->input, g->n_input);
		uint32_t done = 0, step = 1;
		while (done + step < g->n_output) {
			uint32_t k = g->n_output - done < 5 ? g->n_output - done : 1 + done % 5;
			struct fake_drafted r = fake_draft(&f->fake, i, k);
			assert_int_equal(r.n, k);
			assert_int_equal(r.method, DRAFT_MODEL);
			assert_memory_equal(r.token, g->output + done, k * sizeof(int32_t));
			for (uint32_t j = 0; j < r.n; j++)
				assert_true(r.confidence[j] > 0 && r.confidence[j] <= 1);
			fake_commit(page, g->output + done, step);
			done += step;
			step = 1 + (step + 1) % 4;
		}
	}
}

static void greedy_drafts_are_the_models_own_continuation(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	check_golden(f);
	end(f);
}

static void drafting_ahead_changes_no_token(void **state)
{
	(void)state;
	struct fixture *f = make(ahead);
	check_golden(f);
	/* "All accepted", and time to draft on: the next draft is there before it is asked for. */
	const struct golden *g = &golden[0];
	struct session_page *page = fake_begin(&f->fake, 7, 500, DRAFT_MODEL, g->input, g->n_input);
	fake_draft(&f->fake, 7, 3);
	for (int i = 0; i < 200 && f->worker.counts.drafted_ahead == 0; i++) {
		usleep(50000);
		uint32_t n = atomic_load(&page->n_tokens) - g->n_input;
		if (n + 4 + 3 > g->n_output)
			break;
		fake_commit(page, g->output + n, 4);
		struct fake_drafted r = fake_draft(&f->fake, 7, 3);
		assert_memory_equal(r.token, g->output + n + 4, 3 * sizeof(int32_t));
		if (r.ahead == 3)
			assert_int_equal(r.draft_ns, 0);
	}
	assert_true(f->worker.counts.drafted_ahead > 0);
	end(f);
}

/* After a rejection, and after anything else, drafts are those of a drafter that has just started. */
static void drafts_depend_on_the_committed_tokens_alone(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct golden *g = &golden[0];
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_MODEL, g->input, g->n_input);
	for (int round = 0; round < 12; round++) {
		struct fake_drafted r = fake_draft(&f->fake, 0, 5);
		fake_begin(&f->fake, 1, 1000 + (uint64_t)round, DRAFT_MODEL, page->tokens,
			atomic_load(&page->n_tokens));
		struct fake_drafted fresh = fake_draft(&f->fake, 1, 5);
		assert_int_equal(r.n, 5);
		assert_memory_equal(r.token, fresh.token, 5 * sizeof(int32_t));
		assert_memory_equal(r.confidence, fresh.confidence, 5 * sizeof(float));
		/* Some accepted, then another token than the draft's. */
		r.token[round % 4] = (r.token[round % 4] + 17) % 1000;
		fake_commit(page, r.token, (uint32_t)round % 4 + 1);
	}
	end(f);
}

static void a_round_of_sessions_is_drafted_as_each_alone(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	static struct fake_drafted alone[FAKE_SESSIONS], r;
	for (int together = 0; together < 2; together++)
		for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
			const struct golden *g = &golden[i % n_golden];
			uint64_t uid = 100 * (1 + (uint64_t)together) + i;
			fake_begin(
				&f->fake, i, uid, DRAFT_MODEL, g->input, g->n_input - i / n_golden);
			if (together == 0)
				alone[i] = fake_draft(&f->fake, i, 4);
		}
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		fake_ask(&f->fake, i, 200 + i,
			atomic_load(&session_at(f->fake.header, f->fake.header, i)->n_tokens), 4,
			i + 1 == FAKE_SESSIONS);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		assert_true(fake_reply(&f->fake, &r));
		assert_int_equal(r.n, 4);
		assert_memory_equal(r.token, alone[r.page].token, 4 * sizeof(int32_t));
		assert_memory_equal(r.confidence, alone[r.page].confidence, 4 * sizeof(float));
	}
	end(f);
}

/* Whether no pass runs any more while nobody asks. */
static bool comes_to_rest(const struct draft_model *m)
{
	uint64_t before = UINT64_MAX, now = atomic_load(&m->passes);
	for (int i = 0; i < 100 && now != before; i++) {
		before = now;
		usleep(100000);
		now = atomic_load(&m->passes);
	}
	return now == before;
}

/* Room for one context of 128 and a little: eight sessions take it from each other, but only when
 * they are asked for. */
static void sessions_that_lost_their_cache_are_read_again(void **state)
{
	(void)state;
	const char *const small[] = {"run_ahead=off", "context=128", "kv_tokens=192", NULL};
	struct fixture *f = make(small);
	for (int round = 0; round < 3; round++)
		for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
			const struct golden *g = &golden[i % n_golden];
			if (g->n_input > 100)
				continue;
			if (round == 0)
				fake_begin(&f->fake, i, 100 + i, DRAFT_MODEL, g->input, g->n_input);
			struct fake_drafted r = fake_draft(&f->fake, i, 3);
			assert_int_equal(r.method, DRAFT_MODEL);
			assert_memory_equal(r.token, g->output + 2 * round, 3 * sizeof(int32_t));
			fake_commit(session_at(f->fake.header, f->fake.header, i),
				g->output + 2 * round, 2);
		}
	assert_true(atomic_load(&f->worker.model->evictions) > 0);
	assert_true(comes_to_rest(f->worker.model));
	end(f);
}

static void a_session_far_behind_gets_ngrams_until_it_is_read(void **state)
{
	(void)state;
	const char *const chunks[] = {"run_ahead=off", "chunk=16", NULL};
	struct fixture *f = make(chunks);
	int32_t tokens[400];
	for (int i = 0; i < 400; i++)
		tokens[i] = 10 + i % 20;
	fake_begin(&f->fake, 0, 100, DRAFT_AUTO, tokens, 400);
	struct fake_drafted r = fake_draft(&f->fake, 0, 3);
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_int_equal(r.n, 3);
	for (int i = 0; i < 400 && r.method != DRAFT_MODEL; i++) {
		usleep(20000);
		r = fake_draft(&f->fake, 0, 3);
	}
	assert_int_equal(r.method, DRAFT_MODEL);
	end(f);
}

/* The noise belongs to the position: a token is drafted the same whichever draft it is part of. */
static void gumbel_noise_belongs_to_the_position(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct golden *g = &golden[0];
	uint32_t differ = 0;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct session_page *page =
			fake_begin(&f->fake, 0, seed, DRAFT_MODEL, g->input, g->n_input);
		page->request.sampling.temperature = 0.9f;
		page->request.sampling.seed = seed;
		struct fake_drafted r = fake_draft(&f->fake, 0, 6);
		assert_int_equal(r.support, 0);
		fake_commit(page, r.token, 2);
		struct fake_drafted later = fake_draft(&f->fake, 0, 4);
		assert_memory_equal(later.token, r.token + 2, 4 * sizeof(int32_t));
		differ += memcmp(r.token, g->output, 6 * sizeof(int32_t)) != 0;
	}
	assert_true(differ > 0);
	end(f);
}

static void maximal_coupling_carries_its_distribution(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct golden *g = &golden[0];
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct session_page *page =
			fake_begin(&f->fake, 0, seed, DRAFT_MODEL, g->input, g->n_input);
		page->request.sampling.temperature = 1.2f;
		page->request.sampling.seed = seed;
		page->request.sampling.coupling = COUPLING_MAXIMAL;
		struct fake_drafted r = fake_draft(&f->fake, 0, 7);
		assert_int_equal(r.n, 7);
		assert_int_equal(r.support, 1);
		for (uint32_t i = 0; i < r.n; i++) {
			double sum = 0;
			bool inside = false;
			for (uint32_t j = 0; j < r.n_support[i]; j++) {
				sum += (double)r.q[i][j].p;
				assert_in_range(r.q[i][j].token, 0, n_vocab - 1);
				inside |= r.q[i][j].token == r.token[i];
			}
			assert_true(fabs(sum - 1) < 1e-4 && inside);
		}
	}
	end(f);
}

/* Every node is what the model says behind its path: the first child is what a chain would have there, and so is its
 * confidence. A chain is drafted by another session, whose tokens are those of the path. */
static void check_tree(
	struct fixture *f, const struct fake_drafted *r, const struct session_page *page)
{
	static struct fake_drafted chain;
	uint32_t checked = 0;
	uint32_t n = atomic_load(&page->n_tokens);
	for (uint32_t i = 0; i < r->n && checked < 12; i++) {
		int first = -1;
		for (uint32_t j = i + 1; j < r->n && first < 0; j++)
			first = r->parent[j] == (int)i ? (int)j : -1;
		if (first < 0)
			continue;
		int32_t tokens[LIMIT_DRAFT_DEPTH];
		uint32_t length = 0;
		for (int at = (int)i; at >= 0; at = r->parent[at])
			tokens[LIMIT_DRAFT_DEPTH - ++length] = r->token[at];
		struct session_page *other = fake_begin(
			&f->fake, 5, f->fake.sequence + 1000000, DRAFT_MODEL, page->tokens, n);
		other->request.sampling = page->request.sampling;
		other->n_prompt = page->n_prompt;
		fake_commit(other, tokens + LIMIT_DRAFT_DEPTH - length, length);
		chain = fake_draft(&f->fake, 5, 1);
		assert_int_equal(chain.n, 1);
		/* With maximal coupling a chain draws. */
		if (page->request.sampling.coupling == COUPLING_GUMBEL)
			assert_int_equal(r->token[first], chain.token[0]);
		if (page->request.sampling.temperature == 0)
			assert_true(fabsf(r->confidence[first] - chain.confidence[0]) < 1e-4f);
		checked++;
	}
	assert_true(checked > 3);
}

static void trees_say_what_the_model_says_behind_each_path(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct golden *g = &golden[0];
	const struct draft_budget budget = {.nodes = 40, .depth = 6, .width = 4};
	for (uint32_t mode = 0; mode < 3; mode++) {
		struct session_page *page =
			fake_begin(&f->fake, 0, 100 + mode, DRAFT_MODEL, g->input, g->n_input);
		page->request.sampling.temperature = mode == 0 ? 0 : 1.5f;
		page->request.sampling.seed = 5;
		page->request.sampling.repeat_penalty = 1.1f;
		page->request.sampling.coupling = mode == 2 ? COUPLING_MAXIMAL : COUPLING_GUMBEL;
		for (uint32_t round = 0; round < 3; round++) {
			struct fake_drafted r = fake_draft_tree(&f->fake, 0, budget);
			assert_int_equal(r.method, DRAFT_MODEL);
			assert_int_equal(r.n, 40);
			/* What is taken by rank counts as certain. */
			assert_int_equal(r.support, 0);
			struct fake_drafted again = fake_draft_tree(&f->fake, 0, budget);
			assert_memory_equal(again.token, r.token, r.n * sizeof(*r.token));
			assert_memory_equal(again.parent, r.parent, r.n * sizeof(*r.parent));
			check_tree(f, &r, page);
			/* A path of the tree is accepted as far as round says, then another token. */
			int32_t tokens[8];
			uint32_t n = 0;
			for (int at = -1; n < round;) {
				uint32_t j = 0, skip = n == 0;
				for (; j < r.n && (r.parent[j] != at || skip > 0); j++)
					skip -= r.parent[j] == at && skip > 0;
				if (j == r.n)
					break;
				tokens[n++] = r.token[j];
				at = (int)j;
			}
			tokens[n++] = 77;
			fake_commit(page, tokens, n);
		}
	}
	end(f);
}

/* The nodes that were accepted are not computed again. */
static void accepted_nodes_of_a_tree_stay_in_the_cache(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct golden *g = &golden[0];
	const struct draft_budget budget = {.nodes = 30, .depth = 5, .width = 3};
	struct session_page *page = fake_begin(&f->fake, 0, 100, DRAFT_MODEL, g->input, g->n_input);
	fake_draft_tree(&f->fake, 0, budget);
	/* The drafter is its own target: the first four tokens of its output are in the tree. */
	fake_commit(page, g->output, 4);
	uint64_t before = atomic_load(&f->worker.model->tokens);
	struct fake_drafted r = fake_draft(&f->fake, 0, 1);
	assert_int_equal(r.token[0], g->output[4]);
	assert_int_equal(atomic_load(&f->worker.model->tokens) - before, 1);
	/* Trees and chains take turns. */
	for (uint32_t i = 0; 4 + i + 3 < g->n_output && i < 8; i++) {
		r = i % 2 ? fake_draft(&f->fake, 0, 2) : fake_draft_tree(&f->fake, 0, budget);
		assert_int_equal(r.token[0], g->output[4 + i]);
		fake_commit(page, g->output + 4 + i, 1);
	}
	end(f);
}

static void a_round_of_trees_is_drafted_as_each_alone(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const struct draft_budget budget = {.nodes = 20, .depth = 4, .width = 3};
	static struct fake_drafted alone[FAKE_SESSIONS], r;
	for (int together = 0; together < 2; together++)
		for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
			const struct golden *g = &golden[i % n_golden];
			fake_begin(&f->fake, i, 100 * (1 + (uint64_t)together) + i, DRAFT_MODEL,
				g->input, g->n_input - i / n_golden);
			if (together == 0)
				alone[i] = i % 3 ? fake_draft_tree(&f->fake, i, budget)
						 : fake_draft(&f->fake, i, 4);
		}
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		fake_ask_tree(&f->fake, i, 200 + i,
			atomic_load(&session_at(f->fake.header, f->fake.header, i)->n_tokens),
			i % 3 ? budget : draft_chain_budget(4), i + 1 == FAKE_SESSIONS);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		assert_true(fake_reply(&f->fake, &r));
		assert_int_equal(r.n, alone[r.page].n);
		assert_memory_equal(r.token, alone[r.page].token, r.n * sizeof(int32_t));
		assert_memory_equal(r.parent, alone[r.page].parent, r.n * sizeof(int));
	}
	end(f);
}

/* The cache has room for little more than one session, and trees hold cells while they grow. */
static void trees_find_room_or_stay_smaller(void **state)
{
	(void)state;
	const char *const small[] = {"run_ahead=off", "context=128", "kv_tokens=192", NULL};
	struct fixture *f = make(small);
	const struct draft_budget large = {.nodes = LIMIT_DRAFT_NODES, .depth = 20, .width = 20};
	for (uint32_t round = 0; round < 3; round++)
		for (uint32_t i = 0; i < 4; i++) {
			const struct golden *g = &golden[i % n_golden];
			if (g->n_input > 90)
				continue;
			if (round == 0)
				fake_begin(&f->fake, i, 100 + i, DRAFT_MODEL, g->input, g->n_input);
			struct fake_drafted r = fake_draft_tree(&f->fake, i, large);
			assert_int_equal(r.method, DRAFT_MODEL);
			assert_int_equal(r.token[0], g->output[round]);
			fake_commit(session_at(f->fake.header, f->fake.header, i),
				g->output + round, 1);
		}
	end(f);
}

static void a_model_with_another_tokenizer_is_refused_and_ngrams_go_on(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	static struct fake other;
	const int32_t loop[] = {4, 5, 6, 4, 5};
	char refusal[400];
	fake_open(&other, fingerprint + 1);
	fake_offer(&other, &f->worker);
	fake_begin(&other, 0, 100, DRAFT_MODEL, loop, 5);
	struct fake_drafted r = fake_draft(&other, 0, 2);
	assert_int_equal(r.method, DRAFT_NGRAM);
	assert_int_equal(r.token[0], 6);
	worker_refusal(&f->worker, refusal, sizeof(refusal));
	assert_non_null(strstr(refusal, "another tokenizer"));
	assert_non_null(strstr(refusal, DRAFT));
	/* The right target again: the model is back. */
	fake_offer(&f->fake, &f->worker);
	fake_begin(&f->fake, 0, 100, DRAFT_MODEL, golden[0].input, golden[0].n_input);
	assert_int_equal(fake_draft(&f->fake, 0, 2).method, DRAFT_MODEL);
	worker_refusal(&f->worker, refusal, sizeof(refusal));
	assert_string_equal(refusal, "");
	fake_close(&other);
	end(f);
}

static const char *const on_device[] = {"run_ahead=off", "device=simt", "kv_tokens=8300", NULL};
static const struct draft_budget some = {.nodes = 12, .depth = 4, .width = 3};

/* A chain and a tree behind a prompt, greedy and sampled, from a session that has just begun. */
static void draft_some(struct fixture *f, uint64_t uid, struct fake_drafted out[4])
{
	const struct golden *g = &golden[1 % n_golden];
	for (uint32_t i = 0; i < 4; i++) {
		struct session_page *page =
			fake_begin(&f->fake, i, uid + i, DRAFT_MODEL, g->input, g->n_input - i);
		page->request.sampling.temperature = i < 2 ? 0 : 0.9f;
		page->request.sampling.seed = 7;
		out[i] = i % 2 ? fake_draft_tree(&f->fake, i, some) : fake_draft(&f->fake, i, 4);
	}
}

static void assert_same_drafts(const struct fake_drafted one[4], const struct fake_drafted other[4])
{
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(one[i].method, DRAFT_MODEL);
		assert_int_equal(one[i].n, other[i].n);
		assert_memory_equal(one[i].token, other[i].token, one[i].n * sizeof(int32_t));
		assert_memory_equal(one[i].parent, other[i].parent, one[i].n * sizeof(int));
		assert_memory_equal(
			one[i].confidence, other[i].confidence, one[i].n * sizeof(float));
	}
}

static void a_device_drafts_what_the_cpu_drafts(void **state)
{
	(void)state;
	struct fixture *f = make(on_device);
	static struct fake_drafted cpu[4], device[4];
	struct backend_memory memory;
	draft_some(f, 100, cpu);
	struct worker_device_state now = fake_place(&f->worker, true);
	assert_true(now.there);
	assert_string_equal(now.name, "simt");
	assert_string_equal(now.refusal, "");
	f->worker.device.backend->ops->memory(f->worker.device.backend, &memory);
	/* What it said it would take, and tables of the host that are counted in. */
	assert_in_range(memory.bytes - memory.free, now.needs.weights + now.needs.kv,
		draft_engine_bytes(&now.needs));
	draft_some(f, 200, device);
	assert_same_drafts(cpu, device);
	check_golden(f);
	/* Sessions that began on the device go on without it, and their cells there are given back. */
	now = fake_place(&f->worker, false);
	assert_false(now.there);
	assert_non_null(strstr(now.refusal, "the draft model needs "));
	assert_non_null(strstr(now.refusal, "KV cache for kv_tokens = 8300"));
	assert_non_null(strstr(now.refusal, ": no room"));
	assert_int_equal(fake_draft(&f->fake, 0, 2).method, DRAFT_MODEL);
	f->worker.device.backend->ops->memory(f->worker.device.backend, &memory);
	assert_int_equal(memory.bytes, memory.free);
	draft_some(f, 300, device);
	assert_same_drafts(cpu, device);
	end(f);
}

static void an_answer_to_another_question_changes_nothing(void **state)
{
	(void)state;
	struct fixture *f = make(on_device);
	struct worker_device_state now;
	fake_place(&f->worker, true);
	worker_device_answer(&f->worker, 1, false, "not asked");
	fake_begin(&f->fake, 0, 100, DRAFT_MODEL, golden[0].input, golden[0].n_input);
	assert_int_equal(fake_draft(&f->fake, 0, 2).method, DRAFT_MODEL);
	worker_device_now(&f->worker, &now);
	assert_true(now.there && now.refusal[0] == '\0');
	end(f);
}

static void without_enough_memory_the_cpu_drafts(void **state)
{
	(void)state;
	static struct fake_drafted cpu[4], later[4];
	setenv("OUTRIDER_SIMT_MEMORY", "3M", 1);
	struct fixture *f = make(on_device);
	draft_some(f, 100, cpu);
	struct worker_device_state now = fake_place(&f->worker, true);
	assert_false(now.there);
	assert_non_null(strstr(now.refusal, "the emulated GPU has 3.0 MiB free of 3.0 MiB"));
	draft_some(f, 200, later);
	assert_same_drafts(cpu, later);
	end(f);
	unsetenv("OUTRIDER_SIMT_MEMORY");
}

static void when_the_device_is_lost_the_cpu_goes_on(void **state)
{
	(void)state;
	static struct fake_drafted cpu[4], later[4];
	struct worker_device_state now;
	setenv("OUTRIDER_SIMT_LOST", "300", 1);
	struct fixture *f = make(on_device);
	draft_some(f, 100, cpu);
	fake_place(&f->worker, true);
	/* During these. */
	draft_some(f, 200, later);
	draft_some(f, 300, later);
	assert_same_drafts(cpu, later);
	worker_device_now(&f->worker, &now);
	assert_false(now.there);
	assert_int_equal(draft_engine_bytes(&now.needs), 0);
	assert_non_null(strstr(now.refusal, "the emulated GPU was lost in kernel"));
	/* For good. */
	worker_device_answer(&f->worker, 0, true, "");
	draft_some(f, 400, later);
	assert_same_drafts(cpu, later);
	worker_device_now(&f->worker, &now);
	assert_false(now.there);
	end(f);
	unsetenv("OUTRIDER_SIMT_LOST");
}

static void a_device_that_cannot_be_used_is_named(void **state)
{
	(void)state;
	struct worker_device_state now;
	setenv("OUTRIDER_SIMT_UNFIT", "mps", 1);
	struct fixture *f = make(on_device);
	worker_device_now(&f->worker, &now);
	assert_null(now.name);
	assert_non_null(strstr(now.refusal, "MPS is on"));
	check_golden(f);
	end(f);
	unsetenv("OUTRIDER_SIMT_UNFIT");
}

static void tokens_outside_the_vocabulary_are_not_read(void **state)
{
	(void)state;
	struct fixture *f = make(plain);
	const int32_t wrong[] = {4, -5, 6, 4, INT32_MAX};
	fake_begin(&f->fake, 0, 100, DRAFT_MODEL, wrong, 5);
	assert_int_equal(fake_draft(&f->fake, 0, 2).method, DRAFT_NGRAM);
	end(f);
}

/* What the model says of the tokens that it reads while nobody drafts: all of them but the one `wrong` from the end are what it
 * would have drafted itself. */
static void check_foresight(struct fixture *f, uint32_t page, uint32_t wrong)
{
	const struct golden *g = &golden[0];
	struct session_page *to =
		fake_begin(&f->fake, page, 100 + page, DRAFT_MODEL, g->input, g->n_input);
	int32_t output[OUTPUT];
	static struct fake_drafted r;
	struct patience patience;
	assert_true(g->n_output > FORESIGHT_TOKENS + 1);
	memcpy(output, g->output, sizeof(output));
	if (wrong > 0)
		output[g->n_output - wrong] ^= 1;
	fake_commit(to, output, g->n_output);
	patience_init(&patience, 20000);
	r.foreseen = 0;
	while (patience_step_ms(&patience) > 0 && r.foreseen == 0) {
		fake_foresee(&f->fake, page, 100 + page, g->n_input + g->n_output);
		usleep(1000);
		fake_take(&f->fake, &r, false);
	}
	assert_int_equal(r.session, 100 + page);
	assert_int_equal(r.method, DRAFT_MODEL);
	/* Of the last token nothing is said: a draft begins there. */
	assert_int_equal(r.right, wrong > 0 ? FORESIGHT_TOKENS + 1 - wrong : FORESIGHT_TOKENS);
	assert_int_equal(r.n, wrong > 0 ? r.right + 1 : r.right);
	assert_int_equal(r.foreseen, r.n);
	for (uint32_t i = 0; i < r.n; i++)
		assert_true(r.confidence[i] > 0 && r.confidence[i] <= 1);
}

static void what_is_read_says_what_would_have_been_drafted(void **state)
{
	(void)state;
	static struct fake_drafted r;
	struct fixture *f = make(plain);
	uint32_t n = golden[0].n_input + golden[0].n_output;
	check_foresight(f, 0, 0);
	check_foresight(f, 1, 4);
	/* What follows is drafted as if nobody had looked, and what was not told of before is of another time. */
	assert_int_equal(fake_draft(&f->fake, 1, 3).foreseen, 0);
	fake_foresee(&f->fake, 1, 101, n);
	fake_ask(&f->fake, 1, 101, n, 3, true);
	assert_true(fake_reply(&f->fake, &r));
	assert_int_equal(r.sequence, f->fake.sequence);
	end(f);
	f = make(plain);
	check_golden(f);
	end(f);
}

/* One pass reads all sessions, and there are more tokens in it to look at than it has rows of logits. The requests are there
 * before the worker has their ring: it takes them all before it reads. */
static void a_pass_looks_at_no_more_than_it_has_logits_for(void **state)
{
	(void)state;
	enum { BEHIND = 41 };
	static_assert(FAKE_PAGES * FORESIGHT_TOKENS > DRAFT_MODEL_LOGITS, "too many to look at");
	static struct fixture f;
	static struct fake_drafted r;
	const char *const wide[] = {"run_ahead=off", "chunk=2048", NULL};
	struct patience patience;
	int32_t tokens[BEHIND];
	if (n_golden == 0)
		skip();
	memset(&f, 0, sizeof(f));
	assert_int_equal(start(&f, wide), 0);
	fake_open(&f.fake, fingerprint);
	for (int i = 0; i < BEHIND; i++)
		tokens[i] = 10 + i % 20;
	for (uint32_t i = 0; i < FAKE_PAGES; i++) {
		fake_begin(&f.fake, i, 100 + i, DRAFT_MODEL, tokens, 1);
		fake_commit(session_at(f.fake.header, f.fake.header, i), tokens + 1, BEHIND - 1);
		fake_foresee(&f.fake, i, 100 + i, BEHIND);
	}
	fake_offer(&f.fake, &f.worker);
	patience_init(&patience, 20000);
	r.foreseen = 0;
	while (patience_step_ms(&patience) > 0 && r.foreseen == 0) {
		fake_foresee(&f.fake, 0, 100, BEHIND);
		usleep(1000);
		fake_take(&f.fake, &r, false);
	}
	assert_true(r.foreseen > 0);
	assert_int_equal(f.worker.model->passes, 1);
	assert_int_equal(f.worker.model->tokens, FAKE_PAGES * (BEHIND - 1));
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greedy_drafts_are_the_models_own_continuation),
		cmocka_unit_test(drafting_ahead_changes_no_token),
		cmocka_unit_test(drafts_depend_on_the_committed_tokens_alone),
		cmocka_unit_test(a_round_of_sessions_is_drafted_as_each_alone),
		cmocka_unit_test(sessions_that_lost_their_cache_are_read_again),
		cmocka_unit_test(a_session_far_behind_gets_ngrams_until_it_is_read),
		cmocka_unit_test(what_is_read_says_what_would_have_been_drafted),
		cmocka_unit_test(a_pass_looks_at_no_more_than_it_has_logits_for),
		cmocka_unit_test(gumbel_noise_belongs_to_the_position),
		cmocka_unit_test(maximal_coupling_carries_its_distribution),
		cmocka_unit_test(trees_say_what_the_model_says_behind_each_path),
		cmocka_unit_test(accepted_nodes_of_a_tree_stay_in_the_cache),
		cmocka_unit_test(a_round_of_trees_is_drafted_as_each_alone),
		cmocka_unit_test(trees_find_room_or_stay_smaller),
		cmocka_unit_test(a_model_with_another_tokenizer_is_refused_and_ngrams_go_on),
		cmocka_unit_test(tokens_outside_the_vocabulary_are_not_read),
		cmocka_unit_test(a_device_drafts_what_the_cpu_drafts),
		cmocka_unit_test(an_answer_to_another_question_changes_nothing),
		cmocka_unit_test(without_enough_memory_the_cpu_drafts),
		cmocka_unit_test(when_the_device_is_lost_the_cpu_goes_on),
		cmocka_unit_test(a_device_that_cannot_be_used_is_named),
	};
	return cmocka_run_group_tests(tests, load, NULL);
}
