/* Byte-pair encoding: find the commonest pair of neighbours, make it one symbol, again and again.

   Words that are equal were counted together, so a merge touches each distinct word once. It changes only
   the pairs around the places where it happens: at each place, in a word that came n times,

       … x left right y …   →   … x made y …      (x, left) and (right, y) lose n, (x, made) and (made, y) gain n */

#include "merger.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of left + right for the new symbol. Only ties by bytes ask for them. */
static int spell_symbol(Merger *m, uint32_t left, uint32_t right, uint32_t made) {
    uint64_t left_size = m->token_ends[left] - m->token_ends[left - 1];
    uint64_t right_size = m->token_ends[right] - m->token_ends[right - 1];
    uint64_t begin = m->token_ends[made - 1], end = begin + left_size + right_size;
    if (end > m->token_room) {
        uint8_t *bytes = realloc(m->token_bytes, end * 2);
        if (!bytes) return 0;
        m->token_bytes = bytes;
        m->token_room = end * 2;
    }
    memcpy(m->token_bytes + begin, m->token_bytes + m->token_ends[left - 1], left_size);
    memcpy(m->token_bytes + begin + left_size, m->token_bytes + m->token_ends[right - 1], right_size);
    m->token_ends[made] = end;
    return 1;
}

/* ── One merge ───────────────────────────────────────────────────────────────────────────────────────── */

static void clear_sides(Merger *m) {
    for (uint32_t index = 0; index < m->before_count; index++) m->before[m->before_touched[index]] = (Side){0};
    for (uint32_t index = 0; index < m->after_count; index++) m->after[m->after_touched[index]] = (Side){0};
    m->before_count = m->after_count = m->born_count = 0;
}

static void lose(Merger *m, uint32_t left, uint32_t right, int64_t count) {
    Pair *pair = find_pair(m, key_of(left, right));
    if (pair) pair->count -= count;
}

/* (x, left) and (right, y) lose what (x, made) and (made, y) gained. Where x is itself the new symbol, (made, left)
   had been gained a moment before, by the place to the left. */
static void settle_losses(Merger *m, uint32_t left, uint32_t right, uint32_t made) {
    for (uint32_t index = 0; index < m->after_count; index++) {
        uint32_t y = m->after_touched[index];
        lose(m, right, y, m->after[y].gained);
    }
    for (uint32_t index = 0; index < m->before_count; index++) {
        uint32_t x = m->before_touched[index];
        if (x == made) m->after[left].taken += m->before[x].gained;
        else lose(m, x, left, m->before[x].gained);
    }
}

static int has_room(const Merger *m, uint64_t places) {
    return m->list_room - m->list_used >= places && m->queue_size + m->born_count < m->queue_room &&
           m->pair_used + m->born_count < m->pair_slots / 8 * 7;
}

/* Give a pair of the new symbol its count and, if it is worth watching, an entry. */
static void settle_gain(Merger *m, uint64_t key, Side *side) {
    int64_t count = side->gained - side->taken;
    if (count <= 0 || !is_watched(m, count, key)) return;
    if (!has_room(m, side->places)) { /* no pair of this count or a lower one can be watched any more */
        m->line = (Line){.count = count + 1};
        return;
    }
    put_pair(m, key)->count = count;
    m->born[m->born_count++] = (Entry){.count = count, .key = key, .start = (uint32_t)m->list_used};
    side->entry = m->born_count;
    m->list_used += side->places;
}

static uint64_t wanted_places(const Merger *m, uint64_t key, const Side *side) {
    int64_t count = side->gained - side->taken;
    return count > 0 && is_watched(m, count, key) ? side->places : 0;
}

/* The lists of the new symbol's pairs will fit, if need be by watching fewer. The places that are worked on lie
   in the lists too, in nobody's name any more: they are carried to safety first. NULL without memory. */
