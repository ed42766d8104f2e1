/* replay.c - replays known text through the target in every way a session may, and compares rows.
 *
 * A window is a stretch of positions. Its reference is each position's row at the reference width, the
 * smallest that holds K+1 rows. A pass replays the window at one width: `real` rows of a call are the text,
 * later rows are random ids, and everything at and behind the window's first slot is poisoned before the
 * pass. Offset passes put every position at every slot of a width (a few slots for the prefill chunk and for
 * widths that no round of K + 1 rows uses); rollback passes keep 1, 2, ... rows of each call, random passes a
 * random number; mixed passes change the width from call to call; a pass on a fresh cache repeats the
 * reference, another one on a cache that was filled in other pieces. Rows are compared by all their bits. A
 * call that disagrees is made again twice as it was: this tells an engine that is not reproducible from one
 * whose rows depend on the slot. */
#include "core/certify/replay.h"
#include "core/numbers/clones.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PIECES 600 /* the cache is filled again in small pieces only for windows that start at most here */

/* What a row is compared with: its own width's, the reference, the other cache. */
enum against { OWN_WIDTH, MIXED, SEGMENTS };

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

static int poison(measurement *m, int32_t past) {
  static const float values[] = {NAN, INFINITY, 1e38f, -1e38f, 0.0f};
  if (!m->model->target.poison) return SPECC_OK;
  return m->model->target.poison(m->cache, past, values[measurement_random(m, 5)]);
}

/* ------------------------------------------------------------------ one row */
__attribute__((format(printf, 3, 4))) static void note_evidence(
    measurement *m, enum evidence kind, const char *format, ...) {
  if (kind <= m->evidence) return;
  m->evidence = kind;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(m->certificate->evidence, sizeof m->certificate->evidence, format, arguments);
  va_end(arguments);
}

static double find_largest_difference(const float *a, const float *b, int32_t n) {
  double most = 0;
  for (int32_t i = 0; i < n; i++) {
    double d = fabs((double)a[i] - (double)b[i]);
    most = d > most || d != d ? d : most;
  }
  return most;
}

static void record_difference(measurement *m, int32_t w, int32_t at, const float *row) {
  int32_t n = m->model->target.vocab;
  double most = find_largest_difference(row, m->rows + (size_t)at * (size_t)n, n);
  if (!(most <= m->certificate->max_abs_diff[w])) m->certificate->max_abs_diff[w] = most;
  m->certificate->rows_different[w]++;
  note_evidence(m, OTHER_WIDTH, "position %d at width %d differs from width %d by up to %.3g", m->start + at,
      m->certificate->widths[w], m->certificate->widths[m->reference], most);
}

/* Judges row `slot` of the last call, which stands at `position`; 1: it disagrees with what was seen before.
 */
static int compare_row(
    measurement *m, int32_t w, int32_t slot, int32_t position, const float *row, enum against against) {
  int32_t at = position - m->start, vocab = m->model->target.vocab;
  uint64_t h = hash_row(row, vocab), *known = &m->hashes[w * m->window + at],
           reference = m->hashes[m->reference * m->window + at];
  m->call_hashes[slot] = h;
  m->certificate->rows_compared++;
  if (!is_finite_row(row, vocab)) {
    m->broken[w]++, m->certificate->rows_different[w]++;
    note_evidence(m, NOT_FINITE,
        "width %d gives a value that is not finite at position %d, slot %d (call %lld)",
        m->certificate->widths[w], position, slot, (long long)m->certificate->calls);
    return 1;
  }
  if (w == m->reference && !reference)
    memcpy(m->rows + (size_t)at * (size_t)vocab, row, (size_t)vocab * sizeof *row);
  if (against == SEGMENTS) return h != reference ? m->segment_broken++, 1 : 0;
  int disagrees = 0, first = !m->certificate->rows_different[w];
  if (!*known)
    *known = h;
  else if (*known != h) {
    m->broken[w]++, disagrees = 1;
    note_evidence(m, OTHER_SLOT,
        "position %d at slot %d of width %d is not what it was at another slot or beside other rows (call "
        "%lld)",
        position, slot, m->certificate->widths[w], (long long)m->certificate->calls);
  }
  if (against == MIXED && h != reference) m->mixed_broken++, disagrees = 1;
  if (reference && h != reference) record_difference(m, w, at, row), disagrees |= first;
  return disagrees;
}

/* Repeats the last call twice, unchanged: rows that differ now are not reproducible. */
static int repeat_call(measurement *m, int32_t width, int32_t real, int fresh) {
  const specc_io *io = fresh ? &m->fresh_io : &m->io;
  int32_t vocab = m->model->target.vocab, changed = -1;
  for (int i = 0; i < 2 && changed < 0; i++) {
    int code = m->model->target.run(fresh ? m->fresh : m->cache, width, width);
    if (code) return code;
    for (int32_t j = 0; j < real; j++)
      if (hash_row(io->logits + (size_t)j * (size_t)vocab, vocab) != m->call_hashes[j]) changed = j;
  }
  if (changed < 0) return SPECC_OK;
  m->certificate->unrepeatable++;
  note_evidence(m, NOT_REPEATED,
      "the same call of %d rows at past %d gave other bits in row %d when it was repeated (call %lld)", width,
      *io->past_len, changed, (long long)m->certificate->calls);
  return SPECC_OK;
}

