/* Are files still those that were opened? One look at each, without a Python object for any. */

#define _GNU_SOURCE /* nanoseconds in struct stat, beyond plain C11 */
#include <stdint.h>

#include "layout.h"

#ifndef _WIN32

#include <sys/stat.h>

#ifdef __APPLE__
#define CHANGED_AT(found) (found).st_mtimespec
#else
#define CHANGED_AT(found) (found).st_mtim
#endif

/* `stamps` has four numbers for each file: device, identity, size and time of change in nanoseconds. Returns the
   place among `numbers` of the first file that has others or is gone, or `count`. */
uint64_t lt_first_changed(uint64_t count, const int64_t *numbers, const uint64_t *paths,
                          const uint64_t *stamps) {
    for (uint64_t at = 0; at < count; at++) {
        const uint64_t *wanted = stamps + 4 * numbers[at];
        struct stat found;
        if (stat((const char *)(uintptr_t)paths[numbers[at]], &found))
            return at;
        uint64_t changed_at =
            (uint64_t)CHANGED_AT(found).tv_sec * 1000000000u + (uint64_t)CHANGED_AT(found).tv_nsec;
        if ((uint64_t)found.st_dev != wanted[0] || (uint64_t)found.st_ino != wanted[1] ||
            (uint64_t)found.st_size != wanted[2] || changed_at != wanted[3])
            return at;
    }
    return count;
}

#else /* Tokens are read piece by piece there, and looked at from Python. */

uint64_t lt_first_changed(uint64_t count, const int64_t *numbers, const uint64_t *paths,
                          const uint64_t *stamps) {
    (void)count, (void)numbers, (void)paths, (void)stamps;
    return 0;
}

#endif
