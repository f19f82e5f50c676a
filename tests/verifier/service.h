/*
 * What the tests of the whole verifier share: the real process, a client on the bus, and a drafter
 * of the test's own that keeps its regions and drafts from known answers.
 */
#pragma once

#include "tests/model/rig.h"

#include "services/verifier/state/regions.h"
#include "shared/base/clock.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/link.h"
#include "shared/ipc/peers.h"
#include "kernels/logits_hash.h"
#include "kernels/sampler.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zmq.h>

#define SERVICE_MODEL "models/outrider-demo-moe-q8_0.gguf"
#define SERVICE_OUT_MAX 1024
#define SERVICE_ANSWERS 24
/* A sanitized verifier computes many times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SERVICE_SLOWER 10
#else
#define SERVICE_SLOWER 1
#endif
#define SERVICE_PATIENCE_NS (60000000000u * SERVICE_SLOWER)

struct answer {
	int32_t prompt[160];
	uint32_t n_prompt, n;
	struct sampler_params sampling;
	int32_t token[SERVICE_OUT_MAX];
	uint64_t hash[SERVICE_OUT_MAX];
};

/* The same tokens without any service: one at a time, K = 0, one thread, the scalar kernels' bits.
 */
static inline void answer_make(struct rig *rig, struct answer *a, uint64_t seed, uint32_t n_prompt,
	float temperature, uint32_t n)
{
	struct kv_seq seq;
	struct sampler sampler;
	int32_t ids[160 + SERVICE_OUT_MAX];
	float *logits = malloc(sizeof(float) * rig->n_vocab * n_prompt);

	assert_non_null(logits);
	assert_int_equal(sampler_init(&sampler, rig->n_vocab), 0);
	a->n_prompt = n_prompt;
	a->n = n;
	sampler_params_default(&a->sampling);
	a->sampling.temperature = temperature;
	a->sampling.top_p = 0.95f;
	a->sampling.seed = seed;
	rig_ids(seed, 4000, a->prompt, n_prompt);
	for (uint32_t i = 0; i < n_prompt; i++)
		a->prompt[i] += 16; /* no control tokens */
	memcpy(ids, a->prompt, n_prompt * sizeof(*ids));
	rig_seq(rig, &seq);
	rig_chain(rig, &seq, ids, n_prompt, RIG_BATCH, logits);
	const float *row = logits + (size_t)(n_prompt - 1) * rig->n_vocab;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t n_tokens = n_prompt + i;
		a->token[i] = ids[n_tokens] =
			sampler_pick(&sampler, &a->sampling, row, ids, n_tokens, n_tokens, NULL);
		a->hash[i] = logits_hash(row, rig->n_vocab);
		rig_chain(rig, &seq, &ids[n_tokens], 1, 1, logits);
		row = logits;
	}
	kv_seq_exit(&rig->kv, &seq);
	sampler_exit(&sampler);
	free(logits);
}

struct service {
	char dir[64];
	const char *settings[12];
	pid_t pid, drafter;
	void *zmq, *socket;
};

static inline const char *service_binary(void)
{
	static char path[512];
	const char *build = getenv("B");

	snprintf(path, sizeof(path), "%s/outrider-verifier", build ? build : "build");
	return access(path, X_OK) == 0 ? path : NULL;
}

static inline void service_start(struct service *s)
{
	const char *argv[64] = {service_binary(), "--runtime-dir", s->dir, "--model", SERVICE_MODEL,
		"--config", "/dev/null"};
	int n = 7;

	for (int i = 0; i < 12 && s->settings[i]; i++) {
		argv[n++] = "--set";
		argv[n++] = s->settings[i];
	}
	if (getenv("SERVICE_VERBOSE"))
		argv[n++] = "-vv";
	s->pid = fork();
	if (s->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execv(argv[0], (char **)(uintptr_t)argv);
		_exit(127);
	}
	assert_true(s->pid > 0);
}

