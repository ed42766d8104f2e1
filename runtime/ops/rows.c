/* rows.c - what happens to a row before and after its products: norm, quantization, gate, embedding; and the
 * scalar dot. */
#include "core/numbers/clones.h"
#include "ops/float_math.h"
#include "ops/kernels.h"
#include <math.h>

float exp_stated(float x) {
  return exp_float(x);
}

float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023, bits;
  float f;
  if (exponent == 0) {
    f = (float)mantissa * 0x1p-24f;
    return sign ? -f : f;
  }
  bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* Largest magnitude of a block; NaN where a value is NaN or infinite. */
static float find_largest_of_block(const float *x) {
  float top = 0;
  int bad = 0;
  for (int i = 0; i < BLOCK; i++) {
    float v = fabsf(x[i]);
    bad |= !(v <= 3.4028235e38f);
    top = v > top ? v : top;
  }
  return bad ? NAN : top;
}

static void quantize_block(const float *x, float inverse, int8_t *q, int32_t *sum) {
  const float shift = 12582912.0f; /* rounds to nearest even */
  int32_t total = 0;
  for (int i = 0; i < BLOCK; i++) {
    float t = x[i] * inverse + shift;
    int32_t bits;
    memcpy(&bits, &t, sizeof bits);
    int32_t v = bits - 0x4b400000;
    q[i] = (int8_t)v;
    total += v;
  }
  *sum = total;
}

void kernels_quantize(const float *x, int blocks, activation *a) {
  for (int b = 0; b < blocks; b++) {
    activation *o = a + b;
    float top = find_largest_of_block(x + (size_t)b * BLOCK);
    bool tiny = top < 1e-30f, finite = top == top;
    o->d = finite ? (tiny ? 0 : top / 127.0f) : NAN;
    o->unused = 0;
    quantize_block(x + (size_t)b * BLOCK, finite && !tiny ? 127.0f / top : 0, o->q, &o->sum);
    if (!finite || tiny) {
      memset(o->q, 0, sizeof o->q);
      o->sum = 0;
    }
    o->d_sum = o->d * (float)o->sum;
  }
}

/* Zhang and Sennrich, "Root mean square layer normalization" (2019). 16 lanes joined by a fixed tree. */
SPECC_CLONES void rms_norm(const float *x, const float *weight, int inputs, float epsilon, float *y) {
  float lane[16] = {0};
  for (int i = 0; i + 16 <= inputs; i += 16)
    for (int j = 0; j < 16; j++) lane[j] += x[i + j] * x[i + j];
  for (int i = inputs & ~15; i < inputs; i++) lane[i & 15] += x[i] * x[i];
  for (int half = 8; half; half /= 2)
    for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  float scale = 1.0f / sqrtf(lane[0] / (float)inputs + epsilon);
  for (int i = 0; i < inputs; i++) y[i] = x[i] * scale * weight[i];
}

void kernels_gate(const float *sums, int rows, float *y) {
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < GATED; i++) {
      float g = sums[r * GROUP + i], e = exp_float(-fabsf(g)), numerator = g >= 0 ? 1.0f : e;
      y[r * GATED + i] = g * (numerator / (1.0f + e)) * sums[r * GROUP + GATED + i];
    }
}

static int get_weight(enum weight_kind kind, const uint8_t *w, int output, int input) {
  int j = kind == WEIGHT_W8 ? input / 4 : input / 8, c = input % 4;
  uint8_t byte = w[64 * j + 4 * output + c];
  if (kind == WEIGHT_W8) return (int8_t)byte;
  return input % 8 < 4 ? byte & 15 : byte >> 4;
}

static float get_scale(const uint8_t *block, int i) {
  uint16_t h;
  memcpy(&h, block + 2 * i, sizeof h);
  return half_to_float(h);
}

