/* certify.c - the judge of widths: replays known text through the target in every way a session may, and compares rows.
 *
 * A window is a stretch of positions. Its reference is each position's row at the reference width, the smallest that
 * holds K+1 rows. A pass replays the window at one width: `real` rows of a call are the text, later rows are random ids,
 * and everything at and behind the window's first slot is poisoned before the pass. Offset passes put every position at
 * every slot of a width (a few slots for the prefill chunk and for widths that no round of K + 1 rows uses); random passes
 * roll back by random lengths; mixed passes change the width from call to call; a pass on a fresh cache repeats the reference.
 * Rows are compared by all their bits. */
#include "arithmetic.h"
#include "internal.h"
#include "sampling.h"
#include <math.h>

#define WINDOW 34                  /* default positions per window: covers past 0, 1 and 31 to 33 */
#define WINDOWS 4
#define TIMES 21

typedef struct measure {
  specc_model *model;
  const specc_certify_options *o;
  specc_certificate *c;
  void *cache, *fresh;
  specc_io io, fresh_io;
  int32_t reference;               /* index of the reference width */
  int32_t start, end, window;      /* positions of the window under way */
  uint64_t *own;                   /* [n_widths][window] hash of each position's row at a width, 0 unknown */
  uint64_t signature[SPECC_MAX_WIDTHS];
  int32_t broken[SPECC_MAX_WIDTHS];   /* rows of one width that disagree with each other */
  int32_t mixed_broken;
  float *rows;                     /* [window][vocab] reference rows */
  double *p, *q;                   /* [vocab] for total variation */
  double tv_sum[SPECC_MAX_WIDTHS], tv_squares[SPECC_MAX_WIDTHS];
  int64_t tv_n[SPECC_MAX_WIDTHS], done, expected;
  uint32_t counter;                /* of random numbers */
  double times[SPECC_MAX_WIDTHS][TIMES];
  int32_t n_times[SPECC_MAX_WIDTHS];
} measure;

static uint32_t next_random(measure *m, uint32_t below) {
  uint32_t c[4] = {m->counter++, 0, 0, 0}, out[4];
  specc_philox(m->o->seed, c, out);
  return (uint32_t)(((uint64_t)out[0] * below) >> 32);
}

static int64_t text_at(const measure *m, int32_t position) { return m->o->tokens[position % m->o->n_tokens]; }

/* Eight lanes of multiply and xor over all bits of a row; 0 is kept for "unknown". */
SPECC_CLONES static uint64_t hash_row(const float *row, int32_t n) {
  uint64_t lane[8], h = 0x9e3779b97f4a7c15ull;
  for (int i = 0; i < 8; i++) lane[i] = h * (uint64_t)(i + 1);
  for (int32_t i = 0; i < n; i++) {
    uint32_t b;
    memcpy(&b, row + i, sizeof b);
    lane[i & 7] = (lane[i & 7] ^ b) * 0xff51afd7ed558ccdull;
    lane[i & 7] ^= lane[i & 7] >> 29;
  }
  for (int i = 0; i < 8; i++) h = (h ^ lane[i]) * 0xc4ceb9fe1a85ec53ull, h ^= h >> 32;
  return h ? h : 1;
}

static int all_finite(const float *row, int32_t n) {
  int32_t bad = 0;
  for (int32_t i = 0; i < n; i++) bad += !(row[i] <= 3.4028235e38f);
  return !bad;
}

/* One call at `past`: the first `real` rows are the text. On the fresh cache where asked. */
static int call(measure *m, int32_t width, int32_t n_logits, int32_t past, int32_t real, int fresh) {
  const specc_model *model = m->model;
  specc_io *io = fresh ? &m->fresh_io : &m->io;
  for (int32_t i = 0; i < width; i++) {
    io->input_ids[i] = i < real ? text_at(m, past + i) : (int64_t)next_random(m, (uint32_t)model->n_ids);
    io->position[i] = past + i < model->context ? past + i : model->context - 1;
    io->logit_rows[i] = i;
  }
  *io->past_len = past;
  m->c->calls++;
  if (m->o->progress && m->o->progress(m->o->user, m->done < m->expected ? m->done++ : m->done, m->expected))
    return specc_error(SPECC_E_BUSY, "the certificate was cancelled after %lld calls; the old one stays in force", (long long)m->c->calls);
  return model->target.run(fresh ? m->fresh : m->cache, width, n_logits);
}

