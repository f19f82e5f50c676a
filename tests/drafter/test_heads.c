/*
 * Drafting with heads, through the draft thread: chains, trees and chains after a rejection against
 * golden data (tests/data/golden/heads), whose target runs here and fills the log of hidden states
 * as the verifier does. Then heads that begin in the middle, and what must be refused.
 */
#include "tests/model/golden.h"
#include "tests/drafter/fake_verifier.h"
#include "tests/drafter/narrow.h"

#include "shared/model/arch/head.h"
#include "shared/spec/hidden.h"

#include <unistd.h>

#define FOLDER "tests/data/golden/heads"
enum { LOG_ROWS = 128 };

/* The verifier's end of the hidden states: a target that runs here. */
struct source {
	struct rig rig;
	struct kv_seq seq;
	struct region region;
	struct hidden log;
	uint64_t row;
	bool off; /* states are computed, and not written */
};

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
	struct source source;
};

static void on_residual(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct source *source = arg;
	const struct hidden_shape *shape = &source->log.shape;
	for (uint32_t tap = 0; tap < shape->n_taps; tap++)
		for (uint32_t t = 0; t < n_tokens && shape->tap[tap] == layer && !source->off; t++)
			memcpy((char *)source->log.header +
					hidden_state_offset(&source->log, source->row + t, tap),
				x->buffer->host + x->offset + t * x->stride,
				shape->n_embd * sizeof(float));
}

/* Computes ids[seq.n..n-1] of a session, and publishes their states. */
static void run_target(
	struct source *source, uint32_t page, uint64_t uid, const int32_t *ids, uint32_t n)
{
	uint32_t at = source->seq.n;
	uint64_t text = 0;
	assert_true(n - at <= RIG_BATCH);
	if (!source->off)
		source->row = hidden_reserve(&source->log, n - at);
	rig_chain(&source->rig, &source->seq, ids + at, n - at, RIG_BATCH, NULL);
	for (uint32_t i = 0; i < n && !source->off; i++) {
		text = hidden_text(text, ids[i]);
		if (i >= at)
			hidden_set_tag(&source->log, source->row + i - at,
				(struct hidden_tag){uid, page, i, text});
	}
	if (!source->off)
		hidden_publish(&source->log, n - at);
}

