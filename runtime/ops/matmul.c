/* matmul.c - one product with what stands around it: norm before; bias, gate and residual after. */
#include "internal.h"
#include "ops.h"
#include <pthread.h>

void pool_run(const pool *p, void (*work)(void *argument, size_t i), size_t n, void *argument) {
  if (p && p->run && n > 1) { p->run(p->self, work, n, argument); return; }
  for (size_t i = 0; i < n; i++) work(argument, i);
}

/* ------------------------------------------------------------------ scratch, one set per thread, freed when it ends */
enum { SLOTS = 4 };
typedef struct scratch_set { void *memory[SLOTS]; size_t bytes[SLOTS]; } scratch_set;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void scratch_free(void *p) {
  scratch_set *s = p;
  for (int i = 0; i < SLOTS; i++) free(s->memory[i]);
  free(s);
}

static void scratch_init(void) { pthread_key_create(&scratch_key, scratch_free); }

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
  quantize_rows(x, 1, p->inputs, j->a + i * (size_t)j->blocks);
}

/* Eight results of one row, from column `at`. */
static void finish_group(const job *j, const float *sums, int row, int at) {
  const product *p = j->p;
  int n = p->kept - at < GROUP ? p->kept - at : GROUP;
  size_t to = (size_t)row * (size_t)p->kept + (size_t)at;
  float v[GROUP];
  memcpy(v, sums, sizeof v);
  if (p->bias) for (int i = 0; i < n; i++) v[i] += p->bias[at + i];
  if (j->residual) for (int i = 0; i < n; i++) v[i] += j->residual[to + (size_t)i];
  memcpy(j->y + to, v, (size_t)n * sizeof *v);
}

enum { TILE_ROWS = 32 };

/* A pair of groups, for rows row .. row + rows - 1: sums [2][rows][GROUP]. */
static void pair_sums(const job *j, const uint8_t *weights, size_t bytes, int groups, int row, int rows, float *sums) {
  const product *p = j->p;
  const activation *a = j->a + (size_t)row * (size_t)j->blocks;
  if (groups == 2 && rows > 2 && p->kernels->pair[p->kind]) {     /* one or two rows wait for memory, not for arithmetic */ p->kernels->pair[p->kind](weights, a, (size_t)j->blocks, rows, j->blocks, sums); return; }
  for (int g = 0; g < groups; g++)
    p->kernels->dot[p->kind](weights + bytes * (size_t)g, a, (size_t)j->blocks, rows, j->blocks, sums + g * rows * GROUP);
}

static void product_part(void *argument, size_t part) {
  job *j = argument;
  const product *p = j->p;
  int groups = p->outputs / GROUP, first = (int)part * j->groups_per_part, last = first + j->groups_per_part;
  size_t bytes = block_bytes(p->kind) * (size_t)j->blocks;
  float sums[2 * TILE_ROWS * GROUP], gated[TILE_ROWS * GROUP];
  last = last < groups ? last : groups;
  for (int g = first; g < last; g += 2)
    for (int row = 0; row < j->rows; row += TILE_ROWS) {
      int rows = j->rows - row < TILE_ROWS ? j->rows - row : TILE_ROWS, n = last - g < 2 ? 1 : 2;
      pair_sums(j, p->weights + bytes * (size_t)g, bytes, n, row, rows, sums);
      if (p->gate) gate_up(sums, sums + rows * GROUP, rows * GROUP, gated);
      for (int i = 0; i < rows; i++) {
        if (p->gate) { finish_group(j, gated + i * GROUP, row + i, g / 2 * GROUP); continue; }
        for (int s = 0; s < n; s++) finish_group(j, sums + (s * rows + i) * GROUP, row + i, (g + s) * GROUP);
      }
    }
}

bool matmul(const product *p, const float *x, int rows, const float *residual, float *y, const pool *threads) {
  int blocks = p->inputs / BLOCK;
  if (rows < 1) return true;
  job j = {.p = p, .x = x, .residual = residual, .y = y, .rows = rows, .blocks = blocks};
  j.a = scratch(0, (size_t)rows * (size_t)blocks * sizeof *j.a);
  j.normed = p->norm ? scratch(1, (size_t)rows * (size_t)p->inputs * sizeof *j.normed) : NULL;
  if (!j.a || (p->norm && !j.normed)) return false;
  pool_run(rows < 8 ? NULL : threads, prepare_row, (size_t)rows, &j);
  size_t group = block_bytes(p->kind) * (size_t)blocks * (size_t)(rows < 8 ? 1 : rows / 4);
  int per_part = (int)(65536 / group) + 1;
  j.groups_per_part = (per_part + 1) & ~1;
  pool_run(threads, product_part, (size_t)((p->outputs / GROUP + j.groups_per_part - 1) / j.groups_per_part), &j);
  return true;
}