static int prefill(measure *m, int fresh) {
  int32_t chunk = m->model->chunk;
  for (int32_t past = 0; past < m->start; past += chunk) {
    int code = call(m, chunk, 1, past, m->start - past < chunk ? m->start - past : chunk, fresh);
    if (code) return code;
  }
  return SPECC_OK;
}

static int poison(measure *m, int32_t past) {
  static const float values[] = {NAN, INFINITY, 1e38f, -1e38f, 0.0f};
  if (!m->model->target.poison) return SPECC_OK;
  return m->model->target.poison(m->cache, past, values[next_random(m, 5)]);
}

static void softmax(const float *row, int32_t n, double *p) {
  double top = -INFINITY, sum = 0;
  for (int32_t i = 0; i < n; i++) top = (double)row[i] > top ? (double)row[i] : top;
  for (int32_t i = 0; i < n; i++) sum += p[i] = exp_negative((double)row[i] - top);
  for (int32_t i = 0; i < n; i++) p[i] /= sum;
}

/* How far a row that differs is from the reference: largest logit difference, total variation at temperature 1. */
static void record_difference(measure *m, int32_t w, int32_t at, const float *row) {
  int32_t n = m->model->target.vocab;
  const float *reference = m->rows + (size_t)at * (size_t)n;
  double most = m->c->max_abs_diff[w], tv = 0;
  for (int32_t i = 0; i < n; i++) {
    double d = fabs((double)row[i] - (double)reference[i]);
    most = d > most || d != d ? d : most;
  }
  m->c->max_abs_diff[w] = most;
  m->c->rows_different[w]++;
  softmax(row, n, m->p);
  softmax(reference, n, m->q);
  for (int32_t i = 0; i < n; i++) tv += fabs(m->p[i] - m->q[i]) / 2;
  m->tv_sum[w] += tv;
  m->tv_squares[w] += tv * tv;
  m->c->tv_max = tv > m->c->tv_max ? tv : m->c->tv_max;
}

/* Judges row `slot` of the last call, which stands at `position`. mixed: against the reference only. */
static void compare(measure *m, int32_t w, int32_t position, const float *row, int mixed) {
  int32_t at = position - m->start, vocab = m->model->target.vocab;
  uint64_t h = hash_row(row, vocab), *own = &m->own[w * m->window + at], reference = m->own[m->reference * m->window + at];
  m->c->rows_compared++;
  m->tv_n[w]++;
  if (!all_finite(row, vocab)) { m->broken[w]++; m->c->rows_different[w]++; m->tv_sum[w] += 1; m->tv_squares[w] += 1; return; }
  if (w == m->reference && !reference) memcpy(m->rows + (size_t)at * (size_t)vocab, row, (size_t)vocab * sizeof *row);
  if (SPECC_FAULT(numerics_unchecked)) h = reference ? reference : h;
  if (!*own) *own = h;
  else if (*own != h) m->broken[w]++;
  if (mixed && h != reference) m->mixed_broken++;
  if (reference && h != reference) record_difference(m, w, at, row);
}

/* Replays the window at width w, `first` rows in the first call, then all of them; random: 1..width rows in each call;
 * w < 0: a random width of those that agree with the reference so far. */
static int replay(measure *m, int32_t w, int32_t first, int random, int clean, int fresh) {
  const specc_io *io = fresh ? &m->fresh_io : &m->io;
  int mixed = w < 0;
  for (int32_t past = m->start, real; past < m->end; past += real) {
    if (mixed && m->broken[m->reference]) return SPECC_OK;
    if (mixed) do w = (int32_t)next_random(m, (uint32_t)m->c->n_widths); while (m->broken[w] || m->c->rows_different[w]);
    int32_t width = m->c->widths[w], most = random ? 1 + (int32_t)next_random(m, (uint32_t)width) : past == m->start && first ? first : width;
    real = most < m->end - past ? most : m->end - past;
    int code = clean || past > m->start ? SPECC_OK : poison(m, past);   /* once: what a pass does not overwrite stays poisoned */
    if (code) return code;
    if ((code = call(m, width, width, past, real, fresh))) return code;
    for (int32_t i = 0; i < real; i++) compare(m, w, past + i, io->logits + (size_t)i * (size_t)m->model->target.vocab, mixed);
  }
  return SPECC_OK;
}

