/* Preloaded library that stands between a process and the system calls by which it changes files.
 *
 * It watches calls below one folder. Each is logged, and one of them can fail or kill the process group. Environment, read
 * by faults_begin() and when a process starts:
 *
 *   FAULTS_FOLDER  folder to watch; unset = nothing is done
 *   FAULTS_LOG     file that gets a line for each call: kind, errno, path, and the source of a rename or a link
 *   FAULTS_SHARED  file of 16 bytes that all processes count in
 *   FAULTS_ACT     kill-before, kill-after, kill-within (half of a write), signal:N (this process gets signal N, and the
 *                  call is done), errno:N (this call fails), full:N (this call and all later ones that need room fail;
 *                  with EROFS all later ones)
 *   FAULTS_KIND    kind of the calls to act on: open write rename link unlink rmdir mkdir sync truncate
 *   FAULTS_GLOB    pattern of their paths, relative to the folder
 *   FAULTS_COUNT   number of the call to act on, from 1
 *
 * Not seen: writes by mmap, by system calls without libc, and inside of stdio other than fopen and fwrite.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, RENAME, LINK, UNLINK, RMDIR, MKDIR, SYNC, TRUNCATE, KINDS };
static const char *const NAMES[KINDS] = {
    "open", "write", "rename", "link", "unlink", "rmdir", "mkdir", "sync", "truncate"};
static const int NEEDS_ROOM[KINDS] = {1, 1, 1, 1, 0, 0, 1, 1, 1};
enum act { NOTHING, KILL_BEFORE, KILL_AFTER, KILL_WITHIN, SIGNAL, FAIL, FULL };

static struct {
    char folder[PATH_MAX], glob[PATH_MAX];
    size_t folder_length;
    int log, kind, number, active; /* number: an errno or a signal */
    enum act act;
    uint64_t count;
    uint64_t *shared; /* matching calls so far; 1 where the disk is full */
} self = {.log = -1};

#define REAL(name) \
    static __typeof__(name) *real_##name; \
    if (!real_##name) real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int raw_open(const char *path, int flags) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return real(path, flags | O_CLOEXEC, 0644);
}

void faults_begin(void) {
    const char *folder = getenv("FAULTS_FOLDER"), *log = getenv("FAULTS_LOG"), *shared = getenv("FAULTS_SHARED");
    const char *act = getenv("FAULTS_ACT"), *kind = getenv("FAULTS_KIND"), *glob = getenv("FAULTS_GLOB");
    const char *count = getenv("FAULTS_COUNT");
    if (!folder) return;
    snprintf(self.folder, sizeof self.folder, "%s", folder);
    self.folder_length = strlen(self.folder);
    snprintf(self.glob, sizeof self.glob, "%s", glob ? glob : "*");
    self.count = count ? strtoull(count, NULL, 10) : 1;
    self.kind = -1;
    for (int i = 0; kind && i < KINDS; i++)
        if (!strcmp(kind, NAMES[i])) self.kind = i;
    if (act) {
        self.act = !strcmp(act, "kill-before")   ? KILL_BEFORE
                   : !strcmp(act, "kill-after")  ? KILL_AFTER
                   : !strcmp(act, "kill-within") ? KILL_WITHIN
                   : !strncmp(act, "signal:", 7) ? SIGNAL
                   : !strncmp(act, "errno:", 6)  ? FAIL
                   : !strncmp(act, "full:", 5)   ? FULL
                                                 : NOTHING;
        const char *number = strchr(act, ':');
        self.number = number ? atoi(number + 1) : 0;
    }
    if (log) self.log = raw_open(log, O_WRONLY | O_CREAT | O_APPEND);
    if (shared) {
        int descriptor = raw_open(shared, O_RDWR);
        if (descriptor >= 0) {
            void *memory = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
            self.shared = memory == MAP_FAILED ? NULL : memory;
            close(descriptor);
        }
    }
    self.active = 1;
}

__attribute__((constructor)) static void at_start(void) { faults_begin(); }

static int is_below(const char *path) {
    return !strncmp(path, self.folder, self.folder_length) && (path[self.folder_length] == '/' || !path[self.folder_length]);
}

/* Write the absolute path of `path` at `directory` into `out`; return 0 where it is not below the folder. */
static int below(int directory, const char *path, char *out) {
    if (!self.active || !path) return 0;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX];
        if (directory == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            ssize_t length = readlink(link, base, sizeof base - 1);
            if (length < 0) return 0;
            base[length] = 0;
        }
        if ((size_t)snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    }
    return is_below(out);
}

static int descriptor_below(int descriptor, char *out) {
    char link[64];
    if (!self.active || descriptor < 0) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    errno = saved;
    if (length <= 0 || out[0] != '/') return 0;
    out[length] = 0;
    return is_below(out);
}

