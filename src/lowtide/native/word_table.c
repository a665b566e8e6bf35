#include "word_table.h"

#include "run.h"

#include <stdlib.h>

#define FIRST_SLOTS 4096u
#define SPARE_BYTES 16 /* behind the last entry, for reading 8 bytes at once */

static void free_parts(WordTable *table) {
    free(table->slots);
    free(table->arena);
    free(table->shorts);
    free(table);
}

/* A table that occupies at most `most_bytes`, of which a few MB are the least that makes sense. */
WordTable *lt_table_new(uint64_t most_bytes) {
    WordTable *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    table->most_slots = 1 << 17;
    while (table->most_slots * 2 * 8 <= most_bytes / 3) table->most_slots *= 2;
    uint64_t others = table->most_slots * 8 + SHORT_WORDS * (8 + SHORT_ENTRY);
    uint64_t arena = most_bytes > others + 65536 ? most_bytes - others : 65536;
    if (arena > (uint64_t)0xff000000u * 8) arena = (uint64_t)0xff000000u * 8; /* offsets have 32 bits */
    table->arena_room = arena & ~(uint64_t)7;
    table->slot_count = FIRST_SLOTS;
    table->slots = calloc(table->slot_count, 8);
    table->arena = malloc(table->arena_room + SHORT_WORDS * SHORT_ENTRY + SPARE_BYTES);
    table->shorts = calloc(SHORT_WORDS, 8);
    if (table->slots && table->arena && table->shorts) return table;
    free_parts(table);
    return NULL;
}

void lt_table_free(WordTable *table) { free_parts(table); }

void lt_table_clear(WordTable *table) {
    memset(table->slots, 0, table->slot_count * 8);
    memset(table->shorts, 0, SHORT_WORDS * 8);
    table->arena_used = table->word_count = 0;
    table->sorted = 0;
}

/* Distinct words, the short ones included. */
uint64_t lt_table_words(const WordTable *table) {
    uint64_t count = table->word_count;
    if (table->sorted) return count;
    for (uint32_t index = 0; index < SHORT_WORDS; index++) count += table->shorts[index] > 0;
    return count;
}

/* Twice the slots. The hash is made anew: only half of it is kept. */
static int grow(WordTable *table) {
    uint64_t count = table->slot_count * 2;
    uint64_t *slots = calloc(count, 8);
    if (!slots) return 0;
    for (uint64_t old = 0; old < table->slot_count; old++) {
        uint64_t slot = table->slots[old];
        if (!slot) continue;
        const uint8_t *entry = entry_at(table, slot);
        uint32_t length;
        memcpy(&length, entry + 8, 4);
        const uint8_t *word = entry + ENTRY_HEADER;
        uint64_t at = hash_word(word, length, word + length) & (count - 1);
        while (slots[at]) at = (at + 1) & (count - 1);
        slots[at] = slot;
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return 1;
}

static void put_entry(WordTable *table, uint64_t at, const uint8_t *word, size_t length, uint64_t hash, uint64_t count) {
    uint8_t *entry = table->arena + table->arena_used;
    uint32_t short_length = (uint32_t)length;
    memcpy(entry, &count, 8);
    memcpy(entry + 8, &short_length, 4);
    memcpy(entry + ENTRY_HEADER, word, length);
    table->slots[at] = (hash & 0xffffffff00000000u) | (table->arena_used / 8 + 1);
    table->arena_used += (ENTRY_HEADER + length + 7) & ~(uint64_t)7;
    table->word_count++;
}

int insert_word(WordTable *table, uint64_t at, const uint8_t *word, size_t length, uint64_t hash, uint64_t count) {
    uint64_t needed = (ENTRY_HEADER + length + 7) & ~(uint64_t)7;
    if (table->arena_used + needed > table->arena_room || length > 0xffffffffu) return 0;
    uint64_t most = table->most_slots / 4 * 3 - SHORT_WORDS; /* the short words will want slots, too */
    if (table->word_count >= most) return 0;
    if (table->word_count >= table->slot_count / 4 * 3) {
        if (!grow(table)) return 0;
        at = hash & (table->slot_count - 1);
        while (table->slots[at]) at = (at + 1) & (table->slot_count - 1);
    }
    put_entry(table, at, word, length, hash, count);
    return 1;
}

/* ── A sorted run out of a table ─────────────────────────────────────────────────────────────────────── */

/* Each slot's tag gives way to the word's first four bytes: most comparisons need no other memory. */
static uint64_t with_prefix(const WordTable *table, uint64_t slot) {
    const uint8_t *entry = entry_at(table, slot);
    uint32_t length, prefix = 0;
    memcpy(&length, entry + 8, 4);
    for (uint32_t index = 0; index < 4; index++)
        prefix = prefix << 8 | (index < length ? entry[ENTRY_HEADER + index] : 0);
    return (uint64_t)prefix << 32 | (slot & 0xffffffffu);
}

static int comes_first(const WordTable *table, uint64_t left, uint64_t right) {
    if ((left ^ right) >> 32) return left < right;
    const uint8_t *one = entry_at(table, left), *other = entry_at(table, right);
    uint32_t length, other_length;
    memcpy(&length, one + 8, 4);
    memcpy(&other_length, other + 8, 4);
    int order = memcmp(one + ENTRY_HEADER, other + ENTRY_HEADER, length < other_length ? length : other_length);
    return order ? order < 0 : length < other_length;
}

static void sift_down(const WordTable *table, uint64_t *slots, uint64_t root, uint64_t count) {
    for (uint64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && comes_first(table, slots[child], slots[child + 1])) child++;
        if (!comes_first(table, slots[root], slots[child])) return;
        uint64_t held = slots[root];
        slots[root] = slots[child];
        slots[child] = held;
    }
}

