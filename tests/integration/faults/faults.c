/* Makes system calls on files fail, one kind at a time, while a control file says so.
 *
 * Loaded with LD_PRELOAD. STATEVISOR_FAULT_FILE is read before every call of the kinds below; its
 * text is "CALL ERRNO END": CALL is read, write, sync or open, ERRNO a number, and the fault is
 * met by every file whose path ends with END, or, if END ends with a slash, has it in its path.
 * Empty or missing: nothing fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int ends(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    if (m && end[m - 1] == '/') return strstr(path, end) != NULL;
    return n >= m && !strcmp(path + n - m, end);
}

/* The number of the error that this call on this path has to give; 0: none. */
static int fault(const char *call, const char *path) {
    const char *control = getenv("STATEVISOR_FAULT_FILE");
    if (!control) return 0;
    REAL(open64);
    int fd = real(control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[PATH_MAX + 64], kind[16], end[PATH_MAX];
    __typeof__(&read) really = (__typeof__(&read))dlsym(RTLD_NEXT, "read");
    ssize_t n = really(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    int number;
    if (sscanf(text, "%15s %d %4095s", kind, &number, end) != 3) return 0;
    return !strcmp(kind, call) && ends(path, end) ? number : 0;
}

static int met(const char *call, int fd) {
    if (!getenv("STATEVISOR_FAULT_FILE")) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || path[0] != '/') return 0;
    path[n] = 0;
    int number = fault(call, path);
    if (number) errno = number;
    return number;
}

#define WRITES(name, ...) \
    { REAL(name); if (met("write", fd)) return -1; return real(__VA_ARGS__); }
#define READS(name, ...) \
    { REAL(name); if (met("read", fd)) return -1; return real(__VA_ARGS__); }

ssize_t write(int fd, const void *data, size_t n) WRITES(write, fd, data, n)
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) WRITES(pwrite, fd, data, n, at)
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) WRITES(pwrite64, fd, data, n, at)
ssize_t pwritev(int fd, const struct iovec *iov, int k, off_t at) WRITES(pwritev, fd, iov, k, at)
ssize_t pwritev64(int fd, const struct iovec *iov, int k, off64_t at) WRITES(pwritev64, fd, iov, k, at)
ssize_t pwritev2(int fd, const struct iovec *iov, int k, off_t at, int f) WRITES(pwritev2, fd, iov, k, at, f)
ssize_t pwritev64v2(int fd, const struct iovec *iov, int k, off64_t at, int f) WRITES(pwritev64v2, fd, iov, k, at, f)
ssize_t pread(int fd, void *data, size_t n, off_t at) READS(pread, fd, data, n, at)
ssize_t pread64(int fd, void *data, size_t n, off64_t at) READS(pread64, fd, data, n, at)
ssize_t preadv(int fd, const struct iovec *iov, int k, off_t at) READS(preadv, fd, iov, k, at)
ssize_t preadv64(int fd, const struct iovec *iov, int k, off64_t at) READS(preadv64, fd, iov, k, at)
ssize_t preadv2(int fd, const struct iovec *iov, int k, off_t at, int f) READS(preadv2, fd, iov, k, at, f)
ssize_t preadv64v2(int fd, const struct iovec *iov, int k, off64_t at, int f) READS(preadv64v2, fd, iov, k, at, f)
int fsync(int fd) { REAL(fsync); return met("sync", fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return met("sync", fd) ? -1 : real(fd); }

/* A file or folder that may only be read: what would write is refused. */
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = (mode_t)va_arg(rest, int); \
            va_end(rest); \
        } \
        REAL(name); \
        int number = flags & (O_WRONLY | O_RDWR) ? fault("open", path) : 0; \
        if (number) { errno = number; return -1; } \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
