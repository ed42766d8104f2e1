/* variation.c - how far apart the widths are where their bits differ, as a user would notice: total
 * variation between the rows of one position after the sampling options, and greedy choices that change.
 *
 * Stretches of text, spread from the start of the context to its end, are decoded at the reference width and
 * at one width of each other class, each on the cache that it fills itself. The bound of a width's mean is
 * the empirical Bernstein bound of Maurer and Pontil (2009, theorem 4) at 99.9 %, with positions taken as
 * independent draws of the text. Any two widths are then within the sum of the two largest bounds, by the
 * triangle inequality. */
#include "core/certify/variation.h"
#include "core/io/error.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STRETCHES 12
#define ROWS 1152 /* default positions in all */
#define STEP 7919 /* places of the text between stretches */

typedef struct variation {
  int32_t length; /* positions of a stretch */
  float *rows;    /* [length][vocab] at the reference width */
  double *p, *q;  /* [n_ids] */
  double sum[SPECC_MAX_WIDTHS], squares[SPECC_MAX_WIDTHS], margin;
  int64_t n[SPECC_MAX_WIDTHS], flips[SPECC_MAX_WIDTHS];
} variation;

static const specc_options plain_options = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* The most probable id of a row; *margin: how far the second is behind. */
static int32_t find_best(const float *row, int32_t n, double *margin) {
  int32_t best = 0;
  double second = -INFINITY;
  for (int32_t i = 1; i < n; i++)
    if (row[i] > row[best]) best = i;
  for (int32_t i = 0; i < n; i++)
    if (i != best && (double)row[i] > second) second = (double)row[i];
  *margin = (double)row[best] - second;
  return best;
}

/* One position: total variation in [0, 1], and whether the greedy choice changed. A row that gives no
 * distribution counts as 1. */
static void compare_rows(measurement *m, variation *v, int32_t w, const float *row, const float *reference) {
  const specc_options *o = m->options->options ? m->options->options : &plain_options;
  int32_t n = m->model->n_ids, logits = m->model->target.vocab, shared = n < logits ? n : logits;
  double tv = 0, margin = 0, other;
  int failed = specc_distribution(o, row, logits, n, NULL, 0, 0, v->p) ||
               specc_distribution(o, reference, logits, n, NULL, 0, 0, v->q);
  for (int32_t i = 0; i < n && !failed; i++) tv += fabs(v->p[i] - v->q[i]) / 2;
  tv = failed || tv > 1 ? 1 : tv;
  v->sum[w] += tv;
  v->squares[w] += tv * tv;
  v->n[w]++;
  if (tv > m->certificate->tv_max) m->certificate->tv_max = tv;
  if (failed || find_best(row, shared, &other) == find_best(reference, shared, &margin)) return;
  v->flips[w]++;
  if (margin > v->margin) v->margin = margin;
}

/* Decodes the stretch at width w; keeps its rows or holds them against those that were kept. */
static int decode_width(measurement *m, variation *v, int32_t w, int32_t first, int keep) {
  int32_t width = m->certificate->widths[w];
  size_t vocab = (size_t)m->model->target.vocab;
  for (int32_t past = m->start, real; past < m->end; past += real) {
    real = past == m->start && first ? first : width;
    if (real > m->end - past) real = m->end - past;
    int code = measurement_call(m, width, width, past, real, 0);
    if (code) return code;
    for (int32_t i = 0; i < real; i++) {
      float *kept = v->rows + (size_t)(past + i - m->start) * vocab;
      const float *row = m->io.logits + (size_t)i * vocab;
      if (keep)
        memcpy(kept, row, vocab * sizeof *row);
      else
        compare_rows(m, v, w, row, kept);
    }
  }
  return SPECC_OK;
}

/* Whether a width's rows may differ from the reference's: of those that a session may use, one of each class.
 */
static bool may_differ(const measurement *m, int32_t w) {
  if (m->broken[w]) return true;
  if (m->signature[w] == m->signature[m->reference]) return false;
  for (int32_t other = 0; other < w; other++)
    if (!m->broken[other] && m->signature[other] == m->signature[w]) return false;
  return true;
}

static int decode_stretch(measurement *m, variation *v, int32_t s) {
  int32_t context = m->model->context;
  m->start = STRETCHES > 1 ? (int32_t)((int64_t)(context - v->length) * s / (STRETCHES - 1)) : 0;
  m->end = m->start + v->length;
  m->shift = s * STEP;
  int code = measurement_prefill(m, 0);
  if (!code) code = decode_width(m, v, m->reference, 0, 1);
  for (int32_t w = 0; w <= m->reference && !code; w++)
    if (may_differ(m, w))
      code = decode_width(m, v, w, m->broken[w] && m->certificate->widths[w] > 1 ? 1 : 0, 0);
  m->shift = 0;
  return code;
}

static double bound_mean(const variation *v, int32_t w) {
  const double log_2000 = 7.600902459542082;
  double n = (double)v->n[w];
  if (n < 2) return v->n[w] ? 1 : 0;
  double mean = v->sum[w] / n, variance = (v->squares[w] - n * mean * mean) / (n - 1);
  double b = mean + sqrt(2 * (variance > 0 ? variance : 0) * log_2000 / n) + 7 * log_2000 / (3 * (n - 1));
  return b < 1 ? b : 1;
}

static void conclude(measurement *m, const variation *v) {
  specc_certificate *c = m->certificate;
  double worst = 0, second = 0;
  for (int32_t w = 0; w <= m->reference; w++) {
    double b = bound_mean(v, w);
    if (b > worst)
      second = worst, worst = b;
    else if (b > second)
      second = b;
    if (v->n[w] > c->tv_rows) c->tv_rows = v->n[w];
    if (v->flips[w] > c->flips) c->flips = v->flips[w];
  }
  c->flip_margin = v->margin;
  c->tv_mean = worst + second < 1 ? worst + second : 1;
}

int measure_variation(measurement *m) {
  bool any = false;
  for (int32_t w = 0; w <= m->reference; w++) any = any || may_differ(m, w);
  if (!any) return SPECC_OK;
  variation v = {.length = (m->options->bounded_rows > 0 ? m->options->bounded_rows : ROWS) / STRETCHES};
  if (v.length > m->model->context) v.length = m->model->context;
  if (v.length < 1) v.length = 1;
  size_t n = (size_t)m->model->n_ids;
  v.rows = malloc((size_t)v.length * (size_t)m->model->target.vocab * sizeof *v.rows);
  v.p = malloc(2 * n * sizeof *v.p);
  int code = v.rows && v.p
                 ? SPECC_OK
                 : specc_error(SPECC_E_MEMORY, "no memory to compare %d rows of two widths", v.length);
  v.q = v.p ? v.p + n : NULL;
  for (int32_t s = 0; s < STRETCHES && !code; s++) code = decode_stretch(m, &v, s);
  if (!code) conclude(m, &v);
  free(v.rows);
  free(v.p);
  return code;
}
