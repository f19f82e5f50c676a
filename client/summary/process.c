#include "client/summary/process.h"

#include "shared/base/json_text.h"
#include "shared/ipc/detail.h"

#include <stdlib.h>
#include <string.h>

const struct outrider_process *process_find(const struct outrider_status *status, const char *name)
{
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (strcmp(p->name, name) == 0 && p->answers)
			return p;
	}
	return NULL;
}

const char *process_detail(const struct outrider_process *process, const char *key)
{
	size_t n = strlen(key);

	for (size_t i = 0; process && i < process->n_details; i++)
		if (strncmp(process->details[i], key, n) == 0 && process->details[i][n] == '=')
			return process->details[i] + n + 1;
	return NULL;
}

uint64_t process_number(const struct outrider_process *process, const char *key)
{
	const char *value = process_detail(process, key);

	return value ? strtoull(value, NULL, 10) : 0;
}

const char *process_file(const struct outrider_process *process, const char *key)
{
	const char *path = process_detail(process, key), *slash = path ? strrchr(path, '/') : NULL;

	return slash ? slash + 1 : path;
}

static json_t *details_json(const struct outrider_process *p)
{
	json_t *details = json_object();

	for (size_t i = 0; i < p->n_details; i++) {
		const char *equals = strchr(p->details[i], '=');
		int64_t number;

		if (!equals)
			continue;
		json_t *key = json_stringn(p->details[i], (size_t)(equals - p->details[i]));
		json_object_set_new(details, json_string_value(key),
			detail_number(equals + 1, &number) ? json_integer(number)
							   : json_text(equals + 1));
		json_decref(key);
	}
	return details;
}

json_t *processes_json(const struct outrider_status *status)
{
	json_t *list = json_array();

	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		json_array_append_new(list,
			json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "name", p->name, "pid",
				p->pid ? json_integer(p->pid) : json_null(), "state",
				json_text(p->state), "generation",
				p->answers ? json_integer((json_int_t)p->generation) : json_null(),
				"uptime_ns",
				p->answers ? json_integer((json_int_t)p->uptime_ns) : json_null(),
				"rss_bytes",
				p->answers && p->rss_bytes ? json_integer((json_int_t)p->rss_bytes)
							   : json_null(),
				"version", p->answers ? json_text(p->version) : json_null(),
				"details", p->answers ? details_json(p) : json_null()));
	}
	return list;
}
