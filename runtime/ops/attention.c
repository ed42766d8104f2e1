/* attention.c - causal attention over a cache written in place; a row's bits depend on its position and the cache alone.
 *
 * Keys are taken in spans of 128 by absolute slot. Within a span: score = (scale * q) . k, soft cap, bias, then m, l and o
 * in the order that kernels.h states. Spans are joined in rising order with the
 * largest m of all (Dao et al., "FlashAttention", 2022; the split over spans is "flash decoding"). Spans are the unit of
 * work for threads, so that no sum ever depends on their number. Slots a row does not see are never read. */
#include "float_math.h"
#include "internal.h"
#include "ops.h"
#include <math.h>

enum { SPAN = 128 };

typedef struct job {
  const attention *t;
  const kernel_set *kernels;
  const float *qkv, *bias;
  const int32_t *past;
  const int64_t *position;
  float *q;                        /* [batch][kv_heads][group][rows][head_dim] rotated and scaled */
  float *part;                     /* [batch][kv_heads][spans][group * rows][head_dim + 2]: o, m, l */
  float *k, *v, *y;
  int batch, rows, spans, per_kv;
} job;

/* Halves rotated against each other: Su et al., "RoFormer" (2021), in the layout of the Hugging Face models. */
SPECC_CLONES static void rotate(const float *x, const float *cosine, const float *sine, int half, int head_dim, float scale, float *out) {
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
  int64_t position = j->position[at] < t->positions ? j->position[at] : t->positions - 1;
  const float *c = t->cos + position * half, *s = t->sin + position * half;
  const float *row = j->qkv + at * (size_t)((t->heads + 2 * t->kv_heads) * d);
  size_t slot = (size_t)(j->past[b] + i);
  for (int h = 0; h < t->heads; h++) {
    size_t kv = (size_t)(b * t->kv_heads + h / j->per_kv), in_group = (size_t)(h % j->per_kv);
    rotate(row + h * d, c, s, half, d, t->scale, j->q + ((kv * (size_t)j->per_kv + in_group) * (size_t)j->rows + (size_t)i) * (size_t)d);
  }
  for (int h = 0; h < t->kv_heads; h++) {
    size_t to = ((size_t)(b * t->kv_heads + h) * (size_t)t->capacity + slot) * (size_t)d;
    rotate(row + (t->heads + h) * d, c, s, half, d, 1.0f, j->k + to);
    memcpy(j->v + to, row + (t->heads + t->kv_heads + h) * d, (size_t)d * sizeof *j->v);
  }
}

static void soften(float *score, int n, float cap) {
  for (int s = 0; s < n; s++) {                               /* tanh by the stated exp */
    float x = score[s] / cap, e = exp_float(-2.0f * fabsf(x)), y = (1.0f - e) / (1.0f + e);
    score[s] = cap * (x < 0 ? -y : y);
  }
}

/* Slots of the span that row i of sequence b sees: from..to - 1. */
static void seen(const job *j, int b, int i, int begin, int *from, int *to) {
  int last = j->past[b] + i, first = j->t->window ? last - j->t->window + 1 : 0;
  *from = first > begin ? first : begin;
  *to = last + 1 < begin + SPAN ? last + 1 : begin + SPAN;
  if (*to < *from) *to = *from;
}

/* What one group of queries needs of a span. All see `common` slots; some see a few more in front or behind. */
typedef struct tile {
  int n, from[QUERIES], to[QUERIES], common_from, common_to;
  const float *q[QUERIES];
  float *part[QUERIES], weight[QUERIES][SPAN];
} tile;

static void score_tile(const job *j, tile *t, const float *k, int begin) {
  size_t d = (size_t)j->t->head_dim;
  float *at[QUERIES], *one;
  for (int i = 0; i < t->n; i++) at[i] = t->weight[i] + t->common_from - begin;
  if (t->common_to > t->common_from)
    j->kernels->scores(t->q, t->n, k + (size_t)t->common_from * d, t->common_to - t->common_from, (int)d, at);
  for (int i = 0; i < t->n; i++)
    for (int s = t->from[i]; s < t->to[i]; s++) {
      if (s == t->common_from && t->common_to > s) s = t->common_to;
      if (s >= t->to[i]) break;
      one = t->weight[i] + s - begin;
      j->kernels->scores(t->q + i, 1, k + (size_t)s * d, 1, (int)d, &one);
    }
}

static void blend_tile(const job *j, tile *t, const float *v, int begin) {
  size_t d = (size_t)j->t->head_dim;
  const float *at[QUERIES];
  bool shared = t->common_to > t->common_from;
  for (int i = 0; i < t->n; i++) {
    const float *w = t->weight[i] + t->from[i] - begin;
    int n = (shared ? t->common_from : t->to[i]) - t->from[i];
    memset(t->part[i], 0, d * sizeof *t->part[i]);
    if (n > 0) j->kernels->blend(&w, 1, v + (size_t)t->from[i] * d, n, (int)d, t->part + i);
    at[i] = t->weight[i] + t->common_from - begin;
  }
  if (!shared) return;
  j->kernels->blend(at, t->n, v + (size_t)t->common_from * d, t->common_to - t->common_from, (int)d, t->part);
  for (int i = 0; i < t->n; i++) {
    const float *w = t->weight[i] + t->common_to - begin;
    if (t->to[i] > t->common_to) j->kernels->blend(&w, 1, v + (size_t)t->common_to * d, t->to[i] - t->common_to, (int)d, t->part + i);
  }
}

