/* kernels.h - the arithmetic of specc's CPU operators. One row's numbers never depend on the other rows or on how many
 * there are, so that one row and K+1 rows agree bit for bit.
 *
 * Weights are packed for 8 outputs (a group) x 32 inputs (a block), groups outside, blocks inside:
 *   w4   f16 scale[8], u8[128]: byte 32 j + 4 n + c holds input 8 j + c of output n in its low nibble, 8 j + 4 + c in the high one;
 *        weight = scale * (nibble - 8)
 *   w4m  f16 scale[8], f16 minimum[8], u8[128]: weight = scale * nibble + minimum
 *   w8   f16 scale[8], s8[256]: byte 32 j + 4 n + c holds input 4 j + c of output n; weight = scale * byte
 * These are GGUF's Q4_0, Q4_1 and Q8_0 blocks in another order. A group is nb = inputs / 32 such blocks.
 *
 * Activations are quantized by row and block: d = largest / 127, q = nearest even of x * (127 / largest). A block with a
 * value that is not finite has d = NaN, so the whole row becomes NaN; one below 1e-30 is all zeros.
 *
 * y = sum over blocks, in order, of fma((float)(sum of weight * q) * d, scale, y), for w4m then fma(d * (float)(sum of q), minimum, y).
 * The inner sum is an integer and exact, whatever instructions add it up. */
#ifndef SPECC_KERNELS_H
#define SPECC_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GROUP = 8, BLOCK = 32 };
enum weight_kind { WEIGHT_W4, WEIGHT_W4M, WEIGHT_W8, WEIGHT_KINDS };

typedef struct activation {        /* one block of 32 inputs of one row */
  float d, d_sum;                  /* scale; scale times the sum of q */
  int32_t sum, unused;
  int8_t q[32];
} activation;

static inline size_t block_bytes(enum weight_kind kind) { return kind == WEIGHT_W4 ? 144 : kind == WEIGHT_W4M ? 160 : 272; }

/* y[rows][GROUP] of one group; a [rows][lda] activations, nb blocks. rows >= 1. */
typedef void (*dot_fn)(const uint8_t *group, const activation *a, size_t lda, int rows, int nb, float *y);
/* The same for a group and the one behind it, y[2][rows][GROUP]: the same bits, for instructions that hold 16 outputs. */
typedef dot_fn pair_fn;

/* Attention over a span of keys, for up to QUERIES queries at once (how many share a call touches no bits). Stated order:
 *   score[i][s] = q_i . k_s: 8 lanes of fma over rising dimensions, joined ((0+1)+(2+3)) + ((4+5)+(6+7));
 *   weigh: m = largest score, score = exp_float(score - m), l = 8 lanes (s mod 8) of sums joined the same way; NaN in, NaN l;
 *   blend: out_i = fma(weight[i][s], v_s, out_i) for rising s. */
enum { QUERIES = 4 };
typedef void (*scores_fn)(const float *const *q, int queries, const float *k, int n, int head_dim, float *const *score);
typedef float (*weigh_fn)(float *score, int n, float *l);
typedef void (*blend_fn)(const float *const *weight, int queries, const float *v, int n, int head_dim, float *const *out);

typedef struct kernel_set {
  const char *name;                /* "scalar", "avx2", "avx512-vnni", "avx-vnni", "neon-dotprod" */
  dot_fn dot[WEIGHT_KINDS];
  pair_fn pair[WEIGHT_KINDS];      /* NULL where two calls of dot are as good */
  scores_fn scores;                /* head_dim is a multiple of 8 everywhere */
  weigh_fn weigh;
  blend_fn blend;
} kernel_set;

extern const kernel_set kernels_scalar;      /* defines the bits */
const kernel_set *kernels_find(const char *name);   /* one variant by name, if this CPU runs it; NULL otherwise */
const kernel_set *kernels_best(void);        /* the fastest that this CPU runs and that agreed with the scalar one when it was tried */

float half_to_float(uint16_t h);
void quantize_rows(const float *x, int rows, int inputs, activation *a);    /* x [rows][inputs], a [rows][inputs / 32] */
void rms_norm(const float *x, const float *weight, int inputs, float epsilon, float *y);   /* one row */
void gate_up(const float *gate, const float *up, int n, float *y);   /* y = gate * sigmoid(gate) * up */
void dequantize_row(enum weight_kind kind, const uint8_t *packed, int inputs, int64_t row, float *y);   /* an embedding */
float exp_stated(float x);                   /* x <= 0 */
#endif
