/* matmul.c - one product with what stands around it: norm before; bias, gate and residual after. */
#include "ops/ops.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void pool_run(const pool *p, void (*work)(void *argument, size_t i), size_t n, void *argument) {
  if (p && p->run && n > 1) {
    p->run(p->self, work, n, argument);
    return;
  }
  for (size_t i = 0; i < n; i++) work(argument, i);
}

#if defined(__x86_64__)
  #define REST() __builtin_ia32_pause()
#else
  #define REST() ((void)0)
#endif

void stage_finish(stage *s, void (*work)(void *argument, size_t i), void *argument) {
  if (atomic_load_explicit(&s->done, memory_order_acquire) == s->n) return;
  for (int i; (i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->n;) {
    work(argument, (size_t)i);
    atomic_fetch_add_explicit(&s->done, 1, memory_order_release);
  }
  while (atomic_load_explicit(&s->done, memory_order_acquire) < s->n) REST();
}

/* ------------------------------------------------------------------ scratch, one set per thread, freed when
 * it ends */
enum { SLOTS = 4 };
typedef struct scratch_set {
  void *memory[SLOTS];
  size_t bytes[SLOTS];
} scratch_set;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void scratch_free(void *p) {
  scratch_set *s = p;
  for (int i = 0; i < SLOTS; i++) free(s->memory[i]);
  free(s);
}

static void scratch_init(void) {
  pthread_key_create(&scratch_key, scratch_free);
}

void *scratch(int slot, size_t bytes) {
  pthread_once(&scratch_once, scratch_init);
  scratch_set *s = pthread_getspecific(scratch_key);
  if (!s) {
    if (!(s = calloc(1, sizeof *s))) return NULL;
    pthread_setspecific(scratch_key, s);
  }
  if (s->bytes[slot] < bytes) {
    free(s->memory[slot]);
    s->bytes[slot] = 0;
    size_t size = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
    if (!(s->memory[slot] = aligned_alloc(64, size))) return NULL;
    s->bytes[slot] = size;
  }
  return s->memory[slot];
}

/* ------------------------------------------------------------------ the product */
typedef struct job {
  const product *p;
  const float *x, *residual;
  float *normed, *y;
  activation *a;
  int rows, blocks, groups_per_part;
  stage prepared;
} job;

/* Norm and quantization of one row. */
static void prepare_row(void *argument, size_t i) {
  job *j = argument;
  const product *p = j->p;
  const float *x = j->x + i * (size_t)p->inputs;
  if (p->norm) {
    float *normed = j->normed + i * (size_t)p->inputs;
    rms_norm(x, p->norm, p->inputs, p->epsilon, normed);
    x = normed;
  }
  p->kernels->quantize(x, j->blocks, j->a + i * (size_t)j->blocks);
}

/* n results of one row, from column `at`: bias and residual come on top. */
static inline void finish(const job *j, const float *restrict sums, int n, int row, int at) {
  size_t to = (size_t)row * (size_t)j->p->kept + (size_t)at;
  float *restrict y = j->y + to;
  const float *bias = j->p->bias ? j->p->bias + at : NULL, *residual = j->residual ? j->residual + to : NULL;
  for (int i = 0; i < n; i++) {
    float v = sums[i];
    if (bias) v += bias[i];
    if (residual) v += residual[i];
    y[i] = v;
  }
}

enum { TILE_ROWS = 32, PART_BYTES = 32768 };

/* Results of group g for `rows` rows from `row` on. Whole groups have a fixed length, so that a compiler
 * unrolls them. */
static void finish_group(const job *j, const float *sums, int rows, int row, int g) {
  const product *p = j->p;
  float gated[TILE_ROWS * GATED];
  int at = p->gate ? g * GATED : g * GROUP, left = p->kept - at;
  if (p->gate) {
    p->kernels->gate(sums, rows, gated);
    for (int i = 0; i < rows; i++) finish(j, gated + i * GATED, GATED, row + i, at);
    return;
  }
  for (int i = 0; i < rows; i++) {
    if (left >= GROUP)
      finish(j, sums + i * GROUP, GROUP, row + i, at);
    else
      finish(j, sums + i * GROUP, left, row + i, at);
  }
}

static void product_part(void *argument, size_t part) {
  job *j = argument;
  const product *p = j->p;
  int groups = p->outputs / GROUP, first = (int)part * j->groups_per_part, last = first + j->groups_per_part;
  size_t bytes = group_bytes(p->kind, j->blocks), lda = (size_t)j->blocks;
  float sums[TILE_ROWS * GROUP];
  dot_fn dot = p->kernels->dot[p->kind];
  stage_finish(&j->prepared, prepare_row, j);
  last = last < groups ? last : groups;
  for (int g = first; g < last; g++)
    for (int row = 0; row < j->rows; row += TILE_ROWS) {
      int rows = j->rows - row < TILE_ROWS ? j->rows - row : TILE_ROWS;
      dot(p->weights + bytes * (size_t)g, j->a + (size_t)row * lda, lda, rows, j->blocks, sums);
      finish_group(j, sums, rows, row, g);
    }
}

bool matmul(
    const product *p, const float *x, int rows, const float *residual, float *y, const pool *threads) {
  int blocks = p->inputs / BLOCK;
  if (rows < 1) return true;
  job j = {
      .p = p, .x = x, .residual = residual, .y = y, .rows = rows, .blocks = blocks, .prepared = {.n = rows}};
  j.a = scratch(0, (size_t)rows * (size_t)blocks * sizeof *j.a);
  j.normed = p->norm ? scratch(1, (size_t)rows * (size_t)p->inputs * sizeof *j.normed) : NULL;
  if (!j.a || (p->norm && !j.normed)) return false;
  size_t work = group_bytes(p->kind, blocks) * (size_t)(rows < 8 ? 1 : rows / 4);
  j.groups_per_part = (int)(PART_BYTES / work) + 1;
  pool_run(
      threads, product_part, (size_t)((p->outputs / GROUP + j.groups_per_part - 1) / j.groups_per_part), &j);
  return true;
}
