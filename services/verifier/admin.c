/* Answers to administrators. The reply's strings and arrays are malloc'd: the daemon frees them. */
#include "services/verifier/front/front.h"
#include "services/verifier/state/device.h"

#include "shared/base/arithmetic.h"
#include "shared/base/clock.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"

#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {"free", "queued", "prefill", "running", "done"};

static Outrider__Session *describe(const struct front *front, uint32_t index)
{
	const struct slot *slot = &front->slots[index];
	const struct session_page *page = slot->page;
	Outrider__Session *s = malloc(sizeof(*s));
	uint32_t state = journal_state(page);
	uint64_t now_ns = clock_ns();

	if (s == NULL)
		return NULL;
	outrider__session__init(s);
	s->uid = atomic_load_explicit(&page->uid, memory_order_relaxed);
	bool asleep = atomic_load_explicit(&slot->asleep, memory_order_relaxed) != SLEEP_NOT;
	s->state = strdup(state > SESSION_DONE		    ? "unknown"
			  : asleep && state != SESSION_DONE ? "asleep"
							    : state_names[state]);
	s->prompt_tokens = page->n_prompt;
	s->output_tokens = journal_n_tokens(page) - page->n_prompt;
	s->max_tokens = page->request.max_tokens;
	s->k = page->request.k != SESSION_K_POLICY
		       ? (uint32_t)page->request.k
		       : atomic_load_explicit(&page->k, memory_order_relaxed);
	s->draft_method = strdup(draft_method_names[page->request.draft_method]);
	s->drafted = atomic_load_explicit(&page->drafted, memory_order_relaxed);
	s->accepted = atomic_load_explicit(&page->accepted, memory_order_relaxed);
	s->iterations = atomic_load_explicit(&page->iterations, memory_order_relaxed);
	uint64_t begun_ns = atomic_load_explicit(&page->begun_ns, memory_order_relaxed);
	uint64_t ended_ns = atomic_load_explicit(&page->ended_ns, memory_order_relaxed);
	if (ended_ns == 0)
		ended_ns = now_ns;
	s->age_ns = now_ns > begun_ns ? now_ns - begun_ns : 0;
	if (ended_ns > begun_ns)
		s->tokens_per_s =
			(float)((double)s->output_tokens * 1e9 / (double)(ended_ns - begun_ns));
	s->slot = index;
	s->class_name = strdup(page->request.of_class.name);
	s->priority = page->request.of_class.priority;
	if (s->class_name == NULL || s->state == NULL || s->draft_method == NULL) {
		outrider__session__free_unpacked(s, NULL);
		return NULL;
	}
	return s;
}

/* Lets a session sleep, or wakes it; the reply is the session. */
static bool let_sleep(
	struct front *front, const Outrider__SessionSleep *wanted, Outrider__Envelope *reply)
{
	struct error err;
	int index = sleep_tell(front, wanted->uid, wanted->wake, &err);

	if (index < 0) {
		daemon_failure(reply, -index, wanted->uid, err.text);
		return true;
	}
	Outrider__Sessions *out = malloc(sizeof(*out));
	if (out == NULL)
		return false;
	outrider__sessions__init(out);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS;
	reply->sessions = out;
	out->sessions = calloc(1, sizeof(*out->sessions));
	if (out->sessions == NULL)
		return false;
	out->sessions[0] = describe(front, (uint32_t)index);
	out->n_sessions = out->sessions[0] != NULL;
	return out->sessions[0] != NULL;
}

static bool sessions(const struct front *front, Outrider__Envelope *reply)
{
	Outrider__Sessions *out = malloc(sizeof(*out));

	if (out == NULL)
		return false;
	outrider__sessions__init(out);
	out->sessions = calloc(LIMIT_SESSIONS, sizeof(*out->sessions));
	for (uint32_t i = 0; out->sessions != NULL && i < LIMIT_SESSIONS; i++) {
		if (!front->sessions[i].used)
			continue;
		if (journal_state(front->slots[i].page) == SESSION_QUEUED)
			out->queued++;
		out->sessions[out->n_sessions] = describe(front, i);
		if (out->sessions[out->n_sessions] != NULL)
			out->n_sessions++;
	}
	out->queue_max = (uint32_t)front->config->queue_max;
	out->output_tokens_total =
		atomic_load_explicit(&front->engine->output_total, memory_order_relaxed);
	out->iterations_total =
		atomic_load_explicit(&front->engine->iterations_total, memory_order_relaxed);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS;
	reply->sessions = out;
	return true;
}

