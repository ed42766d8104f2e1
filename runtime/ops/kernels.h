/* kernels.h - the arithmetic of specc's CPU operators. One row's numbers never depend on the other rows or on
 * how many there are, so that one row and K+1 rows agree bit for bit.
 *
 * Weights are packed for 16 outputs (a group) x 32 inputs (a block); a group is one run of memory that is
 * read once from end to end: hardware reads such a run ahead by itself, and a second stream beside it (scales
 * apart from codes) halved the speed. w4   for every two blocks f16 scale[2][16], then their codes
 * u8[2][256]: byte 64 j + 4 n + c holds input 8 j + c of output n in its low nibble, 8 j + 4 + c in the high
 * one; weight = scale * (nibble - 8) w4m  for every block f16 scale[16], f16 minimum[16], codes as w4; weight
 * = scale * nibble + minimum w8   for every two blocks f16 scale[2][16], then codes s8[2][512]: byte 64 j + 4
 * n + c holds input 4 j + c of output n; weight = scale * byte so that codes start at cache lines; an odd
 * last block has a head of its own, half used. These are GGUF's Q4_0, Q4_1 and Q8_0 blocks in another order.
 * A gated product has 8 gates and their 8 ups in each group.
 *
 * Activations are quantized by row and block: d = largest / 127, q = nearest even of x * (127 / largest). A
 * block with a value that is not finite has d = NaN, so the whole row becomes NaN; one below 1e-30 is all
 * zeros.
 *
 * y = sum over blocks, in order, of fma((float)(sum of weight * q) * d, scale, y), for w4m then fma(d *
 * (float)(sum of q), minimum, y). The inner sum is an integer and exact, whatever instructions add it up. */
#ifndef SPECC_KERNELS_H
#define SPECC_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* WEIGHT_LAYOUT: number of the layout above; 1 was groups of 8. */
enum { GROUP = 16, BLOCK = 32, GATED = GROUP / 2, WEIGHT_LAYOUT = 2 };
enum weight_kind { WEIGHT_W4, WEIGHT_W4M, WEIGHT_W8, WEIGHT_KINDS };

typedef struct activation { /* one block of 32 inputs of one row */
  float d, d_sum;           /* scale; scale times the sum of q */
  int32_t sum, unused;
  int8_t q[32];
} activation;

static inline size_t code_bytes(enum weight_kind kind) {
  return kind == WEIGHT_W8 ? 512 : 256;
}
static inline size_t group_bytes(enum weight_kind kind, int nb) {
  return 64 * (size_t)(kind == WEIGHT_W4M ? nb : (nb + 1) / 2) + code_bytes(kind) * (size_t)nb;
}
/* Scales of block b of a group, for w4m minima 32 bytes behind; its codes. */
static inline const uint8_t *head_at(enum weight_kind kind, const uint8_t *group, int b) {
  return group +
         (kind == WEIGHT_W4M ? group_bytes(kind, b) : group_bytes(kind, b & ~1) + 32 * (size_t)(b & 1));
}
static inline const uint8_t *codes_at(enum weight_kind kind, const uint8_t *group, int b) {
  return group + group_bytes(kind, b + 1) - code_bytes(kind);
}

/* y[rows][GROUP] of one group; a [rows][lda] activations, nb blocks. rows >= 1. */
typedef void (*dot_fn)(const uint8_t *group, const activation *a, size_t lda, int rows, int nb, float *y);
typedef void (*quantize_fn)(const float *x, int blocks, activation *a); /* x [blocks][BLOCK] */
/* y[rows][GATED] = gate * sigmoid(gate) * up of sums[rows][GROUP]. */
typedef void (*gate_fn)(const float *sums, int rows, float *y);

/* Attention over a span of keys, for up to QUERIES queries at once (how many share a call touches no bits).
 * Stated order: score[i][s] = q_i . k_s: 8 lanes of fma over rising dimensions, joined ((0+1)+(2+3)) +
 * ((4+5)+(6+7)); weigh: m = largest score, score = exp_float(score - m), l = 8 lanes (s mod 8) of sums joined
 * the same way; NaN in, NaN l; blend: out_i = fma(weight[i][s], v_s, out_i) for rising s. */
enum { QUERIES = 4 };
typedef void (*scores_fn)(
    const float *const *q, int queries, const float *k, int n, int head_dim, float *const *score);
typedef float (*weigh_fn)(float *score, int n, float *l);
typedef void (*blend_fn)(
    const float *const *weight, int queries, const float *v, int n, int head_dim, float *const *out);

typedef struct kernel_set {
  const char *name; /* "scalar", "avx2", "avx512-vnni", "avx-vnni", "neon-dotprod" */
  dot_fn dot[WEIGHT_KINDS];
  quantize_fn quantize;
  gate_fn gate;
  scores_fn scores; /* head_dim is a multiple of 8 everywhere */
  weigh_fn weigh;
  blend_fn blend;
} kernel_set;

extern const kernel_set kernels_scalar; /* defines the bits */
/* The variant of that name; NULL where this CPU cannot run it. */
const kernel_set *kernels_find(const char *name);
/* The fastest variant that this CPU runs and that gave the scalar one's bits when it was tried. */
const kernel_set *kernels_best(void);

float half_to_float(uint16_t h);
/* The scalar steps, for variants without their own. */
void kernels_quantize(const float *x, int blocks, activation *a);
void kernels_gate(const float *sums, int rows, float *y);
void rms_norm(const float *x, const float *weight, int inputs, float epsilon, float *y); /* one row */
/* Row `row` of packed weights as floats [inputs]: an embedding. */
void dequantize_row(enum weight_kind kind, const uint8_t *packed, int inputs, int64_t row, float *y);
float exp_stated(float x); /* x <= 0 */
#endif
