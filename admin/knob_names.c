/* Which knobs there are, and which one a person means. */
#include "admin/knob.h"

#include "shared/base/nearest.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sysexits.h>

enum { TIMEOUT_MS = 3000, COMPLETE_MS = 300 };

/* Declared here, because the headers of services/knobs have enumerators of the same names. */
extern const struct config_key verifier_config_keys[], drafter_config_keys[], cache_config_keys[],
	settings_keys[], gateway_keys[];

const struct knob_process knob_processes[KNOB_PROCESSES] = {
	{PEER_VERIFIER, NULL, verifier_config_keys, false},
	{PEER_DRAFTER, NULL, drafter_config_keys, false},
	{PEER_CACHE, "cache", cache_config_keys, false},
	{PEER_POLICY, "policy-controller", settings_keys, false},
	{PEER_GATEWAY, NULL, gateway_keys, true},
};

const struct knob_process *knob_process_of(const char *name)
{
	for (size_t i = 0; i < KNOB_PROCESSES; i++)
		if (strcmp(knob_processes[i].name, name) == 0 ||
			(knob_processes[i].alias && strcmp(knob_processes[i].alias, name) == 0))
			return &knob_processes[i];
	return NULL;
}

/* Splits "policy.k_max": returns the process; *rest: what follows the dot. */
static const struct knob_process *split(const char *text, const char **rest)
{
	char name[64];
	const char *dot = strchr(text, '.');

	*rest = text;
	if (!dot || (size_t)(dot - text) >= sizeof name)
		return NULL;
	snprintf(name, sizeof name, "%.*s", (int)(dot - text), text);
	*rest = dot + 1;
	return knob_process_of(name);
}

/* The name as knobs are written, without the part that should have been a process's name. */
static void plain_name(const char *text, char *out, size_t bytes)
{
	const char *dot = strrchr(text, '.');

	snprintf(out, bytes, "%s", dot && dot[1] ? dot + 1 : text);
	for (char *c = out; *c; c++)
		*c = (char)tolower((unsigned char)*c);
}

/* Suggests the knob, of any process, that looks most like it. */
static int unknown(const char *text, const struct knob_process *in)
{
	size_t best = SIZE_MAX;
	char full[160] = "", name[NEAREST_BYTES + 1];

	plain_name(text, name, sizeof name);

	for (size_t i = 0; i < KNOB_PROCESSES; i++)
		for (const struct config_key *key = knob_processes[i].keys; key->name; key++) {
			size_t distance = nearest_distance(name, key->name);

			if ((in && in != &knob_processes[i]) || distance >= best)
				continue;
			best = distance;
			snprintf(full, sizeof full, "%s.%s", knob_processes[i].name, key->name);
		}
	if (best != SIZE_MAX && nearest_worth(name, best))
		return ctl_fail(EX_DATAERR, "unknown knob \"%.64s\"; did you mean %s?", text, full);
	return ctl_fail(
		EX_DATAERR, "unknown knob \"%.64s\"; outriderctl knob list shows them", text);
}

/* The knob is not one of the named process: says which process has it. */
static int elsewhere(const char *name, const struct knob_process *in)
{
	for (size_t i = 0; i < KNOB_PROCESSES; i++)
		if (config_find(knob_processes[i].keys, name))
			return ctl_fail(EX_DATAERR, "%s has no knob \"%.64s\"; did you mean %s.%s?",
				in->name, name, knob_processes[i].name, name);
	return 0;
}

static int ambiguous(
	const char *text, const struct knob_process *first, const struct knob_process *second)
{
	return ctl_fail(EX_DATAERR,
		"\"%.64s\" is a knob of several processes: %s.%.64s or %s.%.64s", text, first->name,
		text, second->name, text);
}

int knob_resolve(const char *text, const struct knob_process *in, struct knob_name *out)
{
	*out = (struct knob_name){.process = in, .name = text};
	if (!in)
		out->process = split(text, &out->name);
	if (out->process) {
		/* The process may have knobs that this build does not know. */
		out->key = config_find(out->process->keys, out->name);
		if (!*out->name)
			return unknown(text, out->process);
		return out->key ? 0 : elsewhere(out->name, out->process);
	}
	out->name = text;
	for (size_t i = 0; i < KNOB_PROCESSES; i++) {
		const struct config_key *key = config_find(knob_processes[i].keys, text);

		if (key && out->process)
			return ambiguous(text, out->process, &knob_processes[i]);
		if (!key)
			continue;
		out->process = &knob_processes[i];
		out->key = key;
	}
	return out->process ? 0 : unknown(text, NULL);
}

