// Preloaded into a process: makes the N-th file operation below one directory fail, in a chosen way.
//
// Operations are counted where the C library is entered, so Python, SQLite and the C++ runtime count alike.
// An operation counts when its path, or the path behind its descriptor, begins with the armed directory.

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

enum Mode { kError = 0, kShort = 1, kKill = 2 };

char g_directory[4096];
size_t g_length = 0;
long g_nth = 0;
long g_count = 0;
int g_error = 0;
int g_mode = kError;
bool g_repeat = false;
char g_fired[64];

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool below(const char* path) {
  return g_length != 0 && path != nullptr && strncmp(path, g_directory, g_length) == 0;
}

bool below(int descriptor) {
  if (g_length == 0 || descriptor < 0) return false;
  char link[64], target[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  static auto real_readlink = next<ssize_t (*)(const char*, char*, size_t)>("readlink");
  ssize_t length = real_readlink(link, target, sizeof target - 1);
  if (length < 0) return false;
  target[length] = 0;
  return below(target);
}

bool below(int directory, const char* path) {
  if (path != nullptr && path[0] == '/') return below(path);
  return below(directory);
}

// Whether this operation is the one to fail.
bool hit(const char* operation) {
  ++g_count;
  if (g_count != g_nth && !(g_repeat && g_nth > 0 && g_count >= g_nth)) return false;
  snprintf(g_fired, sizeof g_fired, "%s", operation);
  if (g_mode == kKill) kill(getpid(), SIGKILL);
  return true;
}

// As above, for operations that have no half: those cannot be short, so nothing is said to have failed.
bool fails(const char* operation) {
  if (!hit(operation)) return false;
  if (g_mode == kShort) {
    g_fired[0] = 0;
    return false;
  }
  errno = g_error;
  return true;
}

}  // namespace

