/* cuda_driver.h - the part of the CUDA driver's C interface that libspecc calls, by name, and one GPU opened.
 *
 * libcuda comes with the driver, so it is loaded at run time and never linked; its functions keep their
 * signatures for good (a changed one gets a new name). tests/gpu/abi_cuda.cpp holds these declarations
 * against an official cuda.h where one is given. */
#ifndef SPECC_CUDA_DRIVER_H
#define SPECC_CUDA_DRIVER_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_OLDEST 12000 /* CUDA version that the driver must support: 1000 * major + 10 * minor */

/* Advice for errors of a missing or broken driver. */
#define CUDA_NO_DRIVER "install NVIDIA's driver (on Jetson: flash JetPack), or build for a CPU target"

typedef uint64_t cuda_address; /* of device memory */
typedef struct CUctx_st *cuda_context;
typedef struct CUstream_st *cuda_stream;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;

typedef struct cuda_copy2d { /* CUDA_MEMCPY2D: `height` rows of `width` bytes */
  size_t from_x, from_y;
  unsigned from_type; /* CUDA_ON_DEVICE */
  const void *from_host;
  cuda_address from;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  cuda_address to;
  void *to_array;
  size_t to_pitch, width, height;
} cuda_copy2d;

#define CUDA_ON_DEVICE 2
#define CUDA_NO_MEMORY 2 /* results */
#define CUDA_NO_DEVICE 100
#define CUDA_HOST_PORTABLE 1 /* flags of cuMemHostAlloc */
#define CUDA_HOST_MAPPED 2
#define CUDA_STREAM_NON_BLOCKING 1
#define CUDA_CAPTURE_THREAD 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
#define CUDA_PROCESSORS 16    /* attributes */
#define CUDA_INTEGRATED 18
#define CUDA_CAN_MAP 19
#define CUDA_MAJOR 75
#define CUDA_MINOR 76

/* X(member, exported name, parameters); each returns a CUresult, 0 for success */
#define CUDA_FUNCTIONS(X)                                                                                    \
  X(init, cuInit, (unsigned flags))                                                                          \
  X(driver_version, cuDriverGetVersion, (int *version))                                                      \
  X(error_string, cuGetErrorString, (int result, const char **text))                                         \
  X(device_count, cuDeviceGetCount, (int *count))                                                            \
  X(device_get, cuDeviceGet, (int *device, int ordinal))                                                     \
  X(device_name, cuDeviceGetName, (char *name, int length, int device))                                      \
  X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                         \
  X(device_memory, cuDeviceTotalMem_v2, (size_t *bytes, int device))                                         \
  X(context_retain, cuDevicePrimaryCtxRetain, (cuda_context * context, int device))                          \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                             \
  X(context_push, cuCtxPushCurrent_v2, (cuda_context context))                                               \
  X(context_pop, cuCtxPopCurrent_v2, (cuda_context * context))                                               \
  X(memory_info, cuMemGetInfo_v2, (size_t *free, size_t *total))                                             \
  X(alloc, cuMemAlloc_v2, (cuda_address * address, size_t bytes))                                            \
  X(free, cuMemFree_v2, (cuda_address address))                                                              \
  X(host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                               \
  X(host_free, cuMemFreeHost, (void *memory))                                                                \
  X(host_address, cuMemHostGetDevicePointer_v2, (cuda_address * address, void *memory, unsigned flags))      \
  X(to_device, cuMemcpyHtoDAsync_v2, (cuda_address to, const void *from, size_t bytes, cuda_stream stream))  \
  X(to_host, cuMemcpyDtoHAsync_v2, (void *to, cuda_address from, size_t bytes, cuda_stream stream))          \
  X(copy2d, cuMemcpy2DAsync_v2, (const cuda_copy2d *copy, cuda_stream stream))                               \
  X(fill8, cuMemsetD8Async, (cuda_address to, unsigned char value, size_t n, cuda_stream stream))            \
  X(fill8_rows, cuMemsetD2D8Async,                                                                           \
      (cuda_address to, size_t pitch, unsigned char value, size_t width, size_t height, cuda_stream stream)) \
  X(fill16, cuMemsetD2D16Async,                                                                              \
      (cuda_address to, size_t pitch, unsigned short value, size_t width, size_t height,                     \
          cuda_stream stream))                                                                               \
  X(fill32, cuMemsetD2D32Async,                                                                              \
      (cuda_address to, size_t pitch, unsigned value, size_t width, size_t height, cuda_stream stream))      \
  X(stream_create, cuStreamCreate, (cuda_stream * stream, unsigned flags))                                   \
  X(stream_destroy, cuStreamDestroy_v2, (cuda_stream stream))                                                \
  X(stream_wait, cuStreamSynchronize, (cuda_stream stream))                                                  \
  X(capture_begin, cuStreamBeginCapture_v2, (cuda_stream stream, unsigned mode))                             \
  X(capture_end, cuStreamEndCapture, (cuda_stream stream, cuda_graph * graph))                               \
  X(graph_instantiate, cuGraphInstantiateWithFlags,                                                          \
      (cuda_graph_exec * exec, cuda_graph graph, unsigned long long flags))                                  \
  X(graph_launch, cuGraphLaunch, (cuda_graph_exec exec, cuda_stream stream))                                 \
  X(graph_exec_destroy, cuGraphExecDestroy, (cuda_graph_exec exec))                                          \
  X(graph_destroy, cuGraphDestroy, (cuda_graph graph))                                                       \
  X(module_load, cuModuleLoadData, (cuda_module * module, const void *image))                                \
  X(module_unload, cuModuleUnload, (cuda_module module))                                                     \
  X(module_function, cuModuleGetFunction, (cuda_function * function, cuda_module module, const char *name))  \
  X(launch, cuLaunchKernel,                                                                                  \
      (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
          unsigned block_y, unsigned block_z, unsigned shared, cuda_stream stream, void **parameters,        \
          void **extra))

#define CUDA_MEMBER(member, symbol, parameters) int(*member) parameters;
typedef struct cuda_driver {
  CUDA_FUNCTIONS(CUDA_MEMBER) int version;
} cuda_driver;
#undef CUDA_MEMBER

/* One GPU with its primary context, which TensorRT and ONNX Runtime use too. */
typedef struct cuda_gpu {
  const cuda_driver *driver;
  int device, opener; /* opener: the process that opened it; a forked child has no GPU */
  cuda_context context;
  int integrated, sm;              /* sm: 87 for compute capability 8.7 */
  char name[128], fingerprint[65]; /* fingerprint: SHA-256 of name, SM and driver */
} cuda_gpu;

/* SPECC_E_ENGINE with a sentence: no libcuda, a driver too old, no GPU of that number. The driver stays
 * loaded. */
int cuda_load(const cuda_driver **out);
int cuda_open(int32_t index, cuda_gpu *gpu);
void cuda_close(cuda_gpu *gpu);
/* The GPU's context is this thread's from enter to leave. */
int cuda_enter(const cuda_gpu *gpu);
void cuda_leave(const cuda_gpu *gpu);
/* A result as our code and sentence; 0 is success. action: "could not allocate the cache". */
int cuda_check(const cuda_driver *driver, int result, const char *action, const char *advice);

/* Value of a CU_DEVICE_ATTRIBUTE_ of the GPU. */
int cuda_attribute(const cuda_gpu *gpu, int attribute, int *value);

#ifdef __cplusplus
}
#endif
#endif
