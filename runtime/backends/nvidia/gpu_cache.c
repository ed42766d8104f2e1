/* gpu_cache.c - keys and values in a GPU's memory, laid out once: 2 * layers tensors [kv_heads, capacity,
 * head_dim]. */
#include "backends/nvidia/gpu_cache.h"
#include "backends/nvidia/gpu_memory.h"
#include <stdlib.h>
#include <string.h>

#define ALIGN 256 /* bytes: what cuMemAlloc aligns to, and TensorRT asks for */

size_t cache_item(int32_t type) {
  return type == SPECC_CACHE_F32 ? 4 : type == SPECC_CACHE_F8 ? 1 : 2;
}

/* Round to nearest even; a finite number stays finite. */
static uint32_t to_half(float x) {
  uint32_t b, sign;
  memcpy(&b, &x, sizeof b);
  sign = b >> 16 & 0x8000, b &= 0x7fffffff;
  if (b > 0x7f800000) return sign | 0x7e00;
  if (b == 0x7f800000) return sign | 0x7c00;
  if (b >= 0x477ff000) return sign | 0x7bff; /* would round past 65504 */
  if (b < 0x38800000) {                      /* a denormal half: units of 2^-24 */
    float scaled;
    memcpy(&scaled, &b, sizeof scaled);
    scaled = scaled * 16777216.0f + 8388608.0f; /* rounds to a whole number in the low bits */
    memcpy(&b, &scaled, sizeof b);
    return sign | (b & 0x7fffff);
  }
  return sign | ((b + 0xfff + (b >> 13 & 1) - 0x38000000) >> 13);
}

static uint32_t to_bfloat(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  if ((b & 0x7fffffff) > 0x7f800000) return b >> 16 | 0x40;
  uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
  return (rounded & 0x7fff) == 0x7f80 && (b & 0x7fffffff) != 0x7f800000 ? rounded - 1 : rounded;
}

/* e4m3: no infinity, 448 is the largest. */
static uint32_t to_float8(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  uint32_t sign = b >> 24 & 0x80;
  b &= 0x7fffffff;
  if (b >= 0x7f800000) return sign | 0x7f;
  if (b >= 0x43e80000) return sign | 0x7e; /* would round past 448 */
  if (b < 0x3c800000) {                    /* a denormal: units of 2^-9 */
    float scaled;
    memcpy(&scaled, &b, sizeof scaled);
    scaled = scaled * 512.0f + 8388608.0f;
    memcpy(&b, &scaled, sizeof b);
    return sign | (b & 0xff);
  }
  return sign | ((b + 0x7ffff + (b >> 20 & 1) - 0x3c000000) >> 20);
}

uint32_t cache_bits(int32_t type, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return type == SPECC_CACHE_F16    ? to_half(value)
         : type == SPECC_CACHE_BF16 ? to_bfloat(value)
         : type == SPECC_CACHE_F8   ? to_float8(value)
                                    : bits;
}

int gpu_cache_create(gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream) {
  const cuda_driver *d = gpu->driver;
  size_t bytes = (size_t)c->heads * (size_t)c->capacity * (size_t)c->dim * cache_item(c->type);
  c->stride = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  size_t whole = (size_t)c->buffers * c->stride;
  int code = gpu_require(gpu, (int64_t)whole, "the cache");
  if (!code)
    code = cuda_check(d, d->alloc(&c->base, whole), "could not allocate the cache",
        "lower the context or close other programs");
  if (!code)
    code = cuda_check(
        d, d->fill8(c->base, 0, whole, stream), "could not clear the cache", "start the program again");
  return code ? code
              : cuda_check(d, d->stream_wait(stream), "could not clear the cache", "start the program again");
}

void gpu_cache_free(gpu_cache *c, const cuda_gpu *gpu) {
  if (c->base) gpu->driver->free(c->base);
  c->base = 0;
}

cuda_address gpu_cache_at(const gpu_cache *c, int32_t buffer) {
  return c->base + (cuda_address)buffer * c->stride;
}

/* Heads lie `capacity * dim` items apart: a fill of `heads` rows, one per head. */
int gpu_cache_fill(const gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream, int32_t from, float value) {
  const cuda_driver *d = gpu->driver;
  size_t item = cache_item(c->type), pitch = (size_t)c->capacity * (size_t)c->dim * item,
         width = (size_t)(c->capacity - from) * (size_t)c->dim;
  uint32_t bits = cache_bits(c->type, value);
  int code = SPECC_OK;
  for (int32_t i = 0; !code && width && i < c->buffers; i++) {
    cuda_address at = gpu_cache_at(c, i) + (cuda_address)from * (cuda_address)c->dim * item;
    int result = item == 4   ? d->fill32(at, pitch, bits, width, (size_t)c->heads, stream)
                 : item == 2 ? d->fill16(at, pitch, (unsigned short)bits, width, (size_t)c->heads, stream)
                             : d->fill8_rows(at, pitch, (unsigned char)bits, width, (size_t)c->heads, stream);
    code = cuda_check(d, result, "could not fill the cache", "start the program again");
  }
  return code ? code
              : cuda_check(d, d->stream_wait(stream), "could not fill the cache", "start the program again");
}

/* Writes rows [heads, rows, dim] of one tensor to slots past .. past + rows - 1, in the order of the stream.
 */
int gpu_cache_put(const gpu_cache *c, const cuda_gpu *gpu, cuda_stream stream, int32_t buffer, int32_t past,
    int32_t rows, cuda_address from) {
  size_t row = (size_t)c->dim * cache_item(c->type);
  cuda_copy2d copy = {.from_type = CUDA_ON_DEVICE,
      .from = from,
      .from_pitch = (size_t)rows * row,
      .to_type = CUDA_ON_DEVICE,
      .to = gpu_cache_at(c, buffer) + (cuda_address)past * row,
      .to_pitch = (size_t)c->capacity * row,
      .width = (size_t)rows * row,
      .height = (size_t)c->heads};
  return cuda_check(gpu->driver, gpu->driver->copy2d(&copy, stream), "could not write the cache",
      "start the program again");
}
