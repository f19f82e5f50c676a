#include "services/expert-cache/budget.h"

#include "shared/base/config.h"
#include "shared/base/decimal.h"
#include "shared/base/saturate.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The forms that the knob accepts; every refusal lists them. */
#define FORMS                                                                             \
	"budget takes auto, all, min, a share of the experts such as 30%, or bytes such " \
	"as 8G (GiB) or 8GB"

static int refuse(const char *text, struct error *err)
{
	return error_set(
		err, ENOEXEC, "budget: %s is not allowed; %s", *text ? text : "\"\"", FORMS);
}

bool budget_is_auto(const char *text)
{
	return strcmp(text, BUDGET_AUTO) == 0;
}

static uint32_t slots_in(uint64_t room, const struct slots_geometry *geometry)
{
	uint64_t slots = room / geometry->slot_bytes;
	uint32_t least = slots_min(geometry);
	if (slots < least)
		return least;
	return slots > geometry->n_total ? geometry->n_total : (uint32_t)slots;
}

static int parse(const char *text, const struct slots_geometry *geometry, uint64_t room,
	double *slots, struct error *err)
{
	if (budget_is_auto(text)) {
		*slots = slots_in(room, geometry);
		return 0;
	}
	if (strcmp(text, "all") == 0) {
		*slots = geometry->n_total;
		return 0;
	}
	if (strcmp(text, "min") == 0) {
		*slots = slots_min(geometry);
		return 0;
	}
	const char *end;
	double value = decimal_read(text, &end);
	if (end == text || !isfinite(value) || value <= 0)
		return refuse(text, err);
	if (strcmp(end, "%") == 0) {
		if (value > 100)
			return error_set(err, ENOEXEC,
				"budget: %s is more than all experts, which are 100%%; %s", text,
				FORMS);
		/* A share that is whole except for rounding errors is not rounded up. */
		*slots = ceil(geometry->n_total * value / 100 - 1e-9);
		return 0;
	}
	double unit = config_factor(CONFIG_BYTES, end);
	if (unit == 0)
		return refuse(text, err);
	if (value * unit >= 0x1p63)
		return error_set(err, ENOEXEC, "budget: %s is 2^63 bytes or more; %s", text, FORMS);
	*slots = floor(value * unit / (double)geometry->slot_bytes);
	return 0;
}

int budget_slots(const char *text, const struct slots_geometry *geometry, uint64_t room,
	struct budget *out, struct error *err)
{
	double slots = 0;
	int status = parse(text, geometry, room, &slots, err);
	if (status != 0)
		return status;
	uint32_t least = slots_min(geometry);
	/* A plain number. */
	bool bytes = text[strspn(text, "0123456789.")] == '\0';
	if (slots < least)
		return error_set(err, ENOEXEC,
			"budget: %s%s has room for %.0f experts, but one layer of one verification "
			"may need %u: the least is min, %s%s",
			text, bytes ? " bytes" : "", slots, least,
			UNITS_SIZE(least * geometry->slot_bytes),
			bytes ? "; write a unit (K, M, G), or % for a share of all experts" : "");
	out->n_slots = slots > geometry->n_total ? geometry->n_total : (uint32_t)slots;
	out->bytes = out->n_slots * geometry->slot_bytes;
	/* Below 2^63: see parse. */
	out->asked_bytes = (uint64_t)(slots * (double)geometry->slot_bytes);
	return 0;
}

uint64_t budget_automatic(const struct slots_geometry *geometry, uint64_t room)
{
	return slots_in(room, geometry) * geometry->slot_bytes;
}

/* Says which budgets, or if not even the least fits which limits, would not be refused. */
static void advise(const struct memory_limit *limit, uint64_t most, uint64_t automatic,
	uint64_t limit_least, char *out, size_t out_bytes)
{
	out[0] = '\0';
	if (automatic <= most)
		snprintf(out, out_bytes,
			": budget %s is the largest allowed; budget auto takes %s and leaves the "
			"rest of the service what it needs",
			units_setting(most, (char[UNITS_BYTES]){0}), UNITS_SIZE(automatic));
	else if (limit->bytes < limit_least)
		snprintf(out, out_bytes,
			": one layer may need %s of them, which with everything else takes about "
			"%" PRIu64 " MiB: give it that much, or serve a model with smaller experts",
			UNITS_SIZE(automatic), (limit_least >> 20) + 1);
	else if (automatic < UINT64_MAX)
		snprintf(out, out_bytes,
			": budget auto takes %s, and other programs use the memory for that",
			UNITS_SIZE(automatic));
}

