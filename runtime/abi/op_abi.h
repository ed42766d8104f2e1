/* op_abi.h - the part of ONNX Runtime's C interface that custom operators need, declared by place as in
 * ort_abi.h. OrtCustomOp has the same 26 members (208 bytes) in API 20 to 29; version says which we were
 * written for: the oldest accepted. */
#ifndef SPECC_OP_ABI_H
#define SPECC_OP_ABI_H
#include "abi/ort_abi.h"

typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
#define ORT_OP_VERSION 20
#define ORT_UINT8 2

#define ORT_OP_FUNCTIONS(X)                                                                                  \
  X(0, CreateStatus, OrtStatus *, (ort_enum, const char *))                                                  \
  X(26, CreateCustomOpDomain, OrtStatus *, (const char *, OrtCustomOpDomain **))                             \
  X(27, CustomOpDomain_Add, OrtStatus *, (OrtCustomOpDomain *, const struct OrtCustomOp *))                  \
  X(28, AddCustomOpDomain, OrtStatus *, (OrtSessionOptions *, OrtCustomOpDomain *))                          \
  X(51, GetTensorMutableData, OrtStatus *, (OrtValue *, void **))                                            \
  X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *))                      \
  X(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t))                  \
  X(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *, OrtTensorTypeAndShapeInfo **))                \
  X(85, KernelInfoGetAttribute_float, OrtStatus *, (const OrtKernelInfo *, const char *, float *))           \
  X(86, KernelInfoGetAttribute_int64, OrtStatus *, (const OrtKernelInfo *, const char *, int64_t *))         \
  X(88, KernelContext_GetInputCount, OrtStatus *, (const OrtKernelContext *, size_t *))                      \
  X(90, KernelContext_GetInput, OrtStatus *, (const OrtKernelContext *, size_t, const OrtValue **))          \
  X(91, KernelContext_GetOutput, OrtStatus *,                                                                \
      (OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **))                                    \
  X(93, ReleaseStatus, void, (OrtStatus *))                                                                  \
  X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo *))                                  \
  X(101, ReleaseCustomOpDomain, void, (OrtCustomOpDomain *))                                                 \
  X(274, KernelContext_ParallelFor, OrtStatus *,                                                             \
      (const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *))

typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
  uint32_t version;
  void *(*CreateKernel)(const OrtCustomOp *, const void *api, const OrtKernelInfo *);
  const char *(*GetName)(const OrtCustomOp *);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *);
  ort_enum (*GetInputType)(const OrtCustomOp *, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp *);
  ort_enum (*GetOutputType)(const OrtCustomOp *, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *);
  void (*KernelCompute)(void *, OrtKernelContext *);
  void (*KernelDestroy)(void *);
  ort_enum (*GetInputCharacteristic)(const OrtCustomOp *, size_t);
  ort_enum (*GetOutputCharacteristic)(const OrtCustomOp *, size_t);
  ort_signed_enum (*GetInputMemoryType)(const OrtCustomOp *, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp *);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const void *api, const OrtKernelInfo *, void **);
  OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *);
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *, void *);
  int (*GetStartVersion)(const OrtCustomOp *);
  int (*GetEndVersion)(const OrtCustomOp *);
  size_t (*GetMayInplace)(int **, int **);
  void (*ReleaseMayInplace)(int *, int *);
  size_t (*GetAliasMap)(int **, int **);
  void (*ReleaseAliasMap)(int *, int *);
};
#endif
