/* Files in memory that may shrink while they are read: the answer is a number, not a SIGBUS.

   A page beyond the end of a mapped file cannot be read; the kernel says so with a signal that ends the
   process. No check beforehand helps, for the file may be cut between check and copy. So the copy runs with
   a handler in place that leaps out of it, in the thread that met the page and for addresses inside the piece
   being copied; any other SIGBUS goes to whoever had the signal before.

   Where a library reads the map, nothing may leap out of it. There the map is watched instead: from the missing
   page on it is replaced by zeros, reading goes on, and whoever watches asks afterwards whether that happened. */

#define _GNU_SOURCE /* madvise, beyond plain C11 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"

#ifndef _WIN32

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local sigjmp_buf landing;
static _Thread_local volatile uintptr_t piece_start, piece_end; /* equal while nothing is copied */
static _Thread_local volatile sig_atomic_t passed_on; /* a fault of this thread that was not ours */
static struct sigaction before_us;
static atomic_flag installing = ATOMIC_FLAG_INIT;

#define MOST_WATCHED 1024
static struct {
    atomic_int taken, broken;
    atomic_uintptr_t start, end; /* equal while nothing is watched */
} watched[MOST_WATCHED];
static uintptr_t page_bytes; /* sysconf is not for signal handlers */

/* Whether the address lay in a watched map, which now has zeros from this page to its end. */
static bool patch_watched(uintptr_t address) {
    for (int slot = 0; slot < MOST_WATCHED; slot++) {
        uintptr_t start = atomic_load(&watched[slot].start), end = atomic_load(&watched[slot].end);
        if (address < start || address >= end)
            continue;
        uintptr_t page = address / page_bytes * page_bytes;
        atomic_store(&watched[slot].broken, 1);
        /* Not writable: a fence on private memory (RLIMIT_DATA) does not count it. */
        return mmap((void *)page, (size_t)(end - page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
               MAP_FAILED;
    }
    return false;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    uintptr_t address = (uintptr_t)info->si_addr;
    if (address >= piece_start && address < piece_end)
        siglongjmp(landing, 1);
    int error = errno;
    if (info->si_code > 0 && patch_watched(address)) {
        errno = error;
        return;
    }
    struct sigaction next = before_us;
    bool nobody = !(next.sa_flags & SA_SIGINFO) &&
                  (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN);
    /* Who has been told of a fault and now raises the signal wants the process to end. */
    bool raised = passed_on && info->si_code <= 0;
    if (nobody || raised) {
        bool sent = info->si_code <= 0; /* by somebody: no instruction will run again */
        if (sent && !raised && next.sa_handler == SIG_IGN)
            return;
        signal(number, SIG_DFL); /* the faulting instruction runs again, and ends the process */
        if (sent)
            raise(number);
        return;
    }
    passed_on = 1;
    if (next.sa_flags & SA_SIGINFO)
        next.sa_sigaction(number, info, context);
    else
        next.sa_handler(number);
}

/* Others (faulthandler, a debugger) may have put their handler over ours since the last call. */
static void stand_first(void) {
    struct sigaction now;
    sigaction(SIGBUS, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)
        return;
    while (atomic_flag_test_and_set(&installing))
        ;
    sigaction(SIGBUS, NULL, &now);
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_bus_error) {
        struct sigaction ours;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = on_bus_error;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        before_us = now;
        sigaction(SIGBUS, &ours, NULL);
    }
    atomic_flag_clear(&installing);
}

/* Map a whole file for reading; 0, or what went wrong. The descriptor may be closed afterwards. `scattered`
   keeps the kernel from reading 128 KiB around each page that is missed. */
int lt_map_file(int descriptor, uint64_t bytes, int scattered, void **address) {
    void *found = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (found == MAP_FAILED)
        return errno;
    if (scattered)
        madvise(found, (size_t)bytes, MADV_RANDOM);
    *address = found;
    return 0;
}

void lt_unmap_file(void *address, uint64_t bytes) { munmap(address, (size_t)bytes); }

/* Watch a map that begins at a page: its number, or -1 where too many are watched. It must be let go before it
   is unmapped. */
int lt_watch_map(const void *address, uint64_t bytes) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    stand_first();
    for (int slot = 0; slot < MOST_WATCHED; slot++) {
        int free_slot = 0;
        if (!atomic_compare_exchange_strong(&watched[slot].taken, &free_slot, 1))
            continue;
        atomic_store(&watched[slot].broken, 0);
        atomic_store(&watched[slot].start, (uintptr_t)address);
        atomic_store(&watched[slot].end, (uintptr_t)address + (uintptr_t)bytes);
        return slot;
    }
    return -1;
}

/* Whether a page of it was missing since it is watched. */
int lt_map_broken(int slot) {
    stand_first();
    return atomic_load(&watched[slot].broken);
}

void lt_let_map_go(int slot) {
    atomic_store(&watched[slot].end, 0); /* first: never a range of one map's start and another's end */
    atomic_store(&watched[slot].start, 0);
    atomic_store(&watched[slot].taken, 0);
}