static uint32_t *make_room_for_gains(Merger *m, uint32_t made, uint32_t *places, uint32_t size) {
    uint64_t wanted = 0;
    for (uint32_t index = 0; index < m->before_count; index++) {
        uint32_t x = m->before_touched[index];
        wanted += wanted_places(m, key_of(x, made), &m->before[x]);
    }
    for (uint32_t index = 0; index < m->after_count; index++) {
        uint32_t y = m->after_touched[index];
        wanted += wanted_places(m, key_of(made, y), &m->after[y]);
    }
    if (m->list_room - m->list_used >= wanted) return places;
    if (size > m->aside_room) {
        free(m->aside);
        m->aside = malloc((uint64_t)size * 4);
        m->aside_room = m->aside ? size : 0;
        if (!m->aside) return NULL;
    }
    memcpy(m->aside, places, (uint64_t)size * 4);
    make_room(m, wanted, 0);
    return m->aside;
}

/* Entries for the pairs of the new symbol, with their lists. */
static void settle_gains(Merger *m, uint32_t made, const uint32_t *places, uint32_t size) {
    for (uint32_t index = 0; index < m->before_count; index++) {
        uint32_t x = m->before_touched[index];
        settle_gain(m, key_of(x, made), &m->before[x]);
    }
    for (uint32_t index = 0; index < m->after_count; index++) {
        uint32_t y = m->after_touched[index];
        settle_gain(m, key_of(made, y), &m->after[y]);
    }
    if (m->born_count) m->work->note_places(m, made, places, size);
    for (uint32_t index = 0; index < m->born_count; index++) push_entry(m, m->born[index]);
}

/* Carry out the merge on top of the queue. */
static enum Status merge_top(Merger *m, Step *step) {
    uint32_t neighbours = m->queue[0].size < m->symbol_count ? m->queue[0].size : m->symbol_count;
    make_room(m, 0, 2 * (uint64_t)neighbours + 2);
    Entry entry = pop_entry(m);
    uint32_t left = (uint32_t)(entry.key >> 32), right = (uint32_t)entry.key, made = ++m->symbol_count;
    if (m->ties == GREATEST && !spell_symbol(m, left, right, made)) return OUT_OF_MEMORY;
    uint32_t *places = m->lists + entry.start, size = entry.size;
    *step = (Step){.left = left, .right = right, .count = entry.count};
    m->work->join_places(m, step, made, places, &size);
    settle_losses(m, left, right, made);
    places = make_room_for_gains(m, made, places, size);
    if (!places) return OUT_OF_MEMORY;
    settle_gains(m, made, places, size);
    clear_sides(m);
    return ROOM_IS_FULL;
}

/* ── The loop ────────────────────────────────────────────────────────────────────────────────────────── */

/* Bring the best pair to the top of the queue; 0 when none of those watched is left. */
static int find_best(Merger *m) {
    while (m->queue_size) {
        Entry *top = &m->queue[0];
        int64_t count = find_pair(m, top->key)->count;
        if (top->count != count) {
            top->count = count;
            sink_top(m);
        } else if (is_watched(m, count, top->key)) {
            return 1;
        } else {
            pop_entry(m);
        }
    }
    return 0;
}

static int line_is_down(const Merger *m) { return m->line.count == m->min_frequency && !m->line.key; }

static enum Status next_pair(Merger *m) {
    while (!find_best(m)) {
        if (line_is_down(m)) return NO_PAIR_LEFT;
        enum Status status = watch_pairs(m);
        if (status != ROOM_IS_FULL) return status;
    }
    return ROOM_IS_FULL;
}

/* Merge until `steps` is full, the symbols number `target`, or about `most_places` places were looked at. Returns
   an enum Status. */
int lt_merger_run(Merger *m, uint32_t target, uint64_t most_places, Step *steps, uint64_t room, uint64_t *made) {
    for (*made = 0; *made < room && most_places; (*made)++) {
        if (m->symbol_count >= target) return TARGET_REACHED;
        if (m->symbol_count >= m->work->most_symbols) return CELLS_TOO_NARROW;
        enum Status status = next_pair(m);
        if (status != ROOM_IS_FULL) return status;
        uint64_t places = m->queue[0].size + 1;
        status = merge_top(m, &steps[*made]);
        if (status != ROOM_IS_FULL) return status;
        most_places = places < most_places ? most_places - places : 0;
    }
    return ROOM_IS_FULL;
}

