/*
 * Every bound of the system, in one place, with the relations between them checked at compile time.
 * A model, message or setting beyond a bound is refused with the bound's name, never truncated.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LIMIT_LAYERS = 256,
	LIMIT_EXPERTS = 1024, /* routed experts of a layer */
	LIMIT_EXPERTS_USED = 64, /* used by one token */
	LIMIT_VOCAB = 1 << 20,
	LIMIT_TOKEN_BYTES = 1 << 16, /* text of one token */
	LIMIT_VOCAB_BYTES = 256 << 20, /* text of all tokens */
	LIMIT_EMBEDDING = 1 << 16,
	LIMIT_HEADS = 1024,
	LIMIT_HEAD_DIM = 1024,
	LIMIT_CONV_TAPS = 16, /* of a delta net's convolution */
	LIMIT_CONTEXT = 1 << 20, /* tokens of one session, prompt and output */
	/* session pages of a verifier: of running, queued, finished and kept sessions */
	LIMIT_SESSIONS = 512,
	LIMIT_RUNNING = 256, /* sessions of one pass */
	LIMIT_DRAFT_NODES = 511, /* tokens of one draft, on all of its paths together */
	LIMIT_DRAFT_BLOCKS = 8, /* layers for drafts of a model's own file; more are not used */
	LIMIT_DRAFT_DEPTH = 63, /* tokens of one path of a draft: the largest K of a chain */
	LIMIT_DRAFT_WIDTH = 255, /* children of one token of a draft */
	/* Drafted tokens per session for which buffers are sized. What one session does not use of
	 * its share, others may have. */
	LIMIT_DRAFT_SHARE = 15,
	LIMIT_NGRAM = 32, /* tokens of the longest suffix that n-gram drafts look for */
	LIMIT_DRAFT_SUPPORT = 64, /* tokens with q > 0 at one drafted position */
	LIMIT_PREFILL = 2048, /* prompt tokens of one pass */
	LIMIT_BATCH = 8192, /* tokens of one forward call */
	LIMIT_KEPT_LOGITS = 128, /* rows that a pass keeps, for drafts of maximal coupling */
	LIMIT_THREADS = 256,
	LIMIT_STOPS = 256, /* stop strings of a request */
	LIMIT_STOP_BYTES = 4096, /* length of one, with its NUL */
	LIMIT_STOPS_BYTES = 16384, /* of all of them, with their NULs */
	LIMIT_GRAMMAR_BYTES = 65536, /* the source of a request's grammar */
	LIMIT_LOGIT_BIASES = 256, /* biased tokens of a request */
	LIMIT_DRY_BREAKER_BYTES =
		128, /* texts that no repetition goes across, each with its NUL, and a NUL */
	LIMIT_TOP_LOGPROBS = 20, /* likely tokens that are listed for each token of an answer */
	LIMIT_CLASSES = 8, /* of requests */
	LIMIT_PRIORITY = 100, /* priorities are -100 to 100 */
	LIMIT_NAME = 32, /* process and region names, with NUL */
	LIMIT_MESSAGE_BYTES = 4 << 20, /* one control-plane message */
	LIMIT_TEXT_BYTES = LIMIT_MESSAGE_BYTES / 2, /* a prompt, or all of a conversation */
	LIMIT_RENDERED_BYTES = LIMIT_MESSAGE_BYTES, /* what a chat template makes of that */
	LIMIT_INBOX_REQUESTS = 512, /* requests that wait to be read */
	LIMIT_INBOX_BYTES = 64 << 20, /* their messages together */
	LIMIT_INBOX_CLIENT_BYTES = 16 << 20, /* the messages of one client */
	LIMIT_SHELF_SESSIONS =
		256, /* sessions that gave up their places and wait for their clients */
	LIMIT_SHELF_BYTES = 64 << 20, /* what is kept of these sessions */
	/* a message that is too large is answered up to this size; beyond it the sender is
	 * disconnected */
	LIMIT_MESSAGE_CUT = 32 << 20,
	/* a connection with this many bytes of unread answers gets no further one */
	LIMIT_UNREAD_BYTES = 256 << 10,
	LIMIT_HELD_BYTES =
		32 << 20, /* unfinished messages and unread answers of a socket's connections */
	LIMIT_CLIENTS = 1024, /* connections to the clients' socket */
	LIMIT_ADMINS = 256, /* connections to an admin socket */
	LIMIT_DESCRIPTORS = 64, /* the fewest open files with which a process starts */
	/* descriptors that clients and admins leave free, for files and peers */
	LIMIT_RESERVE = 16,
	LIMIT_RESERVE_PEERS = 8, /* descriptors that peers leave free, for files */
	LIMIT_MTP_DRAFT = 15, /* masks behind a token, with a gated adapter */
	/* masks of a session in a pass: behind its newest token and each of its drafts */
	LIMIT_MASKS = LIMIT_MTP_DRAFT * (LIMIT_DRAFT_DEPTH + 1),
	LIMIT_LORA_RANK = 256, /* of an adapter's matrices */
	LIMIT_TAPS = 3, /* layers of a model whose hidden states others may read */
	LIMIT_REGIONS = 8, /* regions one process owns */
	LIMIT_PEERS =
		8, /* connections of one region broker, and those of an admin socket to peers */
	LIMIT_PEER_LAYOUTS = 16, /* regions that one process makes or attaches */
	LIMIT_PEER_TEXT = 512, /* what one process reports of its state to another, with NUL */
};

#define CACHE_LINE 64

static_assert(LIMIT_RUNNING * (LIMIT_DRAFT_SHARE + 1) + LIMIT_PREFILL <= LIMIT_BATCH,
	"a batch holds the certain token of every session, its share of drafted ones, and prompt "
	"tokens");
static_assert(LIMIT_RUNNING <= LIMIT_SESSIONS, "a session that runs has a page");
static_assert(LIMIT_DRAFT_NODES < LIMIT_BATCH, "a batch holds a full draft of one session");
static_assert(LIMIT_DRAFT_NODES <= INT16_MAX, "the index of a node is an int16_t");
static_assert(LIMIT_DRAFT_DEPTH <= LIMIT_DRAFT_NODES, "a full chain is a draft");
static_assert(LIMIT_MTP_DRAFT <= LIMIT_DRAFT_DEPTH, "what masks draft is a draft");
static_assert(LIMIT_DRAFT_DEPTH < UINT8_MAX, "a depth, and a depth plus one, fit in a byte");
static_assert(LIMIT_CONTEXT * sizeof(int32_t) <= LIMIT_MESSAGE_BYTES,
	"a full prompt must fit one message");
