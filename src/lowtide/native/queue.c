/* Which pair comes first; the table of pairs and the queue of entries, and how room is made in them. */

#include "merger.h"

#include <stdlib.h>
#include <string.h>

/* ── Order ───────────────────────────────────────────────────────────────────────────────────────────── */

static int compare_tokens(const Merger *m, uint32_t one, uint32_t other) {
    uint64_t begin = m->token_ends[one - 1], size = m->token_ends[one] - begin;
    uint64_t other_begin = m->token_ends[other - 1], other_size = m->token_ends[other] - other_begin;
    int order = memcmp(m->token_bytes + begin, m->token_bytes + other_begin, size < other_size ? size : other_size);
    if (order) return order;
    return size < other_size ? -1 : size > other_size;
}

/* HUGGINGFACE: the smaller pair of ids. GREATEST: the greater pair of byte strings. */
static int wins_tie(const Merger *m, uint64_t key, uint64_t other) {
    if (m->ties == HUGGINGFACE) return key < other;
    if (key == other) return 0;
    int order = compare_tokens(m, (uint32_t)(key >> 32), (uint32_t)(other >> 32));
    return order ? order > 0 : compare_tokens(m, (uint32_t)key, (uint32_t)other) > 0;
}

int comes_before(const Merger *m, int64_t count, uint64_t key, int64_t other_count, uint64_t other_key) {
    return count != other_count ? count > other_count : wins_tie(m, key, other_key);
}

int is_watched(const Merger *m, int64_t count, uint64_t key) {
    if (count != m->line.count) return count > m->line.count;
    return !m->line.key || !wins_tie(m, m->line.key, key);
}

/* ── The table of pairs ──────────────────────────────────────────────────────────────────────────────── */

Pair *find_pair(const Merger *m, uint64_t key) {
    for (uint64_t slot = scramble(key) & (m->pair_slots - 1);; slot = (slot + 1) & (m->pair_slots - 1)) {
        if (m->pairs[slot].key == key) return &m->pairs[slot];
        if (!m->pairs[slot].key) return NULL;
    }
}

/* The pair, made with a count of 0 if it was not there. make_room has seen to the room. */
Pair *put_pair(Merger *m, uint64_t key) {
    uint64_t slot = scramble(key) & (m->pair_slots - 1);
    while (m->pairs[slot].key && m->pairs[slot].key != key) slot = (slot + 1) & (m->pair_slots - 1);
    if (!m->pairs[slot].key) {
        m->pairs[slot] = (Pair){.key = key};
        m->pair_used++;
    }
    return &m->pairs[slot];
}

/* ── The queue: a binary heap, the best entry on top ─────────────────────────────────────────────────── */

static int entry_first(const Merger *m, const Entry *one, const Entry *other) {
    return comes_before(m, one->count, one->key, other->count, other->key);
}

static int entry_lies_lower(const Merger *m, const Entry *one, const Entry *other) {
    (void)m;
    return one->start < other->start;
}

typedef int (*Before)(const Merger *, const Entry *, const Entry *);

static void sink(const Merger *m, Entry *entries, uint64_t root, uint64_t count, Before before) {
    Entry held = entries[root];
    for (uint64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && before(m, &entries[child + 1], &entries[child])) child++;
        if (!before(m, &entries[child], &held)) break;
        entries[root] = entries[child];
    }
    entries[root] = held;
}

void sink_top(Merger *m) { sink(m, m->queue, 0, m->queue_size, entry_first); }

static void heapify(Merger *m, Before before) {
    for (uint64_t root = m->queue_size / 2; root-- > 0;) sink(m, m->queue, root, m->queue_size, before);
}

void push_entry(Merger *m, Entry entry) {
    uint64_t at = m->queue_size++;
    for (uint64_t parent; at && (parent = (at - 1) / 2, entry_first(m, &entry, &m->queue[parent])); at = parent)
        m->queue[at] = m->queue[parent];
    m->queue[at] = entry;
}

Entry pop_entry(Merger *m) {
    Entry top = m->queue[0];
    m->queue[0] = m->queue[--m->queue_size];
    if (m->queue_size) sink_top(m);
    return top;
}

/* Put all entries in order, in place: the heap by `before` gives them up one by one, last first. */
static void sort_queue(Merger *m, Before before) {
    heapify(m, before);
    for (uint64_t size = m->queue_size; size > 1;) {
        Entry top = m->queue[0];
        m->queue[0] = m->queue[--size];
        sink(m, m->queue, 0, size, before);
        m->queue[size] = top;
    }
    for (uint64_t low = 0, high = m->queue_size; low + 1 < high; low++) { /* the first came out last */
        Entry held = m->queue[low];
        m->queue[low] = m->queue[--high];
        m->queue[high] = held;
    }
}

/* ── Making room ─────────────────────────────────────────────────────────────────────────────────────── */

/* Lists move together; what dropped entries left between them is free again. */
static void pack_lists(Merger *m) {
    sort_queue(m, entry_lies_lower);
    uint64_t used = 0;
    for (uint64_t index = 0; index < m->queue_size; index++) {
        Entry *entry = &m->queue[index];
        memmove(m->lists + used, m->lists + entry->start, (uint64_t)entry->size * 4);
        entry->start = used;
        used += entry->size;
    }
    m->list_used = used;
    heapify(m, entry_first);
}

/* Bring every entry up to date, drop those below the line, and leave out of the table what has no entry. */
static void refresh(Merger *m) {
    uint64_t kept = 0;
    for (uint64_t index = 0; index < m->queue_size; index++) {
        Entry entry = m->queue[index];
        entry.count = find_pair(m, entry.key)->count;
        if (is_watched(m, entry.count, entry.key)) m->queue[kept++] = entry;
    }
    m->queue_size = kept;
    memset(m->pairs, 0, m->pair_slots * sizeof *m->pairs);
    m->pair_used = 0;
    for (uint64_t index = 0; index < kept; index++) put_pair(m, m->queue[index].key)->count = m->queue[index].count;
    heapify(m, entry_first);
}

/* Stop watching the worse half of the pairs. The line rises to the last that is still watched. */
static void raise_line(Merger *m) {
    refresh(m);
    sort_queue(m, entry_first); /* the best first: this is a heap as well */
    if (m->queue_size < 2) return;
    m->queue_size = (m->queue_size + 1) / 2;
    const Entry *last = &m->queue[m->queue_size - 1];
    m->line = (Line){.count = last->count, .key = last->key};
    refresh(m);
}

static int lacks_pairs(const Merger *m, uint64_t pairs) {
    return m->queue_size + pairs > m->queue_room || m->pair_used + pairs > m->pair_slots / 4 * 3;
}

/* Room for so many more places and pairs, if need be by watching fewer. The best entry stays. With few pairs
   left there may still be too little room afterwards. */
void make_room(Merger *m, uint64_t places, uint64_t pairs) {
    if (lacks_pairs(m, pairs)) refresh(m);
    while (lacks_pairs(m, pairs) && m->queue_size > 1) raise_line(m);
    if (m->list_room - m->list_used >= places) return;
    pack_lists(m);
    while (m->list_room - m->list_used < places && m->queue_size > 1) {
        raise_line(m);
        pack_lists(m);
    }
}
