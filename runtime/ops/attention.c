/* attention.c - causal attention over a cache written in place; a row's bits depend on its position and the
 * cache alone.
 *
 * Keys are taken in spans of 128 by absolute slot. Within a span: score = (scale * q) . k, soft cap, bias,
 * then m, l and o in the order that kernels.h states. Spans are joined in rising order with the largest m of
 * all (Dao et al., "FlashAttention", 2022; the split over spans is "flash decoding"). Spans are the unit of
 * work for threads, so that no sum ever depends on their number. Slots beyond the rows of the call
 * are never read. */
#include "core/numbers/clones.h"
#include "ops/float_math.h"
#include "ops/ops.h"
#include <math.h>

enum { SPAN = 128 };

typedef struct job {
  const attention *t;
  const kernel_set *kernels;
  const float *qkv, *bias;
  const int32_t *past;
  const int64_t *position;
  float *q;         /* [batch][kv_heads][rows][heads that share a key head][head_dim] rotated and scaled */
  float *part;      /* [batch][kv_heads][spans][rows * heads that share][head_dim + 2]: o, m, l */
  atomic_int *left; /* [batch][kv_heads] spans not done yet */
  float *k, *v, *y;
  int batch, rows, spans, per_kv;
  stage placed;
} job;

/* Halves rotated against each other: Su et al., "RoFormer" (2021), in the layout of the Hugging Face models.
 */
SPECC_CLONES static void rotate(
    const float *x, const float *cosine, const float *sine, int half, int head_dim, float scale, float *out) {
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    out[i] = (a * cosine[i] - b * sine[i]) * scale;
    out[i + half] = (b * cosine[i] + a * sine[i]) * scale;
  }
  for (int i = 2 * half; i < head_dim; i++) out[i] = x[i] * scale;
}

/* Row (b, i): its q for every head, its k and v into the cache. */
static void place_row(void *argument, size_t at) {
  job *j = argument;
  const attention *t = j->t;
  int b = (int)at / j->rows, i = (int)at % j->rows, d = t->head_dim, half = t->rotary / 2;
  const float *c = NULL, *s = NULL; /* without rotation the tables are empty and not read */
  if (half) {
    int64_t position = j->position[at] < t->positions ? j->position[at] : t->positions - 1;
    c = t->cos + position * half, s = t->sin + position * half;
  }
  const float *row = j->qkv + at * (size_t)((t->heads + 2 * t->kv_heads) * d);
  size_t slot = (size_t)(j->past[b] + i);
  for (int h = 0; h < t->heads; h++) {
    size_t kv = (size_t)(b * t->kv_heads + h / j->per_kv), in_group = (size_t)(h % j->per_kv);
    rotate(row + h * d, c, s, half, d, t->scale,
        j->q + ((kv * (size_t)j->rows + (size_t)i) * (size_t)j->per_kv + in_group) * (size_t)d);
  }
  for (int h = 0; h < t->kv_heads; h++) {
    size_t to = ((size_t)(b * t->kv_heads + h) * (size_t)t->capacity + slot) * (size_t)d;
    rotate(row + (t->heads + h) * d, c, s, half, d, 1.0f, j->k + to);
    memcpy(j->v + to, row + (t->heads + t->kv_heads + h) * d, (size_t)d * sizeof *j->v);
  }
}

static void apply_soft_cap(float *score, int n, float cap) {
  for (int s = 0; s < n; s++) { /* tanh by the stated exp */
    float x = score[s] / cap, e = exp_float(-2.0f * fabsf(x)), y = (1.0f - e) / (1.0f + e);
    score[s] = cap * (x < 0 ? -y : y);
  }
}

/* Slots of the span that row i of sequence b sees: from..to - 1. */
static void find_visible(const job *j, int b, int i, int begin, int *from, int *to) {
  int last = j->past[b] + i, first = j->t->window ? last - j->t->window + 1 : 0;
  *from = first > begin ? first : begin;
  *to = last + 1 < begin + SPAN ? last + 1 : begin + SPAN;
  if (*to < *from) *to = *from;
}

