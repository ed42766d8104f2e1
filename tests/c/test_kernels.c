/* test_kernels.c - every variant of the dot that this CPU runs, against the scalar one, bit for bit; products
 * and attention whose rows do not depend on how many there are; nothing read or written beyond the buffers.
 */
#include "expect.h"
#include "ops/ops.h"
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t state = 7;
static uint32_t random_bits(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 3;
}
static float value(void) {
  return (float)(int32_t)(random_bits() % 2001 - 1000) / 500.0f;
}

/* n bytes that end where an unmapped page begins. */
static void *allocate_guarded(size_t n) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (n + page - 1) / page * page;
  uint8_t *p = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || mprotect(p + whole, page, PROT_NONE)) exit(2);
  return p + whole - n / 4 * 4;
}

static void free_guarded(void *end, size_t n) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (n + page - 1) / page * page;
  munmap((uint8_t *)end + n / 4 * 4 - whole, whole + page);
}

/* All bit patterns of NaN count as equal. */
static bool is_same(const float *want, const float *got, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (memcmp(want + i, got + i, sizeof *want) && !(isnan(want[i]) && isnan(got[i]))) return false;
  return true;
}

static void fill_group(uint8_t *group, enum weight_kind kind, int nb, int trial) {
  for (size_t i = 0; i < group_bytes(kind, nb); i++)
    group[i] = (uint8_t)(trial % 5 == 1 ? 0xff : trial % 5 == 2 ? 0x80 : trial % 5 == 3 ? 0 : random_bits());
  for (int b = 0; b < nb; b++)
    for (int i = 0; i < (kind == WEIGHT_W4M ? 32 : 16); i++) {
      uint16_t half = (uint16_t)(trial % 7 == 3 ? random_bits() & 0x83ff
                                                : random_bits() & 0xbfff); /* denormal halves too */
      memcpy(group + (head_at(kind, group, b) - group) + 2 * i, &half, 2);
    }
}

static void fill_rows(float *x, int n, int trial) {
  static const float scales[] = {1, 1e-3f, 1e30f, 1e-38f, 3e-31f, 0};
  for (int i = 0; i < n; i++) x[i] = value() * scales[trial % 6];
  if (trial % 11 == 5) x[n / 2] = NAN;
  if (trial % 11 == 6) x[0] = -INFINITY;
}

static void test_variants(void) {
  static const char *const names[] = {"avx2", "avx-vnni", "avx512-vnni", "neon-dotprod"};
  int tried = 0;
  for (size_t v = 0; v < sizeof names / sizeof *names; v++) {
    const kernel_set *k = kernels_find(names[v]);
    if (!k) {
      printf("  %s: not on this CPU\n", names[v]);
      continue;
    }
    for (int trial = 0; trial < 300; trial++)
      for (int kind = 0; kind < WEIGHT_KINDS; kind++) {
        int nb = 1 + (int)(random_bits() % 24), rows = 1 + (int)(random_bits() % 40);
        size_t size = group_bytes((enum weight_kind)kind, nb), values = (size_t)rows * GROUP,
               blocks = (size_t)(rows * nb);
        uint8_t *group = allocate_guarded(size);
        float *x = malloc(blocks * BLOCK * sizeof *x), *want = malloc(values * sizeof *want),
              *got = allocate_guarded(values * sizeof *got);
        activation *a = malloc(blocks * sizeof *a), *b = allocate_guarded(blocks * sizeof *b);
        fill_group(group, (enum weight_kind)kind, nb, trial);
        fill_rows(x, rows * nb * BLOCK, trial);
        kernels_scalar.quantize(x, (int)blocks, a);
        k->quantize(x, (int)blocks, b);
        for (size_t i = 0; i < blocks; i++)
          EXPECT(!memcmp(a + i, b + i, sizeof *a) ||
                 (isnan(a[i].d) && isnan(b[i].d) && !memcmp(a[i].q, b[i].q, sizeof a[i].q)));
        kernels_scalar.dot[kind](group, a, (size_t)nb, rows, nb, want);
        k->dot[kind](group, a, (size_t)nb, rows, nb, got);
        EXPECT(is_same(want, got, values));
        kernels_scalar.gate(x, rows * nb < 2 * rows ? rows * nb : 2 * rows, want);
        k->gate(x, rows * nb < 2 * rows ? rows * nb : 2 * rows, got);
        EXPECT(is_same(want, got, (size_t)rows * GATED));
        free_guarded(group, size);
        free_guarded(got, values * sizeof *got);
        free_guarded(b, blocks * sizeof *b);
        free(x);
        free(want);
        free(a);
      }
    tried++;
  }
  printf("  best: %s, variants tried: %d\n", kernels_best()->name, tried);
}