void dequantize_row(enum weight_kind kind, const uint8_t *packed, int inputs, int64_t row, float *y) {
  int nb = inputs / BLOCK, n = (int)(row % GROUP);
  const uint8_t *group = packed + (size_t)(row / GROUP) * group_bytes(kind, nb);
  for (int b = 0; b < nb; b++) {
    const uint8_t *head = head_at(kind, group, b), *codes = codes_at(kind, group, b);
    float scale = get_scale(head, n), minimum = kind == WEIGHT_W4M ? get_scale(head, GROUP + n) : 0;
    for (int i = 0; i < BLOCK; i++) {
      int v = get_weight(kind, codes, n, i) - (kind == WEIGHT_W4 ? 8 : 0);
      y[b * BLOCK + i] = kind == WEIGHT_W4M ? __builtin_fmaf((float)v, scale, minimum) : (float)v * scale;
    }
  }
}

/* ------------------------------------------------------------------ the scalar dot, which defines the bits
 */
static void dot_scalar(enum weight_kind kind, const uint8_t *group, const activation *a, size_t lda, int rows,
    int nb, float *y) {
  memset(y, 0, (size_t)rows * GROUP * sizeof *y);
  for (int b = 0; b < nb; b++) {
    const uint8_t *head = head_at(kind, group, b), *codes = codes_at(kind, group, b);
    for (int m = 0; m < rows; m++) {
      const activation *x = a + (size_t)m * lda + b;
      for (int n = 0; n < GROUP; n++) {
        int32_t sum = kind == WEIGHT_W4 ? -8 * x->sum : 0;
        for (int i = 0; i < BLOCK; i++) sum += get_weight(kind, codes, n, i) * x->q[i];
        float *out = y + m * GROUP + n;
        *out = __builtin_fmaf((float)sum * x->d, get_scale(head, n), *out);
        if (kind == WEIGHT_W4M) *out = __builtin_fmaf(x->d_sum, get_scale(head, GROUP + n), *out);
      }
    }
  }
}

static void w4_scalar(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_scalar(WEIGHT_W4, g, a, lda, rows, nb, y);
}
static void w4m_scalar(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_scalar(WEIGHT_W4M, g, a, lda, rows, nb, y);
}
static void w8_scalar(const uint8_t *g, const activation *a, size_t lda, int rows, int nb, float *y) {
  dot_scalar(WEIGHT_W8, g, a, lda, rows, nb, y);
}

static float join_lanes(const float lane[8]) {
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static void scores_scalar(
    const float *const *q, int queries, const float *k, int n, int head_dim, float *const *score) {
  for (int i = 0; i < queries; i++)
    for (int s = 0; s < n; s++) {
      float lane[8] = {0};
      for (int d = 0; d < head_dim; d++)
        lane[d % 8] = __builtin_fmaf(q[i][d], k[(size_t)s * (size_t)head_dim + (size_t)d], lane[d % 8]);
      score[i][s] = join_lanes(lane);
    }
}

static float weigh_scalar(float *score, int n, float *l) {
  float m = -INFINITY, lane[8] = {0};
  bool bad = false;
  for (int s = 0; s < n; s++) {
    m = score[s] > m ? score[s] : m;
    bad |= score[s] != score[s];
  }
  for (int s = 0; s < n; s++) {
    score[s] = m > -INFINITY ? exp_float(score[s] - m) : 0.0f;
    lane[s % 8] += score[s];
  }
  *l = bad ? NAN : join_lanes(lane);
  return m;
}

static void blend_scalar(
    const float *const *weight, int queries, const float *v, int n, int head_dim, float *const *out) {
  for (int i = 0; i < queries; i++)
    for (int s = 0; s < n; s++)
      for (int d = 0; d < head_dim; d++)
        out[i][d] = __builtin_fmaf(weight[i][s], v[(size_t)s * (size_t)head_dim + (size_t)d], out[i][d]);
}

const kernel_set kernels_scalar = {"scalar", {w4_scalar, w4m_scalar, w8_scalar}, kernels_quantize,
    kernels_gate, scores_scalar, weigh_scalar, blend_scalar};
