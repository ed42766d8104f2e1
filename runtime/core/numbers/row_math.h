/* row_math.h - what is done to one element or one draw, for the C core and the CUDA kernels alike: pure
 * functions. */
#ifndef SPECC_ROW_MATH_H
#define SPECC_ROW_MATH_H
#include "core/numbers/arithmetic.h"

#define BUCKETS 16369 /* weights in [0, 1] by exponent and 4 bits of mantissa */

/* A logit that sampling takes: finite or -infinity. */
SPECC_BOTH int is_logit(float x) {
  return x <= 3.4028235e38f;
}

/* Repetition over prompt and output (Keskar et al. 2019, CTRL); presence and frequency where the id stands in
 * the output. */
SPECC_BOTH double penalised(double v, int32_t count, double repetition, double presence, double frequency) {
  v = v > 0 ? v / repetition : v * repetition;
  return count ? v - (presence + frequency * count) : v;
}

SPECC_BOTH double weight_of(double v, double top, double temperature) {
  return exp_negative((v - top) / temperature);
}

SPECC_BOTH uint32_t bucket_of(double weight) {
  return (uint32_t)(bits_of(weight) >> 48);
}

/* Order of candidates: falling weight, rising id. */
SPECC_BOTH int before(const double *v, int32_t a, int32_t b) {
  return v[a] > v[b] || (v[a] == v[b] && a < b);
}

/* 16 lanes (lane = id mod 16) joined by a fixed tree. */
SPECC_BOTH double join_lanes(double lanes[16]) {
  for (int half = 8; half; half /= 2)
    for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
  return lanes[0];
}

/* [0, 1), 53 bits. */
SPECC_BOTH double uniform_at(
    uint64_t seed, uint32_t sample, int32_t position, uint32_t purpose, uint32_t index) {
  uint32_t c[4] = {(uint32_t)position, purpose, index, sample};
  philox((uint32_t)seed, (uint32_t)(seed >> 32), c);
  return ((double)(c[0] >> 5) * 67108864.0 + (double)(c[1] >> 6)) * (1.0 / 9007199254740992.0);
}

/* Numbers of the race for ids 2 * pair and 2 * pair + 1, which share a Philox block; (52 bits + 1/2) / 2^52
 * is never 0 or 1. */
SPECC_BOTH void race_pair(
    uint64_t seed, uint32_t sample, int32_t position, uint32_t purpose, uint32_t pair, double u[2]) {
  uint32_t c[4] = {(uint32_t)position, purpose, pair, sample};
  philox((uint32_t)seed, (uint32_t)(seed >> 32), c);
  uint64_t a = ((uint64_t)c[0] << 20) | (c[1] >> 12), b = ((uint64_t)c[2] << 20) | (c[3] >> 12);
  u[0] = (of_bits(a | 0x4330000000000000ull) - 4503599627370496.0 + 0.5) * (1.0 / 4503599627370496.0);
  u[1] = (of_bits(b | 0x4330000000000000ull) - 4503599627370496.0 + 0.5) * (1.0 / 4503599627370496.0);
}

SPECC_BOTH double race_time(double u, double rate) {
  return -log_positive(u) / rate;
}

SPECC_BOTH double sum_block(const double *weight, int32_t n, int32_t block) {
  int32_t end = block * 64 + 64 < n ? block * 64 + 64 : n;
  double sum = 0;
  for (int32_t i = block * 64; i < end; i++) sum += weight[i];
  return sum;
}

/* First id whose running sum of weight [n] exceeds u times the total; block [blocks of 64] holds their sums.
 * -1: all are 0. */
SPECC_BOTH int32_t search_blocks(const double *weight, int32_t n, double u, const double *block) {
  int32_t blocks = (n + 63) / 64, b = 0, last = -1;
  double total = 0, running = 0;
  for (int32_t i = 0; i < blocks; i++) total += block[i];
  double goal = u * total;
  while (b < blocks - 1 && running + block[b] <= goal) running += block[b++];
  for (; b >= 0 && last < 0; b--) { /* a block of rounding dust alone falls to the one before */
    int32_t end = b * 64 + 64 < n ? b * 64 + 64 : n;
    for (int32_t i = b * 64; i < end; i++) {
      if (!(weight[i] > 0)) continue;
      last = i;
      if ((running += weight[i]) > goal) return i;
    }
  }
  return last;
}
#endif