static void heap_sort(const WordTable *table, uint64_t *slots, uint64_t count) {
    for (uint64_t root = count / 2; root-- > 0;) sift_down(table, slots, root, count);
    for (uint64_t last = count; last-- > 1;) {
        uint64_t held = slots[0];
        slots[0] = slots[last];
        slots[last] = held;
        sift_down(table, slots, 0, last);
    }
}

static void insertion_sort(const WordTable *table, uint64_t *slots, uint64_t count) {
    for (uint64_t index = 1; index < count; index++) {
        uint64_t held = slots[index], at = index;
        for (; at && comes_first(table, held, slots[at - 1]); at--) slots[at] = slots[at - 1];
        slots[at] = held;
    }
}

/* Quicksort in place, for a table has no second copy's worth of memory; heapsort where that goes astray. */
static void sort_slots(const WordTable *table, uint64_t *slots, uint64_t count, int depth) {
    while (count > 16) {
        if (depth-- == 0) {
            heap_sort(table, slots, count);
            return;
        }
        uint64_t pivot = slots[count / 2];
        uint64_t left = 0, right = count - 1;
        for (;;) {
            while (comes_first(table, slots[left], pivot)) left++;
            while (comes_first(table, pivot, slots[right])) right--;
            if (left >= right) break;
            uint64_t held = slots[left];
            slots[left++] = slots[right];
            slots[right--] = held;
        }
        uint64_t middle = right + 1;
        if (middle < count - middle) {
            sort_slots(table, slots, middle, depth);
            slots += middle;
            count -= middle;
        } else {
            sort_slots(table, slots + middle, count - middle, depth);
            count = middle;
        }
    }
    insertion_sort(table, slots, count);
}

/* Entries for the short words, behind the others: their slots and their part of the arena were kept free. */
static int place_shorts(WordTable *table, uint64_t count) {
    while (count + SHORT_WORDS > table->slot_count && table->slot_count < table->most_slots)
        if (!grow(table)) return 0;
    count = 0;
    for (uint64_t at = 0; at < table->slot_count; at++)
        if (table->slots[at]) table->slots[count++] = table->slots[at];
    for (uint32_t index = 0; index < SHORT_WORDS; index++) {
        if (!table->shorts[index]) continue;
        uint32_t pair = index - 256;
        uint8_t word[2] = {(uint8_t)(index < 256 ? index : pair >> 8), (uint8_t)pair};
        put_entry(table, count++, word, index < 256 ? 1 : 2, 0, table->shorts[index]);
    }
    return 1;
}

/* The words in the order of their bytes; 0 without memory. Afterwards the table can be written and cleared, not
   added to. */
int lt_table_sort(WordTable *table) {
    if (table->sorted) return 1;
    if (!place_shorts(table, table->word_count)) return 0;
    uint64_t count = table->word_count;
    for (uint64_t at = 0; at < count; at++) table->slots[at] = with_prefix(table, table->slots[at]);
    int depth = 2;
    for (uint64_t size = count; size; size >>= 1) depth += 2;
    sort_slots(table, table->slots, count, depth);
    table->sorted = 1;
    return 1;
}

/* Write sorted words from number *next on, as many as the room holds; the bytes written. A word that is
   longer than all of the room is never written: give the longest word's length and a little more. */
uint64_t lt_table_write(const WordTable *table, uint64_t *next, uint8_t *out, uint64_t room) {
    uint64_t used = 0;
    for (; *next < table->word_count; (*next)++) {
        const uint8_t *entry = entry_at(table, table->slots[*next]);
        uint64_t count;
        uint32_t length;
        memcpy(&count, entry, 8);
        memcpy(&length, entry + 8, 4);
        if (room - used < (uint64_t)length + LONGEST_HEADER) break;
        used += put_word(out + used, entry + ENTRY_HEADER, length, count);
    }
    return used;
}

uint64_t lt_table_longest(const WordTable *table) {
    uint64_t longest = 0;
    for (uint64_t at = 0; at < (table->sorted ? table->word_count : table->slot_count); at++) {
        if (!table->slots[at]) continue;
        uint32_t length;
        memcpy(&length, entry_at(table, table->slots[at]) + 8, 4);
        if (length > longest) longest = length;
    }
    return longest;
}
