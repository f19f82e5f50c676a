/*
 * The slot protocol of shared/spec/slots.h: two slots, two experts, a verifier that pins and reads, a cache that loads
 * and evicts, and both killed between any two steps, with a successor. Names in brackets are those of slots.c.
 *
 * Checked by assertions, and by the absence of invalid end states:
 *  - while a verifier that lives holds a pin, the slot is READY with its expert and the bytes are that expert's: they do
 *    not change, and nobody evicts;
 *  - a READY slot holds its tag's bytes;
 *  - an expert is never READY in two slots;
 *  - adoption never finds what slots_adopt refuses;
 *  - no slot is lost: a cache that finds nothing to do but wait has every slot EMPTY or READY.
 *
 * A read the device has not finished outlives the process that submitted it (`landing`), and writes the bytes of the
 * expert it was for. The successor frees a LOADING slot only when none can land in it any more: the guard of the
 * quarantine here is renew_pages, or HELD_NS, in services/expert-cache/store.c.
 *
 * breaks: -DNO_QUARANTINE  a successor frees a LOADING slot while a read of the dead may still land in it
 * breaks: -DEVICT_BLIND  the eviction stores EVICTING without comparing: a pin in between is lost
 * breaks: -DEPOCH_FIRST  the owner reads the header's epoch before the state word
 * breaks: -DREADY_EARLY  READY is stored before the bytes are there
 * breaks: -DPIN_BLIND  the pin does not compare the tag: the slot may hold another expert by now
 */
#define SLOTS 2
#define EXPERTS 2
#define NONE 9 /* no expert's bytes: half written */

#define EMPTY 0
#define LOADING 1
#define READY 2
#define EVICTING 3

/* The state words: each is read and written in one step. */
typedef word {
	byte state, pins, epoch, tag
};
word slot[SLOTS];
byte table[EXPERTS]; /* slot + 1, 0 absent */
byte content[SLOTS]; /* the bytes */
byte landing[SLOTS]; /* reads under way, a bit per expert */
byte header_epoch;
byte cache_deaths = 2, verifier_deaths = 2; /* that may still come */
byte held[SLOTS]; /* pins of the verifier that lives, for the assertions */

#define same_word(s) (slot[s].state == w_state && slot[s].pins == w_pins && \
	slot[s].epoch == w_epoch && slot[s].tag == w_tag)
#define invariant \
	((slot[0].state != READY || content[0] == slot[0].tag) && \
	(slot[1].state != READY || content[1] == slot[1].tag) && \
	!(slot[0].state == READY && slot[1].state == READY && slot[0].tag == slot[1].tag) && \
	(held[0] == 0 || slot[0].state == READY) && (held[1] == 0 || slot[1].state == READY))

inline load_word(s)
{
	w_state = slot[s].state; w_pins = slot[s].pins;
	w_epoch = slot[s].epoch; w_tag = slot[s].tag
}
/* Locals that mean nothing any more, so that equal states are equal. */
inline forget()
{
	s = 0; e = 0; w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
}

inline land(s, e)
{
	assert(held[s] == 0);
	content[s] = e; landing[s] = landing[s] - (1 << e);
	assert(invariant)
}
/* The device ends a read: into the slot it was submitted for, whoever has it. */
active proctype device()
{
end:	do
	:: atomic { landing[0] & 1 -> land(0, 0) }
	:: atomic { landing[0] & 2 -> land(0, 1) }
	:: atomic { landing[1] & 1 -> land(1, 0) }
	:: atomic { landing[1] & 2 -> land(1, 1) }
	od
}

active proctype verifier()
{
	byte e, s, epoch;
	byte w_state, w_pins, w_epoch, w_tag; /* the word that was loaded */

enter:	/* slots_verifier_enter */
	epoch = header_epoch + 1;
	header_epoch = epoch;
end:	do
	:: atomic { table[0] != 0 -> e = 0; s = table[0] - 1 }; break
	:: atomic { table[1] != 0 -> e = 1; s = table[1] - 1 }; break
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [pin] the table word above, then the state word, then the compare-and-swap. */
	atomic {
		load_word(s);
		if
#ifdef PIN_BLIND
		:: w_state != READY -> forget(); goto end
#else
		:: w_state != READY || w_tag != e -> forget(); goto end
#endif
		:: else
		fi
	};
	atomic {
		if
		:: same_word(s) ->
			slot[s].pins = (w_epoch == epoch -> w_pins + 1 : 1);
			slot[s].epoch = epoch;
			held[s]++;
			assert(invariant);
			w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
		:: else -> forget(); goto end
		fi
	};
	/* The pass computes: every look finds e's bytes. A kill here leaves the pin in the word. */
	do
	:: assert(content[s] == e && slot[s].state == READY && slot[s].tag == e); break
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [unpin] */
	atomic {
		assert(content[s] == e && slot[s].state == READY && slot[s].tag == e &&
			slot[s].epoch == epoch && slot[s].pins > 0);
		slot[s].pins--; held[s]--; forget();
		goto end
	};
die:	atomic {
		verifier_deaths--;
		held[0] = 0; held[1] = 0; epoch = 0; forget();
		goto enter
	}
}

