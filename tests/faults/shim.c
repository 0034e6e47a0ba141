/* Preloaded library that stands between a process and the system calls by which it changes files.
 *
 * It looks at calls below one folder only. Each is written to a log, and one of them can be made to fail, to be slow, to
 * kill the process group or to stop it. Environment, read by faults_begin() and when a process starts:
 *
 *   FAULTS_FOLDER  folder to look at; unset = nothing is done
 *   FAULTS_LOG     file to which a record of each call is appended (struct record, two paths, data)
 *   FAULTS_SHARED  file of 16 bytes that all processes count in
 *   FAULTS_ACT     kill-before, kill-after, kill-within (half of a write), kill-alone (before the call, this process
 *                  and not its group), stop, errno:N (this call alone),
 *                  full:N (this call and all later ones that need room; of a disk
 *                  that has become read-only, EROFS, all later ones), delay:MICROSECONDS (every call),
 *                  lost:N (of a sync or a close: half of the file is gone, as where a file server takes what was
 *                  written only then, and refuses it)
 *   FAULTS_KIND    kind of the calls to act on: open write rename link unlink rmdir mkdir sync truncate close read
 *                  (read: a file is opened to be read)
 *   FAULTS_GLOB    pattern of their paths, relative to the folder
 *   FAULTS_COUNT   number of the call to act on, from 1
 *   FAULTS_CLOCK   "SECONDS:JUMP": from SECONDS after the start the wall clock is JUMP seconds off
 *
 * Writes by mmap, by system calls without libc and inside of stdio other than
 * fopen, fwrite and fclose are not seen.
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
#include <sys/stat.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { OPEN, WRITE, RENAME, LINK, UNLINK, RMDIR, MKDIR, SYNC, TRUNCATE, CLOSE, READ, KINDS };
static const char *const NAMES[KINDS] = {
    "open", "write", "rename", "link", "unlink", "rmdir", "mkdir", "sync", "truncate", "close", "read"};
static const int NEEDS_ROOM[KINDS] = {1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0};
enum act { NOTHING, KILL_BEFORE, KILL_AFTER, KILL_WITHIN, KILL_ALONE, STOP, FAIL, FULL, LOSE, DELAY };

struct record {
    uint32_t size; /* of the whole record with paths and data */
    uint32_t kind;
    int32_t error; /* errno of the call, 0 where it succeeded */
    uint32_t process;
    int64_t offset; /* write: place in the file; truncate: length; open: flags */
    uint64_t inode; /* file behind a descriptor, else 0 */
    uint32_t path, other; /* bytes of the two paths */
};

static struct {
    char folder[PATH_MAX], glob[PATH_MAX];
    size_t folder_length;
    int log, kind, error, delay, active, clock;
    enum act act;
    uint64_t count;
    uint64_t *shared; /* matching calls so far; 1 where the disk is full */
    double clock_after, clock_jump, began;
} self = {.log = -1};

#define REAL(name) \
    static __typeof__(name) *real_##name; \
    if (!real_##name) real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static double seconds(void) {
    REAL(clock_gettime);
    struct timespec now;
    real_clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static int raw_open(const char *path, int flags) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return real(path, flags | O_CLOEXEC, 0644);
}

void faults_begin(void) {
    const char *folder = getenv("FAULTS_FOLDER"), *log = getenv("FAULTS_LOG"), *shared = getenv("FAULTS_SHARED");
    const char *act = getenv("FAULTS_ACT"), *kind = getenv("FAULTS_KIND"), *glob = getenv("FAULTS_GLOB");
    const char *count = getenv("FAULTS_COUNT"), *clock = getenv("FAULTS_CLOCK");
    if (!folder) return;
    snprintf(self.folder, sizeof self.folder, "%s", folder);
    self.folder_length = strlen(self.folder);
    snprintf(self.glob, sizeof self.glob, "%s", glob ? glob : "*");
    self.count = count ? strtoull(count, NULL, 10) : 1;
    self.kind = -1;
    for (int i = 0; kind && i < KINDS; i++)
        if (!strcmp(kind, NAMES[i])) self.kind = i;
    if (act) {
        self.act = !strcmp(act, "kill-before")  ? KILL_BEFORE
                   : !strcmp(act, "kill-after") ? KILL_AFTER
                   : !strcmp(act, "kill-within") ? KILL_WITHIN
                   : !strcmp(act, "kill-alone")  ? KILL_ALONE
                   : !strcmp(act, "stop")        ? STOP
                   : !strncmp(act, "errno:", 6)  ? FAIL
                   : !strncmp(act, "full:", 5)   ? FULL
                   : !strncmp(act, "lost:", 5)   ? LOSE
                   : !strncmp(act, "delay:", 6)  ? DELAY
                                                 : NOTHING;
        const char *number = strchr(act, ':');
        self.error = self.delay = number ? atoi(number + 1) : 0;
    }
    if (log) self.log = raw_open(log, O_WRONLY | O_CREAT | O_APPEND);
    if (shared) {
        int descriptor = raw_open(shared, O_RDWR);
        if (descriptor >= 0) {
            void *memory = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
            self.shared = memory == MAP_FAILED ? NULL : memory;
            REAL(close);
            real_close(descriptor);
        }
    }
    self.began = seconds();
    self.clock = clock && sscanf(clock, "%lf:%lf", &self.clock_after, &self.clock_jump) == 2;
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
    int kind, watched, acts;
    const char *path, *other;
};

