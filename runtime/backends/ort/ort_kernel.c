/* ort_kernel.c - what every operator of domain `specc` asks of ONNX Runtime: errors, tensors, threads. */
#include "backends/ort/ort_kernel.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void kernel_read_api(op_api *api, const void *table) {
  const unsigned char *entry = table;
#define COPY(place, name, returns, parameters)                                                               \
  memcpy(&api->name, entry + (place) * sizeof(void *), sizeof(void *));
  ORT_OP_FUNCTIONS(COPY)
#undef COPY
}

OrtStatus *kernel_fail(const kernel *k, ort_enum code, const char *format, ...) {
  char message[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return k->api.CreateStatus(code, message);
}

OrtStatus *kernel_input(const kernel *k, const OrtKernelContext *c, size_t i, tensor *t) {
  const OrtValue *value = NULL;
  OrtTensorTypeAndShapeInfo *info = NULL;
  size_t n = 0;
  memset(t, 0, sizeof *t);
  TRY(k->api.KernelContext_GetInputCount(c, &n));
  if (i >= n) return NULL;
  TRY(k->api.KernelContext_GetInput(c, i, &value));
  if (!value) return NULL;
  TRY(k->api.GetTensorMutableData((OrtValue *)value, &t->data));
  TRY(k->api.GetTensorTypeAndShape(value, &info));
  OrtStatus *status = k->api.GetDimensionsCount(info, &t->rank);
  if (!status && t->rank <= MAX_RANK) status = k->api.GetDimensions(info, t->dims, t->rank);
  k->api.ReleaseTensorTypeAndShapeInfo(info);
  if (status) return status;
  NEED(t->rank <= MAX_RANK, "specc: input %zu has rank %zu; at most %d is known", i, t->rank, MAX_RANK);
  t->count = 1;
  for (size_t d = 0; d < t->rank; d++)
    NEED(t->dims[d] >= 0 && !__builtin_mul_overflow(t->count, t->dims[d], &t->count),
        "specc: input %zu has more values than can be counted", i);
  return NULL;
}

OrtStatus *kernel_output(
    const kernel *k, OrtKernelContext *c, size_t i, const int64_t *dims, size_t rank, void **data) {
  OrtValue *value = NULL;
  TRY(k->api.KernelContext_GetOutput(c, i, dims, rank, &value));
  return k->api.GetTensorMutableData(value, data);
}

void kernel_run_parallel(void *self, void (*work)(void *, size_t), size_t n, void *argument) {
  const ort_pool *p = self;
  /* n pieces in n batches, so that a thread that is done takes over from another one */
  OrtStatus *status = p->k->api.KernelContext_ParallelFor(p->c, work, n, n, argument);
  if (!status) return;
  p->k->api.ReleaseStatus(status); /* nothing ran: do it here */
  for (size_t i = 0; i < n; i++) work(argument, i);
}