static inline void service_open(struct service *s, const char *const *settings)
{
	char endpoint[256];
	struct error err = {""};

	memset(s, 0, sizeof(*s));
	strcpy(s->dir, "/tmp/outrider-test-XXXXXX");
	assert_non_null(mkdtemp(s->dir));
	for (int i = 0; settings[i]; i++)
		s->settings[i] = settings[i];
	s->zmq = zmq_ctx_new();
	peers_client_endpoint(s->dir, endpoint, sizeof(endpoint));
	assert_int_equal(bus_client(s->zmq, endpoint, &s->socket, &err), 0);
	service_start(s);
}

static inline void service_kill(pid_t *pid, int signal_number)
{
	int status;

	if (*pid <= 0)
		return;
	kill(*pid, signal_number);
	assert_int_equal(waitpid(*pid, &status, 0), *pid);
	/* A sanitizer's complaint is an exit status of its own. */
	if (signal_number == SIGTERM)
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	*pid = 0;
}

static inline void service_close(struct service *s)
{
	char command[128];

	service_kill(&s->pid, SIGTERM);
	service_kill(&s->drafter, SIGKILL);
	bus_close(&s->socket);
	zmq_ctx_term(s->zmq);
	snprintf(command, sizeof(command), "rm -rf %s", s->dir);
	assert_int_equal(system(command), 0);
}

/* One generation as its client sees it. */
struct call {
	uint32_t width; /* of a tree of k tokens; 0: a chain */
	uint64_t uid, request; /* the newest request's id: answers to older ones are late */
	const struct answer *answer;
	uint32_t credit, max_tokens, have;
	uint32_t arithmetic; /* of the tokens it has, as it says; 0: it does not */
	int32_t k; /* -1: the policy */
	bool hashes, done;
	const char *stop;
	uint64_t deadline_ms;
	uint32_t n;
	int32_t token[SERVICE_OUT_MAX];
	uint64_t hash[SERVICE_OUT_MAX];
	char text[16384];
	size_t n_text;
	uint32_t end, drafted, accepted, restarts;
	int failure;
	char message[512];
	char stopped_by[LIMIT_STOP_BYTES];
};

static inline void call_init(struct call *c, const struct answer *answer, uint32_t max_tokens)
{
	static uint64_t uid = 0x1000;

	memset(c, 0, sizeof(*c));
	c->uid = ++uid;
	c->answer = answer;
	c->max_tokens = max_tokens;
	c->credit = 1000;
	c->k = -1;
}

static inline void call_generate(struct service *s, struct call *c)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;
	Outrider__Sampling sampling = OUTRIDER__SAMPLING__INIT;
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT;
	char *stop = (char *)(uintptr_t)c->stop;

	tokens.n_ids = c->answer->n_prompt;
	tokens.ids = (int32_t *)(uintptr_t)c->answer->prompt;
	sampling.temperature = c->answer->sampling.temperature;
	sampling.top_p = c->answer->sampling.top_p;
	sampling.seed = c->answer->sampling.seed;
	sampling.coupling = c->answer->sampling.coupling;
	generate.session_uid = c->uid;
	generate.input_case = OUTRIDER__GENERATE__INPUT_TOKENS;
	generate.tokens = &tokens;
	generate.sampling = &sampling;
	generate.max_tokens = c->max_tokens;
	generate.ignore_eos = 1;
	generate.credit = c->credit;
	generate.k_plus_one = c->k + 1;
	if (c->width > 0)
		generate.draft_nodes = (uint32_t)c->k;
	generate.draft_width = c->width;
	generate.logits_hash = c->hashes;
	generate.have = c->have;
	generate.arithmetic = c->arithmetic;
	generate.deadline_ms = c->deadline_ms;
	if (c->stop) {
		generate.stop = &stop;
		generate.n_stop = 1;
	}
	envelope.request_id = ++c->request;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_GENERATE;
	envelope.generate = &generate;
	assert_int_equal(bus_send(s->socket, &envelope), 0);
}

static inline void call_credit(struct service *s, struct call *c, uint32_t credit)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Credit body = OUTRIDER__CREDIT__INIT;

	c->credit = credit;
	body.session_uid = c->uid;
	body.credit = credit;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_CREDIT;
	envelope.credit = &body;
	assert_int_equal(bus_send(s->socket, &envelope), 0);
}