static void lose_half(const char *path) {
    static int (*real)(const char *, off_t);
    if (!real) real = (int (*)(const char *, off_t))dlsym(RTLD_NEXT, "truncate");
    struct stat found;
    if (!stat(path, &found) && S_ISREG(found.st_mode) && real(path, found.st_size / 2)) abort();
}

/* Count a call; return the errno with which it must fail, or 0. */
static int before(struct call *call) {
    if (self.act == DELAY) {
        usleep(self.delay);
        return 0;
    }
    int changes = call->kind != CLOSE && call->kind != READ;
    if (self.shared && self.shared[1] && (NEEDS_ROOM[call->kind] || (self.error == EROFS && changes))) return self.error;
    if (self.act == NOTHING || self.kind != call->kind || fnmatch(self.glob, relative(call->path), 0)) return 0;
    uint64_t number = self.shared ? __atomic_add_fetch(&self.shared[0], 1, __ATOMIC_SEQ_CST) : 0;
    if (number != self.count) return 0;
    call->acts = 1;
    switch (self.act) {
    case KILL_BEFORE: kill(0, SIGKILL); pause(); return 0;
    case KILL_ALONE: kill(getpid(), SIGKILL); pause(); return 0;
    case STOP: kill(0, SIGSTOP); return 0;
    case LOSE: lose_half(call->path); return self.error;
    case FULL: self.shared[1] = 1; return self.error;
    case FAIL: return self.error;
    default: return 0;
    }
}

static void after(struct call *call, int error, int64_t offset, uint64_t inode, const void *data, size_t data_size) {
    int saved = errno;
    if (call->acts && (self.act == KILL_AFTER || self.act == KILL_WITHIN)) {
        kill(0, SIGKILL);
        pause();
    }
    if (self.log >= 0) {
        struct iovec all[4];
        struct record record = {0, call->kind, error, getpid(), offset, inode, strlen(relative(call->path)),
                                call->other ? strlen(relative(call->other)) : 0};
        all[0] = (struct iovec){&record, sizeof record};
        all[1] = (struct iovec){(void *)relative(call->path), record.path};
        all[2] = (struct iovec){call->other ? (void *)relative(call->other) : "", record.other};
        all[3] = (struct iovec){(void *)data, data_size};
        record.size = sizeof record + record.path + record.other + data_size;
        static ssize_t (*real)(int, const struct iovec *, int);
        if (!real) real = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
        if (real(self.log, all, 4) != (ssize_t)record.size) abort();
    }
    errno = saved;
}

static uint64_t inode_of(int descriptor) {
    struct stat found;
    return descriptor >= 0 && !fstat(descriptor, &found) ? found.st_ino : 0;
}

