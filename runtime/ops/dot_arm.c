/* dot_arm.c - the dot of kernels.h with Arm's dot product instructions (Armv8.2 and up). */
#include "ops/attend_arm.h"
#include "ops/kernels.h"
#if defined(__aarch64__)
  #include <arm_neon.h>

  #define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod+fp16"))) static

/* Integer sums of outputs 0..3 and 4..7 of half a group's block, for one row: lane g of the activations meets
 * vectors 2 g and 2 g + 1. */
DOTPROD inline void sum_block(const int8x16_t w[16], const activation *a, int32x4_t *low, int32x4_t *high) {
  int8x16_t x0 = vld1q_s8(a->q), x1 = vld1q_s8(a->q + 16);
  int32x4_t l = vdupq_n_s32(0), h = vdupq_n_s32(0);
  #define STEP(g, x, lane)                                                                                   \
    l = vdotq_laneq_s32(l, w[2 * (g)], x, lane);                                                             \
    h = vdotq_laneq_s32(h, w[2 * (g) + 1], x, lane);
  STEP(0, x0, 0)
  STEP(1, x0, 1)
  STEP(2, x0, 2)
  STEP(3, x0, 3)
  STEP(4, x1, 0)
  STEP(5, x1, 1)
  STEP(6, x1, 2)
  STEP(7, x1, 3)
  #undef STEP
  *low = l;
  *high = h;
}

/* Half a block: eight outputs from `codes` on, 32 bytes of every 64. */
DOTPROD inline void load_weights(enum weight_kind kind, const uint8_t *codes, int8x16_t w[16]) {
  const uint8x16_t low = vdupq_n_u8(15);
  for (int j = 0; j < 4 && kind != WEIGHT_W8; j++)
    for (int part = 0; part < 2; part++) {
      uint8x16_t r = vld1q_u8(codes + 64 * j + 16 * part);
      w[4 * j + part] = vreinterpretq_s8_u8(vandq_u8(r, low));
      w[4 * j + 2 + part] = vreinterpretq_s8_u8(vshrq_n_u8(r, 4));
    }
  for (int j = 0; j < 16 && kind == WEIGHT_W8; j++)
    w[j] = vld1q_s8((const int8_t *)codes + 64 * (j / 2) + 16 * (j % 2));
}

DOTPROD inline float32x4_t halves(const uint8_t *p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)p)));
}

/* Outputs 0..7 or 8..15 of one block added to y of every row. */
DOTPROD inline void half_block(enum weight_kind kind, const uint8_t *head, const uint8_t *codes,
    const activation *a, size_t lda, int rows, float *y) {
  int8x16_t w[16];
  load_weights(kind, codes, w);
  float32x4_t s0 = halves(head), s1 = halves(head + 8);
  for (int m = 0; m < rows; m++) {
    const activation *x = a + (size_t)m * lda;
    int32x4_t low, high;
    sum_block(w, x, &low, &high);
    if (kind == WEIGHT_W4) {
      low = vsubq_s32(low, vdupq_n_s32(8 * x->sum));
      high = vsubq_s32(high, vdupq_n_s32(8 * x->sum));
    }
    float *o = y + m * GROUP;
    float32x4_t y0 = vfmaq_f32(vld1q_f32(o), vmulq_n_f32(vcvtq_f32_s32(low), x->d), s0);
    float32x4_t y1 = vfmaq_f32(vld1q_f32(o + 4), vmulq_n_f32(vcvtq_f32_s32(high), x->d), s1);
    if (kind == WEIGHT_W4M) {
      y0 = vfmaq_f32(y0, vdupq_n_f32(x->d_sum), halves(head + 32));
      y1 = vfmaq_f32(y1, vdupq_n_f32(x->d_sum), halves(head + 40));
    }
    vst1q_f32(o, y0);
    vst1q_f32(o + 4, y1);
  }
}

DOTPROD inline void dot_rows(enum weight_kind kind, const uint8_t *group, const activation *a, size_t lda,
    int rows, int nb, float *y) {
  memset(y, 0, (size_t)rows * GROUP * sizeof *y);
  for (int b = 0; b < nb; b++)
    for (int h = 0; h < 2; h++)
      half_block(kind, head_at(kind, group, b) + 16 * h, codes_at(kind, group, b) + 32 * h, a + b, lda, rows,
          y + 8 * h);
}

DOTPROD void w4_dotprod(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_rows(WEIGHT_W4, g, a, lda, rows, nb, y);
}
DOTPROD void w4m_dotprod(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_rows(WEIGHT_W4M, g, a, lda, rows, nb, y);
}
DOTPROD void w8_dotprod(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_rows(WEIGHT_W8, g, a, lda, rows, nb, y);
}
extern const kernel_set kernels_dotprod;
const kernel_set kernels_dotprod = {"neon-dotprod", {w4_dotprod, w4m_dotprod, w8_dotprod}, kernels_quantize,
    kernels_gate, scores_neon, weigh_neon, blend_neon};
#endif