/* Scores, weights and blends of every variant against the scalar ones; NaN and infinity among the scores. */
static void test_attention_steps(void) {
  static const char *const names[] = {"avx2", "avx-vnni", "avx512-vnni", "neon-dotprod"};
  enum { MOST = 130, D = 104 };
  static float q[QUERIES][D], kv[MOST * D], score[2][QUERIES][MOST], out[2][QUERIES][D];
  for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
    const kernel_set *variant = kernels_find(names[name]);
    for (int trial = 0; variant && trial < 300; trial++) {
      int n = 1 + (int)(random_bits() % MOST), d = 8 * (1 + (int)(random_bits() % (D / 8))),
          queries = 1 + (int)(random_bits() % QUERIES);
      fill_rows(kv, MOST * D, 0);
      fill_rows(q[0], QUERIES * D, trial % 3 ? 0 : trial % 6);
      float m[2][QUERIES], l[2][QUERIES];
      for (int v = 0; v < 2; v++) {
        const kernel_set *use = v ? variant : &kernels_scalar;
        const float *qs[QUERIES], *ws[QUERIES];
        float *ss[QUERIES], *os[QUERIES];
        for (int i = 0; i < queries; i++) {
          qs[i] = q[i];
          ws[i] = ss[i] = score[v][i];
          os[i] = memset(out[v][i], 0, sizeof out[v][i]);
        }
        use->scores(qs, queries, kv, n, d, ss);
        if (trial % 5 == 1) score[v][0][n / 2] = NAN;
        if (trial % 5 == 2) score[v][0][n / 2] = -INFINITY;
        if (trial % 5 == 3)
          for (int s = 0; s < n; s++) score[v][0][s] = -INFINITY;
        for (int i = 0; i < queries; i++) m[v][i] = use->weigh(score[v][i], n, &l[v][i]);
        use->blend(ws, queries, kv, n, d, os);
      }
      for (int i = 0; i < queries; i++) {
        EXPECT(m[0][i] == m[1][i] && (l[0][i] == l[1][i] || (isnan(l[0][i]) && isnan(l[1][i]))));
        for (int c = 0; c < d; c++)
          EXPECT(out[0][i][c] == out[1][i][c] || (isnan(out[0][i][c]) && isnan(out[1][i][c])));
      }
    }
  }
}

static void test_nan_rows(void) {
  enum { NB = 2, ROWS = 3 };
  uint8_t *group = allocate_guarded(group_bytes(WEIGHT_W4M, NB));
  float x[ROWS * NB * BLOCK], y[ROWS * GROUP];
  activation a[ROWS * NB];
  fill_group(group, WEIGHT_W4M, NB, 0);
  fill_rows(x, ROWS * NB * BLOCK, 0);
  x[NB * BLOCK + 3] = INFINITY;
  kernels_best()->quantize(x, ROWS * NB, a);
  kernels_best()->dot[WEIGHT_W4M](group, a, NB, ROWS, NB, y);
  for (int i = 0; i < GROUP; i++) EXPECT(!isnan(y[i]) && isnan(y[GROUP + i]) && !isnan(y[2 * GROUP + i]));
}