/* ── Beginning and end ───────────────────────────────────────────────────────────────────────────────── */

void lt_merger_free(Merger *m) {
    void *parts[] = {m->token_ends, m->token_bytes, m->pairs, m->queue, m->lists, m->before, m->after,
                     m->before_touched, m->after_touched, m->born, m->aside};
    for (size_t index = 0; index < sizeof parts / sizeof *parts; index++) free(parts[index]);
    free(m);
}

static int allocate(Merger *m) {
    uint64_t symbols = (uint64_t)m->most_symbols + 2;
    m->token_room = 1 << 16;
    m->queue_room = m->pair_slots / 2;
    m->token_ends = calloc(symbols, sizeof *m->token_ends);
    m->token_bytes = malloc(m->token_room);
    m->pairs = calloc(m->pair_slots, sizeof *m->pairs);
    m->queue = malloc(m->queue_room * sizeof *m->queue);
    m->lists = malloc(m->list_room * sizeof *m->lists);
    m->before = calloc(symbols, sizeof *m->before);
    m->after = calloc(symbols, sizeof *m->after);
    m->before_touched = malloc(symbols * sizeof *m->before_touched);
    m->after_touched = malloc(symbols * sizeof *m->after_touched);
    m->born = malloc(2 * symbols * sizeof *m->born);
    return m->token_ends && m->token_bytes && m->pairs && m->queue && m->lists && m->before &&
           m->after && m->before_touched && m->after_touched && m->born;
}

static const CellWork *work_for(int32_t bits) {
    return bits == 8 ? &work_of_8_bits : bits == 16 ? &work_of_16_bits : &work_of_32_bits;
}

Merger *lt_merger_new(const MergerSettings *settings) {
    Merger *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->ties = settings->ties ? GREATEST : HUGGINGFACE;
    m->min_frequency = settings->min_frequency < 1 ? 1 : settings->min_frequency;
    m->cells = settings->cells;
    m->work = work_for(settings->bits);
    m->cell_count = settings->cell_count;
    m->class_ends = settings->class_ends;
    m->class_counts = settings->class_counts;
    m->class_total = settings->class_total;
    m->most_symbols = settings->most_symbols;
    m->pair_slots = settings->pair_slots;
    m->list_room = settings->list_room;
    m->line = (Line){.count = INT64_MAX}; /* nothing is watched yet: the first look counts all pairs */
    if (!allocate(m)) {
        lt_merger_free(m);
        return NULL;
    }
    for (uint32_t index = 0; index < settings->alphabet_size; index++) {
        m->token_bytes[index] = settings->alphabet[index];
        m->token_ends[index + 1] = index + 1;
    }
    m->symbol_count = settings->alphabet_size;
    return m;
}

/* Go on with the same words in cells of another width, one symbol in each, as lt_merger_copy gave them. The lists
   are void then, and may have another size. 0 without memory. */
int lt_merger_use_cells(Merger *m, void *cells, int32_t bits, uint64_t cell_count, uint64_t list_room) {
    free(m->lists);
    m->lists = malloc(list_room * sizeof *m->lists);
    m->list_room = m->lists ? list_room : 0;
    m->cells = cells;
    m->work = work_for(bits);
    m->cell_count = cell_count;
    m->queue_size = m->list_used = 0;
    m->line = (Line){.count = INT64_MAX};
    return m->lists != NULL;
}

/* One cell a symbol again; how many cells are left. Lists become void: use_cells must follow. */
uint64_t lt_merger_close_up(Merger *m) {
    m->work->close_up(m);
    return m->cell_count;
}

uint64_t lt_merger_copy(Merger *m, uint64_t *next, uint32_t *symbols, uint64_t room) {
    return m->work->copy_cells(m, next, symbols, room);
}

uint64_t lt_merger_recounts(const Merger *m) { return m->recounts; }
