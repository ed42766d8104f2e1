/* ort_kernel.h - one operator of domain `specc` as ONNX Runtime runs it: its library, attributes and tensors.
 */
#ifndef SPECC_ORT_KERNEL_H
#define SPECC_ORT_KERNEL_H
#include "abi/op_abi.h"
#include "ops/ops.h"
#include <stddef.h>
#include <stdint.h>

#define MEMBER(place, name, returns, parameters) returns(*name) parameters;
typedef struct op_api {
  ORT_OP_FUNCTIONS(MEMBER)
} op_api;
#undef MEMBER

/* MOST: of rows, slots, columns of a head and positions, so that sums of two of them fit an int */
enum { MOST = 1 << 28, MAX_RANK = 6, CODE_INVALID_ARGUMENT = 2, CODE_RUNTIME = 6 };

typedef struct kernel {
  op_api api; /* of the library that made this kernel: a process may hold two */
  const kernel_set *kernels;
  int64_t kind, outputs, kept, gate, inputs, heads, kv_heads, window;
  float epsilon, scale, soft_cap;
} kernel;

typedef struct tensor {
  void *data;
  int64_t dims[MAX_RANK];
  size_t rank;
  int64_t count;
} tensor;

/* Copies the functions that operators call from ONNX Runtime's table. */
void kernel_read_api(op_api *api, const void *table);
/* A status with one sentence, printf style. */
OrtStatus *kernel_fail(const kernel *k, ort_enum code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TRY(expression)                                                                                      \
  do {                                                                                                       \
    OrtStatus *status_ = (expression);                                                                       \
    if (status_) return status_;                                                                             \
  } while (0)
#define NEED(condition, ...)                                                                                 \
  do {                                                                                                       \
    if (!(condition)) return kernel_fail(k, CODE_INVALID_ARGUMENT, __VA_ARGS__);                             \
  } while (0)

/* Input i; data NULL where an optional one is absent. */
OrtStatus *kernel_input(const kernel *k, const OrtKernelContext *c, size_t i, tensor *t);
/* Output i with these dimensions. */
OrtStatus *kernel_output(
    const kernel *k, OrtKernelContext *c, size_t i, const int64_t *dims, size_t rank, void **data);

/* ONNX Runtime's threads during one call, as ops.h takes them: self of a pool is an ort_pool. */
typedef struct ort_pool {
  const kernel *k;
  const OrtKernelContext *c;
} ort_pool;
void kernel_run_parallel(void *self, void (*work)(void *, size_t), size_t n, void *argument);
#endif
