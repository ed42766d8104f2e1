/* certify.c - a certificate: windows of positions are replayed at every width (replay.c), widths that agree
 * bit for bit form a class, calls are timed, and the law's width is the cheapest of its class. */
#include "core/certify/replay.h"
#include "core/certify/variation.h"
#include "core/io/clock.h"
#include "core/io/error.h"
#include "core/numbers/arithmetic.h"
#include "specc_judge.h"
#include <stdbool.h>
#include <stdlib.h>

#define WINDOW 34 /* default positions per window: covers past 0, 1 and 31 to 33 */
#define WINDOWS 4

static void add_signatures(measurement *m) {
  for (int32_t w = 0; w < m->certificate->n_widths; w++)
    for (int32_t i = 0; i < m->window; i++)
      m->signature[w] = (m->signature[w] ^ m->hashes[w * m->window + i]) * 0xff51afd7ed558ccdull + 1;
}

/* Windows at the start, over the prefill chunk's edge, in the middle, and up to the last position. */
static int measure_windows(measurement *m) {
  int32_t context = m->model->context, chunk = m->model->chunk, window = m->window;
  int32_t starts[WINDOWS] = {0, chunk - window / 3, context / 2 - window / 2, context - window}, before = -1;
  for (int i = 0; i < WINDOWS; i++) {
    if (starts[i] <= before || starts[i] + window > context) continue;
    m->start = before = starts[i];
    m->end = m->start + window;
    memset(m->hashes, 0, (size_t)m->certificate->n_widths * (size_t)window * sizeof *m->hashes);
    int code = replay_window(m, i % 2 == 0);
    if (code) return code;
    add_signatures(m);
  }
  return SPECC_OK;
}

/* Calls as decoding makes them, one after the other, widths in turn, in the middle of the context. The
 * prefill chunk, of which nothing but its own time depends, is timed less often. */
static int measure_times(measurement *m) {
  int32_t past = m->model->context / 2;
  m->start = past;
  int code = measurement_prefill(m, 0);
  for (int i = 0; i < TIMES && !code; i++)
    for (int32_t w = 0; w < m->certificate->n_widths && !code; w++) {
      int32_t width = m->certificate->widths[w];
      if (width > m->model->k_max + 1 && i % 7) continue;
      double begin = specc_now();
      code = measurement_call(m, width, width, past, 1, 0);
      m->times[w][m->n_times[w]++] = (specc_now() - begin) * 1e3;
    }
  return code;
}

static double find_median(double *v, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0 && v[j] < v[j - 1]; j--) {
      double t = v[j];
      v[j] = v[j - 1];
      v[j - 1] = t;
    }
  return n ? v[n / 2] : 0;
}

/* Widths to classes. A chunk whose caches depend on how a prompt was cut stands alone. */
static void find_classes(measurement *m) {
  specc_certificate *c = m->certificate;
  int32_t chunk = c->n_widths - 1;
  for (int32_t w = 0; w < c->n_widths; w++) {
    c->width_class[w] = m->broken[w] ? -1 : w;
    for (int32_t v = 0; v < w && !m->broken[w]; v++)
      if (!m->broken[v] && m->signature[v] == m->signature[w]) {
        c->width_class[w] = c->width_class[v];
        break;
      }
  }
  if (m->segment_broken && c->width_class[chunk] >= 0 && chunk != m->reference) c->width_class[chunk] = chunk;
}

static bool is_exact(const measurement *m) {
  return m->certificate->width_class[m->reference] >= 0 && !m->mixed_broken && !m->certificate->unrepeatable;
}

/* The law's class is the reference's, its width the cheapest member (3 % decide nothing). */
static void conclude(measurement *m) {
  specc_certificate *c = m->certificate;
  for (int32_t w = 0; w < c->n_widths; w++) c->call_ms[w] = find_median(m->times[w], m->n_times[w]);
  int32_t law = c->width_class[m->reference], best = m->reference;
  c->law_hash = m->signature[m->reference];
  if (!is_exact(m)) {
    c->kind = SPECC_CERT_BOUNDED;
    c->reasons = SPECC_R_NUMERICS;
    c->law_width = c->widths[m->reference];
    return;
  }
  for (int32_t w = m->reference - 1; w >= 0; w--)
    if (c->width_class[w] == law && c->call_ms[w] < 1.03 * c->call_ms[best]) best = w;
  c->kind = SPECC_CERT_BIT_EXACT;
  c->law_width = c->widths[best];
}

static int prepare(measurement *m, specc_model *model, const specc_certify_options *o, specc_certificate *c) {
  memset(c, 0, sizeof *c);
  c->n_widths = model->target.n_widths;
  c->threads = model->threads;
  memcpy(c->widths, model->target.widths, sizeof c->widths);
  m->model = model;
  m->options = o;
  m->certificate = c;
  m->window = o->window > 0 ? o->window : WINDOW;
  if (m->window > model->context) m->window = model->context;
  for (m->reference = 0; m->reference < c->n_widths - 1 && c->widths[m->reference] <= model->k_max;)
    m->reference++;
  for (int32_t w = 0; w < c->n_widths; w++)
    m->expected += WINDOWS * (m->window + 3 * (m->window / c->widths[w] + 1));
  size_t vocab = (size_t)model->target.vocab;
  m->hashes = calloc((size_t)c->n_widths * (size_t)m->window, sizeof *m->hashes);
  m->rows = malloc((size_t)m->window * vocab * sizeof *m->rows);
  m->call_hashes = malloc((size_t)c->widths[c->n_widths - 1] * sizeof *m->call_hashes);
  if (!m->hashes || !m->rows || !m->call_hashes)
    return specc_error(SPECC_E_MEMORY, "no memory for a certificate over %d positions", m->window);
  int code = model->target.open(model->target.self, &m->cache, &m->io);
  return code ? code : model->target.open(model->target.self, &m->fresh, &m->fresh_io);
}

int specc_certify(specc_model *model, const specc_certify_options *o, specc_certificate *certificate) {
  if (!model || !o || !certificate || !o->tokens || o->n_tokens < 1)
    return specc_error(
        SPECC_E_ARGUMENT, "specc_certify needs a model, calibration ids, and a place for the certificate");
  for (int32_t i = 0; i < o->n_tokens; i++)
    if (o->tokens[i] < 0 || o->tokens[i] >= model->n_ids)
      return specc_error(SPECC_E_ARGUMENT, "calibration id %d at place %d is out of range; ids are 0 to %d",
          o->tokens[i], i, model->n_ids - 1);
  int refused = model_check_process(model);
  if (refused) return refused;
  measurement *m = calloc(1, sizeof *m);
  if (!m) return specc_error(SPECC_E_MEMORY, "no memory for a certificate");
  uint64_t mode = enter_arithmetic();
  int code = prepare(m, model, o, certificate);
  if (!code) code = measure_windows(m);
  if (!code) find_classes(m);
  if (!code && (o->bounded || !is_exact(m))) code = measure_variation(m);
  if (!code) code = measure_times(m);
  if (!code) conclude(m);
  leave_arithmetic(mode);
  if (m->cache) model->target.close(m->cache);
  if (m->fresh) model->target.close(m->fresh);
  free(m->hashes);
  free(m->rows);
  free(m->call_hashes);
  free(m);
  return code;
}