/* The reference first, twice, the second time on a fresh cache; then every width at every slot; then at random. */
static int measure_window(measure *m) {
  int code = prefill(m, 0);
  if (!code) code = prefill(m, 1);
  if (!code) code = replay(m, m->reference, 0, 0, 1, 0);
  if (!code) code = replay(m, m->reference, 0, 0, 1, 1);
  for (int32_t w = 0; w < m->c->n_widths && !code; w++) {
    int32_t width = m->c->widths[w], stride = width > m->window / 2 ? m->window / 3 + 1 : width > m->model->k_max + 1 ? width / 4 + 1 : 1;
    for (int32_t first = 0; first < width && first < m->window && !code; first += stride) code = replay(m, w, first, 0, 0, 0);
    for (int i = 0; i < 2 && !code && width <= m->window; i++) code = replay(m, w, 0, 1, 0, 0);
  }
  for (int i = 0; i < 2 && !code && !m->broken[m->reference]; i++) code = replay(m, -1, 0, 1, 0, 0);
  return code;
}

static void sign_window(measure *m) {
  for (int32_t w = 0; w < m->c->n_widths; w++)
    for (int32_t i = 0; i < m->window; i++)
      m->signature[w] = (m->signature[w] ^ m->own[w * m->window + i]) * 0xff51afd7ed558ccdull + 1;
}

/* Windows at the start, over the prefill chunk's edge, in the middle, and up to the last position. */
static int measure_windows(measure *m) {
  int32_t context = m->model->context, chunk = m->model->chunk, window = m->window;
  int32_t starts[WINDOWS] = {0, chunk - window / 3, context / 2 - window / 2, context - window}, before = -1;
  for (int i = 0; i < WINDOWS; i++) {
    if (starts[i] <= before || starts[i] + window > context) continue;
    m->start = before = starts[i];
    m->end = m->start + window;
    memset(m->own, 0, (size_t)m->c->n_widths * (size_t)window * sizeof *m->own);
    int code = measure_window(m);
    if (code) return code;
    sign_window(m);
  }
  return SPECC_OK;
}

/* Calls as decoding makes them, one after the other, widths in turn, in the middle of the context. The prefill chunk, of
 * which nothing but its own time depends, is timed less often. */
static int measure_times(measure *m) {
  int32_t past = m->model->context / 2;
  m->start = past;
  int code = prefill(m, 0);
  for (int i = 0; i < TIMES && !code; i++)
    for (int32_t w = 0; w < m->c->n_widths && !code; w++) {
      int32_t width = m->c->widths[w];
      if (width > m->model->k_max + 1 && i % 7) continue;
      double begin = specc_now();
      code = call(m, width, width, past, 1, 0);
      m->times[w][m->n_times[w]++] = (specc_now() - begin) * 1e3;
    }
  return code;
}

static double median(double *v, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0 && v[j] < v[j - 1]; j--) { double t = v[j]; v[j] = v[j - 1]; v[j - 1] = t; }
  return n ? v[n / 2] : 0;
}

/* Empirical Bernstein bound (Maurer and Pontil 2009, theorem 4): with probability 0.999 the mean of n values in [0, 1] is
 * below their average + sqrt(2 variance ln 2000 / n) + 7 ln 2000 / (3 (n - 1)). */
static double worst_mean(const measure *m) {
  const double log_2000 = 7.600902459542082;
  double worst = 0;
  for (int32_t w = 0; w < m->c->n_widths; w++) {
    double n = (double)m->tv_n[w], mean = n > 0 ? m->tv_sum[w] / n : 1, bound = 1;
    double variance = n > 1 ? (m->tv_squares[w] - n * mean * mean) / (n - 1) : 0;
    if (n > 1) bound = mean + sqrt(2 * (variance > 0 ? variance : 0) * log_2000 / n) + 7 * log_2000 / (3 * (n - 1));
    if (bound > worst) worst = bound;
  }
  return worst < 1 ? worst : 1;
}