static bool model(const struct front *front, Outrider__Envelope *reply)
{
	const struct model_config *config = &front->model->config;
	Outrider__Model *out = malloc(sizeof(*out));

	if (out == NULL)
		return false;
	outrider__model__init(out);
	out->path = strdup(front->regions->header.model_path);
	out->arch = strdup(config->arch->name);
	out->kernels = strdup(front->backend->variant);
	out->kv_type = strdup(kv_type_name(verifier_config_kv_type(front->config, front->model)));
	out->n_context = (uint32_t)front->config->context;
	out->n_vocab = config->n_vocab;
	out->n_layers = config->n_layers;
	out->n_experts = config->n_experts;
	out->threads = (uint32_t)front->config->threads;
	reply->body_case = OUTRIDER__ENVELOPE__BODY_MODEL;
	reply->model = out;
	if (out->path == NULL || out->arch == NULL || out->kernels == NULL || out->kv_type == NULL)
		return false;
	return tokenizer_list_eog(front->tokenizer, config->n_vocab, &out->eog, &out->n_eog) == 0;
}

static Outrider__DraftTreeNode *describe_node(
	const struct front *front, const struct select_view_node *of)
{
	struct gguf_string piece = tokenizer_piece(front->tokenizer, of->token, true);
	Outrider__DraftTreeNode *node = malloc(sizeof(*node));

	if (node == NULL)
		return NULL;
	outrider__draft_tree_node__init(node);
	node->token = of->token;
	node->text.data = malloc(piece.bytes + 1);
	if (node->text.data != NULL && piece.bytes > 0)
		memcpy(node->text.data, piece.data, piece.bytes);
	node->text.len = node->text.data != NULL ? piece.bytes : 0;
	node->parent = of->parent;
	node->confidence = of->confidence;
	node->chance = of->judged.chance;
	node->cost_ns = of->judged.cost_ns;
	node->in_slots =
		(uint32_t)of->judged.fresh - of->judged.coming - (uint32_t)of->judged.absent;
	node->in_flight = of->judged.coming;
	node->to_load = of->judged.absent;
	node->why = of->judged.why;
	return node;
}

static bool draft_tree(const struct front *front, uint64_t uid, Outrider__Envelope *reply)
{
	int index = uid != 0 ? front_find(front, uid) : -1;
	struct select_view *view = malloc(sizeof(*view));
	Outrider__DraftTree *out = malloc(sizeof(*out));

	if (view == NULL || out == NULL) {
		free(view);
		free(out);
		return false;
	}
	outrider__draft_tree__init(out);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_DRAFT_TREE;
	reply->draft_tree = out;
	out->session_uid = uid;
	if (index >= 0 && select_read(&front->engine->select, (uint32_t)index, uid, view)) {
		out->iteration = view->iteration;
		out->method =
			strdup(draft_method_names[view->method < DRAFT_METHODS ? view->method : 0]);
		out->token_ns = view->prices.token;
		out->row_ns = view->prices.row;
		out->expert_ns = view->prices.expert;
		out->load_ns = view->prices.load;
		out->nodes = calloc(view->n + 1, sizeof(*out->nodes));
		for (uint32_t i = 0; out->nodes != NULL && i < view->n; i++) {
			out->nodes[i] = describe_node(front, &view->node[i]);
			if (out->nodes[i] == NULL)
				break;
			out->n_nodes++;
		}
	}
	free(view);
	return true;
}

int admin_handle(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply)
{
	struct front *front = arg;

	switch (request->body_case) {
	case OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST:
		return sessions(front, reply) ? 0 : -ENOMEM;
	case OUTRIDER__ENVELOPE__BODY_SESSION_SLEEP:
		return let_sleep(front, request->session_sleep, reply) ? 0 : -ENOMEM;
	case OUTRIDER__ENVELOPE__BODY_MODEL_REQUEST:
		return model(front, reply) ? 0 : -ENOMEM;
	case OUTRIDER__ENVELOPE__BODY_DRAFT_TREE_REQUEST:
		return draft_tree(front, request->draft_tree_request->session_uid, reply) ? 0
											  : -ENOMEM;
	default:
		return -EOPNOTSUPP;
	}
}