static const char *relative(const char *path) {
    return path[self.folder_length] ? path + self.folder_length + 1 : ".";
}

struct call {
    int kind, acts;
    const char *path, *other;
};

/* Count a call; return the errno with which it must fail, or 0. */
static int before(struct call *call) {
    if (self.shared && self.shared[1] && (NEEDS_ROOM[call->kind] || self.number == EROFS)) return self.number;
    if (self.act == NOTHING || self.kind != call->kind || fnmatch(self.glob, relative(call->path), 0)) return 0;
    uint64_t number = self.shared ? __atomic_add_fetch(&self.shared[0], 1, __ATOMIC_SEQ_CST) : 0;
    if (number != self.count) return 0;
    call->acts = 1;
    switch (self.act) {
    case KILL_BEFORE: kill(0, SIGKILL); pause(); return 0;
    case SIGNAL: kill(getpid(), self.number); return 0;
    case FULL: self.shared[1] = 1; return self.number;
    case FAIL: return self.number;
    default: return 0;
    }
}

static void after(struct call *call, int error) {
    int saved = errno;
    if (call->acts && (self.act == KILL_AFTER || self.act == KILL_WITHIN)) {
        kill(0, SIGKILL);
        pause();
    }
    if (self.log >= 0) {
        static ssize_t (*real)(int, const void *, size_t);
        if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
        char line[2 * PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "%s\t%d\t%s\t%s\n", NAMES[call->kind], error, relative(call->path),
                            call->other ? relative(call->other) : "");
        if (real(self.log, line, size) != size) abort();
    }
    errno = saved;
}

/* Do a call that returns -1 on failure, between before() and after(). */
#define AROUND(call, expression) \
    ({ \
        __typeof__(expression) result_; \
        int error_ = before(&(call)); \
        if (error_) { \
            errno = error_; \
            result_ = -1; \
        } else { \
            result_ = (expression); \
            after(&(call), result_ < 0 ? errno : 0); \
        } \
        result_; \
    })

#define OPENS(name, real_name, at_parameters, directory, arguments) \
    int name(at_parameters const char *path, int flags, ...) { \
        static int (*real)(at_parameters const char *, int, ...); \
        if (!real) real = (int (*)(at_parameters const char *, int, ...))dlsym(RTLD_NEXT, #real_name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        char whole[PATH_MAX]; \
        int changes = flags & (O_WRONLY | O_RDWR | O_CREAT); \
        if (!changes || !below(directory, path, whole)) return real(arguments path, flags, mode); \
        struct call call = {.kind = OPEN, .path = whole}; \
        return AROUND(call, real(arguments path, flags, mode)); \
    }
#define NO_PARAMETERS
#define DIRECTORY_PARAMETER int directory,
#define DIRECTORY_ARGUMENT directory,
OPENS(open, open, NO_PARAMETERS, AT_FDCWD, NO_PARAMETERS)
OPENS(open64, open64, NO_PARAMETERS, AT_FDCWD, NO_PARAMETERS)
OPENS(openat, openat, DIRECTORY_PARAMETER, directory, DIRECTORY_ARGUMENT)
OPENS(openat64, openat64, DIRECTORY_PARAMETER, directory, DIRECTORY_ARGUMENT)

#define STREAMS(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(name); \
        char whole[PATH_MAX]; \
        if (!strpbrk(mode, "wa+") || !below(AT_FDCWD, path, whole)) return real_##name(path, mode); \
        struct call call = {.kind = OPEN, .path = whole}; \
        int error = before(&call); \
        if (error) { \
            errno = error; \
            return NULL; \
        } \
        FILE *stream = real_##name(path, mode); \
        after(&call, stream ? 0 : errno); \
        return stream; \
    }
STREAMS(fopen)
STREAMS(fopen64)

size_t fwrite(const void *from, size_t size, size_t number, FILE *stream) {
    REAL(fwrite);
    char whole[PATH_MAX];
    if (!descriptor_below(fileno(stream), whole)) return real_fwrite(from, size, number, stream);
    struct call call = {.kind = WRITE, .path = whole};
    int error = before(&call);
    if (error) {
        errno = error;
        return 0;
    }
    size_t done = real_fwrite(from, size, call.acts && self.act == KILL_WITHIN ? number / 2 : number, stream);
    if (call.acts && self.act != FAIL) fflush(stream);
    after(&call, done < number ? errno : 0);
    return done;
}

#define WRITES(descriptor, expression) \
    char whole[PATH_MAX]; \
    if (!descriptor_below(descriptor, whole)) return expression; \
    struct call call = {.kind = WRITE, .path = whole}; \
    return AROUND(call, expression)