int budget_check_memory(const struct budget *budget, const struct memory_limit *limit, uint64_t had,
	uint64_t held, uint64_t automatic, uint64_t limit_least, struct error *err)
{
	uint64_t available = saturate_add(limit->available, had);
	uint64_t whole = saturate_sub(limit->bytes, held);
	char advice[192];
	advise(limit, available < whole ? available : whole, automatic, limit_least, advice,
		sizeof(advice));
	if (budget->asked_bytes > limit->bytes)
		return error_set(err, ENOMEM, "budget: %s for experts, but %s has at most %s%s",
			UNITS_SIZE(budget->asked_bytes), limit->where, UNITS_SIZE(limit->bytes),
			advice);
	if (budget->bytes > had && budget->bytes > whole)
		return error_set(err, ENOMEM,
			"budget: %s for experts, but of the %s that %s has the "
			"verifier takes %s for its KV cache and sessions%s",
			UNITS_SIZE(budget->bytes), UNITS_SIZE(limit->bytes), limit->where,
			UNITS_SIZE(held), advice);
	if (budget->bytes > had && budget->bytes > available)
		return error_set(err, ENOMEM,
			"budget: %s for experts are %s more than they have, but only "
			"%s of memory are available%s",
			UNITS_SIZE(budget->bytes), UNITS_SIZE(budget->bytes - had),
			UNITS_SIZE(limit->available), advice);
	return 0;
}

/* Lists the four parts that are not experts. */
static void describe_rest(const struct room *room, char *out, size_t out_bytes)
{
	const struct slots_needs *of = &room->needs.of;
	snprintf(out, out_bytes,
		"%s for other weights, %s for the KV cache%s, %s for sessions and drafts, "
		"%s in reserve",
		UNITS_SIZE(of->weights), UNITS_SIZE(of->kv),
		room->needs.said ? "" : " at its default size", UNITS_SIZE(of->rest),
		UNITS_SIZE(room->reserve));
}

void budget_describe(const struct room *room, const char *where, char *out, size_t out_bytes)
{
	char rest[256];
	describe_rest(room, rest, sizeof(rest));
	snprintf(out, out_bytes, "%s: the %s%s%s less %s", UNITS_SIZE(room->bytes),
		UNITS_SIZE(room->memory), room->free_of_it ? " free of " : " of ", where, rest);
}

static void notice_auto(const struct budget *budget, const struct slots_geometry *geometry,
	const struct room *room, const char *where, char *out, size_t out_bytes)
{
	uint64_t all = geometry->n_total * geometry->slot_bytes;
	char rest[256];
	bool short_of_room = budget->bytes > room->bytes;
	if (budget->n_slots == geometry->n_total && !short_of_room) {
		snprintf(out, out_bytes, "budget auto: all experts, %s; --budget SIZE changes it",
			UNITS_SIZE(all));
		return;
	}
	describe_rest(room, rest, sizeof(rest));
	snprintf(out, out_bytes,
		"budget auto: %s of %s of experts%s: the %s%s%s less %s; --budget "
		"SIZE changes it",
		UNITS_SIZE(budget->bytes), UNITS_SIZE(all),
		short_of_room ? ", which is the least and more than there is room for" : "",
		UNITS_SIZE(room->memory), room->free_of_it ? " free of " : " of ", where, rest);
}

void budget_notice(const char *text, const struct budget *budget,
	const struct slots_geometry *geometry, const struct room *room, const char *where,
	char *out, size_t out_bytes)
{
	char rest[256];
	out[0] = '\0';
	if (budget_is_auto(text)) {
		notice_auto(budget, geometry, room, where, out, out_bytes);
		return;
	}
	uint64_t automatic = budget_automatic(geometry, room->bytes);
	if (budget->bytes <= automatic)
		return;
	describe_rest(room, rest, sizeof(rest));
	snprintf(out, out_bytes,
		"budget %s: %s for experts leave the rest of the service less than it %s need: %s; "
		"budget auto takes %s",
		text, UNITS_SIZE(budget->bytes), room->needs.said ? "may" : "is estimated to", rest,
		UNITS_SIZE(automatic));
}