/* Do a call that returns -1 on failure, between before() and after(). */
#define AROUND(call, expression, offset, inode, data, size) \
    ({ \
        __typeof__(expression) result_; \
        int error_ = before(&(call)); \
        if (error_) { \
            errno = error_; \
            result_ = -1; \
        } else { \
            result_ = (expression); \
            after(&(call), result_ < 0 ? errno : 0, offset, inode, data, size); \
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
        if (!below(directory, path, whole)) return real(arguments path, flags, mode); \
        struct call call = {.kind = flags & (O_WRONLY | O_RDWR | O_CREAT) ? OPEN : READ, .path = whole}; \
        int descriptor = -1; \
        return AROUND(call, descriptor = real(arguments path, flags, mode), flags, inode_of(descriptor), NULL, 0); \
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
        int flags = O_WRONLY | O_CREAT | (mode[0] == 'w' ? O_TRUNC : O_APPEND); \
        after(&call, stream ? 0 : errno, flags, stream ? inode_of(fileno(stream)) : 0, NULL, 0); \
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
    int64_t offset = ftell(stream);
    size_t done = real_fwrite(from, size, call.acts && self.act == KILL_WITHIN ? number / 2 : number, stream);
    if (call.acts && self.act != FAIL) fflush(stream);
    after(&call, done < number ? errno : 0, offset, inode_of(fileno(stream)), from, done * size);
    return done;
}

int fclose(FILE *stream) {
    REAL(fclose);
    char whole[PATH_MAX];
    if (!descriptor_below(fileno(stream), whole)) return real_fclose(stream);
    struct call call = {.kind = CLOSE, .path = whole};
    uint64_t inode = inode_of(fileno(stream));
    fflush(stream); /* before what is lost */
    int error = before(&call), result = real_fclose(stream);
    after(&call, error, 0, inode, NULL, 0);
    if (error) errno = error;
    return error ? EOF : result;
}

static int64_t place(int descriptor) {
    int flags = fcntl(descriptor, F_GETFL);
    struct stat found;
    if (flags >= 0 && flags & O_APPEND) return fstat(descriptor, &found) ? 0 : found.st_size;
    return lseek(descriptor, 0, SEEK_CUR);
}

/* Write `parts` buffers with `once`, which takes how many of them to write and their bytes. */
#define WRITES(descriptor, where, vector, parts, expression) \
    char whole[PATH_MAX]; \
    if (!descriptor_below(descriptor, whole)) { \
        return expression; \
    } \
    struct call call = {.kind = WRITE, .path = whole}; \
    int error = before(&call); \
    if (error) { \
        errno = error; \
        return -1; \
    } \
    int64_t offset = where; \
    ssize_t done = expression; \
    size_t size_ = done > 0 ? done : 0, copied = 0; \
    char *written = malloc(size_ + 1); \
    for (int i = 0; i < (parts) && copied < size_; i++) { \
        size_t part = (vector)[i].iov_len < size_ - copied ? (vector)[i].iov_len : size_ - copied; \
        memcpy(written + copied, (vector)[i].iov_base, part); \
        copied += part; \
    } \
    after(&call, done < 0 ? errno : 0, offset, inode_of(descriptor), written, copied); \
    free(written); \
    return done
#define HALVED(size) (self.act == KILL_WITHIN && halved(descriptor, size) ? (size) / 2 : (size))
static int halved(int descriptor, size_t size) {
    char whole[PATH_MAX];
    return size > 1 && self.shared && self.shared[0] == self.count && descriptor_below(descriptor, whole) &&
           !fnmatch(self.glob, relative(whole), 0);
}

ssize_t write(int descriptor, const void *from, size_t size) {
    REAL(write);
    struct iovec data = {(void *)from, size};
    WRITES(descriptor, place(descriptor), &data, 1, real_write(descriptor, from, HALVED(size)));
}
ssize_t pwrite(int descriptor, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    struct iovec data = {(void *)from, size};
    WRITES(descriptor, at, &data, 1, real_pwrite(descriptor, from, HALVED(size), at));
}
ssize_t pwrite64(int descriptor, const void *from, size_t size, off64_t at) {
    REAL(pwrite64);
    struct iovec data = {(void *)from, size};
    WRITES(descriptor, at, &data, 1, real_pwrite64(descriptor, from, HALVED(size), at));
}
ssize_t writev(int descriptor, const struct iovec *data, int parts) {
    REAL(writev);
    WRITES(descriptor, place(descriptor), data, parts, real_writev(descriptor, data, parts));
}
ssize_t pwritev(int descriptor, const struct iovec *data, int parts, off_t at) {
    REAL(pwritev);
    WRITES(descriptor, at, data, parts, real_pwritev(descriptor, data, parts, at));
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

#define OF_DESCRIPTOR(name, of_kind, parameters, arguments, offset) \
    int name(int descriptor parameters) { \
        REAL(name); \
        char whole[PATH_MAX]; \
        if (!descriptor_below(descriptor, whole)) return real_##name(descriptor arguments); \
        struct call call = {.kind = of_kind, .path = whole}; \
        uint64_t inode = inode_of(descriptor); \
        return AROUND(call, real_##name(descriptor arguments), offset, inode, NULL, 0); \
    }
#define COMMA ,
OF_DESCRIPTOR(fsync, SYNC, , , 0)
OF_DESCRIPTOR(fdatasync, SYNC, , , 0)
OF_DESCRIPTOR(syncfs, SYNC, , , 1)
OF_DESCRIPTOR(ftruncate, TRUNCATE, COMMA off_t length, COMMA length, length)
OF_DESCRIPTOR(ftruncate64, TRUNCATE, COMMA off64_t length, COMMA length, length)

int close(int descriptor) {
    REAL(close);
    char whole[PATH_MAX];
    int flags = self.active ? fcntl(descriptor, F_GETFL) : -1;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || !descriptor_below(descriptor, whole))
        return real_close(descriptor);
    struct call call = {.kind = CLOSE, .path = whole};
    uint64_t inode = inode_of(descriptor);
    int error = before(&call), result = real_close(descriptor);
    after(&call, error, 0, inode, NULL, 0);
    if (error) errno = error;
    return error ? -1 : result;
}

#define OF_PATH(name, of_kind, parameters, directory, arguments, the_kind) \
    int name parameters { \
        REAL(name); \
        char whole[PATH_MAX]; \
        if (!below(directory, path, whole)) return real_##name arguments; \
        struct call call = {.kind = the_kind, .path = whole}; \
        return AROUND(call, real_##name arguments, 0, 0, NULL, 0); \
    }
OF_PATH(unlink, UNLINK, (const char *path), AT_FDCWD, (path), UNLINK)
OF_PATH(remove, UNLINK, (const char *path), AT_FDCWD, (path), UNLINK)
OF_PATH(rmdir, RMDIR, (const char *path), AT_FDCWD, (path), RMDIR)
OF_PATH(unlinkat, UNLINK, (int directory, const char *path, int flags), directory, (directory, path, flags),
        (flags & AT_REMOVEDIR ? RMDIR : UNLINK))
OF_PATH(mkdir, MKDIR, (const char *path, mode_t mode), AT_FDCWD, (path, mode), MKDIR)
OF_PATH(mkdirat, MKDIR, (int directory, const char *path, mode_t mode), directory, (directory, path, mode), MKDIR)
OF_PATH(truncate, TRUNCATE, (const char *path, off_t length), AT_FDCWD, (path, length), TRUNCATE)
OF_PATH(truncate64, TRUNCATE, (const char *path, off64_t length), AT_FDCWD, (path, length), TRUNCATE)

#define OF_TWO(name, the_kind, parameters, from_directory, to_directory, arguments) \
    int name parameters { \
        REAL(name); \
        char whole[PATH_MAX], target[PATH_MAX]; \
        int is_below = below(from_directory, from, whole), to_below = below(to_directory, to, target); \
        if (!is_below || !to_below) return real_##name arguments; \
        struct call call = {.kind = the_kind, .path = target, .other = whole}; \
        return AROUND(call, real_##name arguments, 0, 0, NULL, 0); \
    }
OF_TWO(rename, RENAME, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
OF_TWO(renameat, RENAME, (int a, const char *from, int b, const char *to), a, b, (a, from, b, to))
OF_TWO(renameat2, RENAME, (int a, const char *from, int b, const char *to, unsigned int flags), a, b,
       (a, from, b, to, flags))
OF_TWO(link, LINK, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
OF_TWO(linkat, LINK, (int a, const char *from, int b, const char *to, int flags), a, b, (a, from, b, to, flags))

/* ---- wall clock -------------------------------------------------------------------------------------------------- */
static double jump(void) {
    return self.clock && seconds() - self.began > self.clock_after ? self.clock_jump : 0;
}
int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(clock_gettime);
    int result = real_clock_gettime(which, now);
    if (!result && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)jump();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday);
    int result = real_gettimeofday(now, zone);
    if (!result) now->tv_sec += (time_t)jump();
    return result;
}
time_t time(time_t *out) {
    REAL(clock_gettime);
    struct timespec now;
    real_clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += (time_t)jump();
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