#define HALVED(size) (self.act == KILL_WITHIN && halved(descriptor, size) ? (size) / 2 : (size))
static int halved(int descriptor, size_t size) {
    char whole[PATH_MAX];
    return size > 1 && self.shared && self.shared[0] == self.count && descriptor_below(descriptor, whole) &&
           !fnmatch(self.glob, relative(whole), 0);
}

ssize_t write(int descriptor, const void *from, size_t size) {
    REAL(write);
    WRITES(descriptor, real_write(descriptor, from, HALVED(size)));
}
ssize_t pwrite(int descriptor, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    WRITES(descriptor, real_pwrite(descriptor, from, HALVED(size), at));
}
ssize_t pwrite64(int descriptor, const void *from, size_t size, off64_t at) {
    REAL(pwrite64);
    WRITES(descriptor, real_pwrite64(descriptor, from, HALVED(size), at));
}
ssize_t writev(int descriptor, const struct iovec *data, int parts) {
    REAL(writev);
    WRITES(descriptor, real_writev(descriptor, data, parts));
}
ssize_t pwritev(int descriptor, const struct iovec *data, int parts, off_t at) {
    REAL(pwritev);
    WRITES(descriptor, real_pwritev(descriptor, data, parts, at));
}
/* Copies inside the kernel are refused: callers fall back to writes, which are seen. */
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
    REAL(sendfile);
    char whole[PATH_MAX];
    if (!descriptor_below(out, whole)) return real_sendfile(out, in, offset, size);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    REAL(sendfile64);
    char whole[PATH_MAX];
    if (!descriptor_below(out, whole)) return real_sendfile64(out, in, offset, size);
    errno = EINVAL;
    return -1;
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned int flags) {
    REAL(copy_file_range);
    char whole[PATH_MAX];
    if (!descriptor_below(out, whole)) return real_copy_file_range(in, from, out, to, size, flags);
    errno = ENOSYS;
    return -1;
}

#define OF_DESCRIPTOR(name, of_kind, parameters, arguments) \
    int name(int descriptor parameters) { \
        REAL(name); \
        char whole[PATH_MAX]; \
        if (!descriptor_below(descriptor, whole)) return real_##name(descriptor arguments); \
        struct call call = {.kind = of_kind, .path = whole}; \
        return AROUND(call, real_##name(descriptor arguments)); \
    }
#define COMMA ,
OF_DESCRIPTOR(fsync, SYNC, , )
OF_DESCRIPTOR(fdatasync, SYNC, , )
OF_DESCRIPTOR(syncfs, SYNC, , )
OF_DESCRIPTOR(ftruncate, TRUNCATE, COMMA off_t length, COMMA length)
OF_DESCRIPTOR(ftruncate64, TRUNCATE, COMMA off64_t length, COMMA length)

#define OF_PATH(name, parameters, directory, arguments, the_kind) \
    int name parameters { \
        REAL(name); \
        char whole[PATH_MAX]; \
        if (!below(directory, path, whole)) return real_##name arguments; \
        struct call call = {.kind = the_kind, .path = whole}; \
        return AROUND(call, real_##name arguments); \
    }
OF_PATH(unlink, (const char *path), AT_FDCWD, (path), UNLINK)
OF_PATH(remove, (const char *path), AT_FDCWD, (path), UNLINK)
OF_PATH(rmdir, (const char *path), AT_FDCWD, (path), RMDIR)
OF_PATH(unlinkat, (int directory, const char *path, int flags), directory, (directory, path, flags),
        (flags & AT_REMOVEDIR ? RMDIR : UNLINK))
OF_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, (path, mode), MKDIR)
OF_PATH(mkdirat, (int directory, const char *path, mode_t mode), directory, (directory, path, mode), MKDIR)
OF_PATH(truncate, (const char *path, off_t length), AT_FDCWD, (path, length), TRUNCATE)
OF_PATH(truncate64, (const char *path, off64_t length), AT_FDCWD, (path, length), TRUNCATE)

#define OF_TWO(name, the_kind, parameters, from_directory, to_directory, arguments) \
    int name parameters { \
        REAL(name); \
        char whole[PATH_MAX], target[PATH_MAX]; \
        int is_below = below(from_directory, from, whole), to_below = below(to_directory, to, target); \
        if (!is_below || !to_below) return real_##name arguments; \
        struct call call = {.kind = the_kind, .path = target, .other = whole}; \
        return AROUND(call, real_##name arguments); \
    }
OF_TWO(rename, RENAME, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
OF_TWO(renameat, RENAME, (int a, const char *from, int b, const char *to), a, b, (a, from, b, to))
OF_TWO(renameat2, RENAME, (int a, const char *from, int b, const char *to, unsigned int flags), a, b,
       (a, from, b, to, flags))
OF_TWO(link, LINK, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
OF_TWO(linkat, LINK, (int a, const char *from, int b, const char *to, int flags), a, b, (a, from, b, to, flags))
