/* A library to preload: system calls that change one folder fail, or write less than they were asked to.

   What to do stands in a file that LOWTIDE_FAILING_DISK names. It is mapped and shared, so that calls are
   counted over all processes of a run, and a fault fires once. bench/failing_disk.py writes it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT = 0, SHORT = -1 }; /* anything else is an errno */

typedef struct {
    uint64_t calls;       /* that change the folder, so far */
    uint64_t first, last; /* which of them are answered wrongly; counted from 1 */
    int64_t answer;
    uint64_t fired;
    char which[256];  /* the last call that was */
    char folder[512]; /* all below it */
} Plan;

static Plan *plan(void) {
    static Plan *found;
    const char *path;
    if (found || !(path = getenv("LOWTIDE_FAILING_DISK"))) return found;
    int number = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (number < 0) return NULL;
    void *mapped = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    syscall(SYS_close, number);
    return found = mapped == MAP_FAILED ? NULL : mapped;
}

static int is_ours(const Plan *now, const char *path) {
    size_t length = strlen(now->folder);
    return !strncmp(path, now->folder, length) && (!path[length] || path[length] == '/');
}

static int path_of(int number, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", number);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
    return size > 0;
}

/* What to answer this call with: COUNT lets it pass. */
static int64_t judge(const char *call, const char *path) {
    Plan *now = plan();
    if (!now || !is_ours(now, path)) return COUNT;
    uint64_t number = __atomic_add_fetch(&now->calls, 1, __ATOMIC_SEQ_CST);
    if (now->answer == COUNT || number < now->first || number > now->last) return COUNT;
    if (now->answer == EINTR && !strchr("wof", call[0])) return COUNT; /* write, open, fsync: others do not answer so */
    __atomic_add_fetch(&now->fired, 1, __ATOMIC_SEQ_CST);
    snprintf(now->which, sizeof now->which, "%s %.200s", call, path + strlen(now->folder));
    return now->answer;
}

static int64_t judge_number(const char *call, int number) {
    char path[PATH_MAX];
    int before = errno;
    int64_t answer = plan() && path_of(number, path) ? judge(call, path) : COUNT;
    errno = before;
    return answer;
}

static int64_t judge_at(const char *call, int folder, const char *path) {
    char whole[2 * PATH_MAX];
    if (!plan()) return COUNT;
    if (path[0] == '/' || folder == AT_FDCWD) return judge(call, path);
    if (!path_of(folder, whole)) return COUNT;
    snprintf(whole + strlen(whole), PATH_MAX, "/%s", path);
    return judge(call, whole);
}

/* Where only writes count, everything else passes unseen. */
static int writes_alone(void) { return plan() && plan()->answer == SHORT; }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(answer) return errno = (int)(answer), -1

/* A part of what was asked for, which part differs from call to call. */
static size_t less_than(size_t count) { return 1 + (plan()->calls * 2654435761u) % (count - 1); }

#define WRITE(name, parameters, passed)                                          \
    ssize_t name parameters {                                                    \
        int64_t answer = writes_alone() && count < 2 ? COUNT : judge_number(#name, number); \
        if (answer == SHORT) count = less_than(count);                           \
        else if (answer != COUNT) FAIL(answer);                                  \
        return NEXT(name) passed;                                                \
    }
WRITE(write, (int number, const void *data, size_t count), (number, data, count))
WRITE(pwrite, (int number, const void *data, size_t count, off_t at), (number, data, count, at))
WRITE(pwrite64, (int number, const void *data, size_t count, off64_t at), (number, data, count, at))

ssize_t writev(int number, const struct iovec *parts, int count) {
    if (writes_alone() && (count < 1 || parts[0].iov_len < 2)) return NEXT(writev)(number, parts, count);
    int64_t answer = judge_number("writev", number);
    if (answer == SHORT) return NEXT(write)(number, parts[0].iov_base, less_than(parts[0].iov_len));
    if (answer != COUNT) FAIL(answer);
    return NEXT(writev)(number, parts, count);
}

#define OPEN(name, parameters, folder, passed)                                                           \
    int name parameters {                                                                                \
        va_list rest;                                                                                    \
        va_start(rest, flags);                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                          \
        va_end(rest);                                                                                    \
        int changes = flags & (O_WRONLY | O_RDWR | O_CREAT);                                             \
        int64_t answer = changes && !writes_alone() ? judge_at(#name, folder, path) : COUNT;             \
        if (answer != COUNT) FAIL(answer);                                                               \
        return NEXT(name) passed;                                                                        \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))

#define SIMPLE(name, parameters, judged, passed)              \
    int name parameters {                                     \
        int64_t answer = writes_alone() ? COUNT : judged;     \
        if (answer != COUNT) FAIL(answer);                    \
        return NEXT(name) passed;                             \
    }
SIMPLE(fsync, (int number), judge_number("fsync", number), (number))
SIMPLE(fdatasync, (int number), judge_number("fdatasync", number), (number))
SIMPLE(ftruncate, (int number, off_t size), judge_number("ftruncate", number), (number, size))
SIMPLE(ftruncate64, (int number, off64_t size), judge_number("ftruncate64", number), (number, size))
SIMPLE(rename, (const char *path, const char *to), judge_at("rename", AT_FDCWD, to), (path, to))
SIMPLE(renameat, (int folder, const char *path, int other, const char *to), judge_at("renameat", other, to),
       (folder, path, other, to))
SIMPLE(unlink, (const char *path), judge_at("unlink", AT_FDCWD, path), (path))
SIMPLE(unlinkat, (int folder, const char *path, int flags), judge_at("unlinkat", folder, path), (folder, path, flags))
SIMPLE(mkdir, (const char *path, mode_t mode), judge_at("mkdir", AT_FDCWD, path), (path, mode))
SIMPLE(mkdirat, (int folder, const char *path, mode_t mode), judge_at("mkdirat", folder, path), (folder, path, mode))
SIMPLE(rmdir, (const char *path), judge_at("rmdir", AT_FDCWD, path), (path))

/* A descriptor is gone even where closing it reports an error. */
int close(int number) {
    int flags = plan() && !writes_alone() ? fcntl(number, F_GETFL) : -1;
    int64_t answer = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY ? judge_number("close", number) : COUNT;
    int result = NEXT(close)(number);
    if (answer != COUNT) FAIL(answer);
    return result;
}