static void weigh_tile(const job *j, tile *t, int b, const int *rows, int begin) {
  const attention *a = j->t;
  for (int i = 0; i < t->n; i++) {
    int n = t->to[i] - t->from[i];
    float *score = t->weight[i] + t->from[i] - begin;
    if (a->soft_cap > 0) soften(score, n, a->soft_cap);
    if (j->bias)
      for (int s = 0; s < n; s++) score[s] += j->bias[(size_t)(b * j->rows + rows[i]) * (size_t)a->capacity + (size_t)(t->from[i] + s)];
    t->part[i][a->head_dim] = j->kernels->weigh(score, n, &t->part[i][a->head_dim + 1]);
  }
}

/* One span of one key head, for every row and every head that shares it, QUERIES at a time. */
static void span_part(void *argument, size_t at) {
  job *j = argument;
  const attention *a = j->t;
  size_t d = (size_t)a->head_dim, kv = at / (size_t)j->spans, queries = (size_t)(j->per_kv * j->rows);
  int b = (int)kv / a->kv_heads, begin = (int)(at % (size_t)j->spans) * SPAN, rows[QUERIES];
  tile t;
  for (size_t r = 0; r < queries; r += QUERIES) {
    t.n = (int)(queries - r < QUERIES ? queries - r : QUERIES);
    for (int i = 0; i < t.n; i++) {
      rows[i] = (int)(r + (size_t)i) % j->rows;
      seen(j, b, rows[i], begin, &t.from[i], &t.to[i]);
      t.common_from = i && t.common_from > t.from[i] ? t.common_from : t.from[i];
      t.common_to = i && t.common_to < t.to[i] ? t.common_to : t.to[i];
      t.q[i] = j->q + (kv * queries + r + (size_t)i) * d;
      t.part[i] = j->part + (at * queries + r + (size_t)i) * (d + 2);
    }
    score_tile(j, &t, j->k + kv * (size_t)a->capacity * d, begin);
    weigh_tile(j, &t, b, rows, begin);
    blend_tile(j, &t, j->v + kv * (size_t)a->capacity * d, begin);
  }
}

/* Spans of one (batch, head, row) joined in rising order. */
SPECC_CLONES static void join(const float *part, size_t stride, int spans, int head_dim, float *y) {
  float m = -INFINITY, l = 0;
  for (int s = 0; s < spans; s++) m = part[(size_t)s * stride + (size_t)head_dim] > m ? part[(size_t)s * stride + (size_t)head_dim] : m;
  for (int i = 0; i < head_dim; i++) y[i] = 0;
  for (int s = 0; s < spans; s++) {
    const float *p = part + (size_t)s * stride;
    if (!(p[head_dim] > -INFINITY) && p[head_dim + 1] == 0) continue;
    float w = exp_float(p[head_dim] - m);
    l = __builtin_fmaf(w, p[head_dim + 1], l);
    for (int i = 0; i < head_dim; i++) y[i] = __builtin_fmaf(w, p[i], y[i]);
  }
  for (int i = 0; i < head_dim; i++) y[i] = l != 0 ? y[i] / l : 0;   /* a row that sees nothing is 0 */
}

static void join_row(void *argument, size_t at) {
  job *j = argument;
  const attention *t = j->t;
  int b = (int)at / j->rows, i = (int)at % j->rows, per_span = j->per_kv * j->rows;
  size_t d = (size_t)t->head_dim, stride = (size_t)per_span * (d + 2);
  for (int h = 0; h < t->heads; h++) {
    size_t kv = (size_t)(b * t->kv_heads + h / j->per_kv), r = (size_t)(h % j->per_kv * j->rows + i);
    join(j->part + kv * (size_t)j->spans * stride + r * (d + 2), stride, j->spans, t->head_dim, j->y + (at * (size_t)t->heads + (size_t)h) * d);
  }
}

bool attend(const attention *t, const float *qkv, const int32_t *past, const int64_t *position, const float *bias, int batch, int rows,
            float *k, float *v, float *y, const pool *threads) {
  job j = {.t = t, .kernels = t->kernels, .qkv = qkv, .bias = bias, .past = past, .position = position, .k = k, .v = v, .y = y,
           .batch = batch, .rows = rows, .per_kv = t->heads / t->kv_heads};
  int longest = 0;
  for (int b = 0; b < batch; b++) longest = past[b] + rows > longest ? past[b] + rows : longest;
  j.spans = (longest + SPAN - 1) / SPAN;
  size_t d = (size_t)t->head_dim, queries = (size_t)batch * (size_t)t->heads * (size_t)rows;
  j.q = scratch(2, queries * d * sizeof *j.q);
  j.part = scratch(3, queries * (size_t)j.spans * (d + 2) * sizeof *j.part);
  if (!j.q || !j.part) return false;
  pool_run(rows < 8 ? NULL : threads, place_row, (size_t)batch * (size_t)rows, &j);
  pool_run(threads, span_part, (size_t)batch * (size_t)t->kv_heads * (size_t)j.spans, &j);
  pool_run(rows < 8 ? NULL : threads, join_row, (size_t)batch * (size_t)rows, &j);
  return true;
}
