/*
 * Shared pages of the KV cache: two sequences, three pages, a verifier that fills pages, shares them, takes them back, leaves
 * them to the other, ends sequences, keeps their pages for later ones, and replaces what was computed twice; it is killed between
 * any two stores, and its successor may be killed as well.
 * A page is one token here: what the cells in it are made of is the same for all of them. Names in brackets are the C code's.
 *
 * names in: shared/model/kv/kv_share.c shared/model/kv/kv_adopt.c shared/model/kv/kv_keep.c shared/model/kv/kv_prefix.c
 *
 * What lasts is what the map says (owner, shared, before, markers and content of a page, tip of a record) and what sessions are
 * (live, their tokens). Counts, lists and lengths are the process's own.
 *
 * Checked by assertions, whenever a step is done and after every adoption:
 *  - the chain of a sequence that lives holds what its tokens make of it, at every place;
 *  - no page that was there is lost, whenever the process dies;
 *  - a page is free, of one sequence alone, in a chain, or kept, and its count is that of the chains;
 *  - a kept page stands behind one that is kept or in a chain, and holds what follows that one;
 *  - what is in no chain, nobody's own and not kept is free once the successor has looked at everything.
 *
 * breaks: -DMARK_FIRST  a page is marked shared before the tip says whose it is
 * breaks: -DLINK_LATE  the tip moves on to a page that does not say yet what is before it
 * breaks: -DFREE_FIRST  a page is freed before the tip has left it
 * breaks: -DCLEAR_FIRST  a page that is taken back is cleared before the tip has left it
 * breaks: -DCOUNT_ONE  a successor counts a shared page once
 * breaks: -DRECLAIM_EARLY  a successor frees what is nobody's before it has looked at all sequences
 * breaks: -DUNMARK_FREE  a shared page is its owner's alone again before it is free
 * breaks: -DTAKE_SHARED  a page goes back to a sequence although another one has it
 * breaks: -DTAKE_KEPT  a page goes back to a sequence although a kept one is behind it
 * breaks: -DFREE_MIDDLE  a kept page is freed although another one is behind it
 * breaks: -DMERGE_EARLY  a page that was computed twice is freed before the tip has left it
 */
#define PAGES 3
#define SEQS 2
#define NONE 7
#define DEPTH 2 /* pages of a sequence, at most */

/* The map. */
typedef page {
	byte owner; /* 0: free, else sequence + 1 */
	bit shared;
	bit named; /* its tokens are known, and so it can be kept */
	byte before;
	byte place; /* of its markers, + 1; 0: none */
	byte content
};
page pages[PAGES];
byte tip[SEQS];

/* The sessions. */
bit live[SEQS];
byte tokens[SEQS]; /* a bit for each place */
byte kept[SEQS]; /* pages that may not be lost any more */

/* The process's own. */
bit keeps[PAGES];
byte refs[PAGES], mine[SEQS], length[SEQS]; /* mine: its own page; length: of the chain */
bit filled[SEQS]; /* its own page is a token of it */
byte deaths = 2, steps = 7; /* that may still come */
byte s, t, p, q, i, n;

/* What the tokens up to a place make of a page. */
#define made(seq, at) ((at) == 0 -> 1 + (tokens[seq] & 1) : 3 + (tokens[seq] & 3))
#define DIE if :: deaths > 0 -> deaths--; goto dead :: skip fi

/* The page that is i places before the tip. */
inline walk(seq, back)
{
	q = tip[seq];
	i = 0;
	do
	:: i < back -> q = pages[q].before; i++
	:: else -> break
	od
}

/* Every chain, as the process knows it. */
inline check()
{
	d_step {
		t = 0;
		do
		:: t < SEQS && live[t] ->
			q = tip[t];
			n = length[t];
			do
			:: n > 0 ->
				assert(q < PAGES && pages[q].owner != 0 && pages[q].shared && refs[q] > 0);
				assert(pages[q].place == n && pages[q].content == made(t, n - 1));
				n--;
				q = pages[q].before
			:: else -> break
			od;
			assert(q == NONE);
			assert(mine[t] == NONE || (pages[mine[t]].owner == t + 1 && !pages[mine[t]].shared && refs[mine[t]] == 1));
			t++
		:: t < SEQS && !live[t] -> t++
		:: else -> break
		od;
		q = 0;
		do
		:: q < PAGES && keeps[q] ->
			assert(refs[q] == 0 && pages[q].owner != 0 && pages[q].shared);
			i = pages[q].before;
			if
			:: pages[q].place == 1 -> assert(i == NONE)
			:: else ->
				assert(i < PAGES && (keeps[i] || refs[i] > 0) && pages[i].shared && pages[i].place == 1);
				assert(pages[i].content == 1 + ((pages[q].content - 3) & 1))
			fi;
			q++
		:: q < PAGES && !keeps[q] -> q++
		:: else -> break
		od;
		q = 0; n = 0; i = 0
	}
}

