#include "client/cli/doctor/doctor.h"

#include "shared/base/json_text.h"

#include <string.h>

/* A number that may not be known. */
static json_t *known(uint64_t value)
{
	return value == UINT64_MAX ? json_null() : json_integer((json_int_t)value);
}

static json_t *text_or_null(const char *text)
{
	return text && text[0] ? json_text(text) : json_null();
}

static json_t *findings_json(const struct findings *findings)
{
	json_t *all = json_array();

	for (size_t i = 0; i < findings->n; i++) {
		const struct finding *f = &findings->all[i];

		json_array_append_new(
			all, json_pack("{s:s,s:s,s:o,s:o}", "name", f->name, "level",
				     finding_level_name(f->level), "text", json_text(f->text),
				     "todo", text_or_null(f->todo)));
	}
	return all;
}

static json_t *machine_json(const struct machine *m)
{
	json_t *all = json_pack("{s:o,s:s,s:i,s:i,s:i,s:f,s:i}", "cpu", json_text(m->cpu),
		"kernels", m->kernels, "cpus", (int)m->cpus.n, "cores", (int)m->cpus.cores,
		"threads", (int)m->cpus.threads, "quota", m->cpus.quota, "nodes", (int)m->nodes);

	json_object_set_new(all, "memory_bytes", known(m->memory.bytes));
	json_object_set_new(all, "memory_free_bytes", known(m->memory.available));
	json_object_set_new(all, "memory_limit", text_or_null(m->memory.where));
	json_object_set_new(all, "swap_bytes", known(m->swap_total));
	json_object_set_new(all, "swap_free_bytes", known(m->swap_free));
	json_object_set_new(all, "huge_pages", known(m->huge_total));
	json_object_set_new(all, "huge_pages_free", known(m->huge_free));
	json_object_set_new(all, "transparent_huge_pages", text_or_null(m->thp));
	json_object_set_new(all, "transparent_huge_pages_shared", text_or_null(m->thp_shared));
	json_object_set_new(all, "memlock_bytes", known(m->memlock));
	json_object_set_new(all, "io_uring", json_boolean(m->io_uring == 0));
	json_object_set_new(all, "io_uring_disabled",
		m->io_uring_disabled < 0 ? json_null() : json_integer(m->io_uring_disabled));
	json_object_set_new(all, "descriptors", known(m->files_most));
	json_object_set_new(all, "gpus", json_integer(m->n_gpus));
	json_object_set_new(all, "nvidia_driver", text_or_null(m->driver));
	json_object_set_new(all, "gpu_usable", json_boolean(m->gpu_usable));
	json_object_set_new(all, "gpu_use", text_or_null(m->gpu_use));
	json_object_set_new(all, "units", text_or_null(m->units));
	return all;
}

static json_t *facts_json(const char *path, const struct facts *f)
{
	return json_pack("{s:o,s:s,s:I,s:i,s:i,s:i,s:I,s:I,s:I,s:I}", "file", json_text(path),
		"architecture", f->model->config.arch->name, "bytes", (json_int_t)f->bytes,
		"layers", (int)f->model->config.n_layers, "experts", (int)f->experts,
		"experts_used", (int)f->used, "expert_bytes", (json_int_t)f->expert_bytes,
		"token_dense_bytes", (json_int_t)f->dense_token_bytes, "token_expert_bytes",
		(json_int_t)f->expert_token_bytes, "token_kv_bytes", (json_int_t)f->kv_token_bytes);
}

static json_t *storage_json(const struct storage *s)
{
	json_t *cached = s->cached_bytes < 0 ? json_null() : json_integer(s->cached_bytes);

	return json_pack("{s:o,s:o,s:b,s:o,s:o,s:o}", "type", text_or_null(s->type), "source",
		text_or_null(s->source), "network", s->network, "rotates",
		s->rotates < 0 ? json_null() : json_boolean(s->rotates), "free_bytes",
		known(s->free_bytes), "cached_bytes", cached);
}

static json_t *disk_json(const struct measured_disk *m)
{
	if (m->random_gb_s <= 0)
		return json_null();
	return json_pack("{s:s,s:b,s:i,s:I,s:f,s:f,s:f,s:f}", "link", m->link, "direct", m->direct,
		"depth", (int)m->depth, "read_bytes", (json_int_t)m->piece_bytes, "random_gb_s",
		m->random_gb_s, "layer_gb_s", m->layer_gb_s, "sequential_gb_s", m->sequential_gb_s,
		"cached_gb_s", m->cached_gb_s);
}

