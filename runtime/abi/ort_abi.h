/* ort_abi.h - the part of ONNX Runtime's C interface that libspecc calls, declared by place.
 *
 * The runtime ships without a header. Its function table only ever grows at the end, so a function is known
 * by its place in it; tests/c/abi_check.c holds these places and signatures against an official header where
 * one is given. */
#ifndef SPECC_ORT_ABI_H
#define SPECC_ORT_ABI_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ORT_OLDEST 20 /* ONNX Runtime 1.20: the oldest table that is accepted */
#define ORT_NEWEST 29 /* the newest one these places were checked against */

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtIoBinding OrtIoBinding;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtCUDAProviderOptionsV2 OrtCUDAProviderOptionsV2;
typedef struct OrtEpDevice OrtEpDevice;

typedef unsigned ort_enum;   /* an enum without negative values, as GCC and Clang lay it out */
typedef int ort_signed_enum; /* one with a negative value */
typedef void (*ort_log_fn)(void *user, ort_enum severity, const char *category, const char *id,
    const char *place, const char *message);

#define ORT_SEVERITY_FATAL 4
#define ORT_SEQUENTIAL 0
#define ORT_FLOAT 1 /* element types */
#define ORT_INT32 6
#define ORT_INT64 7
#define ORT_FLOAT16 10
#define ORT_BFLOAT16 16
#define ORT_DEVICE_ALLOCATOR 0
#define ORT_ARENA_ALLOCATOR 1
#define ORT_MEMORY_DEFAULT 0
#define ORT_CODE_NO_FILE 3 /* error codes */
#define ORT_CODE_NO_MODEL 4
#define ORT_CODE_BAD_PROTOBUF 7
#define ORT_CODE_BAD_GRAPH 10