#define behind(pg, a) (keeps[a] && pages[a].before == (pg))
#define is_last(pg) (!behind(pg, 0) && !behind(pg, 1) && !behind(pg, 2))

/* Nobody has the page any more: markers first, then it is free. It stays marked as shared until it is taken: else the one who filled
 * it would have it for its own. */
inline free(pg)
{
#ifdef UNMARK_FREE
	pages[pg].shared = 0; DIE;
#endif
	pages[pg].place = 0; DIE;
	pages[pg].owner = 0; DIE
}

/* One reference more. */
inline ref(first)
{
	skip;
	d_step {
		p = first;
		do
		:: p != NONE ->
			refs[p]++;
			if
			:: keeps[p] -> keeps[p] = 0; p = pages[p].before
			:: else -> break
			fi
		:: else -> break
		od
	}
}

/* [frees] One reference less. Without any, a page is kept, or freed. */
inline unref(first)
{
	p = first;
	do
	:: p != NONE ->
		refs[p]--;
		if
		:: refs[p] == 0 ->
			q = pages[p].before;
			if
			:: pages[p].named || !is_last(p) -> keeps[p] = 1
			:: is_last(p) -> free(p)
			fi;
			p = q
		:: else -> break
		fi
	:: else -> break
	od
}

/* A page of its own, and a token in it. */
inline fill_page()
{
	p = 0;
	do
	:: p < PAGES && pages[p].owner != 0 -> p++
	:: else -> break
	od;
	if
	:: p < PAGES ->
		pages[p].place = 0; DIE;
		pages[p].shared = 0; DIE;
		pages[p].owner = s + 1; pages[p].named = 0; refs[p] = 1; mine[s] = p; DIE;
		/* The journal first. */
		if
		:: tokens[s] = tokens[s] & ~(1 << length[s])
		:: tokens[s] = tokens[s] | (1 << length[s])
		fi;
		pages[p].content = made(s, length[s]); DIE;
		pages[p].place = length[s] + 1; filled[s] = 1; kept[s] = length[s] + 1; DIE
	:: else
	fi
}

inline publish()
{
	p = mine[s];
#ifndef LINK_LATE
	pages[p].before = tip[s]; DIE; /* [links] */
#endif
#ifdef MARK_FIRST
	pages[p].shared = 1; DIE;
#endif
	q = tip[s];
	tip[s] = p; DIE; /* [extends] */
#ifdef LINK_LATE
	pages[p].before = q; DIE;
#endif
	pages[p].shared = 1; mine[s] = NONE; filled[s] = 0; length[s]++; DIE; /* [marks] */
	pages[p].named = 1; DIE /* [names] */
}

/* The other one's chain, or all but the last of it, for a sequence that has nothing. */
inline share()
{
	n = length[1 - s];
	if
	:: n > 1 -> n--
	:: skip
	fi;
	walk(1 - s, length[1 - s] - n);
	tokens[s] = tokens[1 - s];
	refs[q]++; length[s] = n;
	tip[s] = q; kept[s] = n; DIE /* [attaches] */
}

/* A kept chain, for a sequence that has nothing and whose tokens begin with those. */
inline revive()
{
	if
	:: keeps[0] -> q = 0
	:: keeps[1] -> q = 1
	:: keeps[2] -> q = 2
	fi;
	n = pages[q].place;
	tokens[s] = (n == 1 -> pages[q].content - 1 : pages[q].content - 3);
	length[s] = n;
	ref(q);
	tip[s] = q; kept[s] = n; DIE /* [attaches] */
}

/* A kept page gives way. */
inline evict()
{
	if
#ifdef FREE_MIDDLE
	:: keeps[0] -> p = 0
	:: keeps[1] -> p = 1
	:: keeps[2] -> p = 2
#else
	:: keeps[0] && is_last(0) -> p = 0
	:: keeps[1] && is_last(1) -> p = 1
	:: keeps[2] && is_last(2) -> p = 2
#endif
	fi;
	keeps[p] = 0;
	free(p)
}

