/* Counting all pairs anew, at first and whenever no watched one is left. */

#include "merger.h"

#include <stdlib.h>
#include <string.h>

/* ── The best candidates, as many as there is room for ───────────────────────────────────────────────── */

typedef struct {
    Candidate *all;
    uint64_t size, room;
    int cut; /* some were left out, all of them worse than the bar */
    Candidate bar;
} Choice;

static int candidate_first(const Merger *m, const Candidate *one, const Candidate *other) {
    return comes_before(m, one->count, one->key, other->count, other->key);
}

/* The worst candidate sinks to the top: the heap sort below leaves the best in front. */
static void sink_candidate(const Merger *m, Candidate *all, uint64_t root, uint64_t size) {
    Candidate held = all[root];
    for (uint64_t child; (child = 2 * root + 1) < size; root = child) {
        if (child + 1 < size && candidate_first(m, &all[child], &all[child + 1])) child++;
        if (!candidate_first(m, &held, &all[child])) break;
        all[root] = all[child];
    }
    all[root] = held;
}

static void sort_choice(const Merger *m, Choice *choice) {
    for (uint64_t root = choice->size / 2; root-- > 0;) sink_candidate(m, choice->all, root, choice->size);
    for (uint64_t size = choice->size; size > 1;) {
        Candidate worst = choice->all[0];
        choice->all[0] = choice->all[--size];
        sink_candidate(m, choice->all, 0, size);
        choice->all[size] = worst;
    }
}

/* A full choice keeps its better half, and from then on takes only what is better than the last of it. */
static void add_candidate(const Merger *m, Choice *choice, Candidate candidate) {
    if (choice->size == choice->room) {
        sort_choice(m, choice);
        choice->size /= 2;
        choice->bar = choice->all[choice->size - 1];
        choice->cut = 1;
    }
    if (choice->cut && candidate_first(m, &choice->bar, &candidate)) return;
    choice->all[choice->size++] = candidate;
}

/* All pairs that occur often enough, counted part by part where the scratch table does not hold them all. */
static int collect(Merger *m, Choice *choice) {
    uint64_t slots = m->pair_slots;
    Candidate *scratch = malloc(slots * sizeof *scratch);
    if (!scratch) return 0;
    for (uint64_t parts = 1, part = 0; part < parts; part++) {
        memset(scratch, 0, slots * sizeof *scratch);
        if (!m->work->count_pairs(m, scratch, slots, part, parts)) {
            parts *= 2;
            part = (uint64_t)-1; /* from the beginning */
            choice->size = 0;
            choice->cut = 0;
            continue;
        }
        for (uint64_t slot = 0; slot < slots; slot++)
            if (scratch[slot].key && scratch[slot].count >= m->min_frequency)
                add_candidate(m, choice, scratch[slot]);
    }
    free(scratch);
    sort_choice(m, choice);
    return 1;
}

/* Give the first candidates entries, as far as half of each table carries them: merges will bring more. */
static uint64_t queue_candidates(Merger *m, const Choice *choice) {
    uint64_t taken = 0, most = m->pair_slots / 4;
    if (most > m->queue_room / 2) most = m->queue_room / 2;
    for (; taken < choice->size && taken < most; taken++) {
        const Candidate *candidate = &choice->all[taken];
        if (m->list_used + candidate->places > (taken ? m->list_room / 2 : m->list_room)) break;
        m->queue[taken] =
            (Entry){.count = candidate->count, .key = candidate->key, .start = (uint32_t)m->list_used};
        put_pair(m, candidate->key)->count = (int64_t)taken; /* list_pairs finds the entry by it */
        m->list_used += candidate->places;
    }
    m->queue_size = taken;
    return taken;
}

/* Choose anew which pairs to watch. */
static enum Status choose(Merger *m, Choice *choice) {
    if (!collect(m, choice)) return OUT_OF_MEMORY;
    if (!choice->size) return NO_PAIR_LEFT;
    uint64_t taken = queue_candidates(m, choice);
    if (!taken) return LISTS_TOO_SMALL;
    const Candidate *last = &choice->all[taken - 1];
    int is_all = taken == choice->size && !choice->cut;
    m->line = is_all ? (Line){.count = m->min_frequency} : (Line){.count = last->count, .key = last->key};
    m->work->list_pairs(m);
    for (uint64_t index = 0; index < taken; index++)
        find_pair(m, m->queue[index].key)->count = m->queue[index].count;
    return ROOM_IS_FULL;
}

/* Count all pairs as the cells stand, and watch the best of them. NO_PAIR_LEFT when there is none. */
enum Status watch_pairs(Merger *m) {
    m->recounts++;
    m->queue_size = m->list_used = m->pair_used = 0;
    memset(m->pairs, 0, m->pair_slots * sizeof *m->pairs);
    m->work->close_up(m); /* moves all cells: no list is in use */
    Choice choice = {.room = m->pair_slots / 2};
    choice.all = malloc(choice.room * sizeof *choice.all);
    if (!choice.all) return OUT_OF_MEMORY;
    enum Status status = choose(m, &choice);
    free(choice.all);
    return status;
}
