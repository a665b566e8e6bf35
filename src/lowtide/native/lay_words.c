/* The words of a run become cells: words with equal counts side by side, the most frequent first. */

#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "run.h"

/* ── Which counts occur, and how many cells their words need ─────────────────────────────────────────── */

typedef struct {
    uint64_t count;
    uint64_t words;
    uint64_t cells;
} CountClass;

struct Classes {
    CountClass *slots;
    uint64_t slot_count, used;
    uint8_t bytes[256]; /* which bytes occur in words that have a pair */
};

static uint64_t slot_of(const Classes *classes, uint64_t count) {
    uint64_t slot = (count * 0x9e3779b97f4a7c15u >> 32) & (classes->slot_count - 1);
    while (classes->slots[slot].count && classes->slots[slot].count != count)
        slot = (slot + 1) & (classes->slot_count - 1);
    return slot;
}

static int grow(Classes *classes) {
    Classes grown = *classes;
    grown.slot_count *= 2;
    grown.slots = calloc(grown.slot_count, sizeof *grown.slots);
    if (!grown.slots) return 0;
    for (uint64_t index = 0; index < classes->slot_count; index++)
        if (classes->slots[index].count) grown.slots[slot_of(&grown, classes->slots[index].count)] = classes->slots[index];
    free(classes->slots);
    *classes = grown;
    return 1;
}

void lt_classes_free(Classes *classes) {
    free(classes->slots);
    free(classes);
}

/* NULL when memory ran out, or the run is damaged: then *damaged is 1. Words of one byte have no pair and are left
   out. */
Classes *lt_classes_of(const uint8_t *bytes, uint64_t size, int *damaged) {
    Classes *classes = calloc(1, sizeof *classes);
    *damaged = 0;
    if (!classes) return NULL;
    classes->slot_count = 1024;
    classes->slots = calloc(classes->slot_count, sizeof *classes->slots);
    Run run = {.bytes = bytes, .size = size};
    int found = 0, grown = classes->slots != NULL;
    uint64_t weight, total = 0;
    while (grown && (found = next_word(&run)) > 0) {
        if (run.length < 2) continue;
        if (__builtin_mul_overflow(run.count, run.length, &weight) || __builtin_add_overflow(total, weight, &total) ||
            total > INT64_MAX) {
            found = -1; /* no pair's count may grow beyond what a signed sum holds */
            break;
        }
        for (uint64_t index = 0; index < run.length; index++) classes->bytes[run.word[index]] = 1;
        uint64_t slot = slot_of(classes, run.count);
        if (!classes->slots[slot].count) {
            if (classes->used >= classes->slot_count / 2) {
                if (!(grown = grow(classes))) break;
                slot = slot_of(classes, run.count);
            }
            classes->used++;
            classes->slots[slot].count = run.count;
        }
        classes->slots[slot].words++;
        classes->slots[slot].cells += run.length + 1;
    }
    if (grown && found == 0) return classes;
    *damaged = grown;
    lt_classes_free(classes);
    return NULL;
}

uint64_t lt_classes_total(const Classes *classes) { return classes->used; }

/* In no particular order. */
void lt_classes_list(const Classes *classes, uint64_t *counts, uint64_t *words, uint64_t *cells, uint8_t *bytes) {
    uint64_t written = 0;
    for (uint64_t slot = 0; slot < classes->slot_count; slot++) {
        if (!classes->slots[slot].count) continue;
        counts[written] = classes->slots[slot].count;
        words[written] = classes->slots[slot].words;
        cells[written++] = classes->slots[slot].cells;
    }
    memcpy(bytes, classes->bytes, 256);
}

/* ── The cells ───────────────────────────────────────────────────────────────────────────────────────── */

/* The place of a count among all counts, which descend, or `total` where it is not among them. */
static uint64_t find_class(const int64_t *counts, uint64_t total, uint64_t count) {
    uint64_t low = 0, high = total;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((uint64_t)counts[middle] > count) low = middle + 1;
        else high = middle;
    }
    return low < total && (uint64_t)counts[low] == count ? low : total;
}

/* A byte without a symbol was not in any word when they were counted. */
#define LAY(CELL)                                                \
    {                                                            \
        CELL *to = (CELL *)cells + next[class];                  \
        for (uint64_t index = 0; index < run.length; index++) {  \
            to[index] = (CELL)symbols[run.word[index]];          \
            known &= to[index] != 0;                             \
        }                                                        \
        to[run.length] = 0;                                      \
    }

/* `next` holds, for each class, the first of its cells; afterwards the cell behind its last, which is the one that
   `ends` has. Cell 0 stays 0. Returns 0 where the words are not those that were counted: a mapped file may have
   changed since. No cell outside its class is written then, either. */
int lt_lay_words(const uint8_t *bytes, uint64_t size, const int64_t *counts, uint64_t *next, const uint64_t *ends,
                 uint64_t total, const uint16_t *symbols, void *cells, int32_t bits) {
    Run run = {.bytes = bytes, .size = size};
    int found, known = 1;
    while ((found = next_word(&run)) > 0) {
        if (run.length < 2) continue;
        uint64_t class = find_class(counts, total, run.count);
        if (class == total || run.length >= ends[class] - next[class]) return 0;
        if (bits == 8) LAY(uint8_t)
        else if (bits == 16) LAY(uint16_t)
        else LAY(uint32_t)
        if (!known) return 0;
        next[class] += run.length + 1;
    }
    for (uint64_t class = 0; class < total; class++) known &= next[class] == ends[class];
    return found == 0 && known;
}