active proctype cache()
{
	byte s, e;
	byte w_state, w_pins, w_epoch, w_tag;

	content[0] = NONE; content[1] = NONE;
adopt:	/* [adopt] One word at a time, while the verifier pins. */
	do
	:: s < SLOTS && slot[s].state == READY ->
		atomic {
			e = table[slot[s].tag];
			assert(e == 0 || e == s + 1 || slot[e - 1].state != READY ||
				slot[e - 1].tag != slot[s].tag);
			table[slot[s].tag] = s + 1; e = 0; s++
		}
	:: s < SLOTS && slot[s].state == EVICTING ->
		atomic { if :: table[slot[s].tag] == s + 1 -> table[slot[s].tag] = 0 :: else fi };
		slot[s].state = EMPTY;
		s++
	:: s < SLOTS && (slot[s].state == EMPTY || slot[s].state == LOADING) -> s++
	:: s == SLOTS -> s = 0; break
	od;
	/* The quarantine: LOADING slots of the dead come free when their reads have ended. */
	do
	:: s < SLOTS && slot[s].state == LOADING ->
#ifndef NO_QUARANTINE
		landing[s] == 0;
#endif
		slot[s].state = EMPTY;
		s++
	:: s < SLOTS && slot[s].state != LOADING -> s++
	:: s == SLOTS -> s = 0; break
	od;
end:	do
	:: atomic { slot[0].state == EMPTY && table[0] == 0 -> s = 0; e = 0; goto load }
	:: atomic { slot[0].state == EMPTY && table[1] == 0 -> s = 0; e = 1; goto load }
	:: atomic { slot[1].state == EMPTY && table[0] == 0 -> s = 1; e = 0; goto load }
	:: atomic { slot[1].state == EMPTY && table[1] == 0 -> s = 1; e = 1; goto load }
	:: atomic { slot[0].state == READY -> s = 0; goto evict }
	:: atomic { slot[1].state == READY -> s = 1; goto evict }
	:: atomic { cache_deaths > 0 -> goto die }
	/* Whatever it is doing, it ends here with nothing half done. */
	:: atomic { assert(slot[0].state == EMPTY || slot[0].state == READY);
		assert(slot[1].state == EMPTY || slot[1].state == READY); skip } -> goto end
	od;
load:	/* [load_begin] */
	atomic { slot[s].state = LOADING; slot[s].tag = e; slot[s].pins = 0; slot[s].epoch = 0 };
	atomic { assert(held[s] == 0); content[s] = NONE; landing[s] = landing[s] | (1 << e) };
	do
#ifdef READY_EARLY
	:: break
#else
	:: (landing[s] & (1 << e)) == 0 -> break
#endif
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	if
	:: /* [load_fail] */ atomic { slot[s].state = EMPTY; forget(); goto end }
	:: /* [load_end] */ atomic { slot[s].state = READY; assert(invariant) }
	fi;
	do
	:: table[e] = s + 1; break
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	atomic { forget(); goto end };
evict:	/* [evict] the word, then the header's epoch, then the compare-and-swap. */
#ifdef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic { load_word(s) };
#ifndef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic {
		if
		:: w_pins > 0 && w_epoch == e -> forget(); goto end
		:: else
		fi
	};
	atomic {
		if
#ifdef EVICT_BLIND
		:: slot[s].state == READY ->
#else
		:: same_word(s) ->
#endif
			assert(held[s] == 0);
			slot[s].state = EVICTING; slot[s].pins = 0; slot[s].epoch = 0
		:: else -> forget(); goto end
		fi
	};
	do
	:: table[w_tag] = 0; break
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	do
	:: atomic { slot[s].state = EMPTY; forget(); goto end }
	:: atomic { cache_deaths > 0 -> goto die }
	od;
die:	atomic { cache_deaths--; forget(); goto adopt }
}
