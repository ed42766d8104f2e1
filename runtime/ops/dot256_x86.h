/* dot256_x86.h - the dot of kernels.h in 256-bit registers, for one set of instructions. Included once for
 * each, with VARIANT   name in functions          FEATURES  target string STEP4(t, w, x)  t plus the products
 * of 8 outputs x 4 inputs, nibbles   SUM4(t)  the 8 sums of 32 bits; steps of a block fit t STEP8(t, w, x)
 * the same for bytes, straight to 32 bits                MOVED8   what the bytes were moved up by: 0 or 128
 * A tile is up to MOST rows x 16 outputs: two halves share every broadcast of an activation, and weights are
 * unpacked once. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(stem) JOIN(stem, VARIANT)
#define DOT static inline __attribute__((target(FEATURES), always_inline))
enum { NAME(MOST_) = 4 };

/* Takes a register now: without it the compiler reorders a whole block and spills. */
#define SETTLE(t) __asm__("" : "+x"(t))

DOT void NAME(nibbles_)(const int M, const uint8_t *codes, const activation *a, size_t lda, __m256i t[][2]) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m256i raw0 = LOAD(codes + 64 * j), raw1 = LOAD(codes + 64 * j + 32);
    __m256i w0 = _mm256_and_si256(raw0, low), w1 = _mm256_and_si256(raw1, low);
#pragma GCC unroll 2
    for (int high = 0; high < 2; high++) {
      if (high) {
        w0 = _mm256_and_si256(_mm256_srli_epi16(raw0, 4), low);
        w1 = _mm256_and_si256(_mm256_srli_epi16(raw1, 4), low);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        __m256i x = four(a + (size_t)m * lda, 2 * j + high);
        t[m][0] = STEP4(t[m][0], w0, x);
        t[m][1] = STEP4(t[m][1], w1, x);
        SETTLE(t[m][0]);
        SETTLE(t[m][1]);
      }
    }
  }
}

DOT void NAME(bytes_)(const int M, const uint8_t *codes, const activation *a, size_t lda, __m256i t[][2]) {
  const __m256i move = _mm256_set1_epi8((char)MOVED8);
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    __m256i w0 = _mm256_xor_si256(LOAD(codes + 64 * j), move),
            w1 = _mm256_xor_si256(LOAD(codes + 64 * j + 32), move);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      __m256i x = four(a + (size_t)m * lda, j);
      t[m][0] = STEP8(t[m][0], w0, x);
      t[m][1] = STEP8(t[m][1], w1, x);
      SETTLE(t[m][0]);
      SETTLE(t[m][1]);
    }
  }
}

DOT __m256i NAME(whole_)(const enum weight_kind kind, __m256i t, int32_t sum) {
  if (kind == WEIGHT_W8) return MOVED8 ? minus(t, MOVED8 * sum) : t;
  return kind == WEIGHT_W4 ? minus(SUM4(t), 8 * sum) : SUM4(t);
}

/* M rows over all blocks of a group. */
DOT void NAME(tile_)(const enum weight_kind kind, const int M, const uint8_t *group, const activation *a,
    size_t lda, int nb, float *y) {
  __m256 acc[NAME(MOST_)][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  for (int b = 0; b < nb; b++, a++) {
    const uint8_t *head = head_at(kind, group, b), *codes = codes_at(kind, group, b);
    __m256i t[NAME(MOST_)][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) t[m][0] = t[m][1] = _mm256_setzero_si256();
    if (M > 2) ask_ahead(codes, code_bytes(kind) + 64);
    if (kind == WEIGHT_W8)
      NAME(bytes_)(M, codes, a, lda, t);
    else
      NAME(nibbles_)(M, codes, a, lda, t);
    __m256 scale[2] = {HALVES(head), HALVES(head + 16)};
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const activation *x = a + (size_t)m * lda;
      __m256 d = _mm256_set1_ps(x->d), d_sum = _mm256_set1_ps(x->d_sum);
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        __m256 sum = _mm256_mul_ps(_mm256_cvtepi32_ps(NAME(whole_)(kind, t[m][h], x->sum)), d);
        acc[m][h] = _mm256_fmadd_ps(sum, scale[h], acc[m][h]);
        if (kind == WEIGHT_W4M) acc[m][h] = _mm256_fmadd_ps(d_sum, HALVES(head + 32 + 16 * h), acc[m][h]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
    for (int h = 0; h < 2; h++) _mm256_storeu_ps(y + m * GROUP + 8 * h, acc[m][h]);
}

/* Rows in tiles of nearly equal size; how rows fall into tiles does not touch their arithmetic. */
DOT void NAME(rows_)(const enum weight_kind kind, const uint8_t *group, const activation *a, size_t lda,
    int rows, int nb, float *y) {
  for (int m; rows > 0; rows -= m, a += (size_t)m * lda, y += m * GROUP) {
    int tiles = (rows + NAME(MOST_) - 1) / NAME(MOST_);
    m = (rows + tiles - 1) / tiles;
    switch (m) {
    case 1:
      NAME(tile_)(kind, 1, group, a, lda, nb, y);
      break;
    case 2:
      NAME(tile_)(kind, 2, group, a, lda, nb, y);
      break;
    case 3:
      NAME(tile_)(kind, 3, group, a, lda, nb, y);
      break;
    default:
      NAME(tile_)(kind, 4, group, a, lda, nb, y);
    }
  }
}

#define KIND(kind, KIND)                                                                                     \
  __attribute__((target(FEATURES))) static void NAME(kind##_)(                                               \
      const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {                       \
    NAME(rows_)(KIND, g, a, lda, rows, nb, y);                                                               \
  }
KIND(w4, WEIGHT_W4) KIND(w4m, WEIGHT_W4M) KIND(w8, WEIGHT_W8)

#undef JOIN_
#undef JOIN
#undef NAME
#undef DOT
#undef SETTLE
#undef KIND
#undef VARIANT
#undef FEATURES
#undef STEP4
#undef SUM4
#undef STEP8
#undef MOVED8