/* How fast the answers of each class come, and by how much that misses the targets. */
static void detail_classes(const struct front *front, struct daemon_details *to)
{
	const struct targets *targets = &front->engine->targets;
	struct request_classes classes;

	if (classes_read(front->config->classes, &classes, NULL) != 0)
		return;
	daemon_detail(to, "pass_ns", "%llu",
		(unsigned long long)atomic_load_explicit(&targets->pass_ns, memory_order_relaxed));
	daemon_detail(to, "prefill_token_ns", "%llu",
		(unsigned long long)atomic_load_explicit(&targets->token_ns, memory_order_relaxed));
	for (uint32_t i = 0; i < classes.n; i++) {
		char key[LIMIT_NAME + 8], text[256];

		snprintf(key, sizeof(key), "class_%s", classes.at[i].name);
		targets_describe(targets, &classes, i, text, sizeof(text));
		daemon_detail(to, key, "%s", text);
	}
}

/* What computes: the kernels and their threads, or the device, its memory and its driver. */
static void kernels_detail(const struct front *front, struct daemon_details *to)
{
	const struct backend *backend = front->backend;
	const struct backend_device *device = backend->device;
	struct backend_memory memory;

	if (device == NULL) {
		daemon_detail(to, "kernels", "%s, %lld thread%s", backend->variant,
			(long long)front->config->threads,
			plural((uint64_t)front->config->threads));
		if (front->device_refused[0] != '\0')
			daemon_detail(to, "device_refused", "%s", front->device_refused);
		return;
	}
	backend->ops->memory(backend, &memory);
	daemon_detail(to, "kernels", "%s, %s of %s free%s%s", device->name, UNITS_SIZE(memory.free),
		UNITS_SIZE(memory.bytes), device->driver[0] != '\0' ? ", driver for CUDA " : "",
		device->driver);
	if (device->uuid[0] != '\0')
		daemon_detail(to, "device_uuid", "%s", device->uuid);
	if (front->device_ends)
		daemon_detail(to, "device_memory_shared",
			"by CUDA's IPC: when the verifier ends, the KV cache is computed again");
	daemon_detail(to, "device_kv_bytes", "%llu",
		(unsigned long long)device_kv_bytes(front->config, front->model, backend));
	daemon_detail(to, "device_bytes", "%llu", (unsigned long long)front->needs.device_there);
	daemon_detail(to, "device_whole_passes", "%llu",
		(unsigned long long)atomic_load_explicit(
			&front->engine->whole_passes, memory_order_relaxed));
	if (front->kv.wanted != 0)
		daemon_detail(to, "kv_tokens_wanted", "%lld", (long long)front->kv.wanted);
}

/* The adapter, or why there is none, and how many drafts from masks were accepted, by position. */
static void detail_adapter(const struct front *front, struct daemon_details *to)
{
	const struct masks_counts *counts = &front->engine->masks;
	char text[LIMIT_MTP_DRAFT * 48] = "";
	int at = 0;

	if (front->adapter == NULL) {
		daemon_detail(to, "adapter", "%s",
			front->adapter_refusal[0] != '\0' ? front->adapter_refusal : "none");
		return;
	}
	daemon_detail(to, "adapter", "%s", front->config->adapter);
	daemon_detail(to, "adapter_masks", "%u", front->adapter->draft_length);
	daemon_detail(to, "mask_rows", "%llu",
		(unsigned long long)atomic_load_explicit(&counts->rows, memory_order_relaxed));
	for (uint32_t i = 0; i < front->adapter->draft_length; i++)
		at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%llu/%llu",
			i > 0 ? " " : "",
			(unsigned long long)atomic_load_explicit(
				&counts->accepted[i], memory_order_relaxed),
			(unsigned long long)atomic_load_explicit(
				&counts->drafted[i], memory_order_relaxed));
	daemon_detail(to, "mask_drafts", "%s", text);
}