static inline void call_resume(struct service *s, struct call *c)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Resume body = OUTRIDER__RESUME__INIT;

	body.session_uid = c->uid;
	body.credit = c->credit;
	body.have = c->n;
	body.arithmetic = c->arithmetic;
	envelope.request_id = ++c->request;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_RESUME;
	envelope.resume = &body;
	assert_int_equal(bus_send(s->socket, &envelope), 0);
}

static inline void call_cancel(struct service *s, const struct call *c)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Cancel body = OUTRIDER__CANCEL__INIT;

	body.session_uid = c->uid;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_CANCEL;
	envelope.cancel = &body;
	assert_int_equal(bus_send(s->socket, &envelope), 0);
}

static inline void call_text(struct call *c, const ProtobufCBinaryData *text)
{
	assert_true(c->n_text + text->len < sizeof(c->text));
	if (text->len > 0)
		memcpy(c->text + c->n_text, text->data, text->len);
	c->n_text += text->len;
	c->text[c->n_text] = '\0';
}

static inline void call_take(struct call *c, const Outrider__Envelope *e)
{
	if (e->request_id != c->request && e->request_id != 0)
		return;
	if (e->body_case == OUTRIDER__ENVELOPE__BODY_TOKENS) {
		const Outrider__Tokens *t = e->tokens;

		assert_int_equal(t->first, c->n);
		assert_true(t->first + t->n_ids <= c->credit);
		for (size_t i = 0; i < t->n_ids; i++) {
			assert_true(c->n < SERVICE_OUT_MAX);
			if (c->hashes && t->n_logits_hash == t->n_ids)
				c->hash[c->n] = t->logits_hash[i];
			c->token[c->n++] = t->ids[i];
		}
		call_text(c, &t->text);
	} else if (e->body_case == OUTRIDER__ENVELOPE__BODY_DONE) {
		c->done = true;
		c->end = e->done->end;
		c->drafted = e->done->usage->drafted;
		c->accepted = e->done->usage->accepted;
		c->restarts = e->done->usage->restarts;
		snprintf(c->stopped_by, sizeof(c->stopped_by), "%s", e->done->stop);
		call_text(c, &e->done->text);
	} else if (e->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
		c->failure = e->failure->code;
		snprintf(c->message, sizeof(c->message), "%s", e->failure->message);
	}
}

static inline uint64_t call_uid(const Outrider__Envelope *e)
{
	switch (e->body_case) {
	case OUTRIDER__ENVELOPE__BODY_TOKENS:
		return e->tokens->session_uid;
	case OUTRIDER__ENVELOPE__BODY_DONE:
		return e->done->session_uid;
	case OUTRIDER__ENVELOPE__BODY_FAILURE:
		return e->failure->session_uid;
	default:
		return 0;
	}
}

/* Takes messages for the calls until it is enough or the time is over, of which a pause of the
 * machine is no part; returns whether it was enough. */
static inline bool calls_until(struct service *s, struct call *calls, size_t n,
	bool (*enough)(const struct call *calls, size_t n), uint64_t timeout_ns)
{
	struct patience patience;
	struct error err;

	patience_init(&patience, (int)(timeout_ns / 1000000));
	while (!enough(calls, n)) {
		Outrider__Envelope *e;

		if (patience_step_ms(&patience) == 0)
			return false;
		int rc = bus_receive(s->socket, 20, &e, &err);
		if (rc == -EAGAIN)
			continue;
		assert_int_equal(rc, 0);
		for (size_t i = 0; i < n; i++)
			if (call_uid(e) == calls[i].uid ||
				(call_uid(e) == 0 &&
					e->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE))
				call_take(&calls[i], e);
		bus_free(&e);
	}
	return true;
}

static inline bool all_over(const struct call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!calls[i].done && calls[i].failure == 0)
			return false;
	return true;
}

static inline void call_check(const struct call *c)
{
	assert_int_equal(c->failure, 0);
	assert_true(c->done);
	assert_int_equal(c->n, c->max_tokens);
	assert_memory_equal(c->token, c->answer->token, c->n * sizeof(*c->token));
	if (c->hashes)
		assert_memory_equal(c->hash, c->answer->hash, c->n * sizeof(*c->hash));
}