/* A few queries of a key head against a span. Queries are counted row by row, the heads that share the keys
 * within a row. */
typedef struct tile {
  int n, from[QUERIES], to[QUERIES]; /* slots that each one sees */
  const float *q[QUERIES];
  float *part[QUERIES], (*weight)[SPAN];
} tile;

/* CHUNK: queries whose weights are kept at once. STEP: slots that stay in the nearest cache meanwhile; EACH
 * for a tile of queries, since few wait for memory. */
enum { CHUNK = 24, STEP = 32, EACH = 8 };

static int min_int(int a, int b) {
  return a < b ? a : b;
}
static int max_int(int a, int b) {
  return a > b ? a : b;
}

/* Scores of slots begin .. end - 1 for all; those that a query does not see are written by this call all the
 * same, and not used. */
static void score_tile(const job *j, const tile *t, const float *k, int span, int begin, int end) {
  size_t d = (size_t)j->t->head_dim;
  int from = t->from[0], to = t->to[0];
  float *at[QUERIES];
  for (int i = 1; i < t->n; i++) {
    from = min_int(from, t->from[i]);
    to = max_int(to, t->to[i]);
  }
  from = max_int(from, begin);
  to = min_int(to, end);
  if (to <= from) return;
  for (int i = 0; i < t->n; i++) at[i] = t->weight[i] + from - span;
  j->kernels->scores(t->q, t->n, k + (size_t)from * d, to - from, (int)d, at);
}

static void blend_one(const job *j, const tile *t, int i, const float *v, int span, int from, int to) {
  size_t d = (size_t)j->t->head_dim;
  const float *w = t->weight[i] + from - span;
  if (to > from) j->kernels->blend(&w, 1, v + (size_t)from * d, to - from, (int)d, t->part + i);
}

/* Slots that all see together; what one sees in front of them or behind them alone. */
static void blend_tile(const job *j, const tile *t, const float *v, int span, int begin, int end) {
  size_t d = (size_t)j->t->head_dim;
  const float *at[QUERIES];
  int from = begin, to = end;
  for (int i = 0; i < t->n; i++) {
    from = max_int(from, t->from[i]);
    to = min_int(to, t->to[i]);
  }
  for (int i = 0; i < t->n; i++)
    blend_one(j, t, i, v, span, max_int(begin, t->from[i]), min_int(to > from ? from : end, t->to[i]));
  if (to <= from) return;
  for (int i = 0; i < t->n; i++) at[i] = t->weight[i] + from - span;
  j->kernels->blend(at, t->n, v + (size_t)from * d, to - from, (int)d, t->part);
  for (int i = 0; i < t->n; i++) blend_one(j, t, i, v, span, to, min_int(end, t->to[i]));
}

static void weigh_tile(const job *j, const tile *t, int b, size_t first, int span) {
  const attention *a = j->t;
  for (int i = 0; i < t->n; i++) {
    int n = t->to[i] - t->from[i], row = (int)(first + (size_t)i) / j->per_kv;
    float *score = t->weight[i] + t->from[i] - span;
    if (a->soft_cap > 0) apply_soft_cap(score, n, a->soft_cap);
    if (j->bias)
      for (int s = 0; s < n; s++)
        score[s] += j->bias[(size_t)(b * j->rows + row) * (size_t)a->capacity + (size_t)(t->from[i] + s)];
    memset(t->part[i], 0, (size_t)a->head_dim * sizeof *t->part[i]);
    t->part[i][a->head_dim] = j->kernels->weigh(score, n, &t->part[i][a->head_dim + 1]);
  }
}

