/* ort_private.c - a copy of ONNX Runtime that no other part of the process uses.
 *
 * ONNX Runtime keeps one environment per loaded library, and whoever makes it first decides about the logger,
 * the thread pools and the telemetry of everybody. A host may make its own before or after it opens a model;
 * with a copy of the library neither meets the other's. The loader knows a library by its file, so the copy
 * is a file of its own, in memory (memfd); it costs the library's size once per process. Where the system
 * refuses that, the shared library serves. */
#include "backends/ort/ort.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_EXEC
  #define MFD_EXEC 0x10u /* Linux 6.3 on: executable although vm.memfd_noexec is 1 */
#endif

typedef struct copied_library {
  struct copied_library *next;
  dev_t device;
  ino_t inode;
  off_t bytes;
  struct timespec changed;
  const ort_base *base;
} copied_library;
static copied_library *copied; /* guarded by ort_acquire's lock; they stay for the process's life */

const ort_base *ort_find_base(void *handle) {
  const ort_base *(*get)(void) = NULL;
  void *symbol = dlsym(handle, "OrtGetApiBase");
  memcpy(&get, &symbol, sizeof get);
  return get ? get() : NULL;
}

static int create_memory_file(void) {
  int file = memfd_create("libonnxruntime", MFD_CLOEXEC | MFD_EXEC);
  return file >= 0 ? file : memfd_create("libonnxruntime", MFD_CLOEXEC);
}

static bool copy_bytes(int from, int to, off_t bytes) {
  while (bytes > 0) {
    ssize_t n = sendfile(to, from, NULL, (size_t)bytes);
    if (n <= 0) return false;
    bytes -= n;
  }
  return true;
}

/* Loads what is in the file; the mapping keeps it. The loader takes equal paths for one library and file
 * numbers come back, so every copy spells its path in its own way. */
static const ort_base *load_file(int file) {
  static const char slashes[] = "////////////////";
  char path[64];
  size_t n = 1;
  for (const copied_library *c = copied; c; c = c->next) n++;
  if (n >= sizeof slashes) return NULL;
  snprintf(path, sizeof path, "/proc//self/fd%.*s%d", (int)n, slashes, file);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) return NULL;
  const ort_base *base = ort_find_base(handle);
  dlclose(handle); /* stays mapped: RTLD_NODELETE */
  return base;
}

static const ort_base *load_copy(int from, const struct stat *found) {
  int file = create_memory_file();
  if (file < 0) return NULL;
  const ort_base *base = copy_bytes(from, file, found->st_size) ? load_file(file) : NULL;
  close(file);
  return base;
}

static const ort_base *find_copy(const struct stat *found) {
  for (const copied_library *c = copied; c; c = c->next)
    if (c->device == found->st_dev && c->inode == found->st_ino && c->bytes == found->st_size &&
        !memcmp(&c->changed, &found->st_mtim, sizeof c->changed))
      return c->base;
  return NULL;
}

static const ort_base *load_or_find(int from, const struct stat *found) {
  const ort_base *base = find_copy(found);
  if (base) return base;
  copied_library *c = calloc(1, sizeof *c);
  base = c ? load_copy(from, found) : NULL;
  if (!base) return free(c), NULL;
  *c = (copied_library){copied, found->st_dev, found->st_ino, found->st_size, found->st_mtim, base};
  copied = c;
  return base;
}

/* The file that the loader's own search finds, opened; -1: none. */
static int open_by_search(const char *name) {
  struct link_map *map = NULL;
  void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  int file = -1;
  if (!handle) return -1;
  if (!dlinfo(handle, RTLD_DI_LINKMAP, &map)) file = open(map->l_name, O_RDONLY | O_CLOEXEC);
  dlclose(handle);
  return file;
}

static int open_library_file(const char *path) {
  if (path && strchr(path, '/')) return open(path, O_RDONLY | O_CLOEXEC);
  if (path) return open_by_search(path);
  int file = open_by_search("libonnxruntime.so.1");
  return file >= 0 ? file : open_by_search("libonnxruntime.so");
}

const ort_base *ort_load_private(const char *path) {
  struct stat found;
  int file = open_library_file(path);
  if (file < 0) return NULL;
  const ort_base *base = !fstat(file, &found) && S_ISREG(found.st_mode) ? load_or_find(file, &found) : NULL;
  close(file);
  return base;
}