/* ---- A drafter of the test's own: proposes from the answers, wrongly at every `wrong`-th
 * position. ---- */

struct drafter {
	struct daemon *daemon;
	struct broker *broker;
	struct link *link;
	struct region sessions, draft, kv;
	struct draft_rings rings;
	const struct answer *answers;
	uint32_t n_answers, wrong;
	bool tree, rubbish;
	/* A draft of answers[late] takes late_ns; the last that was asked for waits here. */
	uint32_t late;
	uint64_t late_ns, held_ns;
	struct draft_request held;
};

static inline void drafter_keep(struct drafter *d, const char *want, const char *name, int fd,
	uint32_t layout, struct region *region)
{
	struct error err;

	if (strcmp(want, name) != 0)
		return;
	struct region fresh;
	bool rings = strcmp(name, DRAFT_REGION) == 0;
	if (region_attach(dup(fd), name, layout, REGION_DATA, rings, &fresh, &err) != 0)
		_exit(3);
	if (region->header && region->header->uid == fresh.header->uid) {
		region_close(&fresh);
		return;
	}
	if (region->header)
		region_close(region);
	*region = fresh;
	broker_keep(d->broker, region);
	if (rings && draft_attach(&d->rings, region_payload(region), region->bytes - REGION_DATA,
			     &err) != 0)
		_exit(4);
}

static inline int drafter_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	struct drafter *d = arg;

	(void)peer;
	for (size_t i = 0; i < n; i++) {
		drafter_keep(d, SESSIONS_REGION, names[i], fds[i], SESSIONS_LAYOUT, &d->sessions);
		drafter_keep(d, DRAFT_REGION, names[i], fds[i], DRAFT_LAYOUT, &d->draft);
		drafter_keep(d, KV_REGION, names[i], fds[i], KV_REGION_LAYOUT, &d->kv);
	}
	return 0;
}

static inline const struct answer *drafter_answer(
	const struct drafter *d, const struct session_page *page)
{
	for (uint32_t i = 0; i < d->n_answers; i++)
		if (page->n_prompt == d->answers[i].n_prompt &&
			memcmp(page->tokens, d->answers[i].prompt,
				page->n_prompt * sizeof(int32_t)) == 0 &&
			page->request.sampling.seed == d->answers[i].sampling.seed)
			return &d->answers[i];
	return NULL;
}

static inline void drafter_fill(
	const struct drafter *d, const struct draft_request *request, struct draft_reply *reply)
{
	struct sessions_header *header = region_payload(&d->sessions);
	const struct session_page *page =
		session_at(header, header, request->page % header->n_sessions);
	const struct answer *a = drafter_answer(d, page);
	uint32_t at = request->n_tokens - page->n_prompt;

	if (!a)
		return;
	for (uint32_t i = 0; i < request->budget.nodes && at + i < a->n; i++) {
		bool wrong = d->wrong && (at + i) % d->wrong == d->wrong - 1;
		int parent = (int)i - 1;
		int32_t token = a->token[at + i];

		/* A tree: the second token is a false brother of the first, and the third goes on
		 * from the first. */
		if (d->tree && i == 1) {
			parent = -1;
			token = (a->token[at] + 1) % 4096;
		} else if (d->tree && i >= 2) {
			parent = i == 2 ? 0 : (int)i - 1;
			token = a->token[at + i - 1];
		}
		reply->node[reply->n++] = (struct draft_node){
			.token = wrong ? (token + 7) % 4096 : token,
			.parent = (int16_t)parent,
			.confidence = DRAFT_CONFIDENCE,
		};
	}
	if (d->rubbish) {
		reply->node[0] = (struct draft_node){.token = 1 << 30, .parent = 100};
		reply->n = 200;
	}
}

static inline void drafter_answer_to(struct drafter *d, const struct draft_request *request)
{
	struct draft_node node[LIMIT_DRAFT_NODES] = {0};
	struct draft_supports none = {0};
	struct draft_reply reply = {
		.session = request->session,
		.sequence = request->sequence,
		.page = request->page,
		.n_tokens = request->n_tokens,
		.method = DRAFT_REPLAY,
		.node = node,
	};

	if (request->budget.nodes == 0)
		return;
	drafter_fill(d, request, &reply);
	draft_send(&d->rings.replies, &none, &reply, false);
}