/* Copy pieces out of mapped files. Returns `count`, or the number of the first piece that has a page beyond
   its file's end (pieces after it were not copied). */
uint64_t lt_copy_pieces(uint64_t count, const uint64_t *sources, const uint64_t *targets,
                        const uint64_t *bytes) {
    volatile uint64_t at = 0;
    stand_first();
    if (sigsetjmp(landing, 1)) {
        piece_start = piece_end = 0;
        return at;
    }
    for (; at < count; at++) {
        uintptr_t source = (uintptr_t)sources[at];
        piece_end = 0; /* never a range made of one piece's start and another's end */
        piece_start = source;
        piece_end = source + bytes[at];
        atomic_signal_fence(memory_order_seq_cst);
        memcpy((void *)(uintptr_t)targets[at], (const void *)source, (size_t)bytes[at]);
        atomic_signal_fence(memory_order_seq_cst);
    }
    piece_start = piece_end = 0;
    return count;
}

#if defined(__x86_64__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

CLONES static uint32_t widen_narrow(uint64_t context, const uint16_t *row, int64_t *x, int64_t *y) {
    uint16_t largest = 0;
    for (uint64_t at = 0; at < context; at++)
        x[at] = row[at];
    for (uint64_t at = 0; at < context; at++)
        y[at] = row[at + 1];
    for (uint64_t at = 0; at <= context; at++)
        largest = row[at] > largest ? row[at] : largest;
    return largest;
}

CLONES static uint32_t widen_wide(uint64_t context, const uint32_t *row, int64_t *x, int64_t *y) {
    uint32_t largest = 0;
    for (uint64_t at = 0; at < context; at++)
        x[at] = row[at];
    for (uint64_t at = 0; at < context; at++)
        y[at] = row[at + 1];
    for (uint64_t at = 0; at <= context; at++)
        largest = row[at] > largest ? row[at] : largest;
    return largest;
}

/* Start loading the next row while this one is widened; an address that cannot be read does no harm here. */
static void fetch_row(uint64_t source, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes && at < 4096; at += 64)
        __builtin_prefetch((const char *)(uintptr_t)source + at);
}

/* Rows of `context + 1` ids, 2 or 4 bytes wide, as tokens `x` and what follows each, `y`; `largest` is the
   largest id of all. Returns as `lt_copy_pieces` does. */
uint64_t lt_widen_rows(uint64_t count, uint64_t context, int width, const uint64_t *sources, int64_t *x,
                       int64_t *y, uint32_t *largest) {
    volatile uint64_t at = 0;
    stand_first();
    if (sigsetjmp(landing, 1)) {
        piece_start = piece_end = 0;
        return at;
    }
    *largest = 0;
    for (; at < count; at++) {
        uintptr_t source = (uintptr_t)sources[at];
        uint64_t row = at * context;
        piece_end = 0;
        piece_start = source;
        piece_end = source + (context + 1) * (uint64_t)width;
        if (at + 1 < count)
            fetch_row(sources[at + 1], (context + 1) * (uint64_t)width);
        atomic_signal_fence(memory_order_seq_cst);
        uint32_t found = width == 2 ? widen_narrow(context, (const uint16_t *)source, x + row, y + row)
                                    : widen_wide(context, (const uint32_t *)source, x + row, y + row);
        atomic_signal_fence(memory_order_seq_cst);
        *largest = found > *largest ? found : *largest;
    }
    piece_start = piece_end = 0;
    return count;
}

/* Ask the kernel to read pieces ahead, without waiting for them. */
void lt_fetch_pieces(uint64_t count, const uint64_t *sources, const uint64_t *bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < count; at++) {
        uintptr_t start = (uintptr_t)sources[at] / page * page;
        madvise((void *)start, (size_t)((uintptr_t)sources[at] + bytes[at] - start), MADV_WILLNEED);
    }
}

#else /* Windows keeps a mapped file from being cut; nothing of this is needed there, and nothing offered. */

int lt_map_file(int descriptor, uint64_t bytes, int scattered, void **address) {
    (void)descriptor, (void)bytes, (void)scattered, (void)address;
    return ENOSYS;
}
void lt_unmap_file(void *address, uint64_t bytes) { (void)address, (void)bytes; }
int lt_watch_map(const void *address, uint64_t bytes) {
    (void)address, (void)bytes;
    return 0;
}
int lt_map_broken(int slot) {
    (void)slot;
    return 0;
}
void lt_let_map_go(int slot) { (void)slot; }
uint64_t lt_copy_pieces(uint64_t count, const uint64_t *sources, const uint64_t *targets,
                        const uint64_t *bytes) {
    (void)count, (void)sources, (void)targets, (void)bytes;
    return 0;
}
uint64_t lt_widen_rows(uint64_t count, uint64_t context, int width, const uint64_t *sources, int64_t *x,
                       int64_t *y, uint32_t *largest) {
    (void)count, (void)context, (void)width, (void)sources, (void)x, (void)y, (void)largest;
    return 0;
}
void lt_fetch_pieces(uint64_t count, const uint64_t *sources, const uint64_t *bytes) {
    (void)count, (void)sources, (void)bytes;
}

#endif
