/* stub_cuda.c - a libcuda.so.1 for tests: memory is the host's, work runs at once or, while a graph is
 * captured, at its launch. Device addresses carry a high bit, so that a CPU that follows one crashes as it
 * would on a card of its own. What the stub pretends to be comes from the environment: STUB_CUDA_VERSION,
 * _COUNT, _SM, _INTEGRATED, _FREE_MB. */
#include "core/numbers/judge_rows.h"
#include <stdio.h>
#include <stdlib.h>

#define ON_DEVICE 0x4000000000000000ull
#define MOST_OPS 4096
#define EXPORT __attribute__((visibility("default")))

typedef uint64_t address;
typedef struct op {
  void (*run)(const void *);
  unsigned char arguments[160];
} op;
typedef struct graph {
  int n;
  op ops[MOST_OPS];
} graph;

static graph *capturing;
EXPORT int stub_cuda_launches, stub_cuda_allocations, stub_cuda_kernels;

static int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}
EXPORT void *stub_cuda_host(address a) {
  return a & ON_DEVICE ? (void *)(uintptr_t)(a & ~ON_DEVICE) : NULL;
}

/* Does the work now, or keeps it for the graph. */
EXPORT int stub_cuda_submit(void (*run)(const void *), const void *arguments, size_t n) {
  if (!capturing) return run(arguments), 0;
  if (capturing->n == MOST_OPS || n > sizeof capturing->ops[0].arguments) return 1;
  capturing->ops[capturing->n].run = run;
  memcpy(capturing->ops[capturing->n++].arguments, arguments, n);
  return 0;
}

/* ------------------------------------------------------------------ driver and device */
EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return setting("STUB_CUDA_COUNT", 1) ? 0 : 100;
}
EXPORT int cuDriverGetVersion(int *version) {
  return *version = setting("STUB_CUDA_VERSION", 12060), 0;
}
EXPORT int cuGetErrorString(int result, const char **text) {
  return *text = result == 2     ? "out of memory"
                 : result == 100 ? "no CUDA-capable device is detected"
                                 : "stub error",
         0;
}
EXPORT int cuDeviceGetCount(int *count) {
  return *count = setting("STUB_CUDA_COUNT", 1), 0;
}
EXPORT int cuDeviceGet(int *device, int ordinal) {
  return *device = ordinal, 0;
}
EXPORT int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  return snprintf(name, (size_t)length, "Stub GPU"), 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  return *bytes = (size_t)8 << 30, 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  return *context = &capturing, 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void *context) {
  return context ? 0 : 201;
}
EXPORT int cuCtxPopCurrent_v2(void **context) {
  return *context = &capturing, 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int sm = setting("STUB_CUDA_SM", 87);
  (void)device;
  *value = attribute == 75   ? sm / 10
           : attribute == 76 ? sm % 10
           : attribute == 18 ? setting("STUB_CUDA_INTEGRATED", 0)
           : attribute == 16 ? 8
                             : 1;
  return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *free_now, size_t *total) {
  *free_now = (size_t)setting("STUB_CUDA_FREE_MB", 7000) << 20, *total = (size_t)8 << 30;
  return 0;
}

/* ------------------------------------------------------------------ memory */
EXPORT int cuMemAlloc_v2(address *a, size_t bytes) {
  void *p = malloc(bytes ? bytes : 1);
  if (!p) return 2;
  memset(p, 0xa5, bytes); /* device memory begins as anything */
  stub_cuda_allocations++;
  return *a = (uintptr_t)p | ON_DEVICE, 0;
}
EXPORT int cuMemFree_v2(address a) {
  return free(stub_cuda_host(a)), stub_cuda_allocations--, 0;
}
EXPORT int cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
  (void)flags;
  stub_cuda_allocations++;
  return *p = malloc(bytes ? bytes : 1), *p ? 0 : 2;
}
EXPORT int cuMemFreeHost(void *p) {
  return free(p), stub_cuda_allocations--, 0;
}
EXPORT int cuMemHostGetDevicePointer_v2(address *a, void *p, unsigned flags) {
  (void)flags;
  return *a = (uintptr_t)p | ON_DEVICE, 0;
}

typedef struct copy {
  void *to;
  const void *from;
  size_t bytes;
} copy;
static void run_copy(const void *arguments) {
  const copy *c = arguments;
  memcpy(c->to, c->from, c->bytes);
}
static int submit_copy(void *to, const void *from, size_t bytes) {
  copy c = {to, from, bytes};
  return to && from ? stub_cuda_submit(run_copy, &c, sizeof c) : 1;
}
EXPORT int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  return submit_copy(stub_cuda_host(to), from, bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
  (void)stream;
  return submit_copy(to, stub_cuda_host(from), bytes);
}