/* ------------------------------------------------------------------ passes */
/* Rows of the next call that are kept: all, so many (keep > 0), or a random number (keep < 0). */
static int32_t choose_kept_rows(measurement *m, int32_t width, int32_t keep) {
  if (keep < 0) return 1 + (int32_t)measurement_random(m, (uint32_t)width);
  return keep && keep < width ? keep : width;
}

/* A random width of those that agree with the reference so far. */
static int32_t choose_width(measurement *m) {
  int32_t w;
  do w = (int32_t)measurement_random(m, (uint32_t)m->certificate->n_widths);
  while (m->broken[w] || m->certificate->rows_different[w]);
  return w;
}

/* Replays the window at width w (w < 0: any that agrees), `first` rows in the first call (0: as later), then
 * `keep`. */
static int replay(
    measurement *m, int32_t w, int32_t first, int32_t keep, int clean, int fresh, enum against against) {
  const specc_io *io = fresh ? &m->fresh_io : &m->io;
  for (int32_t past = m->start, real; past < m->end; past += real) {
    if (against == MIXED && m->broken[m->reference]) return SPECC_OK;
    int32_t v = against == MIXED ? choose_width(m) : w, width = m->certificate->widths[v], disagrees = 0;
    int32_t most = past == m->start && first ? first : choose_kept_rows(m, width, keep);
    real = most < m->end - past ? most : m->end - past;
    int code = clean || past > m->start
                   ? SPECC_OK
                   : poison(m, past); /* once: what a pass does not overwrite stays poisoned */
    if (code) return code;
    if ((code = measurement_call(m, width, width, past, real, fresh))) return code;
    for (int32_t i = 0; i < real; i++)
      disagrees |=
          compare_row(m, v, i, past + i, io->logits + (size_t)i * (size_t)m->model->target.vocab, against);
    if (disagrees && (code = repeat_call(m, width, real, fresh))) return code;
  }
  return SPECC_OK;
}

/* Every width at every slot, after random rollbacks, and (thorough) after rollbacks of every length. */
static int replay_widths(measurement *m, int thorough) {
  int code = SPECC_OK;
  for (int32_t w = 0; w < m->certificate->n_widths && !code; w++) {
    int32_t width = m->certificate->widths[w], stride = width > m->window / 2         ? m->window / 3 + 1
                                                        : width > m->model->k_max + 1 ? width / 4 + 1
                                                                                      : 1;
    for (int32_t first = 0; first < width && first < m->window && !code; first += stride)
      code = replay(m, w, first, 0, 0, 0, OWN_WIDTH);
    for (int i = 0; i < 2 && !code && width <= m->window; i++) code = replay(m, w, 0, -1, 0, 0, OWN_WIDTH);
    for (int32_t keep = 1; keep < width && !code && thorough && w <= m->reference; keep++)
      code = replay(m, w, 0, keep, 0, 0, OWN_WIDTH);
  }
  return code;
}

/* The fresh cache filled again in pieces of random size at the reference width: the same rows behind it,
 * where the chunk is of the reference's class. */
static int replay_other_pieces(measurement *m) {
  int32_t chunk = m->certificate->n_widths - 1, width = m->certificate->widths[m->reference], code = SPECC_OK;
  if (m->start > PIECES || !m->start || m->broken[chunk] || m->certificate->rows_different[chunk])
    return SPECC_OK;
  for (int32_t past = 0, real; past < m->start && !code; past += real) {
    real = choose_kept_rows(m, width, -1);
    if (real > m->start - past) real = m->start - past;
    code = measurement_call(m, width, width, past, real, 1);
  }
  return code ? code : replay(m, m->reference, 0, 0, 1, 1, SEGMENTS);
}

/* The reference first, twice, the second time on a fresh cache; then every width; then widths at random. */
int replay_window(measurement *m, int thorough) {
  int code = measurement_prefill(m, 0);
  if (!code) code = measurement_prefill(m, 1);
  if (!code) code = replay(m, m->reference, 0, 0, 1, 0, OWN_WIDTH);
  if (!code) code = replay(m, m->reference, 0, 0, 1, 1, OWN_WIDTH);
  if (!code) code = replay_widths(m, thorough);
  for (int i = 0; i < 2 && !code && !m->broken[m->reference]; i++) code = replay(m, -1, 0, -1, 0, 0, MIXED);
  return code || m->broken[m->reference] ? code : replay_other_pieces(m);
}
