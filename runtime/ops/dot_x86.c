/* dot_x86.c - the dot of kernels.h with AVX2, AVX-VNNI and AVX512-VNNI: the same integers, the same float
 * steps. */
#include "ops/attend_x86.h"
#include "ops/kernels.h"
#include "ops/rows_x86.h"
#if defined(__x86_64__) && defined(__GNUC__)
  #include <immintrin.h>

  #define AVX2 __attribute__((target("avx2,fma,f16c"), always_inline)) static inline
  #define LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
  #define HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))

AVX2 __m256i four(const activation *a, int g) {
  int32_t v;
  memcpy(&v, a->q + 4 * g, sizeof v);
  return _mm256_set1_epi32(v);
}
AVX2 __m256i minus(__m256i sum, int32_t v) {
  return _mm256_sub_epi32(sum, _mm256_set1_epi32(v));
}

/* Asks for what comes AHEAD bytes behind p. With few rows the processor reads far enough ahead by itself. */
enum { AHEAD = 8192 };
AVX2 void ask_ahead(const uint8_t *p, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64)
    _mm_prefetch((const char *)((uintptr_t)p + AHEAD + at), _MM_HINT_T1);
}

/* ---- AVX2: pairs of unsigned and signed bytes to 16 bits. Eight pairs of 15 * 127 * 2 stay below 32768. */
AVX2 __m256i nibbles_step(__m256i t, __m256i w, __m256i x) {
  return _mm256_add_epi16(t, _mm256_maddubs_epi16(w, x));
}
AVX2 __m256i nibbles_sum(__m256i t) {
  return _mm256_madd_epi16(t, _mm256_set1_epi16(1));
}

/* 8-bit weights: magnitude against the activation with the weight's sign; a pair is at most 2 * 128 * 127 =
 * 32512. */
AVX2 __m256i bytes_step(__m256i t, __m256i w, __m256i x) {
  return _mm256_add_epi32(
      t, _mm256_madd_epi16(
             _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1)));
}

  #define VARIANT avx2
  #define FEATURES "avx2,fma,f16c"
  #define STEP4 nibbles_step
  #define SUM4 nibbles_sum
  #define STEP8 bytes_step
  #define MOVED8 0
  #include "ops/dot256_x86.h"
extern const kernel_set kernels_avx2;
const kernel_set kernels_avx2 = {
    "avx2", {w4_avx2, w4m_avx2, w8_avx2}, quantize_avx2, gate_avx2, scores_avx2, weigh_avx2, blend_avx2};

  /* ---- AVX-VNNI: four products straight to 32 bits; 8-bit weights move by 128 and the activation sum takes
   * it back. */
  #if __GNUC__ >= 12
    #define VARIANT vnni256
    #define FEATURES "avx2,fma,f16c,avxvnni"
    #define STEP4(t, w, x) _mm256_dpbusd_avx_epi32(t, w, x)
    #define SUM4(t) (t)
    #define STEP8(t, w, x) _mm256_dpbusd_avx_epi32(t, w, x)
    #define MOVED8 128
    #include "ops/dot256_x86.h"
extern const kernel_set kernels_vnni256;
const kernel_set kernels_vnni256 = {"avx-vnni", {w4_vnni256, w4m_vnni256, w8_vnni256}, quantize_avx2,
    gate_avx2, scores_avx2, weigh_avx2, blend_avx2};
  #endif

  /* ---- AVX512-VNNI: 16 outputs in a register. */
  #define FEATURES512 "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512vnni"
  #define AVX512 __attribute__((target(FEATURES512), always_inline)) static inline
enum { MOST512 = 9 };
typedef int32_t __attribute__((may_alias)) four_bytes;