typedef struct copy2d {
  size_t from_x, from_y;
  unsigned from_type;
  const void *from_host;
  address from;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  address to;
  void *to_array;
  size_t to_pitch, width, height;
} copy2d;
static void run_copy2d(const void *arguments) {
  const copy2d *c = arguments;
  char *to = (char *)stub_cuda_host(c->to) + c->to_y * c->to_pitch + c->to_x,
       *from = (char *)stub_cuda_host(c->from) + c->from_y * c->from_pitch + c->from_x;
  for (size_t i = 0; i < c->height; i++) memcpy(to + i * c->to_pitch, from + i * c->from_pitch, c->width);
}
EXPORT int cuMemcpy2DAsync_v2(const copy2d *c, void *stream) {
  (void)stream;
  return c->from_type == 2 && c->to_type == 2 ? stub_cuda_submit(run_copy2d, c, sizeof *c) : 1;
}

typedef struct fill {
  char *to;
  unsigned value;
  size_t size, pitch, width, height;
} fill;
static void run_fill(const void *arguments) {
  const fill *f = arguments;
  for (size_t row = 0; row < f->height; row++)
    for (size_t i = 0; i < f->width; i++) memcpy(f->to + row * f->pitch + i * f->size, &f->value, f->size);
}
static int submit_fill(address to, size_t pitch, unsigned value, size_t size, size_t width, size_t height) {
  fill f = {stub_cuda_host(to), value, size, pitch, width, height};
  return f.to ? stub_cuda_submit(run_fill, &f, sizeof f) : 1;
}
EXPORT int cuMemsetD8Async(address to, unsigned char value, size_t n, void *stream) {
  (void)stream;
  return submit_fill(to, 0, value, 1, n, 1);
}
EXPORT int cuMemsetD2D8Async(
    address to, size_t pitch, unsigned char value, size_t width, size_t height, void *stream) {
  (void)stream;
  return submit_fill(to, pitch, value, 1, width, height);
}
EXPORT int cuMemsetD2D16Async(
    address to, size_t pitch, unsigned short value, size_t width, size_t height, void *stream) {
  (void)stream;
  return submit_fill(to, pitch, value, 2, width, height);
}
EXPORT int cuMemsetD2D32Async(
    address to, size_t pitch, unsigned value, size_t width, size_t height, void *stream) {
  (void)stream;
  return submit_fill(to, pitch, value, 4, width, height);
}

/* ------------------------------------------------------------------ streams and graphs */
EXPORT int cuStreamCreate(void **stream, unsigned flags) {
  (void)flags;
  return *stream = &capturing, 0;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
  (void)stream;
  return 0;
}
EXPORT int cuStreamSynchronize(void *stream) {
  (void)stream;
  return capturing ? 900 : 0;
} /* not allowed in a capture */
EXPORT int cuStreamBeginCapture_v2(void *stream, unsigned mode) {
  (void)stream, (void)mode;
  return capturing ? 900 : (capturing = calloc(1, sizeof *capturing)) ? 0 : 2;
}
EXPORT int cuStreamEndCapture(void *stream, graph **out) {
  (void)stream;
  *out = capturing;
  capturing = NULL;
  return *out ? 0 : 901;
}
EXPORT int cuGraphInstantiateWithFlags(graph **exec, graph *from, unsigned long long flags) {
  (void)flags;
  if (!(*exec = malloc(sizeof **exec))) return 2;
  memcpy(*exec, from, sizeof *from);
  return 0;
}
EXPORT int cuGraphLaunch(graph *exec, void *stream) {
  (void)stream;
  for (int i = 0; i < exec->n; i++) exec->ops[i].run(exec->ops[i].arguments);
  return stub_cuda_launches++, 0;
}
EXPORT int cuGraphExecDestroy(graph *exec) {
  return free(exec), 0;
}
EXPORT int cuGraphDestroy(graph *g) {
  return free(g), 0;
}

/* ------------------------------------------------------------------ the row kernels, by their host path */
EXPORT int cuModuleLoadData(void **module, const void *image) {
  return image ? (*module = &capturing, 0) : 1;
}
EXPORT int cuModuleUnload(void *module) {
  (void)module;
  return 0;
}
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module;
  return *function = &capturing, strcmp(name, "specc_judge_rows_kernel") ? 500 : 0;
}

typedef struct kernel {
  const judge_options *options;
  judge_buffers b;
  int rows;
} kernel;
static void run_kernel(const void *arguments) {
  const kernel *k = arguments;
  judge_shared shared;
  for (int row = 0; row < k->rows; row++) judge_one(&shared, k->options, &k->b, row);
}

EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  kernel k = {.rows = (int)x};
  uint64_t pointers[sizeof k.b / sizeof(uint64_t)];
  (void)function, (void)y, (void)z, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  if (bx != JUDGE_THREADS) return 1;
  k.options = stub_cuda_host(*(address *)parameters[0]);
  memcpy(pointers, parameters[1], sizeof pointers);
  for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
    if (pointers[i]) pointers[i] = (uintptr_t)stub_cuda_host(pointers[i]);
  memcpy(&k.b, pointers, sizeof pointers);
  stub_cuda_kernels++;
  return k.options ? stub_cuda_submit(run_kernel, &k, sizeof k) : 1;
}
