/* Cut a block of text into words and count them.

   A block is whole documents and pieces of documents. Its texts end where a mark stands: a document's
   delimiter or a special token, neither of which is ever part of a word. */

#include <string.h>

#include "layout.h"
#include "split_words.h"
#include "word_table.h"

#define BATCH 64
#define LONGEST_TEXT 0xffffffffu /* ends have 32 bits; blocks are shorter by far */

/* Where the next mark begins, or `length`; *size is how long it is. Looks for the first byte of any mark
   with memchr: one pass for each distinct first byte, of which there are one or two. */
typedef struct {
    const Marks *marks;
    uint8_t first[256];
    uint32_t first_count;
    size_t next[256]; /* the next place of each first byte at or behind the search's position */
} Finder;

static void start_finder(Finder *finder, const Marks *marks) {
    finder->marks = marks;
    finder->first_count = 0;
    uint8_t seen[256] = {0};
    for (uint32_t index = 0; index < marks->count; index++) {
        uint8_t byte = marks->bytes[index ? marks->ends[index - 1] : 0];
        if (seen[byte]) continue;
        seen[byte] = 1;
        finder->next[finder->first_count] = 0;
        finder->first[finder->first_count++] = byte;
    }
}

static size_t mark_at(const Marks *marks, const uint8_t *text, size_t at, size_t length) {
    for (uint32_t index = 0; index < marks->count; index++) {
        uint32_t begin = index ? marks->ends[index - 1] : 0, size = marks->ends[index] - begin;
        if (size <= length - at && !memcmp(text + at, marks->bytes + begin, size)) return size;
    }
    return 0;
}

/* The next mark that begins with one first byte, from `at` on. */
static size_t find_from(const Finder *finder, uint32_t which, const uint8_t *text, size_t at, size_t length) {
    while (at < length) {
        const uint8_t *found = memchr(text + at, finder->first[which], length - at);
        if (!found) return length;
        at = (size_t)(found - text);
        if (mark_at(finder->marks, text, at, length)) return at;
        at++;
    }
    return length;
}

static size_t find_mark(Finder *finder, const uint8_t *text, size_t at, size_t length, size_t *size, int fresh) {
    size_t nearest = length;
    for (uint32_t which = 0; which < finder->first_count; which++) {
        if (fresh || finder->next[which] < at)
            finder->next[which] = find_from(finder, which, text, at, length);
        if (finder->next[which] < nearest) nearest = finder->next[which];
    }
    *size = nearest < length ? mark_at(finder->marks, text, nearest, length) : 0;
    return nearest;
}

/* Count the words of one text, text[at:end], a batch at a time. Returns where it stopped: `end`, or the beginning of
   the first word that found no room. */
static size_t count_text(WordTable *table, const CountSettings *settings, const uint8_t *text, size_t at, size_t end,
                         const uint8_t *limit) {
    uint32_t ends[BATCH];
    while (at < end) {
        size_t stretch = end - at < LONGEST_TEXT ? end - at : LONGEST_TEXT;
        size_t held = lt_split_words(settings->pattern, text + at, stretch, settings->classes, ends, BATCH);
        size_t begin = 0;
        for (size_t index = 0; index < held; begin = ends[index++]) {
            const uint8_t *word = text + at + begin;
            size_t length = ends[index] - begin;
            if (length <= 2) add_short(table, word, length);
            else if (!add_word(table, word, length, hash_word(word, length, limit), limit)) return at + begin;
        }
        at += begin;
    }
    return end;
}

/* Count the words of a block from `at` on. Returns `length` when all are counted; less when the table is
   full, and the same call goes on from there once it is cleared. */
uint64_t lt_count_block(WordTable *table, const CountSettings *settings, const uint8_t *text, uint64_t at,
                        uint64_t length) {
    if (table->sorted) return at; /* it could not be written: nothing can be added before it is */
    Finder finder;
    start_finder(&finder, &settings->marks);
    const uint8_t *limit = text + length;
    for (int fresh = 1; at < length; fresh = 0) {
        size_t mark_size, end = find_mark(&finder, text, at, length, &mark_size, fresh);
        size_t stopped = count_text(table, settings, text, at, end, limit);
        if (stopped < end) return stopped;
        at = end + mark_size;
    }
    return length;
}