/* One row and many rows of a product with norm, gate and residual: the same bits. */
static void test_product_rows(void) {
  enum { IN = 96, OUT = 64, ROWS = 40 };
  size_t bytes = group_bytes(WEIGHT_W4M, IN / BLOCK);
  uint8_t *w = allocate_guarded(bytes * (OUT / GROUP));
  for (size_t g = 0; g < OUT / GROUP; g++) fill_group(w + bytes * g, WEIGHT_W4M, IN / BLOCK, 0);
  float norm[IN], *x = allocate_guarded(ROWS * IN * 4), *r = allocate_guarded(ROWS * OUT * 2),
                  *y = allocate_guarded(ROWS * OUT * 2), one[OUT / 2];
  for (int i = 0; i < IN; i++) norm[i] = value();
  fill_rows(x, ROWS * IN, 0);
  fill_rows(r, ROWS * OUT / 2, 0);
  product p = {.kernels = kernels_best(),
      .kind = WEIGHT_W4M,
      .weights = w,
      .inputs = IN,
      .outputs = OUT,
      .kept = OUT / 2,
      .norm = norm,
      .epsilon = 1e-5f,
      .gate = true};
  for (int rows = 1; rows <= ROWS; rows += 3) {
    EXPECT(matmul(&p, x, rows, r, y, NULL));
    for (int i = 0; i < rows; i++) {
      EXPECT(matmul(&p, x + i * IN, 1, r + i * OUT / 2, one, NULL));
      EXPECT(!memcmp(one, y + i * OUT / 2, sizeof one));
    }
  }
}

enum {
  HEADS = 6,
  KV = 2,
  D = 40,
  CAPACITY = 300,
  BATCH = 2,
  ROWS = 5,
  COLUMNS = (HEADS + 2 * KV) * D,
  CACHE = KV * CAPACITY * D
};

/* Random keys and values up to each sequence's length, NaN behind it. */
static void fill_caches(float *k, float *v, const int32_t *past) {
  for (int i = 0; i < BATCH * CACHE; i++) {
    k[i] = value();
    v[i] = value();
  }
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < KV; h++)
      for (int i = past[b] * D; i < CAPACITY * D; i++)
        k[(b * KV + h) * CAPACITY * D + i] = v[(b * KV + h) * CAPACITY * D + i] = NAN;
}

/* y, the results of one call for all rows, against one call a row over copies k1, v1 of the caches. */
static void expect_rows_alone(const attention *t, const float *qkv, const int32_t *past,
    const int64_t *position, const float *k, const float *v, const float *y) {
  float one[HEADS * D], *k1 = malloc(CACHE * 4), *v1 = malloc(CACHE * 4);
  for (int b = 0; b < BATCH; b++) {
    memcpy(k1, k + b * CACHE, CACHE * 4);
    memcpy(v1, v + b * CACHE, CACHE * 4);
    for (int i = 0; i < ROWS; i++) {
      int32_t length = past[b] + i;
      EXPECT(attend(t, qkv + (b * ROWS + i) * COLUMNS, &length, position + b * ROWS + i, NULL, 1, 1, k1, v1,
          one, NULL));
      EXPECT(!memcmp(one, y + (b * ROWS + i) * HEADS * D, sizeof one) && !isnan(one[0]));
    }
  }
  free(k1);
  free(v1);
}

/* A batch of sequences of different lengths, NaN behind each, caches at the end of their pages: each row as
 * if alone. */
static void test_attention_rows(void) {
  float *k = allocate_guarded(BATCH * CACHE * 4), *v = allocate_guarded(BATCH * CACHE * 4),
        *y = allocate_guarded(BATCH * ROWS * HEADS * D * 4);
  float *qkv = allocate_guarded(BATCH * ROWS * COLUMNS * 4), *table = allocate_guarded(CAPACITY * D / 2 * 4);
  const int32_t past[BATCH] = {0, CAPACITY - ROWS};
  int64_t position[BATCH * ROWS];
  fill_caches(k, v, past);
  for (int i = 0; i < CAPACITY * D / 2; i++) table[i] = value();
  fill_rows(qkv, BATCH * ROWS * COLUMNS, 0);
  for (int i = 0; i < BATCH * ROWS; i++) position[i] = past[i / ROWS] + i % ROWS;
  for (int window = 0; window <= 150; window += 75) {
    attention t = {.kernels = kernels_best(),
        .heads = HEADS,
        .kv_heads = KV,
        .head_dim = D,
        .capacity = CAPACITY,
        .scale = 0.2f,
        .window = window,
        .soft_cap = window ? 5 : 0,
        .rotary = 32,
        .cos = table,
        .sin = table,
        .positions = CAPACITY};
    EXPECT(attend(&t, qkv, past, position, NULL, BATCH, ROWS, k, v, y, NULL));
    expect_rows_alone(&t, qkv, past, position, k, v, y);
  }
}

int main(void) {
  test_variants();
  test_attention_steps();
  test_nan_rows();
  test_product_rows();
  test_attention_rows();
  return finish("kernels");
}
