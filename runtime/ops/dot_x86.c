/* dot_x86.c - the dot of kernels.h with AVX2, AVX-VNNI and AVX512-VNNI: the same integers, the same float steps. */
#include "attend_x86.h"
#include "internal.h"
#include "kernels.h"
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c"), always_inline)) static inline
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))

/* Eight vectors of weights of a 4-bit block, 0..15: w[g] holds inputs 4 g .. 4 g + 3 of all outputs. */
AVX2 void nibbles(const uint8_t *q, __m256i w[8]) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int j = 0; j < 4; j++) {
    __m256i r = LOAD(q + 32 * j);
    w[2 * j] = _mm256_and_si256(r, low);
    w[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(r, 4), low);
  }
}

AVX2 __m256i four(const activation *a, int g) { int32_t v; memcpy(&v, a->q + 4 * g, sizeof v); return _mm256_set1_epi32(v); }

/* Float steps shared by all variants. */
AVX2 __m256 add_block(__m256i sum, const activation *a, __m256 scale, __m256 y) {
  return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(a->d)), scale, y);
}

/* ---- AVX2: pairs of unsigned and signed bytes to 16 bits. Eight pairs of 15 * 127 * 2 stay below 32768. */
AVX2 __m256i sum4_avx2(const __m256i w[8], const activation *a) {
  __m256i t = _mm256_maddubs_epi16(w[0], four(a, 0));
  for (int g = 1; g < 8; g++) t = _mm256_add_epi16(t, _mm256_maddubs_epi16(w[g], four(a, g)));
  return _mm256_madd_epi16(t, _mm256_set1_epi16(1));
}

/* 8-bit weights: magnitude against the activation with the weight's sign; a pair is at most 2 * 128 * 127 = 32512. */
AVX2 __m256i sum8_avx2(const __m256i w[8], const activation *a) {
  const __m256i one = _mm256_set1_epi16(1);
  __m256i t = _mm256_setzero_si256();
  for (int g = 0; g < 8; g++)
    t = _mm256_add_epi32(t, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(four(a, g), w[g])), one));
  return t;
}

/* ---- VNNI: four products straight to 32 bits; 8-bit weights move by 128 and the activation sum takes it back. */
#define VNNI512 __attribute__((target("avx2,fma,f16c,avx512f,avx512vl,avx512vnni"), always_inline)) static inline
VNNI512 __m256i sum_vnni512(const __m256i w[8], const activation *a) {
  __m256i t = _mm256_setzero_si256(), u = _mm256_setzero_si256();
  for (int g = 0; g < 8; g += 2) {
    t = _mm256_dpbusd_epi32(t, w[g], four(a, g));
    u = _mm256_dpbusd_epi32(u, w[g + 1], four(a, g + 1));
  }
  return _mm256_add_epi32(t, u);
}
#if __GNUC__ >= 12
#define VNNI256 __attribute__((target("avx2,fma,f16c,avxvnni"), always_inline)) static inline
VNNI256 __m256i sum_vnni256(const __m256i w[8], const activation *a) {
  __m256i t = _mm256_setzero_si256(), u = _mm256_setzero_si256();
  for (int g = 0; g < 8; g += 2) {
    t = _mm256_dpbusd_avx_epi32(t, w[g], four(a, g));
    u = _mm256_dpbusd_avx_epi32(u, w[g + 1], four(a, g + 1));
  }
  return _mm256_add_epi32(t, u);
}
#endif

AVX2 __m256i minus(__m256i sum, int32_t v) { return _mm256_sub_epi32(sum, _mm256_set1_epi32(v)); }

