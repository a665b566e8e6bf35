/* All that Python sees of this folder: structs and functions, each declared once, in a list.

   Two things are made of a list: the declaration itself, so that the compiler refuses a definition that differs,
   and rows of the table `lt_layout` (layout.c), which `__init__.py` compares with its own types at load. */

#ifndef LOWTIDE_LAYOUT_H
#define LOWTIDE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "lowtide reads and writes little-endian numbers as they lie in memory: this machine has another byte order"
#endif

typedef struct WordTable WordTable;
typedef struct RunMerger RunMerger;
typedef struct Classes Classes;
typedef struct Merger Merger;

/* ── Structs: FIELD(type, name) ──────────────────────────────────────────────────────────────────────── */

/* What ends a text inside a block: all marks in one string, longer ones first, and where each ends. */
#define MARKS(FIELD)              \
    FIELD(const uint8_t *, bytes) \
    FIELD(const uint32_t *, ends) \
    FIELD(uint32_t, count)

#define COUNT_SETTINGS(FIELD)       \
    FIELD(int, pattern)             \
    FIELD(const uint8_t *, classes) \
    FIELD(Marks, marks)

/* alphabet: the bytes that occur, in the order of their symbols; pair_slots: a power of two; list_room: in
   places, 4 bytes each. */
#define MERGER_SETTINGS(FIELD)           \
    FIELD(int32_t, ties)                 \
    FIELD(int32_t, bits)                 \
    FIELD(int64_t, min_frequency)        \
    FIELD(void *, cells)                 \
    FIELD(uint64_t, cell_count)          \
    FIELD(uint64_t *, class_ends)        \
    FIELD(const int64_t *, class_counts) \
    FIELD(uint64_t, class_total)         \
    FIELD(const uint8_t *, alphabet)     \
    FIELD(uint32_t, alphabet_size)       \
    FIELD(uint32_t, most_symbols)        \
    FIELD(uint64_t, pair_slots)          \
    FIELD(uint64_t, list_room)

/* One merge. count: the neighbours there were, for which the pair was chosen; joined: how many of them became one
   (of "aaa", one); whole: how many words are a single token now that were not before. */
#define STEP(FIELD)        \
    FIELD(uint32_t, left)  \
    FIELD(uint32_t, right) \
    FIELD(int64_t, count)  \
    FIELD(int64_t, joined) \
    FIELD(int64_t, whole)

#define STRUCTS(STRUCT)                   \
    STRUCT(Marks, MARKS)                  \
    STRUCT(CountSettings, COUNT_SETTINGS) \
    STRUCT(MergerSettings, MERGER_SETTINGS) \
    STRUCT(Step, STEP)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_STRUCT(name, fields) typedef struct { fields(DECLARE_FIELD) } name;
STRUCTS(DECLARE_STRUCT)

/* ── Functions: FUNCTION(result, name, argument types) ───────────────────────────────────────────────── */

#define FUNCTIONS(FUNCTION)                                                                                           \
    FUNCTION(size_t, lt_split_words, int, const uint8_t *, size_t, const uint8_t *, uint32_t *, size_t)               \
    FUNCTION(WordTable *, lt_table_new, uint64_t)                                                                     \
    FUNCTION(void, lt_table_free, WordTable *)                                                                        \
    FUNCTION(void, lt_table_clear, WordTable *)                                                                       \
    FUNCTION(uint64_t, lt_table_words, const WordTable *)                                                             \
    FUNCTION(uint64_t, lt_table_longest, const WordTable *)                                                           \
    FUNCTION(int, lt_table_sort, WordTable *)                                                                         \
    FUNCTION(uint64_t, lt_table_write, const WordTable *, uint64_t *, uint8_t *, uint64_t)                            \
    FUNCTION(uint64_t, lt_count_block, WordTable *, const CountSettings *, const uint8_t *, uint64_t, uint64_t)       \
    FUNCTION(RunMerger *, lt_runs_open, const uint8_t *const *, const uint64_t *, uint32_t)                           \
    FUNCTION(void, lt_runs_close, RunMerger *)                                                                        \
    FUNCTION(uint64_t, lt_runs_write, RunMerger *, uint8_t *, uint64_t, uint64_t *)                                   \
    FUNCTION(int, lt_runs_damaged, const RunMerger *)                                                                 \
    FUNCTION(void, lt_runs_totals, const RunMerger *, uint64_t *)                                                     \
    FUNCTION(Classes *, lt_classes_of, const uint8_t *, uint64_t, int *)                                              \
    FUNCTION(void, lt_classes_free, Classes *)                                                                        \
    FUNCTION(uint64_t, lt_classes_total, const Classes *)                                                             \
    FUNCTION(void, lt_classes_list, const Classes *, uint64_t *, uint64_t *, uint64_t *, uint8_t *)                   \
    FUNCTION(int, lt_lay_words, const uint8_t *, uint64_t, const int64_t *, uint64_t *, const uint64_t *, uint64_t,   \
             const uint16_t *, void *, int32_t)                                                                       \
    FUNCTION(Merger *, lt_merger_new, const MergerSettings *)                                                         \
    FUNCTION(void, lt_merger_free, Merger *)                                                                          \
    FUNCTION(int, lt_merger_run, Merger *, uint32_t, uint64_t, Step *, uint64_t, uint64_t *)                          \
    FUNCTION(int, lt_merger_use_cells, Merger *, void *, int32_t, uint64_t, uint64_t)                                 \
    FUNCTION(uint64_t, lt_merger_close_up, Merger *)                                                                  \
    FUNCTION(uint64_t, lt_merger_copy, Merger *, uint64_t *, uint32_t *, uint64_t)                                    \
    FUNCTION(uint64_t, lt_merger_recounts, const Merger *)                                                            \
    FUNCTION(int, lt_map_file, int, uint64_t, int, void **)                                                           \
    FUNCTION(void, lt_unmap_file, void *, uint64_t)                                                                   \
    FUNCTION(int, lt_watch_map, const void *, uint64_t)                                                               \
    FUNCTION(int, lt_map_broken, int)                                                                                 \
    FUNCTION(void, lt_let_map_go, int)                                                                                \
    FUNCTION(uint64_t, lt_copy_pieces, uint64_t, const uint64_t *, const uint64_t *, const uint64_t *)                \
    FUNCTION(uint64_t, lt_widen_rows, uint64_t, uint64_t, int, const uint64_t *, int64_t *, int64_t *, uint32_t *)    \
    FUNCTION(void, lt_fetch_pieces, uint64_t, const uint64_t *, const uint64_t *)                                     \
    FUNCTION(uint64_t, lt_first_changed, uint64_t, const int64_t *, const uint64_t *, const uint64_t *)               \
    FUNCTION(int64_t, lt_best_fit, int64_t, const int64_t *, int64_t, int64_t *, int64_t *, int64_t *, uint64_t *)

#define DECLARE_FUNCTION(result, name, ...) result name(__VA_ARGS__);
FUNCTIONS(DECLARE_FUNCTION)

#endif
