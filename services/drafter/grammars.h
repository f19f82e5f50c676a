/*
 * The grammars of sessions with constrained output: they keep drafts to tokens that the verifier
 * may accept. To compile one, and to read the target's tokens, takes up to seconds, so a thread
 * does it. Until it has finished, or if it fails, drafts are made as if the session had no grammar.
 * Only speed depends on this: the verifier has a grammar of its own.
 *
 * All functions are called on the draft thread.
 */
#pragma once

#include "services/drafter/session.h"
#include "shared/spec/constraint.h"

#include <pthread.h>

enum grammar_job_state { GRAMMAR_IDLE, GRAMMAR_ASKED, GRAMMAR_BUILDING, GRAMMAR_DONE };

struct grammar_job {
	uint64_t uid;
	enum grammar_job_state state;
	struct session_request *request; /* owned, to BUILDING */
	struct constraint *made; /* owned, from DONE on; NULL: it could not be made */
};

struct grammars {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t asked;
	bool started, stop;
	/* Under the mutex. */
	struct grammar_job jobs[LIMIT_SESSIONS]; /* by the session's page */
	uint32_t n_asked;
	char model_path[sizeof(((struct sessions_header *)0)->model_path)]; /* of the target */
	uint64_t fingerprint; /* of its tokenizer */
	/* The thread's: of the target that it met last. */
	uint64_t met; /* fingerprint; 0: none */
	struct tokenizer *tokenizer;
	struct constraint_vocab vocab;
};

/* Zeroed before. The thread starts with the first grammar. */
void grammars_init(struct grammars *g);
/* Sessions have given their grammars back. */
void grammars_exit(struct grammars *g);
/* Another target; no session has a grammar. */
void grammars_meet(struct grammars *g, const struct sessions_header *header);

/* Brings the session's grammar up to its tokens; asks for it where it has none yet. */
void grammars_follow(struct grammars *g, struct draft_session *s, const struct session_view *view);
/* The session ends. */
void grammars_end(struct grammars *g, struct draft_session *s);