/* Beginnings of prompts on disk. */
static void detail_disk(const struct front *front, struct daemon_details *to)
{
	const struct engine_disk *of = &front->engine->disk;

	if (!atomic_load_explicit(&of->there, memory_order_relaxed))
		return;
	const struct {
		const char *name;
		const _Atomic uint64_t *value;
	} all[] = {
		{"disk_bytes", &of->counts.bytes},
		{"disk_files", &of->counts.files},
		{"disk_failures", &of->counts.failed},
		{"disk_saved_tokens", &of->saved_tokens},
		{"disk_found_tokens", &of->recalled_tokens},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		daemon_detail(to, all[i].name, "%llu",
			(unsigned long long)atomic_load_explicit(
				all[i].value, memory_order_relaxed));
}

void admin_detail(void *arg, struct daemon_details *to)
{
	const struct front *front = arg;
	uint32_t n[SESSION_DONE + 1] = {0};
	uint64_t held = 0, drafted = 0, accepted = 0, recent_ns;
	uint64_t total = atomic_load_explicit(&front->engine->output_total, memory_order_relaxed);
	char arithmetic[ARITHMETIC_TEXT];
	uint64_t recent = rate_grown(&front->rate, clock_ns(), total, &recent_ns);

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct session_page *page = front->slots[i].page;

		if (!front->sessions[i].used)
			continue;
		uint32_t state = journal_state(page);
		n[state]++;
		held += state != SESSION_DONE ? journal_n_tokens(page) : 0;
		drafted += atomic_load_explicit(&page->drafted, memory_order_relaxed);
		accepted += atomic_load_explicit(&page->accepted, memory_order_relaxed);
	}
	daemon_detail(to, "model", "%s", front->regions->header.model_path);
	daemon_detail(to, "context", "%lld", (long long)front->config->context);
	daemon_detail(to, "arithmetic", "%s",
		arithmetic_text(verifier_config_arithmetic(front->config), arithmetic));
	daemon_detail(to, "running", "%u", n[SESSION_PREFILL] + n[SESSION_RUNNING]);
	daemon_detail(to, "waiting", "%u", n[SESSION_QUEUED]);
	daemon_detail(to, "places", "%lld", (long long)front->config->sessions_max);
	daemon_detail(to, "recent_tokens", "%llu", (unsigned long long)recent);
	daemon_detail(to, "recent_ns", "%llu", (unsigned long long)recent_ns);
	daemon_detail(to, "kv_held_tokens", "%llu", (unsigned long long)held);
	daemon_detail(to, "kv_kept_tokens", "%llu",
		(unsigned long long)atomic_load_explicit(
			&front->engine->kept_tokens, memory_order_relaxed));
	daemon_detail(to, "kv_kept_states", "%llu",
		(unsigned long long)atomic_load_explicit(
			&front->engine->kept_states, memory_order_relaxed));
	daemon_detail(to, "cached_tokens", "%llu",
		(unsigned long long)atomic_load_explicit(
			&front->engine->cached_total, memory_order_relaxed));
	daemon_detail(to, "drafted", "%llu", (unsigned long long)drafted);
	daemon_detail(to, "accepted", "%llu", (unsigned long long)accepted);
	daemon_detail(to, "sessions", "%u running, %u waiting, %u kept",
		n[SESSION_PREFILL] + n[SESSION_RUNNING], n[SESSION_QUEUED], n[SESSION_DONE]);
	daemon_detail(to, "output_tokens", "%llu", (unsigned long long)total);
	kernels_detail(front, to);
	const struct {
		const char *name;
		const _Atomic uint64_t *value;
	} counts[] = {
		{"drafts_late_sat_out", &front->engine->late_out},
		{"drafts_late_without", &front->engine->late_without},
		{"gate_hints", &front->engine->gates.sent},
		{"gate_hints_ns", &front->engine->gates.spent_ns},
		{"far_hints", &front->engine->gates.far_sent},
		{"far_hints_ns", &front->engine->gates.far_spent_ns},
		{"routings_ns", &front->engine->feed.spent_ns},
	};
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		daemon_detail(to, counts[i].name, "%llu",
			(unsigned long long)atomic_load_explicit(
				counts[i].value, memory_order_relaxed));
	const struct {
		const char *name;
		const _Atomic uint64_t *value;
	} settings[] = {
		/* Changes of settings while running: how many, and how long it took until the
		 * engine had the last, and the slowest. */
		{"settings_taken", &front->engine->tuned},
		{"settings_ns", &front->engine->tuning_ns},
		{"settings_ns_max", &front->engine->tuning_ns_max},
		{"settings_iterations_max", &front->engine->tuning_iterations_max},
	};
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		daemon_detail(to, settings[i].name, "%llu",
			(unsigned long long)atomic_load_explicit(
				settings[i].value, memory_order_acquire));
	detail_adapter(front, to);
	detail_classes(front, to);
	detail_disk(front, to);
	daemon_detail(to, "kv_tokens", "%lld", (long long)front->config->kv_allocated);
}