/* One tile of M rows over all blocks of a group: weights are unpacked once for the tile. */
#define TILE(variant, features, M, SUM4, SUM8, MOVED) \
  __attribute__((target(features))) static void w4_##variant##_##M(const uint8_t *g, const activation *a, size_t lda, int nb, float *y) { \
    __m256 acc[M]; \
    for (int m = 0; m < M; m++) acc[m] = _mm256_setzero_ps(); \
    for (int b = 0; b < nb; b++, g += 144) { \
      __m256i w[8]; \
      nibbles(g + 16, w); \
      __m256 scale = HALVES(g); \
      _Pragma("GCC unroll 16") for (int m = 0; m < M; m++) { \
        const activation *x = a + (size_t)m * lda + b; \
        acc[m] = add_block(minus(SUM4(w, x), 8 * x->sum), x, scale, acc[m]); \
      } \
    } \
    for (int m = 0; m < M; m++) _mm256_storeu_ps(y + m * GROUP, acc[m]); \
  } \
  __attribute__((target(features))) static void w4m_##variant##_##M(const uint8_t *g, const activation *a, size_t lda, int nb, float *y) { \
    __m256 acc[M]; \
    for (int m = 0; m < M; m++) acc[m] = _mm256_setzero_ps(); \
    for (int b = 0; b < nb; b++, g += 160) { \
      __m256i w[8]; \
      nibbles(g + 32, w); \
      __m256 scale = HALVES(g), minimum = HALVES(g + 16); \
      _Pragma("GCC unroll 16") for (int m = 0; m < M; m++) { \
        const activation *x = a + (size_t)m * lda + b; \
        acc[m] = add_block(SUM4(w, x), x, scale, acc[m]); \
        acc[m] = _mm256_fmadd_ps(_mm256_set1_ps(x->d_sum), minimum, acc[m]); \
      } \
    } \
    for (int m = 0; m < M; m++) _mm256_storeu_ps(y + m * GROUP, acc[m]); \
  } \
  __attribute__((target(features))) static void w8_##variant##_##M(const uint8_t *g, const activation *a, size_t lda, int nb, float *y) { \
    const __m256i move = _mm256_set1_epi8(MOVED ? (char)0x80 : 0); \
    __m256 acc[M]; \
    for (int m = 0; m < M; m++) acc[m] = _mm256_setzero_ps(); \
    for (int b = 0; b < nb; b++, g += 272) { \
      __m256i w[8]; \
      for (int j = 0; j < 8; j++) w[j] = _mm256_xor_si256(LOAD(g + 16 + 32 * j), move); \
      __m256 scale = HALVES(g); \
      _Pragma("GCC unroll 16") for (int m = 0; m < M; m++) { \
        const activation *x = a + (size_t)m * lda + b; \
        acc[m] = add_block(MOVED ? minus(SUM8(w, x), 128 * x->sum) : SUM8(w, x), x, scale, acc[m]); \
      } \
    } \
    for (int m = 0; m < M; m++) _mm256_storeu_ps(y + m * GROUP, acc[m]); \
  }

typedef void (*tile_fn)(const uint8_t *g, const activation *a, size_t lda, int nb, float *y);

/* Rows in tiles of at most WIDEST; how rows fall into tiles does not touch their arithmetic. */
#define KIND(variant, kind, WIDEST, ...) \
  static void kind##_##variant(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) { \
    static const tile_fn tiles[] = {__VA_ARGS__}; \
    for (int m; rows > 0; rows -= m, a += (size_t)m * lda, y += m * GROUP) { \
      int left = (rows + WIDEST - 1) / WIDEST; \
      m = (rows + left - 1) / left; \
      tiles[m - 1](g, a, lda, nb, y); \
    } \
  }

