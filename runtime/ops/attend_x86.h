/* attend_x86.h - the attention steps of kernels.h with AVX2: the same lanes, the same order. */
#ifndef SPECC_ATTEND_X86_H
#define SPECC_ATTEND_X86_H
#include "ops/kernels.h"
#if defined(__x86_64__) && defined(__GNUC__)
  #include <immintrin.h>
  #include <math.h>
  #include <string.h>

  #define AVX2_FMA __attribute__((target("avx2,fma"))) static
  #define INLINE __attribute__((target("avx2,fma"), always_inline)) static inline

/* Four vectors of 8 lanes, each joined as stated: four sums. */
INLINE __m256 pairs(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
INLINE __m128 join4(__m256 a, __m256 b, __m256 c, __m256 d) {
  __m256 fours = pairs(pairs(a, b), pairs(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
}

/* QUERIES x keys dots that share what they load; the sums of query i lie at acc[i * keys]. */
INLINE void dots(
    const int queries, const int keys, const float *const *q, const float *k, size_t d, __m256 acc[12]) {
  #pragma GCC unroll 12
  for (int i = 0; i < queries * keys; i++) acc[i] = _mm256_setzero_ps();
  for (size_t at = 0; at < d; at += 8) {
    __m256 x[QUERIES];
  #pragma GCC unroll 4
    for (int i = 0; i < queries; i++) x[i] = _mm256_loadu_ps(q[i] + at);
  #pragma GCC unroll 8
    for (int s = 0; s < keys; s++) {
      __m256 y = _mm256_loadu_ps(k + (size_t)s * d + at);
  #pragma GCC unroll 4
      for (int i = 0; i < queries; i++) acc[i * keys + s] = _mm256_fmadd_ps(x[i], y, acc[i * keys + s]);
    }
  }
}

/* A fixed number of queries: 8, 4, 4 or 2 keys at a time, so that the sums fit the registers; what is left
 * over one by one. */
INLINE void scores_of(
    const int queries, const float *const *q, const float *k, int n, size_t d, float *const *score) {
  const int keys = queries == 1 ? 8 : queries == 4 ? 2 : 4;
  __m256 acc[12];
  int s = 0;
  for (; s + keys <= n; s += keys, k += (size_t)keys * d) {
    dots(queries, keys, q, k, d, acc);
    if (queries == 4) {
      float sums[8];
      _mm_storeu_ps(sums, join4(acc[0], acc[1], acc[2], acc[3]));
      _mm_storeu_ps(sums + 4, join4(acc[4], acc[5], acc[6], acc[7]));
      for (int i = 0; i < 4; i++) memcpy(score[i] + s, sums + 2 * i, 2 * sizeof *sums);
      continue;
    }
  #pragma GCC unroll 4
    for (int i = 0; i < queries * keys / 4; i++)
      _mm_storeu_ps(score[i * 4 / keys] + s + i * 4 % keys,
          join4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
  }
  for (; s < n; s++, k += d) {
    float four[4];
    dots(queries, 1, q, k, d, acc);
    _mm_storeu_ps(
        four, join4(acc[0], acc[queries > 1 ? 1 : 0], acc[queries > 2 ? 2 : 0], acc[queries > 3 ? 3 : 0]));
    for (int i = 0; i < queries; i++) score[i][s] = four[i];
  }
}

AVX2_FMA void scores_avx2(
    const float *const *q, int queries, const float *k, int n, int head_dim, float *const *score) {
  size_t d = (size_t)head_dim;
  switch (queries) {
  case 1:
    scores_of(1, q, k, n, d, score);
    break;
  case 2:
    scores_of(2, q, k, n, d, score);
    break;
  case 3:
    scores_of(3, q, k, n, d, score);
    break;
  default:
    scores_of(4, q, k, n, d, score);
  }
}

/* exp_float of float_math.h in eight lanes. */
INLINE __m256 exp8(__m256 x) {
  const __m256 least = _mm256_set1_ps(-87.0f), shift = _mm256_set1_ps(12582912.0f);
  __m256 above = _mm256_cmp_ps(x, least, _CMP_GT_OQ), y = _mm256_blendv_ps(least, x, above);
  __m256 t = _mm256_fmadd_ps(y, _mm256_set1_ps(1.44269504f), shift), n = _mm256_sub_ps(t, shift);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693145751953125f), y);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-1.42860677e-6f), r);
  __m256 p = _mm256_set1_ps(1.98412698e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.38888889e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33333333e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16666667e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666667e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
  __m256 low = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); /* 0, or NaN where x is */
  return _mm256_blendv_ps(low, _mm256_castsi256_ps(scaled), above);
}

