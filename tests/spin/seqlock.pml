/*
 * shared/ipc/page.c: one writer, readers that copy under a sequence. The writer may die inside a write; its successor writes
 * the whole page again (page_write needs no recovery before). The sequence runs modulo 16; that is enough for the writes made
 * here never to bring back a number during one read, as 2^32 is in practice.
 *
 * Checked: no reader takes a copy whose words are of different writes, nor an older one than it already had.
 *
 * breaks: -DNO_SECOND_LOOK   the reader does not compare the sequence after copying
 * breaks: -DWORDS_FIRST      a word is stored before the odd number (page_store without release)
 * breaks: -DEVEN_FIRST       the even number is stored before the last word (page_write_end without release)
 * breaks: -DHEAL_BY_TOGGLE   a write after a death adds 1 as always, so that inside the write the number is even
 */
#define WRITES 3
#define TRIES 3

byte sequence, word[2];
byte written;	 /* the last value begun */
bool died;

proctype writer()
{
	byte value;

	do
	:: written == WRITES -> break
	:: written < WRITES ->
		written++;
		value = written;
#ifdef WORDS_FIRST
		word[0] = value;
#endif
#ifdef HEAL_BY_TOGGLE
		sequence = (sequence + 1) % 16;
#else
		sequence = ((sequence + 1) | 1) % 16;
#endif
		word[0] = value;
		if
		:: !died && written < WRITES -> died = true; goto next /* the successor's next write heals it */
		:: skip
		fi;
#ifdef EVEN_FIRST
		sequence = (sequence + 1) % 16;
		word[1] = value;
#else
		word[1] = value;
		sequence = (sequence + 1) % 16;
#endif
next:		skip
	od
}

proctype reader()
{
	byte before, first, second, had, tries;

	do
	:: tries == TRIES -> break
	:: tries < TRIES ->
		tries++;
		before = sequence;
		if
		:: before % 2 == 0 ->
			first = word[0];
			second = word[1];
			if
#ifdef NO_SECOND_LOOK
			:: true ->
#else
			:: sequence == before ->
#endif
				assert(first == second);
				assert(first >= had);
				had = first
			:: else -> skip
			fi
		:: else -> skip
		fi
	od
}

init
{
	atomic {
		run writer();
		run reader();
		run reader()
	}
}