#define VARIANT(variant, features, SUM4, SUM8, MOVED, label, PAIRS) \
  TILE(variant, features, 1, SUM4, SUM8, MOVED) TILE(variant, features, 2, SUM4, SUM8, MOVED) \
  TILE(variant, features, 3, SUM4, SUM8, MOVED) TILE(variant, features, 4, SUM4, SUM8, MOVED) \
  TILE(variant, features, 5, SUM4, SUM8, MOVED) TILE(variant, features, 6, SUM4, SUM8, MOVED) \
  KIND(variant, w4, 6, w4_##variant##_1, w4_##variant##_2, w4_##variant##_3, w4_##variant##_4, w4_##variant##_5, w4_##variant##_6) \
  KIND(variant, w4m, 6, w4m_##variant##_1, w4m_##variant##_2, w4m_##variant##_3, w4m_##variant##_4, w4m_##variant##_5, w4m_##variant##_6) \
  KIND(variant, w8, 6, w8_##variant##_1, w8_##variant##_2, w8_##variant##_3, w8_##variant##_4, w8_##variant##_5, w8_##variant##_6) \
  extern const kernel_set kernels_##variant; \
  const kernel_set kernels_##variant = {label, {w4_##variant, w4m_##variant, w8_##variant}, PAIRS, scores_avx2, weigh_avx2, blend_avx2};

/* ---- 512 bits: group g in the low half of a register, group g + 1 in the high half, lane for lane the steps above. */
#define FEATURES512 "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512vnni"
#define AVX512 __attribute__((target(FEATURES512), always_inline)) static inline

AVX512 __m512i both(const uint8_t *low, const uint8_t *high) { return _mm512_inserti64x4(_mm512_castsi256_si512(LOAD(low)), LOAD(high), 1); }
AVX512 __m512 both_halves(const uint8_t *low, const uint8_t *high) {
  __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low), b = _mm_loadu_si128((const __m128i *)(const void *)high);
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}

/* start: what the sum begins at, so that an offset costs nothing. */
AVX512 __m512i sum512(const __m512i w[8], const activation *a, int32_t start) {
  __m512i t = _mm512_set1_epi32(start);
  int32_t v;
  _Pragma("GCC unroll 8") for (int g = 0; g < 8; g++) { memcpy(&v, a->q + 4 * g, sizeof v); t = _mm512_dpbusd_epi32(t, w[g], _mm512_set1_epi32(v)); }
  return t;
}

#define UNPACK_NIBBLES(header) \
  for (int j = 0; j < 4; j++) { \
    __m512i r = both(g + header + 32 * j, h + header + 32 * j); \
    w[2 * j] = _mm512_and_si512(r, low); \
    w[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(r, 4), low); \
  }
#define UNPACK_BYTES(header) for (int j = 0; j < 8; j++) w[j] = _mm512_xor_si512(both(g + header + 32 * j, h + header + 32 * j), low);

#define TILE512(kind, M, size, header, mask, UNPACK, START, EXTRA) \
  __attribute__((target(FEATURES512))) static void kind##_pair_##M(const uint8_t *g, const activation *a, size_t lda, int nb, float *y, size_t second) { \
    const uint8_t *h = g + (size_t)nb * size, *next = h + (size_t)nb * size;   /* two streams: hardware does not look ahead far enough */ \
    const __m512i low = _mm512_set1_epi8((char)mask); \
    __m512 acc[M]; \
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps(); \
    for (int b = 0; b < nb; b++, g += size, h += size) { \
      __m512i w[8]; \
      for (size_t line = 0; line < 2 * size; line += 64) _mm_prefetch((const char *)next + line, _MM_HINT_T0); \
      next += 2 * size; \
      UNPACK(header) \
      __m512 scale = both_halves(g, h), minimum = both_halves(g + 16, h + 16); \
      (void)minimum; \
      _Pragma("GCC unroll 16") for (int m = 0; m < M; m++) { \
        const activation *x = a + (size_t)m * lda + b; \
        acc[m] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum512(w, x, START)), _mm512_set1_ps(x->d)), scale, acc[m]); \
        EXTRA \
      } \
    } \
    for (int m = 0; m < M; m++) { \
      _mm256_storeu_ps(y + m * GROUP, _mm512_castps512_ps256(acc[m])); \
      _mm256_storeu_ps(y + second + m * GROUP, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(acc[m]), 1))); \
    } \
  }
#define ADD_MINIMUM acc[m] = _mm512_fmadd_ps(_mm512_set1_ps(x->d_sum), minimum, acc[m]);
#define TILES512(M) \
  TILE512(w4, M, 144, 16, 15, UNPACK_NIBBLES, -8 * x->sum, ) TILE512(w4m, M, 160, 32, 15, UNPACK_NIBBLES, 0, ADD_MINIMUM) \
  TILE512(w8, M, 272, 16, 0x80, UNPACK_BYTES, -128 * x->sum, )
TILES512(1) TILES512(2) TILES512(3) TILES512(4) TILES512(5) TILES512(6) TILES512(7) TILES512(8) TILES512(9)

typedef void (*pair_tile_fn)(const uint8_t *g, const activation *a, size_t lda, int nb, float *y, size_t second);
#define PAIR(kind) \
  static void kind##_pair(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) { \
    static const pair_tile_fn tiles[] = {kind##_pair_1, kind##_pair_2, kind##_pair_3, kind##_pair_4, kind##_pair_5, \
                                         kind##_pair_6, kind##_pair_7, kind##_pair_8, kind##_pair_9}; \
    size_t second = (size_t)rows * GROUP; \
    for (int m; rows > 0; rows -= m, a += (size_t)m * lda, y += m * GROUP) { \
      int left = (rows + 8) / 9; \
      m = (rows + left - 1) / left; \
      tiles[m - 1](g, a, lda, nb, y, second); \
    } \
  }
PAIR(w4) PAIR(w4m) PAIR(w8)
#define PAIRS512 {w4_pair, w4m_pair, w8_pair}
#define NO_PAIRS {NULL, NULL, NULL}

VARIANT(avx2, "avx2,fma,f16c", sum4_avx2, sum8_avx2, 0, "avx2", NO_PAIRS)
VARIANT(vnni512, "avx2,fma,f16c,avx512f,avx512vl,avx512vnni", sum_vnni512, sum_vnni512, 1, "avx512-vnni", PAIRS512)
#if __GNUC__ >= 12
VARIANT(vnni256, "avx2,fma,f16c,avxvnni", sum_vnni256, sum_vnni256, 1, "avx-vnni", NO_PAIRS)
#endif
#endif
