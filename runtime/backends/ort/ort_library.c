/* ort_library.c - loads ONNX Runtime at run time, counts its users, and keeps one environment while there are
 * any. */
#include "backends/ort/ort.h"
#include "core/io/error.h"
#include "core/io/process.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static library *libraries; /* those in use, guarded by libraries_lock */

/* No fork() comes between the lock and its release, so a child never finds it taken. */
static void lock_libraries(void) {
  pthread_mutex_lock(&libraries_lock);
}

static void unlock_libraries(void) {
  pthread_mutex_unlock(&libraries_lock);
}

static void guard_forks(void) {
  pthread_atfork(lock_libraries, unlock_libraries, unlock_libraries);
}

static int code_of(ort_enum error) {
  switch (error) {
  case ORT_CODE_NO_FILE:
    return SPECC_E_IO;
  case ORT_CODE_NO_MODEL:
  case ORT_CODE_BAD_PROTOBUF:
  case ORT_CODE_BAD_GRAPH:
    return SPECC_E_FORMAT;
  default:
    return SPECC_E_ENGINE;
  }
}

int ort_check(
    const library *lib, OrtStatus *status, const char *action, const char *thing, const char *advice) {
  if (!status) return SPECC_OK;
  char message[320];
  int code = code_of(lib->api.GetErrorCode(status));
  snprintf(message, sizeof message, "%s", lib->api.GetErrorMessage(status));
  for (char *p = message; *p; p++)
    if ((unsigned char)*p < 0x20) *p = ' ';
  lib->api.ReleaseStatus(status);
  return specc_error(code, "ONNX Runtime %s %s %s (%s); %s", lib->version, action, thing, message, advice);
}

static const ort_base *load_shared(const char *path, char *reason, size_t n_reason) {
  static const char *const usual[] = {"libonnxruntime.so.1", "libonnxruntime.so"};
  const char *const *names = path ? &path : usual;
  void *handle = NULL;
  for (size_t i = 0; !handle && i < (path ? 1u : 2u); i++) {
    handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* its threads outlive a close */
    if (!handle) snprintf(reason, n_reason, "%s", dlerror());
  }
  if (!handle) return NULL;
  const ort_base *base = ort_find_base(handle);
  if (!base) snprintf(reason, n_reason, "it has no OrtGetApiBase");
  dlclose(handle); /* stays mapped: RTLD_NODELETE */
  return base;
}

static int open_library(library *lib, const char *name) {
  int major = 0, minor = 0;
  snprintf(lib->version, sizeof lib->version, "%s", lib->base->GetVersionString());
  if (sscanf(lib->version, "%d.%d", &major, &minor) != 2 || major != 1 || minor < ORT_OLDEST)
    return specc_error(SPECC_E_ENGINE,
        "engine library %s is ONNX Runtime %s, but 1.%d up to the last 1.x is needed; install another one",
        name, lib->version, ORT_OLDEST);
  const void *table = lib->base->GetApi((uint32_t)(minor < ORT_NEWEST ? minor : ORT_NEWEST));
  if (!table)
    return specc_error(SPECC_E_ENGINE,
        "engine library %s (ONNX Runtime %s) gives no function table; install it again", name, lib->version);
  ort_api_read(&lib->api, table, minor);
  int code = ort_check(lib, lib->api.GetAllocatorWithDefaultOptions(&lib->allocator), "could not start", name,
      "install it again");
  if (code) return code;
  return ort_check(
      lib, ort_create_environment(&lib->api, &lib->env), "could not start", name, "install it again");
}

static int add_library(const ort_base *base, const char *name, library **out) {
  library *lib = calloc(1, sizeof *lib);
  if (!lib)
    return specc_error(SPECC_E_MEMORY, "no memory left for engine library %s; close other programs", name);
  lib->base = base, lib->users = 1, lib->opener = (int)getpid();
  int code = open_library(lib, name);
  if (code) return free(lib), code;
  lib->next = libraries;
  *out = libraries = lib;
  return SPECC_OK;
}

int ort_acquire(const char *path, bool is_shared, library **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  char reason[256] = "";
  const char *name = path ? path : "libonnxruntime.so.1";
  pthread_once(&once, guard_forks);
  lock_libraries();
  const ort_base *base = is_shared ? NULL : ort_load_private(path);
  if (!base) base = load_shared(path, reason, sizeof reason);
  unlock_libraries();
  if (!base)
    return specc_error(SPECC_E_ENGINE,
        "engine library %s cannot be loaded (%s); name the libonnxruntime that the onnxruntime package "
        "brings",
        name, reason);
  lock_libraries();
  int code = SPECC_OK;
  library *lib = libraries;
  while (lib && (lib->base != base || !SPECC_IS_OPENER(lib->opener))) lib = lib->next;
  if (lib)
    lib->users++;
  else
    code = add_library(base, name, &lib);
  unlock_libraries();
  *out = lib;
  return code;
}

void ort_drop(library *lib) {
  lock_libraries();
  if (--lib->users == 0) {
    library **link = &libraries;
    while (*link != lib) link = &(*link)->next;
    *link = lib->next;
    lib->api.ReleaseEnv(lib->env);
    free(lib);
  }
  unlock_libraries();
}
