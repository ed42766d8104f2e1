/* rows_x86.h - quantization and gate of kernels.h with AVX2: the same steps on eight numbers at a time. */
#ifndef SPECC_ROWS_X86_H
#define SPECC_ROWS_X86_H
#include "ops/attend_x86.h"
#if defined(__x86_64__) && defined(__GNUC__)
  #include <string.h>

/* The largest of 32 magnitudes; *bad where one is NaN or infinite. */
INLINE float largest_of_32(const __m256 v[4], int *bad) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)),
               most = _mm256_set1_ps(3.4028235e38f);
  __m256 top = _mm256_setzero_ps(), wrong = top;
  for (int i = 0; i < 4; i++) {
    __m256 m = _mm256_and_ps(v[i], magnitude);
    wrong = _mm256_or_ps(wrong, _mm256_cmp_ps(m, most, _CMP_NLE_UQ));
    top = _mm256_max_ps(top, m);
  }
  *bad = _mm256_movemask_ps(wrong);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

/* Eight numbers to whole ones, to nearest even. */
INLINE __m256i whole8(__m256 x, __m256 inverse) {
  __m256 t = _mm256_add_ps(_mm256_mul_ps(x, inverse), _mm256_set1_ps(12582912.0f));
  return _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000));
}

AVX2_FMA void quantize_avx2(const float *x, int blocks, activation *a) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int b = 0; b < blocks; b++, x += BLOCK, a++) {
    __m256 v[4];
    __m256i whole[4];
    int bad;
    for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(x + 8 * i);
    float top = largest_of_32(v, &bad);
    a->unused = 0;
    if (bad || top < 1e-30f) {
      a->d = a->d_sum = bad ? NAN : 0;
      a->sum = 0;
      memset(a->q, 0, sizeof a->q);
      continue;
    }
    __m256 inverse = _mm256_set1_ps(127.0f / top);
    for (int i = 0; i < 4; i++) whole[i] = whole8(v[i], inverse);
    __m256i sum =
        _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_hadd_epi32(half, half);
    a->sum = _mm_cvtsi128_si32(_mm_hadd_epi32(half, half));
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    _mm256_storeu_si256((__m256i *)(void *)a->q, _mm256_permutevar8x32_epi32(bytes, order));
    a->d = top / 127.0f;
    a->d_sum = a->d * (float)a->sum;
  }
}

AVX2_FMA void gate_avx2(const float *sums, int rows, float *y) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_castsi256_ps(_mm256_set1_epi32((int)0x80000000u));
  for (int r = 0; r < rows; r++, sums += GROUP, y += GATED) {
    __m256 g = _mm256_loadu_ps(sums), e = exp8(_mm256_or_ps(g, sign));
    __m256 numerator = _mm256_blendv_ps(e, one, _mm256_cmp_ps(g, _mm256_setzero_ps(), _CMP_GE_OQ));
    __m256 s = _mm256_div_ps(numerator, _mm256_add_ps(one, e));
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_mul_ps(g, s), _mm256_loadu_ps(sums + GATED)));
  }
}
#endif
#endif
