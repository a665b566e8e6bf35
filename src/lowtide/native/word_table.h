/* A hash table from words to how often they came, in memory of a fixed size.

   arena   ┌ count (8 bytes) │ length (4) │ the word, padded to 8 ┐┌ next entry …
   slots   open addressing; each slot holds a tag (32 bits of the hash) and where its entry lies,
           in units of 8 bytes, plus one. 0 is an empty slot.
   short   words of one and two bytes, half of all words in source code, have a counter each and no hash;
           they become entries when the table is sorted

   Nothing is ever freed one by one: a full table is sorted, written out as a run, and cleared. */

#ifndef LOWTIDE_WORD_TABLE_H
#define LOWTIDE_WORD_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"

#define SHORT_WORDS (256 + 65536)
#define ENTRY_HEADER 12
#define SHORT_ENTRY 16 /* bytes in the arena */

struct WordTable {
    uint64_t *slots;
    uint64_t slot_count; /* a power of two; grows up to most_slots */
    uint64_t most_slots;
    uint8_t *arena;
    uint64_t arena_used; /* bytes, a multiple of 8 */
    uint64_t arena_room;
    uint64_t word_count; /* without the short ones, until the table is sorted */
    uint64_t *shorts;
    int sorted; /* the slots hold a dense sorted list, not a hash table */
};

static inline uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static inline uint8_t *entry_at(const WordTable *table, uint64_t slot) {
    return table->arena + ((slot & 0xffffffffu) - 1) * 8;
}

static inline uint64_t mix(uint64_t left, uint64_t right) {
    unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Up to 8 bytes, zero padded. Reads 8 where the buffer goes on that far. */
static inline uint64_t load_short(const uint8_t *at, size_t length, const uint8_t *end_of_buffer) {
    if (at + 8 <= end_of_buffer) return load64(at) & (~(uint64_t)0 >> (64 - 8 * length));
    uint64_t value = 0;
    memcpy(&value, at, length);
    return value;
}

/* Of a word that is not empty. */
static inline uint64_t hash_word(const uint8_t *word, size_t length, const uint8_t *end_of_buffer) {
    const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd6e8feb86659fd93u, k2 = 0xa0761d6478bd642fu;
    uint64_t state = k2 ^ length;
    if (length <= 8) return mix(load_short(word, length, end_of_buffer) ^ k0, state ^ k1);
    for (; length > 16; word += 16, length -= 16) state = mix(load64(word) ^ k0 ^ state, load64(word + 8) ^ k1);
    if (length < 8) return mix(load_short(word, length, end_of_buffer) ^ k0 ^ state, k1);
    return mix(load64(word) ^ k0 ^ state, load64(word + length - 8) ^ k1);
}

/* Whether an entry holds this word. An entry is padded, so 8 bytes can be read wherever its word begins. */
static inline int holds_word(const uint8_t *entry, const uint8_t *word, size_t length, const uint8_t *end_of_buffer) {
    uint32_t found;
    memcpy(&found, entry + 8, 4);
    if (found != length) return 0;
    const uint8_t *own = entry + ENTRY_HEADER;
    if (length <= 8) {
        uint64_t unlike = load64(own) ^ load_short(word, length, end_of_buffer);
        return !(unlike << (64 - 8 * length));
    }
    if (length <= 16) return load64(own) == load64(word) && load64(own + length - 8) == load64(word + length - 8);
    return !memcmp(own, word, length);
}

/* 1 when put in with this count, 0 when there is no room for one more distinct word. `at` is its empty slot. */
int insert_word(WordTable *table, uint64_t at, const uint8_t *word, size_t length, uint64_t hash, uint64_t count);

/* 1 when counted, 0 when the table has no room for one more distinct word. */
static inline int add_word(WordTable *table, const uint8_t *word, size_t length, uint64_t hash,
                           const uint8_t *end_of_buffer) {
    uint64_t mask = table->slot_count - 1;
    uint64_t at = hash & mask;
    for (uint64_t slot; (slot = table->slots[at]); at = (at + 1) & mask) {
        if ((slot ^ hash) >> 32) continue;
        uint8_t *entry = entry_at(table, slot);
        if (!holds_word(entry, word, length, end_of_buffer)) continue;
        uint64_t count;
        memcpy(&count, entry, 8);
        count++;
        memcpy(entry, &count, 8);
        return 1;
    }
    return insert_word(table, at, word, length, hash, 1);
}

static inline void add_short(WordTable *table, const uint8_t *word, size_t length) {
    table->shorts[length == 1 ? word[0] : 256 + ((size_t)word[0] << 8 | word[1])]++;
}

#endif
