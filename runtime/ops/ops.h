/* ops.h - specc's CPU operators as plain functions; backends/ort/ort_ops.c hands them to ONNX Runtime.
 * A pool runs work(argument, i) for i in 0..n-1 in any order, on any threads; NULL runs them here. No result
 * depends on it. */
#ifndef SPECC_OPS_H
#define SPECC_OPS_H
#include "ops/kernels.h"
#include <stdatomic.h>

typedef struct pool {
  void (*run)(void *self, void (*work)(void *argument, size_t i), size_t n, void *argument);
  void *self;
} pool;
void pool_run(const pool *p, void (*work)(void *argument, size_t i), size_t n, void *argument);

/* Work that must end before a part of the next loop begins: n items, shared by whoever comes; the first parts
 * help, so that a thread that is still waking up costs nothing. An item is only ever waited for while a
 * running thread is at it. */
typedef struct stage {
  _Atomic(int) next, done;
  int n;
} stage;
void stage_finish(stage *s, void (*work)(void *argument, size_t i), void *argument);

/* Scratch of the calling thread, grown when needed and kept; valid until its next call with the same slot
 * (0..3). NULL: no memory. */
void *scratch(int slot, size_t bytes);

/* y[rows][n] = prologue(x)[rows][inputs] times weights, then epilogue. */
typedef struct product {
  const kernel_set *kernels;
  enum weight_kind kind;
  const uint8_t *weights; /* packed: outputs / GROUP groups */
  int inputs, outputs;    /* outputs is a multiple of GROUP in the packing */
  int kept;               /* columns of y; at most outputs (gate: outputs / 2) */
  const float *norm;      /* [inputs] RMS norm of x first, or NULL */
  float epsilon;
  const float *bias; /* [kept] or NULL */
  bool gate;         /* 8 gates and their 8 ups in a group; y is gate * sigmoid(gate) * up */
} product;
/* residual [rows][kept] is added last, or NULL. Returns false where there is no memory. */
bool matmul(const product *p, const float *x, int rows, const float *residual, float *y, const pool *threads);

/* Causal attention over a cache that is written in place. See attention.c for the order of its arithmetic. */
typedef struct attention {
  const kernel_set *kernels;
  int heads, kv_heads, head_dim, capacity;
  float scale, soft_cap;  /* soft_cap 0: none */
  int window;             /* a row sees so many latest entries, its own among them; 0: all */
  int rotary;             /* dimensions rotated in halves, 0: none */
  const float *cos, *sin; /* [positions][rotary / 2]; not read where rotary is 0 */
  int positions;
} attention;
/* qkv [batch][rows][(heads + 2 kv_heads) head_dim]; past [batch]; position [batch][rows]; bias
 * [batch][rows][capacity] or NULL is added to the scaled scores; k, v [batch][kv_heads][capacity][head_dim];
 * y [batch][rows][heads * head_dim]. */
bool attend(const attention *t, const float *qkv, const int32_t *past, const int64_t *position,
    const float *bias, int batch, int rows, float *k, float *v, float *y, const pool *threads);
#endif
