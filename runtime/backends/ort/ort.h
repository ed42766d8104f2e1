/* ort.h - what the pieces of the ONNX Runtime backend share: the loaded library and its errors. */
#ifndef SPECC_ORT_H
#define SPECC_ORT_H
#include "abi/ort_abi.h"
#include "specc_extend.h"

typedef struct library {
  struct library *next;
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
 * leaves it. */
int ort_acquire(const char *path, library **out);
void ort_drop(library *lib);
/* Turns a status into our code and sentence, and releases it; NULL is success. action: "could not load";
 * thing: a path or a name; advice: what to do. */
int ort_check(
    const library *lib, OrtStatus *status, const char *action, const char *thing, const char *advice);
#endif