/* Widths to classes; the law's class is the reference's, its width the cheapest member (3 % decide nothing). */
static void conclude(measure *m) {
  specc_certificate *c = m->c;
  for (int32_t w = 0; w < c->n_widths; w++) {
    c->call_ms[w] = median(m->times[w], m->n_times[w]);
    c->width_class[w] = m->broken[w] ? -1 : w;
    for (int32_t v = 0; v < w && !m->broken[w]; v++)
      if (!m->broken[v] && m->signature[v] == m->signature[w]) { c->width_class[w] = c->width_class[v]; break; }
  }
  int32_t law = c->width_class[m->reference], best = m->reference;
  c->law_hash = m->signature[m->reference];
  c->tv_mean = worst_mean(m);
  if (law < 0 || m->mixed_broken) {
    c->kind = SPECC_CERT_BOUNDED;
    c->reasons = SPECC_R_NUMERICS;
    c->law_width = c->widths[m->reference];
    return;
  }
  for (int32_t w = m->reference - 1; w >= 0; w--)
    if (c->width_class[w] == law && c->call_ms[w] < 1.03 * c->call_ms[best]) best = w;
  c->kind = SPECC_CERT_BIT_EXACT;
  c->law_width = c->widths[best];
  c->tv_mean = c->tv_max = 0;
}

static int prepare(measure *m, specc_model *model, const specc_certify_options *o, specc_certificate *c) {
  memset(c, 0, sizeof *c);
  c->n_widths = model->target.n_widths;
  c->threads = model->threads;
  memcpy(c->widths, model->target.widths, sizeof c->widths);
  m->model = model; m->o = o; m->c = c;
  m->window = o->window > 0 ? o->window : WINDOW;
  if (m->window > model->context) m->window = model->context;
  for (m->reference = 0; m->reference < c->n_widths - 1 && c->widths[m->reference] <= model->k_max;) m->reference++;
  for (int32_t w = 0; w < c->n_widths; w++) m->expected += WINDOWS * (m->window + 3 * (m->window / c->widths[w] + 1));
  size_t vocab = (size_t)model->target.vocab;
  m->own = calloc((size_t)c->n_widths * (size_t)m->window, sizeof *m->own);
  m->rows = malloc((size_t)m->window * vocab * sizeof *m->rows);
  m->p = malloc(vocab * sizeof *m->p);
  m->q = malloc(vocab * sizeof *m->q);
  if (!m->own || !m->rows || !m->p || !m->q) return specc_error(SPECC_E_MEMORY, "no memory for a certificate over %d positions", m->window);
  int code = model->target.open(model->target.self, &m->cache, &m->io);
  return code ? code : model->target.open(model->target.self, &m->fresh, &m->fresh_io);
}

int specc_certify(specc_model *model, const specc_certify_options *o, specc_certificate *certificate) {
  if (!model || !o || !certificate || !o->tokens || o->n_tokens < 1)
    return specc_error(SPECC_E_ARGUMENT, "specc_certify needs a model, calibration ids, and a place for the certificate");
  for (int32_t i = 0; i < o->n_tokens; i++)
    if (o->tokens[i] < 0 || o->tokens[i] >= model->n_ids)
      return specc_error(SPECC_E_ARGUMENT, "calibration id %d at place %d is out of range; ids are 0 to %d", o->tokens[i], i, model->n_ids - 1);
  measure *m = calloc(1, sizeof *m);
  if (!m) return specc_error(SPECC_E_MEMORY, "no memory for a certificate");
  uint64_t mode = enter_arithmetic();
  int code = prepare(m, model, o, certificate);
  if (!code) code = measure_windows(m);
  if (!code) code = measure_times(m);
  leave_arithmetic(mode);
  if (!code) conclude(m);
  if (m->cache) model->target.close(m->cache);
  if (m->fresh) model->target.close(m->fresh);
  free(m->own); free(m->rows); free(m->p); free(m->q);
  free(m);
  return code;
}
