/* Writes down every system call that changes a file below one folder, or makes a change durable.
 *
 * Loaded with LD_PRELOAD. STATEVISOR_RECORD_FOLDER is the folder, STATEVISOR_RECORD_LOG the log;
 * behind entry STATEVISOR_RECORD_STOP the process is killed.
 * One lock covers a change and its entry, so the order of entries is the order of changes. A sync
 * has two entries and is not under the lock: it covers what was changed before it began. What
 * cannot be recorded faithfully ends the process. An entry is a head and its bytes:
 *     u8 op, i32 fd, i64 offset or length or flags, u32 bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096
enum { OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, UNLINK, RENAME, MKDIR };
enum { WATCHED = 1, SHARED = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char watched[FDS];
static char folder[PATH_MAX];
static size_t folder_len;
static int out = -1;
static long count, stop;

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void die(const char *why) {
    fprintf(stderr, "recorder: %s\n", why);
    abort();
}

static void put(const void *data, size_t n) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    const char *at = data;
    while (n) {
        ssize_t done = real(out, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) die("the log cannot be written");
        at += done;
        n -= (size_t)done;
    }
}

static void note(unsigned char op, int fd, long long number, const void *data, unsigned len) {
    unsigned char head[17];
    head[0] = op;
    memcpy(head + 1, &fd, 4);
    memcpy(head + 5, &number, 8);
    memcpy(head + 13, &len, 4);
    put(head, sizeof head);
    if (len) put(data, len);
    count++;
}

static void done_with_it(void) {
    if (stop && count >= stop) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void start(void) {
    const char *where = getenv("STATEVISOR_RECORD_FOLDER"), *log = getenv("STATEVISOR_RECORD_LOG");
    if (!where || !log) return;
    const char *last = getenv("STATEVISOR_RECORD_STOP");
    stop = last ? atol(last) : 0;
    snprintf(folder, sizeof folder, "%s", where);
    folder_len = strlen(folder);
    REAL(open64);
    out = real(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0) die("the log cannot be opened");
    /* High, so that it is no descriptor that a program would close by number. */
    int high = fcntl(out, F_DUPFD_CLOEXEC, FDS);
    if (high >= 0) out = high;
}

static int inside(const char *path, char *whole) {
    if (out < 0 || !path) return 0;
    if (path[0] == '/') snprintf(whole, PATH_MAX, "%s", path);
    else {
        if (!getcwd(whole, PATH_MAX)) return 0;
        size_t n = strlen(whole);
        snprintf(whole + n, PATH_MAX - n, "/%s", path);
    }
    if (strncmp(whole, folder, folder_len)) return 0;
    return whole[folder_len] == 0 || whole[folder_len] == '/';
}

static int is_watched(int fd) { return fd >= 0 && fd < FDS && watched[fd]; }

static int opened(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    if (!inside(path, whole)) return real(path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE) die("O_TMPFILE");
    pthread_mutex_lock(&lock);
    int there = access(whole, F_OK) == 0;
    int fd = real(path, flags, mode);
    int kept = errno;
    if (fd >= FDS) die("too many descriptors");
    if (fd >= 0) {
        size_t n = strlen(whole);
        watched[fd] = WATCHED | (n > 4 && !strcmp(whole + n - 4, "-shm") ? SHARED : 0);
        note(OPEN, fd, there ? 0 : 1, whole, (unsigned)n);
        if (flags & O_TRUNC) note(TRUNCATE, fd, 0, 0, 0);
    }
    done_with_it();
    errno = kept;
    return fd;
}

#define MODE() \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = (mode_t)va_arg(rest, int); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE() REAL(open); return opened(real, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE() REAL(open64); return opened(real, path, flags, mode); }

