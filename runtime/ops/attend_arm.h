/* attend_arm.h - the attention steps of kernels.h with NEON: 8 lanes are two vectors of 4. */
#ifndef SPECC_ATTEND_ARM_H
#define SPECC_ATTEND_ARM_H
#include "ops/float_math.h"
#include "ops/kernels.h"
#if defined(__aarch64__)
  #include <arm_neon.h>
  #include <math.h>

static inline float join2(float32x4_t low, float32x4_t high) {
  float32x4_t pairs = vpaddq_f32(low, high), fours = vpaddq_f32(pairs, pairs); /* (0+1)+(2+3), (4+5)+(6+7) */
  return vgetq_lane_f32(fours, 0) + vgetq_lane_f32(fours, 1);
}

static void scores_neon(
    const float *const *q, int queries, const float *k, int n, int head_dim, float *const *score) {
  for (int s = 0; s < n; s++, k += head_dim)
    for (int i = 0; i < queries; i++) {
      float32x4_t low = vdupq_n_f32(0), high = low;
      for (int d = 0; d < head_dim; d += 8) {
        low = vfmaq_f32(low, vld1q_f32(q[i] + d), vld1q_f32(k + d));
        high = vfmaq_f32(high, vld1q_f32(q[i] + d + 4), vld1q_f32(k + d + 4));
      }
      score[i][s] = join2(low, high);
    }
}

static float weigh_neon(float *score, int n, float *l) {
  float m = -INFINITY, lane[8] = {0};
  bool bad = false;
  for (int s = 0; s < n; s++) {
    m = score[s] > m ? score[s] : m;
    bad |= score[s] != score[s];
  }
  for (int s = 0; s < n; s++) score[s] = m > -INFINITY ? exp_float(score[s] - m) : 0.0f;
  for (int s = 0; s < n; s++) lane[s % 8] += score[s];
  *l = bad ? NAN : join2(vld1q_f32(lane), vld1q_f32(lane + 4));
  return m;
}

static void blend_neon(
    const float *const *weight, int queries, const float *v, int n, int head_dim, float *const *out) {
  for (int i = 0; i < queries; i++)
    for (int c = 0; c < head_dim; c += 8) {
      float32x4_t low = vld1q_f32(out[i] + c), high = vld1q_f32(out[i] + c + 4);
      for (int s = 0; s < n; s++) {
        const float *row = v + (size_t)s * (size_t)head_dim + (size_t)c;
        low = vfmaq_n_f32(low, vld1q_f32(row), weight[i][s]);
        high = vfmaq_n_f32(high, vld1q_f32(row + 4), weight[i][s]);
      }
      vst1q_f32(out[i] + c, low);
      vst1q_f32(out[i] + c + 4, high);
    }
}
#endif
#endif