#define is_same(a, b) ((a) != (b) && pages[b].owner != 0 && (refs[b] > 0 || keeps[b]) && pages[b].shared && pages[b].named && \
	pages[a].place == pages[b].place && pages[a].before == pages[b].before && pages[a].content == pages[b].content)
#define has_alone(seq) (refs[tip[seq]] == 1 && pages[tip[seq]].owner == (seq) + 1 && is_last(tip[seq]))

/* Its last page holds what another one does, which takes its place. */
inline merge()
{
	p = tip[s];
	if
	:: is_same(p, 0) -> q = 0
	:: is_same(p, 1) -> q = 1
	:: is_same(p, 2) -> q = 2
	fi;
	t = p;
	i = pages[t].before;
#ifdef MERGE_EARLY
	free(t);
#endif
	pages[t].shared = 0; DIE; /* [unmarks] */
	tip[s] = i; DIE; /* [shrinks] */
	ref(q);
	tip[s] = q; DIE; /* [merges] */
	if
	:: i != NONE -> refs[i]--; assert(refs[i] > 0)
	:: else
	fi;
	refs[t] = 0;
#ifndef MERGE_EARLY
	free(t)
#endif
}

/* Its last page is the sequence's own again: only it has it, and it filled it. */
inline take_back()
{
	p = tip[s];
	kept[s] = length[s] - 1;
#ifdef CLEAR_FIRST
	pages[p].place = 0; DIE;
#endif
	pages[p].shared = 0; DIE; /* [unmarks] */
	length[s]--; mine[s] = p; filled[s] = 0;
	tip[s] = pages[p].before; DIE; /* [shrinks] */
	pages[p].place = 0; DIE
}

/* Its last page is left to the other one, or goes. */
inline leave()
{
	p = tip[s];
	kept[s] = length[s] - 1;
	length[s]--;
	q = pages[p].before;
	if
	:: q != NONE -> refs[q]++
	:: else
	fi;
#ifdef FREE_FIRST
	t = p;
	unref(t);
	tip[s] = q; DIE
#else
	tip[s] = q; DIE; /* [shrinks] */
	t = p;
	unref(t)
#endif
}

inline end()
{
	live[s] = 0; kept[s] = 0; DIE;
	if
	:: mine[s] != NONE -> p = mine[s]; mine[s] = NONE; refs[p] = 0; free(p)
	:: else
	fi;
	filled[s] = 0; length[s] = 0;
	t = tip[s];
	tip[s] = NONE; DIE; /* [detaches] */
	unref(t)
}

#define stands(pg) (pages[pg].place == 1 -> pages[pg].before == NONE : pages[pg].before < PAGES && \
	pages[pages[pg].before].place == 1 && (keeps[pages[pg].before] || (refs[pages[pg].before] > 0 && pages[pages[pg].before].shared)))
#define may_keep(pg) (refs[pg] == 0 && pages[pg].owner != 0 && pages[pg].shared && pages[pg].named && pages[pg].place > 0)

/* What nobody has taken over. Records first; then pages are kept, those with the first positions first. */
inline reclaim()
{
	s = 0;
	do
	:: s < SEQS ->
		if
		:: !live[s] -> tip[s] = NONE; DIE
		:: else
		fi;
		s++
	:: else -> break
	od;
	skip;
	d_step {
		n = 1;
		do
		:: n <= DEPTH ->
			p = 0;
			do
			:: p < PAGES ->
				if
				:: may_keep(p) && pages[p].place == n && stands(p) -> keeps[p] = 1
				:: else
				fi;
				p++
			:: else -> break
			od;
			n++
		:: else -> break
		od
	}
	p = 0;
	do
	:: p < PAGES ->
		if
		:: pages[p].owner != 0 && refs[p] == 0 && !keeps[p] -> free(p)
		:: else
		fi;
		p++
	:: else -> break
	od
}