static void fill_tile(const job *j, tile *t, size_t at, size_t first, int n, int span) {
  size_t d = (size_t)j->t->head_dim, kv = at / (size_t)j->spans, queries = (size_t)(j->per_kv * j->rows);
  t->n = n;
  for (int i = 0; i < n; i++) {
    size_t r = first + (size_t)i;
    find_visible(j, (int)kv / j->t->kv_heads, (int)r / j->per_kv, span, &t->from[i], &t->to[i]);
    t->q[i] = j->q + (kv * queries + r) * d;
    t->part[i] = j->part + (at * queries + r) * (d + 2);
  }
}

/* Asks for part i of n of numbers that are read soon, so that they come while others are computed with. */
static void write_request(const float *next, size_t count, int i, int n) {
  const size_t line = 16, lines = (count + line - 1) / line;
  for (size_t at = lines * (size_t)i / (size_t)n; at < lines * (size_t)(i + 1) / (size_t)n; at++)
    __builtin_prefetch(next + at * line, 0, 2);
}

/* First slot from `span` on that row i of sequence b sees: with a window not all of a span is read. */
static int find_first_visible(const job *j, int b, int i, int span) {
  return j->t->window ? max_int(span, j->past[b] + i - j->t->window + 1) : span;
}

/* Keys that are read behind span `at`, in the order of work, and how many slots they fill: 0 behind the last.
 */
static const float *next_keys(const job *j, size_t at, int *slots) {
  const attention *t = j->t;
  size_t spans = (size_t)j->spans, kv = (at + 1) / spans;
  int b = (int)kv / t->kv_heads, span = (int)((at + 1) % spans) * SPAN;
  *slots = 0;
  if (b == j->batch) return NULL;
  int from = find_first_visible(j, b, 0, span);
  *slots = max_int(0, min_int(span + SPAN, j->past[b] + j->rows) - from);
  return *slots ? j->k + (kv * (size_t)t->capacity + (size_t)from) * (size_t)t->head_dim : NULL;
}

/* One span of one key head for up to CHUNK queries from `first` on: keys, then values, each read from memory
 * once: values come while scores are computed, the next span's keys while values are summed up. */
static void span_chunk(const job *j, size_t at, size_t first, int queries, int span) {
  size_t d = (size_t)j->t->head_dim, kv = at / (size_t)j->spans, cache = kv * (size_t)j->t->capacity * d;
  const float *keys = j->k + cache, *values = j->v + cache;
  int slots, b = (int)kv / j->t->kv_heads, each = j->per_kv % 3 ? 4 : 3, tiles = (queries + each - 1) / each,
             step = min_int(STEP, EACH * tiles);
  int begin = find_first_visible(j, b, (int)first / j->per_kv, span),
      end = min_int(span + SPAN, j->past[b] + j->rows);
  const float *next = next_keys(j, at, &slots);
  float weight[CHUNK][SPAN];
  tile t[(CHUNK + 2) / 3];
  for (int i = 0; i < tiles; i++) {
    t[i].weight = weight + i * each;
    fill_tile(j, &t[i], at, first + (size_t)(i * each), min_int(each, queries - i * each), span);
  }
  for (int s = begin; s < end; s += step)
    for (int i = 0; i < tiles; i++) {
      if (!first) write_request(values + (size_t)s * d, (size_t)min_int(end - s, step) * d, i, tiles);
      score_tile(j, &t[i], keys, span, s, min_int(end, s + step));
    }
  for (int i = 0; i < tiles; i++) weigh_tile(j, &t[i], b, first + (size_t)(i * each), span);
  for (int s = begin; s < end; s += step)
    for (int i = 0; i < tiles; i++) {
      if (!first && slots > s - begin)
        write_request(
            next + (size_t)(s - begin) * d, (size_t)min_int(slots - (s - begin), step) * d, i, tiles);
      blend_tile(j, &t[i], values, span, s, min_int(end, s + step));
    }
}

static void join_head(const job *j, size_t kv);