extern "C" {

// ``nth`` counts from 1; 0 only counts. ``repeat``: every later operation fails, too.
void kaas_faults_arm(const char* directory, long nth, int error, int mode, int repeat) {
  snprintf(g_directory, sizeof g_directory, "%s", directory);
  g_nth = nth;
  g_count = 0;
  g_error = error;
  g_mode = mode;
  g_repeat = repeat != 0;
  g_fired[0] = 0;
  g_length = strlen(g_directory);
}

// Stop failing; the number of operations that there were.
long kaas_faults_disarm() {
  g_length = 0;
  return g_count;
}

// The operation that failed, or an empty text.
const char* kaas_faults_fired() { return g_fired; }

#define OPEN_BODY(name, signature, call, where)              \
  {                                                          \
    mode_t mode = 0;                                         \
    if (flags & (O_CREAT | O_TMPFILE)) {                     \
      va_list rest;                                          \
      va_start(rest, flags);                                 \
      mode = va_arg(rest, mode_t);                           \
      va_end(rest);                                          \
    }                                                        \
    static auto real = next<int(*) signature>(name);         \
    if ((where) && fails("open")) return -1;                   \
    return call;                                             \
  }

int open(const char* path, int flags, ...)
    OPEN_BODY("open", (const char*, int, ...), real(path, flags, mode), below(path))
int open64(const char* path, int flags, ...)
    OPEN_BODY("open64", (const char*, int, ...), real(path, flags, mode), below(path))
int openat(int directory, const char* path, int flags, ...)
    OPEN_BODY("openat", (int, const char*, int, ...), real(directory, path, flags, mode), below(directory, path))
int openat64(int directory, const char* path, int flags, ...)
    OPEN_BODY("openat64", (int, const char*, int, ...), real(directory, path, flags, mode), below(directory, path))

// Reads and writes may also do a part of their work: all but one byte, at least one.
#define PARTIAL(name, returned, parameters, arguments, shortened, operation) \
  returned name parameters {                                                 \
    static auto real = next<returned(*) parameters>(#name);                  \
    if (!below(descriptor)) return real arguments;                           \
    if (hit(operation)) {                                                    \
      if (g_mode != kShort) {                                                \
        errno = g_error;                                                     \
        return -1;                                                           \
      }                                                                      \
      if (size > 1) return real shortened;                                   \
      g_fired[0] = 0;                                                        \
    }                                                                        \
    return real arguments;                                                   \
  }

PARTIAL(read, ssize_t, (int descriptor, void* buffer, size_t size), (descriptor, buffer, size),
        (descriptor, buffer, size / 2), "read")
PARTIAL(pread, ssize_t, (int descriptor, void* buffer, size_t size, off_t at), (descriptor, buffer, size, at),
        (descriptor, buffer, size / 2, at), "read")
PARTIAL(pread64, ssize_t, (int descriptor, void* buffer, size_t size, off64_t at), (descriptor, buffer, size, at),
        (descriptor, buffer, size / 2, at), "read")
PARTIAL(write, ssize_t, (int descriptor, const void* buffer, size_t size), (descriptor, buffer, size),
        (descriptor, buffer, size / 2), "write")
PARTIAL(pwrite, ssize_t, (int descriptor, const void* buffer, size_t size, off_t at),
        (descriptor, buffer, size, at), (descriptor, buffer, size / 2, at), "write")
PARTIAL(pwrite64, ssize_t, (int descriptor, const void* buffer, size_t size, off64_t at),
        (descriptor, buffer, size, at), (descriptor, buffer, size / 2, at), "write")

#define WHOLE(name, parameters, arguments, where, operation) \
  int name parameters {                                      \
    static auto real = next<int(*) parameters>(#name);       \
    if ((where) && fails(operation)) return -1;                \
    return real arguments;                                   \
  }

// Nothing here cuts the power, so what is synced need not reach the disk: thousands of runs take minutes less.
int fsync(int descriptor) { return below(descriptor) && fails("fsync") ? -1 : 0; }
int fdatasync(int descriptor) { return below(descriptor) && fails("fsync") ? -1 : 0; }

WHOLE(ftruncate, (int descriptor, off_t size), (descriptor, size), below(descriptor), "truncate")
WHOLE(ftruncate64, (int descriptor, off64_t size), (descriptor, size), below(descriptor), "truncate")
WHOLE(fchmod, (int descriptor, mode_t mode), (descriptor, mode), below(descriptor), "chmod")
WHOLE(chmod, (const char* path, mode_t mode), (path, mode), below(path), "chmod")
WHOLE(unlink, (const char* path), (path), below(path), "unlink")
WHOLE(unlinkat, (int directory, const char* path, int flags), (directory, path, flags), below(directory, path),
      "unlink")
WHOLE(rmdir, (const char* path), (path), below(path), "rmdir")
WHOLE(mkdir, (const char* path, mode_t mode), (path, mode), below(path), "mkdir")
WHOLE(mkdirat, (int directory, const char* path, mode_t mode), (directory, path, mode), below(directory, path),
      "mkdir")
WHOLE(rename, (const char* from, const char* to), (from, to), below(to) || below(from), "rename")
WHOLE(renameat, (int one, const char* from, int other, const char* to), (one, from, other, to),
      below(other, to) || below(one, from), "rename")
WHOLE(link, (const char* from, const char* to), (from, to), below(to), "link")
WHOLE(stat, (const char* path, struct stat* found), (path, found), below(path), "stat")
WHOLE(stat64, (const char* path, struct stat64* found), (path, found), below(path), "stat")
WHOLE(lstat, (const char* path, struct stat* found), (path, found), below(path), "stat")
WHOLE(lstat64, (const char* path, struct stat64* found), (path, found), below(path), "stat")
WHOLE(fstat, (int descriptor, struct stat* found), (descriptor, found), below(descriptor), "stat")
WHOLE(fstat64, (int descriptor, struct stat64* found), (descriptor, found), below(descriptor), "stat")
WHOLE(fstatat, (int directory, const char* path, struct stat* found, int flags), (directory, path, found, flags),
      below(directory, path), "stat")
WHOLE(fstatat64, (int directory, const char* path, struct stat64* found, int flags),
      (directory, path, found, flags), below(directory, path), "stat")

void* mmap(void* address, size_t size, int protection, int flags, int descriptor, off_t at) {
  static auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (descriptor >= 0 && below(descriptor) && fails("mmap")) return MAP_FAILED;
  return real(address, size, protection, flags, descriptor, at);
}

void* mmap64(void* address, size_t size, int protection, int flags, int descriptor, off64_t at) {
  static auto real = next<void* (*)(void*, size_t, int, int, int, off64_t)>("mmap64");
  if (descriptor >= 0 && below(descriptor) && fails("mmap")) return MAP_FAILED;
  return real(address, size, protection, flags, descriptor, at);
}

DIR* opendir(const char* path) {
  static auto real = next<DIR* (*)(const char*)>("opendir");
  if (below(path) && fails("opendir")) return nullptr;
  return real(path);
}

int flock(int descriptor, int operation) {
  static auto real = next<int (*)(int, int)>("flock");
  if (below(descriptor) && fails("lock")) return -1;
  return real(descriptor, operation);
}

}  // extern "C"