/* Makes the log that the drafter wants, and gives it to the drafter. */
static void open_log(struct fixture *f)
{
	struct source *source = &f->source;
	struct peer_taps taps;
	struct patience patience;
	struct region region;
	struct error err;
	patience_init(&patience, 20000);
	do {
		worker_taps(&f->worker, &taps);
		usleep(1000);
	} while (taps.n == 0 && patience_step_ms(&patience) > 0);
	assert_true(taps.n > 0);
	struct hidden_shape shape = {.model = taps.model,
		.n_taps = (uint32_t)taps.n,
		.n_embd = source->rig.model->config.n_embd,
		.n_rows = LOG_ROWS};
	memcpy(shape.tap, taps.layer, sizeof(shape.tap));
	assert_int_equal(region_create(HIDDEN_REGION, HIDDEN_LAYOUT, hidden_bytes(&shape), 0,
				 &source->region, &err),
		0);
	hidden_format(region_payload(&source->region), &shape);
	assert_int_equal(hidden_attach(&source->log, region_payload(&source->region),
				 source->region.bytes - REGION_DATA, &err),
		0);
	hidden_write_begin(&source->log);
	int fd = fcntl(source->region.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(
		region_attach(fd, HIDDEN_REGION, HIDDEN_LAYOUT, REGION_DATA, false, &region, &err),
		0);
	worker_give(&f->worker, WORKER_HIDDEN, &region);
	forward_set_hooks(source->rig.forward,
		&(struct forward_hooks){.residual = on_residual, .arg = source});
}

static void start(struct fixture *f, const char *head, const char *const *settings)
{
	struct error err = {""};
	config_defaults(drafter_config_keys, &f->config);
	if (head)
		strcpy(f->config.draft, head);
	for (; *settings; settings++)
		assert_int_equal(
			config_set(*settings, "test", drafter_config_keys, &f->config, &err), 0);
	assert_int_equal(drafter_config_resolve(&f->config, &err), 0);
	if (worker_init(&f->worker, &f->config, NULL, NULL, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(worker_start(&f->worker, &err), 0);
}

/* target: its file. head: NULL for the target's own layer. */
static struct fixture *make(
	const char *target, const char *head, const char *const *settings, bool fits)
{
	static struct fixture f;
	struct tokenizer *tokenizer;
	struct error err;
	memset(&f, 0, sizeof(f));
	rig_open(&f.source.rig, target, NULL, 2, KV_F32);
	if (tokenizer_load(f.source.rig.model->gguf, &tokenizer, &err) < 0)
		fail_msg("%s", err.text);
	start(&f, head, settings);
	fake_open(&f.fake, tokenizer_fingerprint(tokenizer));
	tokenizer_free(&tokenizer);
	snprintf(f.fake.header->model_path, sizeof(f.fake.header->model_path), "%s", target);
	f.fake.header->model_fingerprint = f.source.rig.model->fingerprint;
	f.fake.header->file_fingerprint = f.source.rig.model->file_fingerprint;
	fake_offer(&f.fake, &f.worker);
	rig_seq(&f.source.rig, &f.source.seq);
	if (fits)
		open_log(&f);
	return &f;
}

static void end(struct fixture *f)
{
	worker_exit(&f->worker);
	fake_close(&f->fake);
	if (f->source.region.header)
		region_close(&f->source.region);
	kv_seq_exit(&f->source.rig.kv, &f->source.seq);
	rig_close(&f->source.rig);
}

static void assert_chain(
	const char *name, const char *what, const struct fake_drafted *r, const json_t *chain)
{
	assert_int_equal(r->n, json_array_size(chain));
	for (uint32_t i = 0; i < r->n; i++) {
		json_int_t want =
			json_integer_value(json_object_get(json_array_get(chain, i), "token_out"));
		if (r->token[i] != want)
			fail_msg("prompt %s, %s: token %u is %d, not %d", name, what, i,
				r->token[i], (int)want);
	}
}

/* The golden node with this token behind this golden parent. */
static int golden_child(const json_t *tree, int parent, int32_t token)
{
	size_t i;
	json_t *at;
	json_array_foreach(json_object_get(tree, "tokens"), i,
		at) if (json_integer_value(at) == token &&
			json_integer_value(json_array_get(json_object_get(tree, "parents"), i)) ==
				parent) return (int)i;
	return -1;
}

static void assert_tree(const char *name, const struct fake_drafted *r, const json_t *tree)
{
	int golden[LIMIT_DRAFT_NODES];
	double score[LIMIT_DRAFT_NODES];
	assert_int_equal(r->n, json_array_size(json_object_get(tree, "tokens")));
	for (uint32_t i = 0; i < r->n; i++) {
		int parent = r->parent[i];
		golden[i] = golden_child(tree, parent < 0 ? -1 : golden[parent], r->token[i]);
		if (golden[i] < 0)
			fail_msg("prompt %s: node %u, token %d, is not in the tree", name, i,
				r->token[i]);
		score[i] = (parent < 0 ? 0 : score[parent]) + log((double)r->confidence[i]);
		double want = json_number_value(
			json_array_get(json_object_get(tree, "scores"), (size_t)golden[i]));
		/* A confidence travels in 16 bits. */
		assert_true(fabs(score[i] - want) < 2e-2);
	}
}

static void check_prompt(
	struct fixture *f, uint32_t page, uint64_t uid, const json_t *prompt, uint32_t method)
{
	int32_t ids[RIG_CONTEXT + 1], more[LIMIT_DRAFT_DEPTH];
	const char *name = json_string_value(json_object_get(prompt, "name"));
	const json_t *tree = json_object_get(prompt, "tree"), *after;
	uint32_t n = read_ids(json_object_get(prompt, "ids"), ids);
	size_t i;
	json_array_foreach(json_object_get(prompt, "after_accept"), i, after)
	{
		struct source *source = &f->source;
		struct kv *kv = &source->rig.kv;
		uint64_t id = uid + 10 * i;
		kv_seq_exit(kv, &source->seq);
		rig_seq(&source->rig, &source->seq);
		ids[n] = (int32_t)json_integer_value(json_object_get(prompt, "next"));
		struct session_page *session =
			fake_begin(&f->fake, page, id, DRAFT_AUTO, ids, n + 1);
		run_target(source, page, id, ids, n);
		if (tree) {
			struct fake_drafted t = fake_draft_tree(&f->fake, page,
				(struct draft_budget){.nodes = 16, .depth = 4, .width = 4});
			assert_tree(name, &t, tree);
		}
		const json_t *chain = json_object_get(prompt, "chain");
		struct fake_drafted r =
			fake_draft(&f->fake, page, (uint32_t)json_array_size(chain));
		assert_int_equal(r.method, method);
		assert_chain(name, "chain", &r, chain);
		/* Some are accepted. */
		uint32_t n_ids = read_ids(json_object_get(after, "ids"), ids), n_more = 0;
		for (uint32_t at = n + 1; at < n_ids; at++)
			more[n_more++] = ids[at];
		more[n_more++] = (int32_t)json_integer_value(json_object_get(after, "bonus"));
		fake_commit(session, more, n_more);
		run_target(source, page, id, ids, n_ids);
		chain = json_object_get(after, "chain");
		r = fake_draft(&f->fake, page, (uint32_t)json_array_size(chain));
		assert_chain(name, "chain after a rejection", &r, chain);
	}
}

static const char *const plain[] = {"run_ahead=off", NULL};

static const char *const on_device[] = {"run_ahead=off", "device=simt", NULL};

static void check_head(const char *folder, const char *name, bool device)
{
	char path[512], target[512], head[512];
	json_t *prompt;
	size_t i;
	snprintf(path, sizeof(path), "%s/%s.json", folder, name);
	json_t *golden = load_json(path);
	head_target(folder, golden, target, sizeof(target));
	snprintf(head, sizeof(head), "%s/%s.f32.gguf", folder, name);
	bool eagle3 = strncmp(name, "eagle3", 6) == 0;
	struct fixture *f = make(target, eagle3 ? head : NULL, device ? on_device : plain, true);
	if (device)
		assert_true(fake_place(&f->worker, true).there);
	json_array_foreach(json_object_get(golden, "prompts"), i, prompt)
		check_prompt(f, (uint32_t)i % FAKE_SESSIONS, 100 * (i + 1), prompt,
			eagle3 ? DRAFT_EAGLE3 : DRAFT_MTP);
	end(f);
	json_decref(golden);
}

static const char *const heads[] = {"eagle3-llama-own", "eagle3-llama-shared",
	"eagle3-qwen3moe-normfc", "eagle3-qwen3moe-full", "nextn-glm4moe", "nextn-deepseek2",
	"nextn-qwen3next", "nextn-qwen35moe"};

static void drafts_are_the_golden_ones(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		check_head(FOLDER, heads[i], false);
}

static void heads_draft_the_same_on_a_device(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		check_head(FOLDER, heads[i], true);
}

#define LLAMA FOLDER "/target-llama.f32.gguf"
#define GLM FOLDER "/nextn-glm4moe.f32.gguf"
#define EAGLE FOLDER "/eagle3-llama-own.f32.gguf"

/* A copy of GLM with several layers for drafts. */
static void make_blocks(char path[64], uint32_t n_blocks)
{
	char command[256];
	snprintf(path, 64, "/tmp/outrider-blocks-%d.gguf", (int)getpid());
	snprintf(command, sizeof(command), "python3 tests/tools/make_nextn_blocks.py " GLM " %s %u",
		path, n_blocks);
	assert_int_equal(system(command), 0);
}

/* The golden data of several layers are chains and trees that numpy computed without any cache. */
static void several_layers_draft_the_golden_ones(void **state)
{
	(void)state;
	json_t *golden = load_json(FOLDER "/blocks-glm4moe.json"), *prompts, *prompt;
	const char *n_blocks;
	size_t i;
	json_object_foreach(json_object_get(golden, "blocks"), n_blocks, prompts)
	{
		char path[64];
		/* With three, on a device and, when that has no room, on the CPU. */
		bool device = strcmp(n_blocks, "3") == 0;
		make_blocks(path, (uint32_t)atoi(n_blocks));
		struct fixture *f = make(path, NULL, device ? on_device : plain, true);
		assert_int_equal(unlink(path), 0);
		if (device)
			assert_true(fake_place(&f->worker, true).there);
		json_array_foreach(prompts, i, prompt) check_prompt(
			f, (uint32_t)i % FAKE_SESSIONS, 100 * (i + 1), prompt, DRAFT_MTP);
		assert_true(i > 0);
		if (device)
			assert_false(fake_place(&f->worker, false).there);
		json_array_foreach(prompts, i, prompt) check_prompt(
			f, (uint32_t)i % FAKE_SESSIONS, 1000 * (i + 1), prompt, DRAFT_MTP);
		end(f);
	}
	json_decref(golden);
}

static struct session_page *begin(
	struct fixture *f, uint32_t page, uint64_t uid, int32_t *ids, uint32_t n)
{
	rig_ids(uid, f->source.rig.model->config.n_vocab, ids, n + 1);
	kv_seq_exit(&f->source.rig.kv, &f->source.seq);
	rig_seq(&f->source.rig, &f->source.seq);
	return fake_begin(&f->fake, page, uid, DRAFT_AUTO, ids, n + 1);
}

/* Runs the target over a long text, a part at a time. */
static void run_long(struct fixture *f, uint32_t page, uint64_t uid, const int32_t *ids,
	uint32_t from, uint32_t to)
{
	for (uint32_t at = from; at < to; at += RIG_BATCH)
		run_target(&f->source, page, uid, ids, at + RIG_BATCH < to ? at + RIG_BATCH : to);
}

static bool is_same(const struct fake_drafted *one, const struct fake_drafted *other, uint32_t n)
{
	return memcmp(one->token, other->token, n * sizeof(*one->token)) == 0 &&
	       memcmp(one->confidence, other->confidence, n * sizeof(*one->confidence)) == 0 &&
	       memcmp(one->q, other->q, n * sizeof(one->q[0])) == 0;
}

/* A head with bfloat16 matrices: the device's library multiplies what it reads of a text, but where drafts
 * decide about the answer (maximal coupling). */
static void texts_are_read_by_the_devices_library(void **state)
{
	enum { TEXT = 50, K = 3 };
	char path[] = "/tmp/outrider-test-heads-XXXXXX";
	static struct fake_drafted cpu[2], device[2];
	int32_t ids[TEXT + 1];
	(void)state;
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	narrow_file(EAGLE, path);
	struct fixture *f = make(LLAMA, path, on_device, true);
	for (uint32_t i = 0; i < 2; i++) {
		struct session_page *page = begin(f, i, 70 + i, ids, TEXT);
		page->request.sampling.temperature = i == 1 ? 0.9f : 0;
		page->request.sampling.coupling = i == 1 ? COUPLING_MAXIMAL : COUPLING_GUMBEL;
		run_long(f, i, 70 + i, ids, 0, TEXT);
		cpu[i] = fake_draft(&f->fake, i, K);
	}
	assert_int_equal(f->worker.head->fast_tokens, 0);
	assert_true(fake_place(&f->worker, true).there);
	for (uint32_t i = 0; i < 2; i++) {
		device[i] = fake_draft(&f->fake, i, K);
		assert_int_equal(device[i].method, DRAFT_EAGLE3);
		assert_int_equal(device[i].n, K);
	}
	/* The newest token is read with a draft, and maybe those before it earlier. */
	assert_in_range(f->worker.head->fast_tokens, TEXT - 1, TEXT);
	assert_false(is_same(&cpu[0], &device[0], K));
	assert_int_equal(cpu[0].token[0], device[0].token[0]);
	assert_true(fabsf(cpu[0].confidence[0] - device[0].confidence[0]) < 0.02f);
	assert_true(cpu[1].support && is_same(&cpu[1], &device[1], K));
	end(f);
	unlink(path);
}

/* The log has room for fewer tokens than the text has; some are never written; a drafter that is
 * started anew has only those that are there. It drafts from what there is. */
static void states_that_are_lost_are_left_out(void **state)
{
	int32_t ids[301];
	(void)state;
	for (int mtp = 0; mtp < 2; mtp++) {
		struct fixture *f = make(mtp ? GLM : LLAMA, mtp ? NULL : EAGLE, plain, true);
		uint32_t method = mtp ? DRAFT_MTP : DRAFT_EAGLE3;
		struct session_page *page = begin(f, 3, 70, ids, 250);
		run_long(f, 3, 70, ids, 0, 250);
		struct fake_drafted r = fake_draft(&f->fake, 3, 4);
		assert_int_equal(r.method, method);
		assert_int_equal(r.n, 4);
		/* The states of ten tokens never come. */
		f->source.off = true;
		rig_ids(5, 300, ids + 251, 20);
		fake_commit(page, ids + 251, 10);
		run_target(&f->source, 3, 70, ids, 260);
		r = fake_draft(&f->fake, 3, 4);
		assert_int_equal(r.method, DRAFT_NGRAM);
		f->source.off = false;
		fake_commit(page, ids + 261, 5);
		run_target(&f->source, 3, 70, ids, 265);
		r = fake_draft(&f->fake, 3, 4);
		assert_int_equal(r.method, method);
		assert_int_equal(r.n, 4);
		r = fake_draft_tree(
			&f->fake, 3, (struct draft_budget){.nodes = 16, .depth = 4, .width = 4});
		assert_int_equal(r.method, method);
		assert_int_equal(r.n, 16);
		end(f);
	}
}

/* A session whose beginning another one has computed drafts from that one's states, as if they were
 * its own. Those of another domain, and behind another token, are not its. */
static void states_of_the_same_beginning_are_found(void **state)
{
	static const struct draft_budget tree = {.nodes = 16, .depth = 4, .width = 4};
	int32_t ids[101], other[101];
	(void)state;
	for (int mtp = 0; mtp < 2; mtp++) {
		struct fixture *f = make(mtp ? GLM : LLAMA, mtp ? NULL : EAGLE, plain, true);
		uint32_t method = mtp ? DRAFT_MTP : DRAFT_EAGLE3;
		begin(f, 3, 70, ids, 60);
		run_target(&f->source, 3, 70, ids, 60);
		struct fake_drafted chain = fake_draft(&f->fake, 3, 4);
		struct fake_drafted all = fake_draft_tree(&f->fake, 3, tree);
		assert_int_equal(chain.method, method);
		fake_begin(&f->fake, 4, 71, DRAFT_AUTO, ids, 61);
		struct fake_drafted r = fake_draft(&f->fake, 4, 4);
		assert_int_equal(r.method, method);
		assert_int_equal(r.n, 4);
		assert_memory_equal(r.token, chain.token, 4 * sizeof(r.token[0]));
		r = fake_draft_tree(&f->fake, 4, tree);
		assert_int_equal(r.n, all.n);
		assert_memory_equal(r.token, all.token, r.n * sizeof(r.token[0]));
		struct session_page *page = fake_begin(&f->fake, 5, 72, DRAFT_AUTO, ids, 61);
		atomic_store(&page->uid, 0);
		page->request.prefix_domain = 1;
		atomic_store(&page->uid, 72);
		assert_int_equal(fake_draft(&f->fake, 5, 4).method, DRAFT_NGRAM);
		memcpy(other, ids, sizeof(ids));
		other[40] = (other[40] + 1) % 300;
		fake_begin(&f->fake, 6, 73, DRAFT_AUTO, other, 61);
		assert_int_equal(fake_draft(&f->fake, 6, 4).method, DRAFT_NGRAM);
		end(f);
	}
}

/* Any numbers may be in the log: nothing happens but worse drafts. */
static void rubbish_in_the_log_costs_speed_only(void **state)
{
	static const uint32_t rubbish[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 1};
	int32_t ids[301];
	(void)state;
	for (size_t i = 0; i < sizeof(rubbish) / sizeof(rubbish[0]); i++) {
		struct fixture *f = make(i % 2 ? GLM : LLAMA, i % 2 ? NULL : EAGLE, plain, true);
		struct source *source = &f->source;
		struct session_page *page = begin(f, 1, 90 + i, ids, 60);
		run_target(source, 1, 90 + i, ids, 60);
		for (uint64_t row = 20; row < 60; row++)
			for (uint32_t tap = 0; tap < source->log.shape.n_taps; tap++)
				memcpy((char *)source->log.header +
						hidden_state_offset(&source->log, row, tap),
					&rubbish[i], sizeof(rubbish[i]));
		(void)fake_draft(&f->fake, 1, 4);
		(void)fake_draft_tree(
			&f->fake, 1, (struct draft_budget){.nodes = 16, .depth = 4, .width = 4});
		/* Tags of nobody, of other sessions, and of impossible tokens. */
		hidden_set_tag(&source->log, 40, (struct hidden_tag){90 + i, UINT32_MAX, 5, 0});
		hidden_set_tag(&source->log, 41, (struct hidden_tag){90 + i, 1, UINT32_MAX, 0});
		hidden_set_tag(&source->log, 42, (struct hidden_tag){7, 1, 5, 0});
		/* Counters that make no sense, and then do again. */
		atomic_store(&source->log.header->end, UINT64_MAX);
		(void)fake_draft(&f->fake, 1, 4);
		atomic_store(&source->log.header->end, source->log.end);
		fake_commit(page, ids, 1);
		(void)fake_draft(&f->fake, 1, 4);
		/* Another session is drafted for as before. */
		begin(f, 2, 95 + i, ids, 30);
		run_target(source, 2, 95 + i, ids, 30);
		struct fake_drafted r = fake_draft(&f->fake, 2, 4);
		assert_int_equal(r.method, i % 2 ? DRAFT_MTP : DRAFT_EAGLE3);
		assert_int_equal(r.n, 4);
		end(f);
	}
}

/* What is drafted ahead behind a draft that is accepted whole is the next draft, at once. */
static void drafts_ahead_go_on_from_what_was_accepted(void **state)
{
	static const char *const ahead[] = {"run_ahead=on", NULL};
	int32_t ids[64], more[9];
	(void)state;
	struct fixture *f = make(LLAMA, EAGLE, ahead, true);
	struct session_page *page = begin(f, 0, 33, ids, 20);
	run_target(&f->source, 0, 33, ids, 20);
	struct fake_drafted r = fake_draft(&f->fake, 0, 3);
	assert_int_equal(r.n, 3);
	memcpy(more, r.token, 3 * sizeof(*more));
	/* The drafter goes on; its own next token is the one that the verifier adds. */
	struct patience patience;
	patience_init(&patience, 20000);
	struct worker_head head = {.passes = 0};
	do {
		usleep(1000);
		assert_true(worker_head(&f->worker, &head));
	} while (head.passes < 7 && patience_step_ms(&patience) > 0);
	assert_true(head.passes >= 7);
	more[3] = f->worker.sessions[0].tokens[21 + 3];
	memcpy(ids + 21, more, 4 * sizeof(*more));
	fake_commit(page, more, 4);
	run_target(&f->source, 0, 33, ids, 24);
	r = fake_draft(&f->fake, 0, 3);
	assert_int_equal(r.n, 3);
	assert_int_equal(r.ahead, 3);
	/* Once something is rejected, the draft is that of a head that did not go ahead. */
	more[0] = (r.token[0] + 1) % 300;
	fake_commit(page, more, 1);
	ids[25] = more[0];
	run_target(&f->source, 0, 33, ids, 25);
	struct fake_drafted one = fake_draft(&f->fake, 0, 4);
	fake_begin(&f->fake, 1, 34, DRAFT_AUTO, ids, 26);
	kv_seq_exit(&f->source.rig.kv, &f->source.seq);
	rig_seq(&f->source.rig, &f->source.seq);
	run_target(&f->source, 1, 34, ids, 25);
	struct fake_drafted other = fake_draft(&f->fake, 1, 4);
	assert_int_equal(one.n, 4);
	assert_memory_equal(one.token, other.token, 4 * sizeof(one.token[0]));
	end(f);
}

/* Sampling: the tokens are of those that the head drafts, and with maximal coupling their
 * distribution comes with them. */
static void sampled_drafts_keep_to_the_heads_tokens(void **state)
{
	int32_t ids[64];
	(void)state;
	struct fixture *f = make(LLAMA, EAGLE, plain, true);
	const struct head *head = f->worker.head->head;
	for (uint32_t i = 0; i < 12; i++) {
		struct session_page *page = begin(f, i % 8, 400 + i, ids, 20);
		atomic_store(&page->uid, 0);
		page->request.sampling.temperature = 1;
		page->request.sampling.seed = i;
		page->request.sampling.coupling = i % 2 ? COUPLING_MAXIMAL : COUPLING_GUMBEL;
		atomic_store(&page->uid, 400 + i);
		run_target(&f->source, i % 8, 400 + i, ids, 20);
		struct fake_drafted r =
			i < 8 ? fake_draft(&f->fake, i % 8, 5)
			      : fake_draft_tree(&f->fake, i % 8,
					(struct draft_budget){.nodes = 16, .depth = 4, .width = 4});
		assert_int_equal(r.method, DRAFT_EAGLE3);
		assert_true(r.n >= 5);
		assert_int_equal(r.support, i < 8 && i % 2);
		for (uint32_t j = 0; j < r.n; j++) {
			double sum = 0;
			bool is = false;
			for (uint32_t t = 0; t < f->worker.head->model->output.rows; t++)
				is |= head_token(head, t) == r.token[j];
			assert_true(is);
			for (uint32_t c = 0; r.support && c < r.n_support[j]; c++)
				sum += (double)r.q[j][c].p;
			assert_true(!r.support || fabs(sum - 1) < 1e-3);
		}
	}
	end(f);
}

/* A round of several sessions, with chains and trees, gives what each gives alone. */
static void sessions_do_not_disturb_each_other(void **state)
{
	static struct fake_drafted alone[6], together;
	int32_t ids[64];
	(void)state;
	struct fixture *f = make(LLAMA, EAGLE, plain, true);
	const struct draft_budget budgets[] = {
		{.nodes = 4, .depth = 4, .width = 1}, {.nodes = 16, .depth = 4, .width = 4}};
	for (uint32_t i = 0; i < 6; i++) {
		begin(f, i, 600 + i, ids, 8 + i);
		run_target(&f->source, i, 600 + i, ids, 8 + i);
		alone[i] = fake_draft_tree(&f->fake, i, budgets[i % 2]);
		assert_true(alone[i].n >= 4);
	}
	for (uint32_t i = 0; i < 6; i++)
		fake_ask_tree(&f->fake, i, 600 + i, 9 + i, budgets[i % 2], i == 5);
	for (uint32_t n = 0; n < 6; n++) {
		assert_true(fake_reply(&f->fake, &together));
		const struct fake_drafted *one = &alone[together.page];
		assert_int_equal(together.n, one->n);
		assert_memory_equal(together.token, one->token, one->n * sizeof(one->token[0]));
		assert_memory_equal(together.parent, one->parent, one->n * sizeof(one->parent[0]));
	}
	end(f);
}

#define QWEN FOLDER "/target-qwen3moe.f32.gguf"
#define EAGLE_QWEN FOLDER "/eagle3-qwen3moe-full.f32.gguf"

/* The experts of a layer that a state would be routed to, computed directly: the norm before the
 * feed-forward, the router's product, and the experts with the greatest scores. */
static void choose_directly(
	const struct model *target, uint32_t layer, const float *state, bool *chosen)
{
	const struct model_config *c = &target->config;
	const struct layer *of = &target->layers[layer];
	double squares = 0, score[LIMIT_EXPERTS];
	for (uint32_t i = 0; i < c->n_embd; i++)
		squares += (double)state[i] * (double)state[i];
	double scale = 1 / sqrt(squares / c->n_embd + (double)c->rms_eps);
	for (uint32_t e = 0; e < c->n_experts; e++) {
		const float *row =
			(const void *)((const char *)of->router.data + e * of->router.row_bytes);
		double sum = 0;
		for (uint32_t i = 0; i < c->n_embd; i++)
			sum += (double)row[i] * (double)state[i] * scale * (double)of->ffn_norm[i];
		score[e] = of->selection_bias ? 1 / (1 + exp(-sum)) + (double)of->selection_bias[e]
					      : sum;
		chosen[e] = false;
	}
	for (uint32_t j = 0; j < c->n_experts_used; j++) {
		uint32_t best = 0;
		while (chosen[best])
			best++;
		for (uint32_t e = 0; e < c->n_experts; e++)
			if (!chosen[e] && score[e] > score[best])
				best = e;
		chosen[best] = true;
	}
}

static void assert_routed(
	const struct head_routes *routing, const float *state, const uint64_t *bits)
{
	uint32_t n = routing->target->config.n_experts;
	bool chosen[LIMIT_EXPERTS];
	for (uint32_t i = 0; i < routing->n_moe; i++) {
		choose_directly(routing->target, routing->layer[i], state, chosen);
		for (uint32_t e = 0; e < n; e++)
			assert_int_equal(chosen[e], bits[(i * n + e) / 64] >> (i * n + e) % 64 & 1);
	}
}

/* The verifier says so often where a token was routed that the routers are believed. */
static void confirm(struct fixture *f, const struct route_key *key, const uint64_t *bits)
{
	const struct head_routes *routing = &f->worker.head->routes;
	const struct model_config *c = &routing->target->config;
	struct draft_routing entry = {
		.session = key->session,
		.token = key->token,
		.before = key->before,
		.position = key->position,
		.n_layers = (uint16_t)routing->n_moe,
		.n_moe = (uint16_t)routing->n_moe,
		.n_used = (uint16_t)c->n_experts_used,
	};
	struct patience patience;
	uint16_t *to = entry.items;
	for (uint32_t i = 0; i < routing->n_moe; i++) {
		*to++ = routing->layer[i];
		for (uint32_t e = i * c->n_experts; e < (i + 1) * c->n_experts; e++)
			if (bits[e / 64] >> e % 64 & 1)
				*to++ = (uint16_t)(e - i * c->n_experts);
	}
	for (uint32_t i = 0; i < ROUTE_LEAST; i++)
		assert_true(ring_put(&f->fake.rings.routings, &entry, sizeof(entry)));
	patience_init(&patience, 20000);
	while (atomic_load(&f->worker.hints.recall.layer[0].n) < ROUTE_LEAST &&
		patience_step_ms(&patience) > 0)
		usleep(1000);
}

/* What a draft says its tokens need is what the target's routers choose on the head's states; it says
 * so once that is right more often than what is known otherwise. The last token has no state. */
static void tokens_need_what_the_routers_choose(void **state)
{
	int32_t ids[31];
	(void)state;
	for (int which = 0; which < 3; which++) {
		bool mtp = which == 1, device = which == 2;
		struct fixture *f = make(mtp ? GLM : QWEN, mtp ? NULL : EAGLE_QWEN,
			device ? on_device : plain, true);
		if (device)
			assert_true(fake_place(&f->worker, true).there);
		const struct draft_model *m = f->worker.head;
		const struct head_routes *routing = &m->routes;
		const struct model_config *c = &routing->target->config;
		uint32_t each = routing->n_moe * c->n_experts_used;
		begin(f, 2, 800, ids, 30);
		run_target(&f->source, 2, 800, ids, 30);
		f->fake.needs_words = routing->n_words;
		assert_true(routing->n_moe > 0 && routing->n_words <= FAKE_NEEDS);
		struct fake_drafted r = fake_draft(&f->fake, 2, 4);
		assert_int_equal(r.n, 4);
		assert_false(r.needs);
		/* The newest state, behind the third token. */
		const float *x =
			(const void *)(routing->states.buffer->host + routing->states.offset);
		const float *out = forward_head_rows(m->forward).out;
		assert_int_equal(routing->n, 1);
		if (!mtp)
			assert_memory_equal(x, out, c->n_embd * sizeof(*x));
		assert_routed(routing, x, head_routes_of(routing, 0));
		const struct route_key newest = {800, 30, ids[29], ids[30]},
				       third = {800, 33, r.token[1], r.token[2]};
		const uint64_t *said = route_recall_find(&f->worker.hints.recall, &newest);
		assert_non_null(said);
		assert_memory_equal(route_recall_find(&f->worker.hints.recall, &third),
			head_routes_of(routing, 0), routing->n_words * sizeof(*said));
		confirm(f, &newest, said);
		r = fake_draft(&f->fake, 2, 4);
		assert_true(r.needs);
		assert_memory_equal(r.need[0], said, routing->n_words * sizeof(*said));
		assert_memory_equal(
			r.need[3], head_routes_of(routing, 0), routing->n_words * sizeof(*said));
		for (uint32_t i = 0; i <= r.n; i++) {
			uint32_t n = 0;
			for (uint32_t w = 0; w < routing->n_words; w++)
				n += (uint32_t)__builtin_popcountll(r.need[i][w]);
			assert_int_equal(n, i < r.n ? each : 0);
		}
		end(f);
	}
}

enum { BLOCKS_MAX = 3, BLOCKS_K = 6 };

/* Several layers for drafts, each with its own keys and values, one row at a time and all of them
 * anew for each draft: how a chain of them is meant. */
struct chain_reference {
	struct rig block[BLOCKS_MAX];
	uint32_t n;
	float out[BLOCKS_MAX][FAKE_CONTEXT][64]; /* state that a block gives for each token */
	const float *logits; /* of the row that was computed last */
	uint64_t first; /* the log's row of the session's first token */
};

static void open_reference(struct chain_reference *r, const char *path, uint32_t n)
{
	struct error err = {""};
	r->n = n;
	for (uint32_t i = 0; i < n; i++) {
		struct model *model;
		if (head_load_nextn(path, i, &model, &err) < 0)
			fail_msg("%s", err.text);
		assert_true(model->config.n_embd == 64);
		rig_open_head(&r->block[i], model, NULL);
	}
}

/* The rows of a block for tokens first..last, each from the state for the token before. log: the
 * target's states, for the first block. Returns the token that the last row drafts. */
static int32_t run_reference(struct chain_reference *r, uint32_t block, const int32_t *tokens,
	uint32_t n, uint32_t last, const struct hidden *log)
{
	struct rig *rig = &r->block[block];
	struct forward_head_rows rows = forward_head_rows(rig->forward);
	size_t bytes = 64 * sizeof(float);
	struct kv_seq seq;
	int32_t drafted = -1;
	rig_seq(rig, &seq);
	for (uint32_t t = block + 1; t <= last; t++) {
		/* Behind the tokens that are there, one more for each block. */
		bool own = t >= n + r->n - 1;
		uint32_t cell;
		if (block == 0 && t < n) {
			assert_true(hidden_read(log, r->first + t - 1, rows.taps));
			assert_int_equal(forward_head_fuse(rig->forward, 0, 1, false), 0);
		} else {
			memcpy(rows.states, r->out[own || block == 0 ? block : block - 1][t - 1],
				bytes);
		}
		assert_int_equal(kv_take(&rig->kv, &seq, 1, &cell), 0);
		const struct batch_token one = {
			&seq, tokens[t], t - block - 1, -1, true, cell, false, false};
		assert_int_equal(forward_run(rig->forward, &one, 1), 0);
		kv_commit(&rig->kv, &seq, &cell, 1, NULL, 0);
		memcpy(r->out[block][t], rows.out, bytes);
		r->logits = forward_logits(rig->forward, 0);
		drafted = (int32_t)best(r->logits, rig->n_vocab);
	}
	kv_seq_exit(&rig->kv, &seq);
	return drafted;
}

/* What is drafted behind the first n tokens and step - 1 drafted ones. */
static int32_t reference_step(struct chain_reference *r, struct fixture *f, const int32_t *tokens,
	uint32_t n, uint32_t step)
{
	uint32_t drafts = step < r->n ? step : r->n, last = n + step - 2;
	int32_t drafted = -1;
	for (uint32_t block = 0; block < drafts; block++) {
		/* A block knows one drafted token more than the one before. */
		uint32_t end = block + 1 == drafts ? last : n + block - 1;
		drafted = run_reference(r, block, tokens, n, end, &f->source.log);
	}
	return drafted;
}

static void assert_chained(struct chain_reference *r, struct fixture *f, const int32_t *ids,
	uint32_t n, const struct fake_drafted *got)
{
	int32_t tokens[FAKE_CONTEXT];
	memcpy(tokens, ids, n * sizeof(*tokens));
	assert_int_equal(got->n, BLOCKS_K);
	for (uint32_t step = 1; step <= BLOCKS_K; step++) {
		int32_t drafted = reference_step(r, f, tokens, n, step);
		assert_int_equal(got->token[step - 1], drafted);
		tokens[n + step - 1] = drafted;
	}
}

static double chance_of(const struct chain_reference *r, int32_t token)
{
	uint32_t n_vocab = r->block[0].n_vocab;
	double sum = 0;
	for (uint32_t i = 0; i < n_vocab; i++)
		sum += exp((double)r->logits[i] - (double)r->logits[token]);
	return 1 / sum;
}

/* The children of a node (-1: the session's tokens) are what the blocks draft behind its path, the likeliest
 * first. Returns how many there are. */
static uint32_t assert_children(struct chain_reference *r, struct fixture *f, const int32_t *ids,
	uint32_t n, const struct fake_drafted *got, int node)
{
	int32_t tokens[FAKE_CONTEXT];
	uint32_t depth = 0, n_children = 0;
	memcpy(tokens, ids, n * sizeof(*tokens));
	for (int at = node; at >= 0; at = got->parent[at])
		depth++;
	for (int at = node, i = (int)(n + depth); at >= 0; at = got->parent[at])
		tokens[--i] = got->token[at];
	for (uint32_t i = 0; i < got->n; i++) {
		if (got->parent[i] != node)
			continue;
		if (n_children++ == 0)
			assert_int_equal(got->token[i], reference_step(r, f, tokens, n, depth + 1));
		/* A confidence travels in 16 bits. */
		double want = chance_of(r, got->token[i]);
		if (fabs((double)got->confidence[i] - want) > 1e-4 + 1e-2 * want)
			fail_msg("node %u of depth %u: %g, not %g", i, depth,
				(double)got->confidence[i], want);
	}
	return n_children;
}

/* Returns how many nodes of the tree have a sibling. */
static uint32_t assert_grown(struct chain_reference *r, struct fixture *f, const int32_t *ids,
	uint32_t n, const struct fake_drafted *got)
{
	uint32_t n_children = 0, n_siblings = 0;
	assert_int_equal(got->method, DRAFT_MTP);
	for (int node = -1; node < (int)got->n; node++) {
		uint32_t own = assert_children(r, f, ids, n, got, node);
		n_children += own;
		n_siblings += own > 1 ? own : 0;
	}
	assert_int_equal(n_children, got->n);
	return n_siblings;
}

static struct fixture *open_blocks(struct chain_reference *r, uint32_t n_blocks)
{
	char path[64];
	make_blocks(path, n_blocks);
	struct fixture *f = make(path, NULL, plain, true);
	open_reference(r, path, n_blocks);
	assert_int_equal(unlink(path), 0);
	return f;
}

static const struct draft_budget grown = {.nodes = 14, .depth = 5, .width = 3};

/* With several layers the i-th one drafts the i-th token, and the last one those behind it: chains and
 * trees after a prompt, after drafts that were accepted and rejected, and asked for once more. */
static void each_layer_drafts_a_token_of_its_own(void **state)
{
	static struct chain_reference r;
	static struct fake_drafted drafted, tree;
	(void)state;
	for (uint32_t n_blocks = 1; n_blocks <= BLOCKS_MAX; n_blocks++) {
		int32_t ids[64], more[3] = {0};
		uint32_t n = 21, n_siblings = 0;
		struct fixture *f = open_blocks(&r, n_blocks);
		struct session_page *page = begin(f, 1, 900, ids, n - 1);
		run_target(&f->source, 1, 900, ids, n - 1);
		for (uint32_t round = 0; round < 8; round++) {
			if (round % 3 == 0)
				tree = fake_draft_tree(&f->fake, 1, grown);
			drafted = fake_draft(&f->fake, 1, BLOCKS_K);
			if (round % 3 == 1)
				tree = fake_draft_tree(&f->fake, 1, grown);
			assert_int_equal(drafted.method, DRAFT_MTP);
			assert_chained(&r, f, ids, n, &drafted);
			if (round % 3 < 2)
				n_siblings += assert_grown(&r, f, ids, n, &tree);
			/* Accepted: none, one, two and so on; then no new token at all. */
			uint32_t n_more = round % 4;
			for (uint32_t i = 0; i < n_more; i++)
				more[i] = i + 1 < n_more ? drafted.token[i] : 7 + (int32_t)round;
			memcpy(ids + n, more, n_more * sizeof(*ids));
			fake_commit(page, more, n_more);
			n += n_more;
			if (n_more > 0)
				run_target(&f->source, 1, 900, ids, n - 1);
		}
		assert_true(n_siblings > 0);
		for (uint32_t i = 0; i < n_blocks; i++)
			rig_close(&r.block[i]);
		end(f);
	}
}

/* Texts of fewer tokens than there are layers, whose later layers begin among the drafted tokens; and several
 * sessions in one round. */
static void layers_that_know_no_token_yet_begin_with_drafted_ones(void **state)
{
	static struct chain_reference r;
	static struct fake_drafted tree[3], chain, got;
	int32_t ids[3][8];
	(void)state;
	struct fixture *f = open_blocks(&r, BLOCKS_MAX);
	for (uint32_t i = 0; i < 3; i++) {
		begin(f, i, 950 + i, ids[i], 1 + i);
		run_target(&f->source, i, 950 + i, ids[i], 1 + i);
		r.first = f->source.row;
		tree[i] = fake_draft_tree(&f->fake, i, grown);
		chain = fake_draft(&f->fake, i, BLOCKS_K);
		assert_chained(&r, f, ids[i], 2 + i, &chain);
		assert_int_equal(tree[i].n, grown.nodes);
		assert_true(assert_grown(&r, f, ids[i], 2 + i, &tree[i]) > 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		fake_ask_tree(&f->fake, i, 950 + i, 2 + i, grown, i == 2);
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(fake_reply(&f->fake, &got));
		assert_int_equal(got.n, tree[got.page].n);
		assert_memory_equal(got.token, tree[got.page].token, got.n * sizeof(*got.token));
		assert_memory_equal(got.parent, tree[got.page].parent, got.n * sizeof(*got.parent));
	}
	for (uint32_t i = 0; i < BLOCKS_MAX; i++)
		rig_close(&r.block[i]);
	end(f);
}

/* The head, for a target whose states are wider. */
static void copy_with_other_width(char *path)
{
	static unsigned char bytes[1 << 20];
	const char key[] = "eagle3.target_hidden_size";
	const uint32_t width = 65;
	FILE *file = fopen(EAGLE, "rb");
	assert_non_null(file);
	size_t n = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	unsigned char *at = memmem(bytes, n, key, strlen(key));
	assert_true(at && n < sizeof(bytes));
	/* Behind a key come its type and its value, of 4 bytes each. */
	memcpy(at + strlen(key) + 4, &width, sizeof(width));
	int fd = mkstemp(path);
	assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
	close(fd);
}

static void a_head_of_another_model_is_refused(void **state)
{
	char text[400] = "", path[] = "/tmp/outrider-head-XXXXXX";
	struct patience patience;
	int32_t ids[32];
	(void)state;
	copy_with_other_width(path);
	struct fixture *f = make(LLAMA, path, plain, false);
	patience_init(&patience, 20000);
	do {
		usleep(1000);
		worker_refusal(&f->worker, text, sizeof(text));
	} while (!*text && patience_step_ms(&patience) > 0);
	assert_non_null(strstr(text, path));
	assert_non_null(strstr(text, "eagle3.target_hidden_size is 65"));
	assert_non_null(strstr(text, "drafting with n-grams"));
	begin(f, 0, 12, ids, 20);
	assert_int_equal(fake_draft(&f->fake, 0, 4).method, DRAFT_NGRAM);
	end(f);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drafts_are_the_golden_ones),
		cmocka_unit_test(heads_draft_the_same_on_a_device),
		cmocka_unit_test(texts_are_read_by_the_devices_library),
		cmocka_unit_test(several_layers_draft_the_golden_ones),
		cmocka_unit_test(states_that_are_lost_are_left_out),
		cmocka_unit_test(states_of_the_same_beginning_are_found),
		cmocka_unit_test(rubbish_in_the_log_costs_speed_only),
		cmocka_unit_test(drafts_ahead_go_on_from_what_was_accepted),
		cmocka_unit_test(sampled_drafts_keep_to_the_heads_tokens),
		cmocka_unit_test(sessions_do_not_disturb_each_other),
		cmocka_unit_test(tokens_need_what_the_routers_choose),
		cmocka_unit_test(each_layer_drafts_a_token_of_its_own),
		cmocka_unit_test(layers_that_know_no_token_yet_begin_with_drafted_ones),
		cmocka_unit_test(a_head_of_another_model_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
