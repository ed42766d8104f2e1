/* ort.h - what the pieces of the ONNX Runtime backend share: the loaded library and its errors. */
#ifndef SPECC_ORT_H
#define SPECC_ORT_H
#include "abi/ort_abi.h"
#include "specc_extend.h"
#include <stdbool.h>

typedef struct library {
  struct library *next;
  int opener; /* the process that started it: a forked child starts it anew */
  const ort_base *base;
  ort_api api;
  OrtEnv *env;
  OrtAllocator *allocator; /* the library's own; not released */
  int users;
  char version[32];
} library;

/* ort_ops.c: domain `specc` into a session's options. */
SPECC_API OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const ort_base *base);
/* Loads path (NULL: the loader's own search) or joins the users of one that is loaded already; ort_drop()
 * leaves it. is_shared: the host's copy of the library, for providers, which find it by its path; otherwise
 * one of our own (ort_private.c). */
int ort_acquire(const char *path, bool is_shared, library **out);
void ort_drop(library *lib);
/* ort_private.c: the library at path (NULL: libonnxruntime.so.1 by the loader's own search) as a copy that
 * nobody else in the process has; NULL where the system gives none. It stays mapped. */
const ort_base *ort_load_private(const char *path);
/* OrtGetApiBase() of a loaded library, NULL without one. */
const ort_base *ort_find_base(void *handle);
/* ort_environment.c: ONNX Runtime's environment, with its telemetry off before it could begin. */
OrtStatus *ort_create_environment(const ort_api *api, OrtEnv **env);
/* Turns a status into our code and sentence, and releases it; NULL is success. action: "could not load";
 * thing: a path or a name; advice: what to do. */
int ort_check(
    const library *lib, OrtStatus *status, const char *action, const char *thing, const char *advice);
#endif