static int ask_list(struct ctl *ctl, const struct knob_process *process, uint64_t session,
	int timeout_ms, Outrider__Envelope **reply, struct error *err)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__KnobList body = OUTRIDER__KNOB_LIST__INIT;

	*reply = NULL;
	if (!ctl->runtime_dir[0])
		return -ECONNREFUSED;
	body.session_uid = session;
	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_LIST;
	request.knob_list = &body;
	/* Completion does not wait for a process. */
	return (timeout_ms == COMPLETE_MS || process->optional ? ctl_ask : ctl_ask_patiently)(ctl,
		process->name, &request, OUTRIDER__ENVELOPE__BODY_KNOBS, timeout_ms, reply, err);
}

int knob_ask_list(struct ctl *ctl, const struct knob_process *process, uint64_t session,
	Outrider__Envelope **reply)
{
	struct error err = {""};
	int code = ask_list(ctl, process, session, TIMEOUT_MS, reply, &err);

	if (code == 0)
		return 0;
	if (code == -ECONNREFUSED || code == -ENOENT)
		return EX_UNAVAILABLE;
	if (code == -ETIMEDOUT)
		return ctl_no_answer(process->name, TIMEOUT_MS, false);
	return ctl_fail(code == -EREMOTEIO ? EX_DATAERR : EX_UNAVAILABLE, "%s: %s", process->name,
		err.text);
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* Adds a word to the list, or prints a line. */
static void offer(json_t *words, const char *candidate)
{
	if (words)
		json_array_append_new(words, json_text(candidate));
	else
		puts(candidate);
}

static void complete_values(
	json_t *words, const char *word, const char *name, const struct config_key *key)
{
	static const char *const yes_no[] = {"yes", "no", NULL};
	/* For a number, the word that stands for 0. */
	const char *const *values = key->type == CONFIG_BOOL ? yes_no : key->names;
	char candidate[256];

	for (size_t i = 0; values && values[i]; i++) {
		snprintf(candidate, sizeof candidate, "%s=%s", name, values[i]);
		if (begins(candidate, word))
			offer(words, candidate);
	}
}

/* Offers one knob by both of its names; by the short one only if no other process has it. */
static void complete_key(json_t *words, const char *word, const struct knob_process *process,
	const struct config_key *key, const char *suffix)
{
	char own[128], full[192], candidate[256];
	bool unique = true;

	config_name(key, own, sizeof own);
	snprintf(full, sizeof full, "%s.%s", process->name, own);
	for (size_t i = 0; i < KNOB_PROCESSES; i++)
		if (&knob_processes[i] != process && config_find(knob_processes[i].keys, own))
			unique = false;
	for (int i = 0; i < 2; i++) {
		const char *name = i ? full : own;

		if (!i && !unique)
			continue;
		snprintf(candidate, sizeof candidate, "%s%s", name, suffix);
		if (strchr(word, '='))
			complete_values(words, word, name, key);
		else if (begins(name, word))
			offer(words, candidate);
	}
}

/* Offers the keys that only a running process knows, from its own list. */
static void complete_strangers(struct ctl *ctl, json_t *words, const char *word,
	const struct knob_process *process, const char *suffix)
{
	Outrider__Envelope *reply;

	if (ask_list(ctl, process, 0, COMPLETE_MS, &reply, NULL) < 0)
		return;
	for (size_t i = 0; i < reply->knobs->n_knobs; i++) {
		const Outrider__KnobInfo *info = reply->knobs->knobs[i];
		char candidate[512];

		if (config_find(process->keys, info->name))
			continue;
		snprintf(candidate, sizeof candidate, "%s.%.128s%s", process->name, info->name,
			suffix);
		if (!strchr(word, '=') && begins(candidate, word))
			offer(words, candidate);
		for (size_t c = 0; strchr(word, '=') && c < info->n_choices; c++) {
			snprintf(candidate, sizeof candidate, "%s.%.128s=%.128s", process->name,
				info->name, info->choices[c]);
			if (begins(candidate, word))
				offer(words, candidate);
		}
	}
	bus_free(&reply);
}

int ctl_knob_complete(struct ctl *ctl, int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	bool set = argc > 0 && strcmp(argv[0], "set") == 0;
	bool any = argc > 0 && strcmp(argv[0], "any") == 0;
	const char *suffix = set ? "=" : "";

	if (argc > 2 || (argc > 0 && !set && !any && strcmp(argv[0], "name") != 0))
		return ctl_fail(EX_USAGE,
			"knob complete: expected \"set\", \"name\" or \"any\", and a word");
	json_t *words = ctl->json ? json_array() : NULL;
	for (size_t i = 0; i < KNOB_PROCESSES; i++) {
		const struct knob_process *process = &knob_processes[i];

		if (any && begins(process->name, word))
			offer(words, process->name);
		for (const struct config_key *key = process->keys; key->name; key++)
			complete_key(words, word, process, key, suffix);
		complete_strangers(ctl, words, word, process, suffix);
	}
	return ctl->json ? ctl_print_json(json_pack("{s:o}", "words", words)) : EX_OK;
}