AVX2_FMA float weigh_avx2(float *score, int n, float *l) {
  float m = -INFINITY, lane[8], tail[8];
  bool bad = false;
  __m256 top = _mm256_set1_ps(-INFINITY), nan = _mm256_setzero_ps(), sum = nan;
  int s = 0;
  for (; s + 8 <= n; s += 8) {
    __m256 x = _mm256_loadu_ps(score + s);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    top = _mm256_max_ps(x, top); /* a NaN gives the second operand */
  }
  _mm256_storeu_ps(lane, top);
  for (int i = 0; i < 8; i++) m = lane[i] > m ? lane[i] : m;
  bad = _mm256_movemask_ps(nan) != 0;
  for (int i = s; i < n; i++) {
    m = score[i] > m ? score[i] : m;
    bad |= score[i] != score[i];
  }
  bool none = !(m > -INFINITY);
  if (none) {
    memset(score, 0, (size_t)n * sizeof *score);
    *l = bad ? NAN : 0;
    return m;
  }
  for (int i = 0; i < s; i += 8) {
    __m256 x = exp8(_mm256_sub_ps(_mm256_loadu_ps(score + i), _mm256_set1_ps(m)));
    _mm256_storeu_ps(score + i, x);
    sum = _mm256_add_ps(sum, x);
  }
  if (s < n) { /* a lane without a slot adds exp(-inf) = 0 */
    for (int j = 0; j < 8; j++) tail[j] = s + j < n ? score[s + j] : -INFINITY;
    __m256 x = exp8(_mm256_sub_ps(_mm256_loadu_ps(tail), _mm256_set1_ps(m)));
    _mm256_storeu_ps(tail, x);
    memcpy(score + s, tail, (size_t)(n - s) * sizeof *score);
    sum = _mm256_add_ps(sum, x);
  }
  *l = bad ? NAN : _mm_cvtss_f32(join4(sum, sum, sum, sum));
  return m;
}

  /* 8 * width output columns from column c of `queries` queries, in registers over all slots. */
  #define BLEND(name, count, width)                                                                          \
    INLINE void name(                                                                                        \
        const float *const *weight, const float *v, int n, size_t d, float *const *out, size_t c) {          \
      __m256 acc[count][width];                                                                              \
      for (int i = 0; i < count; i++)                                                                        \
        for (int w = 0; w < width; w++) acc[i][w] = _mm256_loadu_ps(out[i] + c + 8 * (size_t)w);             \
      for (int s = 0; s < n; s++) {                                                                          \
        const float *row = v + (size_t)s * d + c;                                                            \
        _Pragma("GCC unroll 8") for (int w = 0; w < width; w++) {                                            \
          __m256 x = _mm256_loadu_ps(row + 8 * w);                                                           \
          _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) acc[i][w] =                                \
              _mm256_fmadd_ps(_mm256_set1_ps(weight[i][s]), x, acc[i][w]);                                   \
        }                                                                                                    \
      }                                                                                                      \
      for (int i = 0; i < count; i++)                                                                        \
        for (int w = 0; w < width; w++) _mm256_storeu_ps(out[i] + c + 8 * (size_t)w, acc[i][w]);             \
    }
BLEND(blend1x8, 1, 8)
BLEND(blend1x1, 1, 1)
BLEND(blend2x4, 2, 4)
BLEND(blend2x1, 2, 1)
BLEND(blend3x4, 3, 4)
BLEND(blend3x1, 3, 1)
BLEND(blend4x2, 4, 2)
BLEND(blend4x1, 4, 1)

  #define COLUMNS(wide, width, narrow)                                                                       \
    for (; c + 8 * width <= d; c += 8 * width) wide(weight, v, n, d, out, c);                                \
    for (; c < d; c += 8) narrow(weight, v, n, d, out, c);

AVX2_FMA void blend_avx2(
    const float *const *weight, int queries, const float *v, int n, int head_dim, float *const *out) {
  size_t d = (size_t)head_dim, c = 0;
  switch (queries) {
  case 1:
    COLUMNS(blend1x8, 8, blend1x1) break;
  case 2:
    COLUMNS(blend2x4, 4, blend2x1) break;
  case 3:
    COLUMNS(blend3x4, 4, blend3x1) break;
  default:
    COLUMNS(blend4x2, 2, blend4x1)
  }
}
#endif
#endif
