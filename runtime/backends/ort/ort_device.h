/* ort_device.h - ONNX Runtime on a GPU: the provider that computes, and caches in the GPU's memory. */
#ifndef SPECC_ORT_DEVICE_H
#define SPECC_ORT_DEVICE_H
#include "backends/nvidia/gpu_cache.h"
#include "backends/ort/ort.h"

typedef struct ort_device {
  cuda_gpu gpu;
  cuda_stream stream;    /* ours, for clearing and poison; the provider has its own */
  OrtMemoryInfo *memory; /* "this GPU's memory" */
} ort_device;

/* Opens the GPU: without a driver or with an old one this is where it ends, in one sentence. */
int ort_device_open(ort_device **out, const library *lib, const specc_ort_options *o);
/* The provider and its options into a session's options. */
int ort_device_append(const library *lib, OrtSessionOptions *options, const specc_ort_options *o);
void ort_device_close(ort_device *d, const library *lib);
/* Zeroed pinned memory that the CPU fills and the provider copies from. */
int ort_device_pinned(const ort_device *d, size_t bytes, void **out);
void ort_device_unpin(const ort_device *d, void *memory);
int ort_device_cache(const ort_device *d, gpu_cache *cache);
void ort_device_uncache(const ort_device *d, gpu_cache *cache);
int ort_device_fill(const ort_device *d, const gpu_cache *cache, int32_t from, float value);
#endif
