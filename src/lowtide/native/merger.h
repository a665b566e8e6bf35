/* The state of learning merges: words as cells, pairs with their counts, a queue of the pairs worth watching.

   cells     every word's symbols, a 0 between words; words with equal counts lie together, so that a place
             tells its word's count. A symbol made by a merge spans the cells of its parts.
   pairs     a hash table from (left, right) to the count of that pair
   queue     a heap of entries: a pair, its count when it was queued, and the places where it stood then
   lists     the places of all entries, one list behind the other

   No token is made twice (reference_train.py has the proof), so a pair is born whole, in the merge that makes
   one of its parts, and from then on its count only falls. Two things follow. An entry whose count is out
   of date goes back into the queue with the right one, and the first that is up to date is the best. And a
   pair that is too rare to be chosen soon need not be watched: `line` is the border. When no watched pair is
   left, all pairs are counted anew with a lower line. So tables and lists have fixed sizes, whatever the
   number of words. */

#ifndef LOWTIDE_MERGER_H
#define LOWTIDE_MERGER_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

typedef struct {
    uint64_t key; /* left symbol << 32 | right symbol; 0 in an empty slot: symbols are counted from 1 */
    int64_t count;
} Pair;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t start; /* of its places, in `lists` */
    uint32_t size;
} Entry;

/* What one merge does to the pairs on one side of the new symbol, for each neighbour. */
typedef struct {
    int64_t gained, taken;
    uint32_t places;
    uint32_t touched;
    uint32_t entry; /* number of the new entry + 1, or 0 */
} Side;

typedef struct {
    uint64_t key;
    int64_t count;
    uint64_t places;
} Candidate;

/* A walk over all cells; see next_pair in cells.h. */
typedef struct {
    uint64_t class, at, next;
    int64_t count;
} Walk;

#define FROM_THE_START {.next = 1}

/* The last pair that is worth watching; a key of 0 means every pair of that count. */
typedef struct {
    int64_t count;
    uint64_t key;
} Line;

enum Ties { HUGGINGFACE = 0, GREATEST = 1 };
enum Status { ROOM_IS_FULL, TARGET_REACHED, NO_PAIR_LEFT, CELLS_TOO_NARROW, OUT_OF_MEMORY, LISTS_TOO_SMALL };

/* What depends on the width of a cell; see cells.h. */
typedef struct {
    uint32_t most_symbols;
    void (*join_places)(Merger *, Step *step, uint32_t made, uint32_t *places, uint32_t *size);
    void (*note_places)(Merger *, uint32_t made, const uint32_t *places, uint32_t size);
    int (*count_pairs)(Merger *, Candidate *table, uint64_t slots, uint64_t part, uint64_t parts);
    void (*list_pairs)(Merger *);
    void (*close_up)(Merger *);
    uint64_t (*copy_cells)(Merger *, uint64_t *next, uint32_t *symbols, uint64_t room);
} CellWork;

struct Merger {
    enum Ties ties;
    int64_t min_frequency;

    void *cells;
    const CellWork *work;
    uint64_t cell_count;
    uint64_t *class_ends; /* the cell behind the last word of each class of equal counts */
    const int64_t *class_counts;
    uint64_t class_total;

    uint32_t symbol_count; /* symbols are 1 … symbol_count */
    uint32_t most_symbols;
    uint64_t *token_ends; /* GREATEST only: token_ends[s] is where the bytes of symbol s end */
    uint8_t *token_bytes;
    uint64_t token_room;

    Pair *pairs;
    uint64_t pair_slots, pair_used;
    Entry *queue;
    uint64_t queue_size, queue_room;
    uint32_t *lists;
    uint64_t list_used, list_room;
    Line line;
    uint64_t recounts;

    Side *before, *after; /* by neighbour; 1 … most_symbols */
    uint32_t *before_touched, *after_touched;
    uint32_t before_count, after_count;
    Entry *born; /* the entries that the current merge makes */
    uint32_t born_count;
    uint32_t *aside; /* places that are worked on while the lists move */
    uint64_t aside_room;
};

extern const CellWork work_of_8_bits, work_of_16_bits, work_of_32_bits;

/* queue.c */
int comes_before(const Merger *m, int64_t count, uint64_t key, int64_t other_count, uint64_t other_key);
int is_watched(const Merger *m, int64_t count, uint64_t key);
Pair *find_pair(const Merger *m, uint64_t key);
Pair *put_pair(Merger *m, uint64_t key);
void push_entry(Merger *m, Entry entry);
Entry pop_entry(Merger *m);
void sink_top(Merger *m);
void make_room(Merger *m, uint64_t places, uint64_t pairs);

/* watch.c */
enum Status watch_pairs(Merger *m);

static inline uint64_t key_of(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }

static inline uint64_t scramble(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
    key *= 0xbf58476d1ce4e5b9u;
    return key ^ key >> 32;
}

static inline void touch_before(Merger *m, uint32_t symbol) {
    if (m->before[symbol].touched) return;
    m->before[symbol].touched = 1;
    m->before_touched[m->before_count++] = symbol;
}

static inline void touch_after(Merger *m, uint32_t symbol) {
    if (m->after[symbol].touched) return;
    m->after[symbol].touched = 1;
    m->after_touched[m->after_count++] = symbol;
}

#endif