static inline bool drafter_is_late(const struct drafter *d, const struct draft_request *request)
{
	struct sessions_header *header = region_payload(&d->sessions);
	const struct session_page *page =
		session_at(header, header, request->page % header->n_sessions);

	return d->late_ns > 0 && drafter_answer(d, page) == &d->answers[d->late];
}

static inline void drafter_serve(void *arg)
{
	struct drafter *d = arg;
	struct draft_request request;

	if (!d->draft.header || !d->sessions.header)
		return;
	while (ring_get(&d->rings.requests, &request, sizeof(request))) {
		if (!drafter_is_late(d, &request)) {
			drafter_answer_to(d, &request);
			continue;
		}
		d->held = request;
		d->held_ns = clock_ns();
	}
	if (d->held_ns != 0 && clock_ns() - d->held_ns >= d->late_ns) {
		d->held_ns = 0;
		drafter_answer_to(d, &d->held);
	}
}

/* What the drafter's process is told, through a file in memory. */
struct drafter_order {
	char dir[128];
	uint32_t n_answers, wrong;
	bool tree, rubbish;
	uint32_t late;
	uint64_t late_ns;
	struct answer answers[SERVICE_ANSWERS];
};

/* Its own program from the start, not a fork of this one: it makes threads, and so has this
 * process, which the thread sanitizer does not allow. */
static inline void service_drafter_as(struct service *s, struct drafter_order *order,
	const struct answer *answers, uint32_t n_answers)
{
	int fd = memfd_create("drafter-order", 0);
	char text[16];

	assert_true(n_answers <= SERVICE_ANSWERS && sizeof(s->dir) <= sizeof(order->dir));
	order->n_answers = n_answers;
	memcpy(order->dir, s->dir, sizeof(s->dir));
	memcpy(order->answers, answers, n_answers * sizeof(*answers));
	assert_int_equal(write(fd, order, sizeof(*order)), sizeof(*order));
	snprintf(text, sizeof(text), "%d", fd);
	s->drafter = fork();
	assert_true(s->drafter >= 0);
	if (s->drafter == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/proc/self/exe", "drafter", "--drafter", text, (char *)NULL);
		_exit(127);
	}
	close(fd);
}

static inline void service_drafter(struct service *s, const struct answer *answers,
	uint32_t n_answers, uint32_t wrong, bool tree, bool rubbish)
{
	static struct drafter_order order;

	order = (struct drafter_order){.wrong = wrong, .tree = tree, .rubbish = rubbish};
	service_drafter_as(s, &order, answers, n_answers);
}

/* One that is late with the drafts of answers[late]. */
static inline void service_late_drafter(struct service *s, const struct answer *answers,
	uint32_t n_answers, uint32_t late, uint64_t late_ns)
{
	static struct drafter_order order;

	order = (struct drafter_order){.late = late, .late_ns = late_ns};
	service_drafter_as(s, &order, answers, n_answers);
}

/* The test program's main, when it was started by service_drafter. */
static inline int service_drafter_main(int fd)
{
	static struct drafter_order order;

	if (pread(fd, &order, sizeof(order), 0) != sizeof(order))
		return 1;
	struct drafter d = {.answers = order.answers,
		.n_answers = order.n_answers,
		.wrong = order.wrong,
		.tree = order.tree,
		.rubbish = order.rubbish,
		.late = order.late,
		.late_ns = order.late_ns};
	const struct daemon_options options = {.name = PEER_DRAFTER, .runtime_dir = order.dir};
	const struct link_events events = {.regions = drafter_regions, .arg = &d};
	struct error err;

	if (daemon_create(&options, &d.daemon, &err) != 0 ||
		broker_open(d.daemon, NULL, &d.broker, &err) != 0 ||
		daemon_admin_open(d.daemon, NULL, NULL, &err) != 0 ||
		link_open(d.daemon, PEER_VERIFIER, &events, &d.link, &err) != 0 ||
		daemon_add_timer(d.daemon, 1000000, drafter_serve, &d) < 0)
		return 2;
	return daemon_run(d.daemon);
}
