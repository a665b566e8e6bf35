/* Sorted runs of words become one: equal words meet, and their counts add up. */

#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "run.h"

static int compare(const Run *one, const Run *other) {
    int order = memcmp(one->word, other->word, one->length < other->length ? one->length : other->length);
    if (order) return order;
    return one->length < other->length ? -1 : one->length > other->length;
}

struct RunMerger {
    Run *runs;
    uint32_t *heap; /* numbers of the runs that are not at their end, the smallest word on top */
    uint32_t live;
    int damaged;
    uint64_t words, total_count, total_bytes, distinct_bytes, longest;
};

static void settle(RunMerger *merger, uint32_t root) {
    for (uint32_t child; (child = 2 * root + 1) < merger->live; root = child) {
        uint32_t *heap = merger->heap;
        if (child + 1 < merger->live && compare(&merger->runs[heap[child + 1]], &merger->runs[heap[child]]) < 0)
            child++;
        if (compare(&merger->runs[heap[root]], &merger->runs[heap[child]]) <= 0) return;
        uint32_t held = heap[root];
        heap[root] = heap[child];
        heap[child] = held;
    }
}

void lt_runs_close(RunMerger *merger) {
    free(merger->runs);
    free(merger->heap);
    free(merger);
}

RunMerger *lt_runs_open(const uint8_t *const *bytes, const uint64_t *sizes, uint32_t count) {
    RunMerger *merger = calloc(1, sizeof *merger);
    if (!merger) return NULL;
    merger->runs = calloc(count ? count : 1, sizeof *merger->runs);
    merger->heap = calloc(count ? count : 1, sizeof *merger->heap);
    if (!merger->runs || !merger->heap) {
        lt_runs_close(merger);
        return NULL;
    }
    for (uint32_t index = 0; index < count; index++) {
        merger->runs[index].bytes = bytes[index];
        merger->runs[index].size = sizes[index];
        int found = next_word(&merger->runs[index]);
        if (found < 0) merger->damaged = 1;
        if (found > 0) merger->heap[merger->live++] = index;
    }
    for (uint32_t root = merger->live / 2; root-- > 0;) settle(merger, root);
    return merger;
}

/* The run on top moves to its next word, which must come behind the one it leaves. */
static void step_top(RunMerger *merger) {
    Run *run = &merger->runs[merger->heap[0]], before = *run;
    int found = next_word(run);
    if (found < 0 || (found > 0 && compare(&before, run) >= 0)) merger->damaged = 1;
    if (found <= 0) merger->heap[0] = merger->heap[--merger->live];
    if (!merger->damaged) settle(merger, 0);
}

/* Write the next words of the merged run; the bytes written. 0 when all is written, when a run is damaged,
   or when the next word is longer than the room: then *needed says how much it wants. */
uint64_t lt_runs_write(RunMerger *merger, uint8_t *out, uint64_t room, uint64_t *needed) {
    uint64_t used = 0;
    *needed = 0;
    while (merger->live && !merger->damaged) {
        Run word = merger->runs[merger->heap[0]];
        if (room - used < word.length + LONGEST_HEADER) {
            if (!used) *needed = word.length + LONGEST_HEADER;
            break;
        }
        uint64_t count = 0;
        while (merger->live && !merger->damaged && !compare(&word, &merger->runs[merger->heap[0]])) {
            count += merger->runs[merger->heap[0]].count; /* both below 2^63: their sum does not wrap */
            if (count > INT64_MAX) merger->damaged = 1;
            step_top(merger);
        }
        if (merger->damaged) break;
        used += put_word(out + used, word.word, word.length, count);
        merger->words++;
        merger->total_count += count;
        merger->total_bytes += count * word.length;
        merger->distinct_bytes += word.length;
        if (word.length > merger->longest) merger->longest = word.length;
    }
    return used;
}

int lt_runs_damaged(const RunMerger *merger) { return merger->damaged; }

/* words, total count, total bytes, distinct bytes, longest word */
void lt_runs_totals(const RunMerger *merger, uint64_t *totals) {
    totals[0] = merger->words;
    totals[1] = merger->total_count;
    totals[2] = merger->total_bytes;
    totals[3] = merger->distinct_bytes;
    totals[4] = merger->longest;
}
