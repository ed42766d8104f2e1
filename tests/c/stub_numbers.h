/* stub_numbers.h - entries of a KV cache in each of its types, for stub_tensorrt.cpp: fp32, fp16, bf16,
 * float8 e4m3. */
#ifndef STUB_NUMBERS_H
#define STUB_NUMBERS_H
#include "stub_plan.h"
#include <cmath>
#include <cstddef>
#include <cstring>

namespace {
float from_float8(unsigned char code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  float x = (code & 127) == 127 ? NAN
            : exponent          ? std::ldexp(8.0f + mantissa, exponent - 10)
                                : std::ldexp(static_cast<float>(mantissa), -9);
  return code & 128 ? -x : x;
}

unsigned char to_float8(float x) { /* the nearest of all codes, the even one of two */
  int best = 0;
  for (int code = 1; code < 127; code++) {
    float now = std::fabs(from_float8(static_cast<unsigned char>(code)) - std::fabs(x)),
          before = std::fabs(from_float8(static_cast<unsigned char>(best)) - std::fabs(x));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return static_cast<unsigned char>(best | (std::signbit(x) ? 128 : 0));
}

/* One number of a cache tensor [kv_heads][slots][head_dim]: the first of a slot's. */
float get(const stub_plan &p, const unsigned char *tensor, int32_t slots, int32_t head, int32_t slot) {
  std::size_t at = (static_cast<std::size_t>(head) * slots + slot) * p.head_dim;
  if (p.cache_type == 0) {
    float x;
    std::memcpy(&x, tensor + 4 * at, 4);
    return x;
  }
  if (p.cache_type == 3) return from_float8(tensor[at]);
  uint16_t h;
  std::memcpy(&h, tensor + 2 * at, 2);
  if (p.cache_type == 2) {
    uint32_t b = static_cast<uint32_t>(h) << 16;
    float x;
    std::memcpy(&x, &b, 4);
    return x;
  }
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
            : exponent     ? std::ldexp(1024.0f + mantissa, exponent - 25)
                           : std::ldexp(static_cast<float>(mantissa), -24);
  return h & 0x8000 ? -x : x;
}

/* Fills a slot of a cache tensor with x. */
void set(const stub_plan &p, unsigned char *tensor, int32_t slots, int32_t head, int32_t slot, float x) {
  for (int32_t i = 0; i < p.head_dim; i++) {
    std::size_t at = (static_cast<std::size_t>(head) * slots + slot) * p.head_dim + i;
    if (p.cache_type == 0) {
      std::memcpy(tensor + 4 * at, &x, 4);
      continue;
    }
    if (p.cache_type == 3) {
      tensor[at] = to_float8(x);
      continue;
    }
    uint32_t b;
    std::memcpy(&b, &x, 4);
    uint16_t h = p.cache_type == 2 ? b >> 16
                 : x == 0          ? 0
                          : static_cast<uint16_t>((b - 0x38000000) >> 13); /* small whole numbers: exact */
    std::memcpy(tensor + 2 * at, &h, 2);
  }
}
} // namespace
#endif