static json_t *measured_json(const struct measured *m)
{
	json_t *counts = json_array();

	for (uint32_t i = 0; i < m->n_counts; i++)
		json_array_append_new(
			counts, json_pack("{s:i,s:f}", "threads", (int)m->counts[i].threads, "gb_s",
					m->counts[i].gb_s));
	return json_pack("{s:o,s:I,s:f,s:o}", "memory", counts, "memory_read_bytes",
		(json_int_t)m->read_bytes, "hand_over_us", m->hand_over_us, "disk",
		disk_json(&m->disk));
}

static json_t *prediction_json(const struct prediction *p)
{
	json_t *rows = json_array(), *drafts = json_array();

	for (uint32_t i = 0; i < p->n_rows; i++) {
		const struct predict_row *r = &p->rows[i];

		json_array_append_new(rows,
			json_pack("{s:f,s:I,s:f,s:f,s:f,s:b}", "share", r->share, "budget_bytes",
				(json_int_t)r->bytes, "compute_ms", r->compute_ms, "disk_ms",
				r->disk_ms, "tokens_per_s", r->tokens_s, "planned", r->planned));
	}
	for (int i = 0; i < PREDICT_DRAFTS; i++) {
		const struct predict_draft *d = &p->drafts[i];

		json_array_append_new(drafts,
			json_pack("{s:i,s:f,s:o}", "k", (int)d->k, "cost", d->cost,
				"pays_from_acceptance",
				d->break_even > 1 ? json_null() : json_real(d->break_even)));
	}
	return json_pack("{s:f,s:f,s:f,s:o,s:f,s:o}", "tokens_per_s", p->expected_tokens_s,
		"tokens_per_s_all_experts", p->tokens_s, "token_bytes", p->token_bytes, "budgets",
		rows, "draft_token_ms", p->draft_token_ms, "drafts", drafts);
}

static json_t *extent_json(const struct device_extent *extent)
{
	return json_pack("{s:I,s:I,s:I,s:I}", "sessions_max", (json_int_t)extent->sessions,
		"prefill_chunk", (json_int_t)extent->chunk, "context", (json_int_t)extent->context,
		"kv_tokens", (json_int_t)extent->kv_tokens);
}

static json_t *device_json(const struct device_plan *p)
{
	return json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:b,s:o,s:i,s:i,s:i,s:I}", "name",
		json_text(p->name), "memory_bytes", (json_int_t)p->bytes, "memory_free_bytes",
		(json_int_t)p->free, "limit_bytes", (json_int_t)p->limit, "weights_bytes",
		(json_int_t)p->weights, "passes_bytes", (json_int_t)p->passes, "kv_bytes",
		(json_int_t)p->kv, "spare_bytes", (json_int_t)p->spare, "settings",
		extent_json(&p->extent), "runs", p->runs, "would_fit",
		p->less_runs ? extent_json(&p->less) : json_null(), "experts", (int)p->experts,
		"experts_fit", (int)(p->runs ? p->fit : 0), "experts_least", (int)p->least,
		"experts_fit_bytes", (json_int_t)(p->runs ? p->fit_bytes : 0));
}

static json_t *plan_json(const struct doctor *d)
{
	const struct plan *p = &d->plan;

	return json_pack("{s:b,s:b,s:I,s:i,s:i,s:I,s:I,s:s,s:I,s:I,s:f,s:I,s:s}", "runs", p->runs,
		"all_experts_fit", p->all, "sessions_max", (json_int_t)p->sessions, "context",
		(int)p->context, "context_most", (int)p->context_most, "kv_bytes",
		(json_int_t)p->kv_bytes, "prefix_buffers_bytes", (json_int_t)p->disk_bytes,
		"budget", "auto", "budget_bytes", (json_int_t)p->budget_bytes, "experts_bytes",
		(json_int_t)p->all_bytes, "experts_share", p->share, "least_bytes",
		(json_int_t)p->least_bytes, "policy", "yield");
}

json_t *doctor_json(const struct doctor *d)
{
	json_t *all = json_pack("{s:b,s:s,s:o,s:o}", "ok",
		findings_count(&d->findings, FINDING_PROBLEM) == 0, "version", OUTRIDER_VERSION,
		"findings", findings_json(&d->findings), "machine", machine_json(&d->machine));

	json_object_set_new(
		all, "model", d->has_model ? facts_json(d->model_path, &d->model) : json_null());
	json_object_set_new(
		all, "draft", d->has_draft ? facts_json(d->draft_path, &d->draft) : json_null());
	json_object_set_new(all, "storage", d->has_model ? storage_json(&d->storage) : json_null());
	json_object_set_new(
		all, "device", d->has_device ? device_json(&d->on_device) : json_null());
	json_object_set_new(
		all, "measured", d->has_measured ? measured_json(&d->measured) : json_null());
	json_object_set_new(
		all, "expected", d->has_prediction ? prediction_json(&d->prediction) : json_null());
	json_object_set_new(all, "settings", d->has_model ? plan_json(d) : json_null());
	return all;
}