static int opened_at(int (*real)(int, const char *, int, ...), int dir, const char *path, int flags, mode_t mode) {
    if (dir != AT_FDCWD && path[0] != '/') {
        if (is_watched(dir) && (flags & O_ACCMODE) != O_RDONLY) die("openat below a watched folder");
        return real(dir, path, flags, mode);
    }
    return opened((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64"), path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...) { MODE() return opened_at((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat"), dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE() return opened_at((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat64"), dir, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    REAL(close);
    if (!is_watched(fd)) return real(fd);
    pthread_mutex_lock(&lock);
    watched[fd] = 0;
    note(CLOSE, fd, 0, 0, 0);
    int result = real(fd);
    done_with_it();
    return result;
}

/* A change and its entry, at once. */
#define CHANGE(call, entry) \
    if (!is_watched(fd)) return call; \
    pthread_mutex_lock(&lock); \
    ssize_t done = call; \
    int kept = errno; \
    if (done >= 0) { entry; } \
    done_with_it(); \
    errno = kept; \
    return done;

static void note_iov(int fd, off_t at, const struct iovec *iov, int count, ssize_t done) {
    char *flat = malloc((size_t)done + 1);
    if (!flat) die("no memory");
    size_t n = 0;
    for (int k = 0; k < count && n < (size_t)done; k++) {
        size_t part = iov[k].iov_len;
        if (part > (size_t)done - n) part = (size_t)done - n;
        memcpy(flat + n, iov[k].iov_base, part);
        n += part;
    }
    note(WRITE, fd, at, flat, (unsigned)done);
    free(flat);
}

static off_t behind(int fd, ssize_t done) { return lseek(fd, 0, SEEK_CUR) - done; }

ssize_t write(int fd, const void *data, size_t n) { REAL(write); CHANGE(real(fd, data, n), note(WRITE, fd, behind(fd, done), data, (unsigned)done)) }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { REAL(pwrite); CHANGE(real(fd, data, n, at), note(WRITE, fd, at, data, (unsigned)done)) }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { REAL(pwrite64); CHANGE(real(fd, data, n, at), note(WRITE, fd, at, data, (unsigned)done)) }
ssize_t writev(int fd, const struct iovec *iov, int count) { REAL(writev); CHANGE(real(fd, iov, count), note_iov(fd, behind(fd, done), iov, count, done)) }
ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at) { REAL(pwritev); CHANGE(real(fd, iov, count, at), note_iov(fd, at, iov, count, done)) }
ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t at) { REAL(pwritev64); CHANGE(real(fd, iov, count, at), note_iov(fd, at, iov, count, done)) }
ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags) { REAL(pwritev2); CHANGE(real(fd, iov, count, at, flags), note_iov(fd, at, iov, count, done)) }
ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags) { REAL(pwritev64v2); CHANGE(real(fd, iov, count, at, flags), note_iov(fd, at, iov, count, done)) }
int ftruncate(int fd, off_t length) { REAL(ftruncate); CHANGE(real(fd, length), note(TRUNCATE, fd, length, 0, 0)) }
int ftruncate64(int fd, off64_t length) { REAL(ftruncate64); CHANGE(real(fd, length), note(TRUNCATE, fd, length, 0, 0)) }

static int synced(int (*real)(int), int fd) {
    if (!is_watched(fd)) return real(fd);
    pthread_mutex_lock(&lock);
    note(SYNC_BEGIN, fd, 0, 0, 0);
    done_with_it();
    int result = real(fd), kept = errno;
    if (!result) {
        pthread_mutex_lock(&lock);
        note(SYNC_END, fd, 0, 0, 0);
        done_with_it();
    }
    errno = kept;
    return result;
}

int fsync(int fd) { REAL(fsync); return synced(real, fd); }
int fdatasync(int fd) { REAL(fdatasync); return synced(real, fd); }

#define NAMED(op, path, call) \
    char whole[PATH_MAX]; \
    if (!inside(path, whole)) return call; \
    pthread_mutex_lock(&lock); \
    int result = call, kept = errno; \
    if (!result) note(op, -1, 0, whole, (unsigned)strlen(whole)); \
    done_with_it(); \
    errno = kept; \
    return result;

