/* gpu_cache.h - keys and values in a GPU's memory, for every backend that runs there. */
#ifndef SPECC_GPU_CACHE_H
#define SPECC_GPU_CACHE_H
#include "abi/cuda_driver.h"
#include "specc_extend.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_cache {
  int32_t type, buffers, heads, capacity, dim; /* SPECC_CACHE_; set before create */
  cuda_address base;
  size_t stride; /* bytes from one tensor to the next */
} gpu_cache;

size_t cache_item(int32_t type);                /* bytes */
uint32_t cache_bits(int32_t type, float value); /* of one item; finite numbers stay finite */
/* The GPU's context is entered by the caller. Everything starts as zeros: a mask does not stop a NaN. */
int gpu_cache_create(gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream);
void gpu_cache_free(gpu_cache *c, const cuda_gpu *gpu);
cuda_address gpu_cache_at(const gpu_cache *c, int32_t buffer);
/* Fills the slots from `from` on and waits for the stream. */
int gpu_cache_fill(const gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream, int32_t from, float value);
int gpu_cache_put(const gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream, int32_t buffer, int32_t past,
    int32_t rows, cuda_address from);

#ifdef __cplusplus
}
#endif
#endif