/* One span of one key head, for every row and every head that shares it. Who ends the head's last span joins
 * them all. */
static void span_part(void *argument, size_t at) {
  job *j = argument;
  int queries = j->per_kv * j->rows;
  size_t kv = at / (size_t)j->spans;
  stage_finish(&j->placed, place_row, j);
  for (int r = 0; r < queries; r += CHUNK)
    span_chunk(j, at, (size_t)r, min_int(CHUNK, queries - r), (int)(at % (size_t)j->spans) * SPAN);
  if (atomic_fetch_sub(&j->left[kv], 1) == 1) join_head(j, kv);
}

/* Spans of one (batch, head, row) joined in rising order. */
SPECC_CLONES static void join(const float *part, size_t stride, int spans, int head_dim, float *y) {
  float m = -INFINITY, l = 0;
  for (int s = 0; s < spans; s++)
    m = part[(size_t)s * stride + (size_t)head_dim] > m ? part[(size_t)s * stride + (size_t)head_dim] : m;
  for (int i = 0; i < head_dim; i++) y[i] = 0;
  for (int s = 0; s < spans; s++) {
    const float *p = part + (size_t)s * stride;
    if (!(p[head_dim] > -INFINITY) && p[head_dim + 1] == 0) continue;
    float w = exp_float(p[head_dim] - m);
    l = __builtin_fmaf(w, p[head_dim + 1], l);
    for (int i = 0; i < head_dim; i++) y[i] = __builtin_fmaf(w, p[i], y[i]);
  }
  for (int i = 0; i < head_dim; i++) y[i] = l != 0 ? y[i] / l : 0; /* a row that sees nothing is 0 */
}

/* Every row of the heads that share key head kv. */
static void join_head(const job *j, size_t kv) {
  const attention *t = j->t;
  size_t d = (size_t)t->head_dim, queries = (size_t)(j->per_kv * j->rows), stride = queries * (d + 2),
         b = kv / (size_t)t->kv_heads;
  for (size_t r = 0; r < queries; r++) {
    size_t row = b * (size_t)j->rows + r / (size_t)j->per_kv,
           head = kv % (size_t)t->kv_heads * (size_t)j->per_kv + r % (size_t)j->per_kv;
    join(j->part + kv * (size_t)j->spans * stride + r * (d + 2), stride, j->spans, t->head_dim,
        j->y + (row * (size_t)t->heads + head) * d);
  }
}

bool attend(const attention *t, const float *qkv, const int32_t *past, const int64_t *position,
    const float *bias, int batch, int rows, float *k, float *v, float *y, const pool *threads) {
  job j = {.t = t,
      .kernels = t->kernels,
      .qkv = qkv,
      .bias = bias,
      .past = past,
      .position = position,
      .k = k,
      .v = v,
      .y = y,
      .batch = batch,
      .rows = rows,
      .per_kv = t->heads / t->kv_heads,
      .placed = {.n = batch * rows}};
  int longest = 0;
  for (int b = 0; b < batch; b++) longest = past[b] + rows > longest ? past[b] + rows : longest;
  j.spans = (longest + SPAN - 1) / SPAN;
  size_t d = (size_t)t->head_dim, queries = (size_t)batch * (size_t)t->heads * (size_t)rows;
  j.q = scratch(2, queries * d * sizeof *j.q);
  size_t parts = queries * (size_t)j.spans * (d + 2) * sizeof *j.part,
         kv_heads = (size_t)batch * (size_t)t->kv_heads;
  j.part = scratch(3, parts + kv_heads * sizeof *j.left);
  if (!j.q || !j.part) return false;
  j.left = (atomic_int *)(void *)((char *)j.part + parts);
  for (size_t i = 0; i < kv_heads; i++) atomic_init(&j.left[i], j.spans);
  pool_run(threads, span_part, (size_t)batch * (size_t)t->kv_heads * (size_t)j.spans, &j);
  return true;
}