/* Eight vectors of weights, unsigned: w[g] holds inputs 4 g .. 4 g + 3 of all outputs. */
AVX512 void unpack512(const enum weight_kind kind, const uint8_t *codes, __m512i w[8]) {
  const __m512i low = _mm512_set1_epi8(15), move = _mm512_set1_epi8((char)0x80);
  #pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    if (kind == WEIGHT_W8) {
      w[j] = _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * j), move);
      continue;
    }
    __m512i raw = _mm512_loadu_si512(codes + 64 * (j / 2));
    w[j] = _mm512_and_si512(j % 2 ? _mm512_srli_epi16(raw, 4) : raw, low);
  }
}

/* The sum starts at what takes the offset of the weights back. Written out, because a compiler spends an
 * instruction of its own on every broadcast: half as many let the processor look further ahead, and so read
 * further ahead. */
AVX512 __m512i sum512(const enum weight_kind kind, const __m512i w[8], const activation *a) {
  __m512i t = kind == WEIGHT_W4M ? _mm512_setzero_si512()
                                 : _mm512_set1_epi32(kind == WEIGHT_W4 ? -8 * a->sum : -128 * a->sum);
  const four_bytes *q = (const four_bytes *)(const void *)a->q;
  #pragma GCC unroll 8
  for (int g = 0; g < 8; g++) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(t) : "v"(w[g]), "m"(q[g]));
  return t;
}

AVX512 void tile512(const enum weight_kind kind, const int M, const uint8_t *group, const activation *a,
    size_t lda, int nb, float *y) {
  __m512 acc[MOST512];
  #pragma GCC unroll 16
  for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
  for (int b = 0; b < nb; b++, a++) {
    const uint8_t *head = head_at(kind, group, b), *codes = codes_at(kind, group, b);
    __m512i w[8];
    if (M > 2) ask_ahead(codes, code_bytes(kind) + 64);
    unpack512(kind, codes, w);
    __m512 scale = _mm512_cvtph_ps(LOAD(head)),
           minimum = kind == WEIGHT_W4M ? _mm512_cvtph_ps(LOAD(head + 32)) : _mm512_setzero_ps();
  #pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const activation *x = a + (size_t)m * lda;
      acc[m] = _mm512_fmadd_ps(
          _mm512_mul_ps(_mm512_cvtepi32_ps(sum512(kind, w, x)), _mm512_set1_ps(x->d)), scale, acc[m]);
      if (kind == WEIGHT_W4M) acc[m] = _mm512_fmadd_ps(_mm512_set1_ps(x->d_sum), minimum, acc[m]);
    }
  }
  #pragma GCC unroll 16
  for (int m = 0; m < M; m++) _mm512_storeu_ps(y + m * GROUP, acc[m]);
}

  #define CASE512(M)                                                                                         \
  case M:                                                                                                    \
    tile512(kind, M, group, a, lda, nb, y);                                                                  \
    break;
AVX512 void rows512(const enum weight_kind kind, const uint8_t *group, const activation *a, size_t lda,
    int rows, int nb, float *y) {
  for (int m; rows > 0; rows -= m, a += (size_t)m * lda, y += m * GROUP) {
    int tiles = (rows + MOST512 - 1) / MOST512;
    m = (rows + tiles - 1) / tiles;
    switch (m) {
      CASE512(1) CASE512(2) CASE512(3) CASE512(4) CASE512(5) CASE512(6) CASE512(7) CASE512(8) CASE512(9)
    }
  }
}
  #define KIND512(kind, KIND)                                                                                \
    __attribute__((target(FEATURES512))) static void kind##_512(                                             \
        const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {                     \
      rows512(KIND, g, a, lda, rows, nb, y);                                                                 \
    }
KIND512(w4, WEIGHT_W4)
KIND512(w4m, WEIGHT_W4M) KIND512(w8, WEIGHT_W8) extern const kernel_set kernels_vnni512;
const kernel_set kernels_vnni512 = {
    "avx512-vnni", {w4_512, w4m_512, w8_512}, quantize_avx2, gate_avx2, scores_avx2, weigh_avx2, blend_avx2};
#endif