int unlink(const char *path) { REAL(unlink); NAMED(UNLINK, path, real(path)) }
int remove(const char *path) { REAL(remove); NAMED(UNLINK, path, real(path)) }
int rmdir(const char *path) { REAL(rmdir); NAMED(UNLINK, path, real(path)) }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); NAMED(MKDIR, path, real(path, mode)) }

int unlinkat(int dir, const char *path, int flags) {
    REAL(unlinkat);
    if (dir != AT_FDCWD && is_watched(dir)) die("unlinkat below a watched folder");
    NAMED(UNLINK, path, real(dir, path, flags))
}

int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(mkdirat);
    if (dir != AT_FDCWD && is_watched(dir)) die("mkdirat below a watched folder");
    NAMED(MKDIR, path, real(dir, path, mode))
}

int rename(const char *from, const char *to) {
    REAL(rename);
    char a[2 * PATH_MAX + 1], b[PATH_MAX];
    int from_inside = inside(from, a), to_inside = inside(to, b);
    if (!from_inside && !to_inside) return real(from, to);
    if (!from_inside || !to_inside) die("rename across the folder's border");
    pthread_mutex_lock(&lock);
    int result = real(from, to), kept = errno;
    if (!result) {
        size_t n = strlen(a);
        memcpy(a + n + 1, b, strlen(b));
        note(RENAME, -1, 0, a, (unsigned)(n + 1 + strlen(b)));
    }
    done_with_it();
    errno = kept;
    return result;
}

/* What is not written down must not happen. */
#define REFUSE(fd, name) if (is_watched(fd)) die(name)

int renameat(int a, const char *from, int b, const char *to) { REAL(renameat); char whole[PATH_MAX]; if (inside(from, whole) || inside(to, whole) || is_watched(a) || is_watched(b)) die("renameat"); return real(a, from, b, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { REAL(renameat2); char whole[PATH_MAX]; if (inside(from, whole) || inside(to, whole) || is_watched(a) || is_watched(b)) die("renameat2"); return real(a, from, b, to, flags); }
int link(const char *from, const char *to) { REAL(link); char whole[PATH_MAX]; if (inside(from, whole) || inside(to, whole)) die("link"); return real(from, to); }
int truncate(const char *path, off_t length) { REAL(truncate); char whole[PATH_MAX]; if (inside(path, whole)) die("truncate"); return real(path, length); }
int truncate64(const char *path, off64_t length) { REAL(truncate64); char whole[PATH_MAX]; if (inside(path, whole)) die("truncate64"); return real(path, length); }
int dup(int fd) { REAL(dup); REFUSE(fd, "dup"); return real(fd); }
int dup2(int fd, int to) { REAL(dup2); REFUSE(fd, "dup2"); REFUSE(to, "dup2"); return real(fd, to); }
int dup3(int fd, int to, int flags) { REAL(dup3); REFUSE(fd, "dup3"); REFUSE(to, "dup3"); return real(fd, to, flags); }
int fallocate(int fd, int mode, off_t at, off_t n) { REAL(fallocate); REFUSE(fd, "fallocate"); return real(fd, mode, at, n); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { REAL(fallocate64); REFUSE(fd, "fallocate64"); return real(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { REAL(posix_fallocate); REFUSE(fd, "posix_fallocate"); return real(fd, at, n); }
int posix_fallocate64(int fd, off64_t at, off64_t n) { REAL(posix_fallocate64); REFUSE(fd, "posix_fallocate64"); return real(fd, at, n); }
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags) { REAL(copy_file_range); REFUSE(to, "copy_file_range"); return real(from, a, to, b, n, flags); }

static void check_map(int fd, int prot, int flags) {
    /* SQLite's -shm holds nothing that a start after a power failure may use. */
    if ((flags & MAP_SHARED) && (prot & PROT_WRITE) && is_watched(fd) && !(watched[fd] & SHARED)) die("mmap for writing");
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) { REAL(mmap); check_map(fd, prot, flags); return real(at, n, prot, flags, fd, offset); }
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t offset) { REAL(mmap64); check_map(fd, prot, flags); return real(at, n, prot, flags, fd, offset); }
