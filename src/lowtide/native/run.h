/* A run: distinct words in the order of their bytes, each as length and count (varints) and its bytes. */

#ifndef LOWTIDE_RUN_H
#define LOWTIDE_RUN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LONGEST_HEADER 20 /* two varints of 64 bits */

typedef struct {
    const uint8_t *bytes; /* a whole run, usually a mapped file */
    uint64_t size;
    uint64_t at; /* behind the current word */
    const uint8_t *word;
    uint64_t length;
    uint64_t count;
} Run;

static inline size_t put_varint(uint8_t *out, uint64_t value) {
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) out[size++] = (uint8_t)(value | 0x80);
    out[size++] = (uint8_t)value;
    return size;
}

/* The bytes written: at most length + LONGEST_HEADER. */
static inline size_t put_word(uint8_t *out, const uint8_t *word, uint64_t length, uint64_t count) {
    size_t used = put_varint(out, length);
    used += put_varint(out + used, count);
    memcpy(out + used, word, length);
    return used + length;
}

/* 1 and the value, or 0 where the run is cut off or no run at all. */
static inline int take_varint(Run *run, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && run->at < run->size; shift += 7) {
        /* Volatile, so that it is read once: the file may change, and what was checked is what is used. */
        uint8_t byte = *(const volatile uint8_t *)(run->bytes + run->at++);
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return 1;
    }
    return 0;
}

/* 1 with the next word, 0 at the end, -1 where the run is damaged. */
static inline int next_word(Run *run) {
    if (run->at == run->size) return 0;
    if (!take_varint(run, &run->length) || !take_varint(run, &run->count)) return -1;
    if (run->length > run->size - run->at || !run->length || !run->count) return -1;
    if (run->count > INT64_MAX) return -1; /* sums of counts are signed */
    run->word = run->bytes + run->at;
    run->at += run->length;
    return 1;
}

#endif
