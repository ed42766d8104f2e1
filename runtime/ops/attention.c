/* attention.c - causal attention over a cache written in place; a row's bits depend on its position and the cache alone.
 *
 * Keys are taken in spans of 128 by absolute slot. Within a span: score = scale * (q . k), 8 lanes over the head's
 * dimensions joined as a fixed tree; soft cap and bias; m = largest score; weight = exp(score - m); l = sum of weights, 8
 * lanes by slot; o = sum of weight * v in rising slot order, all by fma. Spans are joined in rising order with the
 * largest m of all (Dao et al., "FlashAttention", 2022; the split over spans is "flash decoding"). Spans are the unit of
 * work for threads, so that no sum ever depends on their number. Slots a row does not see are never read. */
#include "float_math.h"
#include "internal.h"
#include "ops.h"
#include <math.h>

enum { SPAN = 128, LANES = 8 };

typedef struct job {
  const attention *t;
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

/* score[n] = q . k for n keys; head_dim a multiple of 8. */
SPECC_CLONES static void scores(const float *q, const float *k, int n, int head_dim, float *score) {
  for (int s = 0; s < n; s++, k += head_dim) {
    float lane[LANES] = {0};
    for (int i = 0; i < head_dim; i += LANES)
      for (int j = 0; j < LANES; j++) lane[j] = __builtin_fmaf(q[i + j], k[i + j], lane[j]);
    score[s] = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
}

SPECC_CLONES static float weigh(float *score, int n, float *total) {
  float m = -INFINITY, lane[LANES] = {0};
  int bad = 0;
  for (int s = 0; s < n; s++) { m = score[s] > m ? score[s] : m; bad |= score[s] != score[s]; }
  for (int s = 0; s < n; s++) score[s] = m > -INFINITY ? exp_float(score[s] - m) : 0.0f;
  int s = 0;
  for (; s + LANES <= n; s += LANES)
    for (int j = 0; j < LANES; j++) lane[j] += score[s + j];
  for (; s < n; s++) lane[s % LANES] += score[s];
  *total = bad ? NAN : ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  return m;
}

/* out[32] += sum of weight[s] * v[s][0..31], s rising. */
SPECC_CLONES static void blend(const float *weight, const float *v, int n, int head_dim, float *out) {
  int i = 0;
  for (; i + 32 <= head_dim; i += 32) {
    float acc[32] = {0};
    for (int s = 0; s < n; s++)
      for (int j = 0; j < 32; j++) acc[j] = __builtin_fmaf(weight[s], v[(size_t)s * (size_t)head_dim + (size_t)(i + j)], acc[j]);
    memcpy(out + i, acc, sizeof acc);
  }
  for (; i < head_dim; i += LANES) {
    float acc[LANES] = {0};
    for (int s = 0; s < n; s++)
      for (int j = 0; j < LANES; j++) acc[j] = __builtin_fmaf(weight[s], v[(size_t)s * (size_t)head_dim + (size_t)(i + j)], acc[j]);
    memcpy(out + i, acc, sizeof acc);
  }
}

static void soften(float *score, int n, float cap) {
  for (int s = 0; s < n; s++) {                               /* tanh by the stated exp */
    float x = score[s] / cap, e = exp_float(-2.0f * fabsf(x)), y = (1.0f - e) / (1.0f + e);
    score[s] = cap * (x < 0 ? -y : y);
  }
}

/* One span of one key head, for every row and every head that shares it. */
static void span_part(void *argument, size_t at) {
  job *j = argument;
  const attention *t = j->t;
  size_t d = (size_t)t->head_dim, kv = at / (size_t)j->spans;
  int span = (int)(at % (size_t)j->spans), b = (int)kv / t->kv_heads, begin = span * SPAN;
  const float *k = j->k + kv * (size_t)t->capacity * d, *v = j->v + kv * (size_t)t->capacity * d;
  float score[SPAN];
  for (int r = 0; r < j->per_kv * j->rows; r++) {
    int i = r % j->rows, last = j->past[b] + i, from = begin, to = last + 1 < begin + SPAN ? last + 1 : begin + SPAN;
    if (t->window && last - t->window + 1 > from) from = last - t->window + 1;
    float *part = j->part + (at * (size_t)(j->per_kv * j->rows) + (size_t)r) * (d + 2);
    part[d] = -INFINITY;
    part[d + 1] = 0;
    if (to <= from) continue;
    scores(j->q + (kv * (size_t)(j->per_kv * j->rows) + (size_t)r) * d, k + (size_t)from * d, to - from, t->head_dim, score);
    if (t->soft_cap > 0) soften(score, to - from, t->soft_cap);
    if (j->bias)
      for (int s = from; s < to; s++) score[s - from] += j->bias[((size_t)(b * j->rows + i)) * (size_t)t->capacity + (size_t)s];
    part[d] = weigh(score, to - from, &part[d + 1]);
    blend(score, v + (size_t)from * d, to - from, t->head_dim, part);
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
  job j = {.t = t, .qkv = qkv, .bias = bias, .past = past, .position = position, .k = k, .v = v, .y = y,
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
