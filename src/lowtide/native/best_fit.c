/* Best fit: lengths, longest first, into as few rows of `room` as that rule needs.

   Each length goes where it leaves the least room; of equal rows, where something was put last; into a new
   row where none has room. `pack_documents.py` has the plain version.

       room 8, lengths 6 5 3 2   ->   rows 0 1 1 0   (6 2 | 5 3)

   `newest[r]` is the row with r left that was touched last, `older[row]` the one before it, and bit r of
   `open` is set while there is any. Time: one step a length, and one for each 64 of `room`. */

#include <stdint.h>
#include <string.h>

#include "layout.h"

static int64_t next_open(const uint64_t *open, int64_t from, int64_t words) {
    int64_t word = from >> 6;
    uint64_t bits = word < words ? open[word] & (~UINT64_C(0) << (from & 63)) : 0;
    while (!bits) {
        if (++word >= words)
            return -1;
        bits = open[word];
    }
    return (word << 6) + __builtin_ctzll(bits);
}

/* Writes each length's row, and returns how many rows there are. Every length is between 1 and `room`.
   Scratch: `newest` holds room + 1, `older` count, `open` room / 64 + 1 entries. */
int64_t lt_best_fit(int64_t count, const int64_t *lengths, int64_t room, int64_t *rows, int64_t *newest,
                    int64_t *older, uint64_t *open) {
    int64_t made = 0, words = room / 64 + 1;
    memset(open, 0, (size_t)words * sizeof *open);
    for (int64_t at = 0; at < count; at++) {
        int64_t left = next_open(open, lengths[at], words), row;
        if (left < 0) {
            row = made++;
            left = room;
        } else {
            row = newest[left];
            newest[left] = older[row];
            if (newest[left] < 0)
                open[left >> 6] &= ~(UINT64_C(1) << (left & 63));
        }
        rows[at] = row;
        left -= lengths[at];
        if (!(open[left >> 6] >> (left & 63) & 1)) {
            open[left >> 6] |= UINT64_C(1) << (left & 63);
            newest[left] = -1;
        }
        older[row] = newest[left];
        newest[left] = row;
    }
    return made;
}
