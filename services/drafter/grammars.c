#include "services/drafter/grammars.h"

#include "services/drafter/model.h"
#include "shared/base/log.h"
#include "shared/model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

void grammars_init(struct grammars *g)
{
	pthread_mutex_init(&g->mutex, NULL);
	pthread_cond_init(&g->asked, NULL);
}

/* Under the mutex. What the thread is building it throws away when it finds the job gone. */
static void drop(struct grammars *g, struct grammar_job *job)
{
	g->n_asked -= job->state == GRAMMAR_ASKED;
	free(job->request);
	constraint_free(&job->made);
	*job = (struct grammar_job){0};
}

static void forget_target(struct grammars *g)
{
	if (g->met != 0)
		constraint_vocab_exit(&g->vocab);
	tokenizer_free(&g->tokenizer);
	g->met = 0;
}

void grammars_exit(struct grammars *g)
{
	pthread_mutex_lock(&g->mutex);
	g->stop = true;
	pthread_cond_signal(&g->asked);
	pthread_mutex_unlock(&g->mutex);
	if (g->started)
		pthread_join(g->thread, NULL);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		drop(g, &g->jobs[i]);
	forget_target(g);
	pthread_cond_destroy(&g->asked);
	pthread_mutex_destroy(&g->mutex);
}

void grammars_meet(struct grammars *g, const struct sessions_header *header)
{
	pthread_mutex_lock(&g->mutex);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		drop(g, &g->jobs[i]);
	memcpy(g->model_path, header->model_path, sizeof(g->model_path));
	g->fingerprint = header->tokenizer_fingerprint;
	pthread_mutex_unlock(&g->mutex);
}

/* The thread's: the tokens of the target that has this fingerprint. */
static int meet(struct grammars *g, const char *path, uint64_t fingerprint, struct error *err)
{
	if (g->met == fingerprint && g->met != 0)
		return 0;
	forget_target(g);
	int r = draft_target_tokenizer(path, fingerprint, &g->tokenizer, err);
	if (r < 0)
		return r;
	constraint_vocab_init(&g->vocab, g->tokenizer, tokenizer_n_vocab(g->tokenizer));
	g->met = fingerprint;
	return 0;
}

static struct grammar_job *next_job(struct grammars *g)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		if (g->jobs[i].state == GRAMMAR_ASKED)
			return &g->jobs[i];
	return NULL;
}

/* Under the mutex, which is free meanwhile. */
static void build(struct grammars *g, struct grammar_job *job)
{
	struct session_request *request = job->request;
	struct constraint *made = NULL;
	struct error err = {""};
	char path[sizeof(g->model_path)];
	uint64_t uid = job->uid, fingerprint = g->fingerprint;

	job->request = NULL;
	job->state = GRAMMAR_BUILDING;
	g->n_asked--;
	memcpy(path, g->model_path, sizeof(path));
	pthread_mutex_unlock(&g->mutex);
	int r = meet(g, path, fingerprint, &err);
	if (r == 0)
		r = constraint_create(request, &g->vocab, &made, &err);
	if (r != 0)
		log_session(
			LOG_LEVEL_DEBUG, uid, 0, "drafted for without its grammar: %s", err.text);
	free(request);
	pthread_mutex_lock(&g->mutex);
	/* A session that ended meanwhile, or another target's tokens. */
	if (job->uid == uid && job->state == GRAMMAR_BUILDING && g->fingerprint == fingerprint) {
		job->made = made;
		job->state = GRAMMAR_DONE;
	} else {
		constraint_free(&made);
	}
}

static void *run(void *arg)
{
	struct grammars *g = arg;

	pthread_mutex_lock(&g->mutex);
	while (!g->stop) {
		struct grammar_job *job = g->n_asked > 0 ? next_job(g) : NULL;

		if (job)
			build(g, job);
		else
			pthread_cond_wait(&g->asked, &g->mutex);
	}
	pthread_mutex_unlock(&g->mutex);
	return NULL;
}

/* NULL: no memory, or the session's page is another's by now. */
static struct session_request *copy_request(
	const struct draft_session *s, const struct session_view *view)
{
	const struct session_request *own = &s->request;
	struct session_request *copy;

	if (own->grammar_kind >= GRAMMAR_KINDS || own->grammar_bytes > LIMIT_GRAMMAR_BYTES ||
		own->stops_bytes > LIMIT_STOPS_BYTES || own->draft_nodes > LIMIT_DRAFT_NODES)
		return NULL;
	copy = malloc(session_request_bytes(own));
	if (copy && session_copy_texts(s, view, copy) == 0)
		return copy;
	free(copy);
	return NULL;
}

static void ask(struct grammars *g, struct draft_session *s, const struct session_view *view)
{
	struct grammar_job *job = &g->jobs[s->page];
	struct session_request *request = copy_request(s, view);
	struct error err;

	s->grammar_asked = true;
	if (!request)
		return;
	pthread_mutex_lock(&g->mutex);
	drop(g, job);
	*job = (struct grammar_job){.uid = s->uid, .state = GRAMMAR_ASKED, .request = request};
	g->n_asked++;
	pthread_cond_signal(&g->asked);
	pthread_mutex_unlock(&g->mutex);
	if (!g->started) {
		int r = pthread_create(&g->thread, NULL, run, g);

		g->started = r == 0;
		if (r != 0 && error_thread(&err, r, "a thread for grammars") < 0)
			log_error("%s: drafts do not follow grammars", err.text);
	}
}

static void take(struct grammars *g, struct draft_session *s)
{
	struct grammar_job *job = &g->jobs[s->page];

	if (pthread_mutex_trylock(&g->mutex) != 0)
		return;
	if (job->uid == s->uid && job->state == GRAMMAR_DONE) {
		s->constraint = job->made;
		job->made = NULL;
		drop(g, job);
	}
	pthread_mutex_unlock(&g->mutex);
}

void grammars_follow(struct grammars *g, struct draft_session *s, const struct session_view *view)
{
	if (s->request.grammar_kind == GRAMMAR_NONE)
		return;
	if (!s->grammar_asked)
		ask(g, s, view);
	else if (!s->constraint && !s->grammar_broken)
		take(g, s);
	for (uint32_t i = s->n_constrained; s->constraint && s->n_prompt + i < s->n; i++) {
		s->n_constrained = i + 1;
		if (constraint_token(s->constraint, i, s->tokens[s->n_prompt + i]) !=
			CONSTRAINT_BROKEN)
			continue;
		/* An output that ended, and goes on in a way that we do not know. */
		s->grammar_broken = true;
		constraint_free(&s->constraint);
	}
}

void grammars_end(struct grammars *g, struct draft_session *s)
{
	struct grammar_job *job = &g->jobs[s->page];

	constraint_free(&s->constraint);
	if (!s->grammar_asked)
		return;
	pthread_mutex_lock(&g->mutex);
	if (job->uid == s->uid)
		drop(g, job);
	pthread_mutex_unlock(&g->mutex);
}
