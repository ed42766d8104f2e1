/* tensorrt.h - between the checks in C (tensorrt.c, tensorrt_engine.c) and the C++ file that knows NVIDIA's
 * headers (tensorrt.cpp). */
#ifndef SPECC_TENSORRT_H
#define SPECC_TENSORRT_H
#include "abi/cuda_driver.h"
#include "specc_extend.h"
#ifdef __cplusplus
extern "C" {
#endif

/* printf style; the C core's specc_error under a name that C++ may take. */
int tensorrt_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* An engine whose plan fits this GPU, platform and library: what is left is to load it. tensorrt_open
 * takes ownership of it, also when it fails. */
typedef struct tensorrt_engine {
  specc_tensorrt_options options;
  cuda_gpu gpu;
  void *library;    /* dlopen handle */
  const void *plan; /* [plan_bytes] mapped */
  size_t plan_bytes;
  char version[32]; /* of the library */
  char model[256];  /* the plan's path, for sentences */
} tensorrt_engine;
int tensorrt_open(tensorrt_engine *engine, specc_backend *backend);
void tensorrt_engine_free(tensorrt_engine *engine);
void tensorrt_forget_plan(tensorrt_engine *engine); /* unmaps the plan's bytes after loading */

#ifdef __cplusplus
}
#endif
#endif