/* Of one sequence: its chain, if it is one, then its own page. */
inline adopt()
{
	d_step {
		p = tip[s];
		n = 0;
		if
		:: p != NONE -> n = pages[p].place
		:: else
		fi;
		length[s] = n;
		i = 1;
		do
		:: n > 0 && i == 1 ->
			if
			:: p >= PAGES -> i = 0
			:: p < PAGES && (pages[p].owner == 0 || pages[p].place != n || (!pages[p].shared && pages[p].owner != s + 1)) ->
				i = 0
			:: else -> p = pages[p].before; n--
			fi
		:: else -> break
		od;
		if
		:: i == 0 || p != NONE -> length[s] = 0
		:: else
		fi
	}
	if
	:: length[s] == 0 && tip[s] != NONE -> tip[s] = NONE; DIE
	:: else
	fi;
	/* Each page of it counts for the one before it, and the tip for the sequence. */
	p = tip[s];
	do
	:: p != NONE ->
		pages[p].shared = 1; DIE;
		pages[p].named = 1;
#ifdef COUNT_ONE
		refs[p] = 1;
		p = pages[p].before
#else
		refs[p]++;
		if
		:: refs[p] == 1 -> p = pages[p].before
		:: else -> break
		fi
#endif
	:: else -> break
	od;
	p = 0;
	do
	:: p < PAGES && pages[p].owner == s + 1 && !pages[p].shared && refs[p] == 0 && mine[s] == NONE ->
		mine[s] = p; refs[p] = 1;
		if
		:: pages[p].place == length[s] + 1 -> filled[s] = 1
		:: else -> pages[p].place = 0; DIE
		fi;
		p++
	:: p < PAGES && !(pages[p].owner == s + 1 && !pages[p].shared && refs[p] == 0 && mine[s] == NONE) -> p++
	:: else -> break
	od
}

/* What a successor finds, when it has looked at everything. */
inline check_adopted()
{
	d_step {
		t = 0;
		do
		:: t < SEQS ->
			assert(!live[t] || length[t] + filled[t] >= kept[t]);
			assert(!live[t] || !filled[t] || pages[mine[t]].content == made(t, length[t]));
			t++
		:: else -> break
		od;
		q = 0;
		do
		:: q < PAGES ->
			assert((pages[q].owner != 0) == (refs[q] > 0 || keeps[q]));
			q++
		:: else -> break
		od;
		q = 0
	}
}

active proctype verifier()
{
	live[0] = 1; live[1] = 1;
	tip[0] = NONE; tip[1] = NONE;
	mine[0] = NONE; mine[1] = NONE;
	pages[0].before = NONE; pages[1].before = NONE; pages[2].before = NONE;
work:
	do
	:: steps > 0 ->
		steps--;
		if
		:: s = 0
		:: s = 1
		fi;
		if
		:: !live[s] -> live[s] = 1; tokens[s] = 0
		:: live[s] && mine[s] == NONE && length[s] < DEPTH -> fill_page()
		:: live[s] && filled[s] -> publish()
		:: live[s] && mine[s] == NONE && length[s] == 0 && live[1 - s] && length[1 - s] > 0 -> share()
#ifdef TAKE_SHARED
		:: live[s] && mine[s] == NONE && length[s] > 0 -> take_back()
#else
		:: live[s] && mine[s] == NONE && length[s] > 0 && has_alone(s) -> take_back()
#endif
#ifdef TAKE_KEPT
		:: live[s] && mine[s] == NONE && length[s] > 0 && refs[tip[s]] == 1 && pages[tip[s]].owner == s + 1 -> take_back()
#endif
		:: live[s] && mine[s] == NONE && length[s] > 0 && !has_alone(s) -> leave()
		:: live[s] && mine[s] == NONE && length[s] == 0 && (keeps[0] || keeps[1] || keeps[2]) -> revive()
		:: live[s] && mine[s] == NONE && length[s] > 0 && has_alone(s) &&
			(is_same(tip[s], 0) || is_same(tip[s], 1) || is_same(tip[s], 2)) -> merge()
		:: keeps[0] || keeps[1] || keeps[2] -> evict()
		:: live[s] -> end()
		fi;
		check()
	:: steps == 0 -> break
	od;
	goto done;
dead:
	skip;
	d_step {
		refs[0] = 0; refs[1] = 0; refs[2] = 0; keeps[0] = 0; keeps[1] = 0; keeps[2] = 0;
		mine[0] = NONE; mine[1] = NONE; length[0] = 0; length[1] = 0;
		filled[0] = 0; filled[1] = 0; s = 0; t = 0; p = 0; q = 0; i = 0; n = 0
	}
	/* In either order. */
	if
	:: s = 0
	:: s = 1
	fi;
	t = s;
	if
	:: live[s] -> adopt()
	:: else
	fi;
#ifdef RECLAIM_EARLY
	n = s;
	reclaim();
	s = n;
#endif
	s = 1 - s;
	if
	:: live[s] -> adopt()
	:: else
	fi;
	reclaim();
	check_adopted();
	check();
	goto work;
done:
	skip
}