/* X(place, name, returns, (parameters)) */
#define ORT_FUNCTIONS(X)                                                                                     \
  X(1, GetErrorCode, ort_enum, (const OrtStatus *))                                                          \
  X(2, GetErrorMessage, const char *, (const OrtStatus *))                                                   \
  X(3, CreateEnv, OrtStatus *, (ort_enum, const char *, OrtEnv **))                                          \
  X(4, CreateEnvWithCustomLogger, OrtStatus *, (ort_log_fn, void *, ort_enum, const char *, OrtEnv **))      \
  X(6, DisableTelemetryEvents, OrtStatus *, (const OrtEnv *))                                                \
  X(7, CreateSession, OrtStatus *, (const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **)) \
  X(10, CreateSessionOptions, OrtStatus *, (OrtSessionOptions **))                                           \
  X(13, SetSessionExecutionMode, OrtStatus *, (OrtSessionOptions *, ort_enum))                               \
  X(17, DisableMemPattern, OrtStatus *, (OrtSessionOptions *))                                               \
  X(22, SetSessionLogSeverityLevel, OrtStatus *, (OrtSessionOptions *, int))                                 \
  X(24, SetIntraOpNumThreads, OrtStatus *, (OrtSessionOptions *, int))                                       \
  X(25, SetInterOpNumThreads, OrtStatus *, (OrtSessionOptions *, int))                                       \
  X(30, SessionGetInputCount, OrtStatus *, (const OrtSession *, size_t *))                                   \
  X(31, SessionGetOutputCount, OrtStatus *, (const OrtSession *, size_t *))                                  \
  X(33, SessionGetInputTypeInfo, OrtStatus *, (const OrtSession *, size_t, OrtTypeInfo **))                  \
  X(34, SessionGetOutputTypeInfo, OrtStatus *, (const OrtSession *, size_t, OrtTypeInfo **))                 \
  X(36, SessionGetInputName, OrtStatus *, (const OrtSession *, size_t, OrtAllocator *, char **))             \
  X(37, SessionGetOutputName, OrtStatus *, (const OrtSession *, size_t, OrtAllocator *, char **))            \
  X(49, CreateTensorWithDataAsOrtValue, OrtStatus *,                                                         \
      (const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, ort_enum, OrtValue **))               \
  X(55, CastTypeInfoToTensorInfo, OrtStatus *, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **))    \
  X(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, ort_enum *))                  \
  X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *))                      \
  X(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t))                  \
  X(68, CreateMemoryInfo, OrtStatus *,                                                                       \
      (const char *, ort_signed_enum, int, ort_signed_enum, OrtMemoryInfo **))                               \
  X(69, CreateCpuMemoryInfo, OrtStatus *, (ort_signed_enum, ort_signed_enum, OrtMemoryInfo **))              \
  X(76, AllocatorFree, OrtStatus *, (OrtAllocator *, void *))                                                \
  X(78, GetAllocatorWithDefaultOptions, OrtStatus *, (OrtAllocator **))                                      \
  X(92, ReleaseEnv, void, (OrtEnv *))                                                                        \
  X(93, ReleaseStatus, void, (OrtStatus *))                                                                  \
  X(94, ReleaseMemoryInfo, void, (OrtMemoryInfo *))                                                          \
  X(95, ReleaseSession, void, (OrtSession *))                                                                \
  X(96, ReleaseValue, void, (OrtValue *))                                                                    \
  X(98, ReleaseTypeInfo, void, (OrtTypeInfo *))                                                              \
  X(100, ReleaseSessionOptions, void, (OrtSessionOptions *))                                                 \
  X(130, AddSessionConfigEntry, OrtStatus *, (OrtSessionOptions *, const char *, const char *))              \
  X(133, RunWithBinding, OrtStatus *, (OrtSession *, const OrtRunOptions *, const OrtIoBinding *))           \
  X(134, CreateIoBinding, OrtStatus *, (OrtSession *, OrtIoBinding **))                                      \
  X(135, ReleaseIoBinding, void, (OrtIoBinding *))                                                           \
  X(136, BindInput, OrtStatus *, (OrtIoBinding *, const char *, const OrtValue *))                           \
  X(137, BindOutput, OrtStatus *, (OrtIoBinding *, const char *, const OrtValue *))                          \
  X(204, SessionOptionsAppendExecutionProvider_CUDA_V2, OrtStatus *,                                         \
      (OrtSessionOptions *, const OrtCUDAProviderOptionsV2 *))                                               \
  X(205, CreateCUDAProviderOptions, OrtStatus *, (OrtCUDAProviderOptionsV2 **))                              \
  X(206, UpdateCUDAProviderOptions, OrtStatus *,                                                             \
      (OrtCUDAProviderOptionsV2 *, const char *const *, const char *const *, size_t))                        \
  X(208, ReleaseCUDAProviderOptions, void, (OrtCUDAProviderOptionsV2 *))

/* Plugins: only in tables of 1.22 and later; NULL in older ones. */
#define ORT_PLUGINS 22
#define ORT_PLUGIN_FUNCTIONS(X)                                                                              \
  X(301, RegisterExecutionProviderLibrary, OrtStatus *, (OrtEnv *, const char *, const char *))              \
  X(303, GetEpDevices, OrtStatus *, (const OrtEnv *, const OrtEpDevice *const **, size_t *))                 \
  X(304, SessionOptionsAppendExecutionProvider_V2, OrtStatus *,                                              \
      (OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, const char *const *,               \
          const char *const *, size_t))                                                                      \
  X(312, EpDevice_EpName, const char *, (const OrtEpDevice *))

/* What OrtGetApiBase() gives. GetApi(newer than the library) prints and gives NULL: read the version string
 * first. */
typedef struct ort_base {
  const void *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} ort_base;

#define ORT_MEMBER(place, name, returns, parameters) returns(*name) parameters;
typedef struct ort_api {
  ORT_FUNCTIONS(ORT_MEMBER) ORT_PLUGIN_FUNCTIONS(ORT_MEMBER)
} ort_api;
#undef ORT_MEMBER

/* Copies our functions out of the library's table. */
static inline void ort_api_read(ort_api *api, const void *table, int minor) {
  const unsigned char *entry = table;
#define ORT_COPY(place, name, returns, parameters)                                                           \
  memcpy(&api->name, entry + (place) * sizeof(void *), sizeof(void *));
  ORT_FUNCTIONS(ORT_COPY)
  if (minor < ORT_PLUGINS) return;
  ORT_PLUGIN_FUNCTIONS(ORT_COPY)
#undef ORT_COPY
}
#endif
