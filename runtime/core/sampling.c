/* sampling.c - draws: uniforms, inverse of the running sum, exponential race, and the acceptance rules. */
#include "sampling.h"
#include "internal.h"
#include "row_math.h"

void specc_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4]) {
  memcpy(out, counter, 4 * sizeof *out);
  philox((uint32_t)seed, (uint32_t)(seed >> 32), out);
}

double specc_exp(double x) {
  if (x != x) return x;
  if (x > 709.0) return INFINITY;
  return x <= 0 ? exp_negative(x) : 1.0 / exp_negative(-x);
}

double specc_log(double x) {
  if (x != x || x < 0) return NAN;
  if (x == 0) return -INFINITY;
  if (x > 1.7976931348623157e308) return x;
  if (x < 2.2250738585072014e-308) return log_positive(x * 18014398509481984.0) - 54 * 0.6931471805599453;
  return log_positive(x);
}

double noise_uniform(noise n, int32_t position, enum purpose purpose) {
  uint32_t index = 0;
#ifdef SPECC_CONTROLS
  static _Atomic uint32_t shared;
  if (SPECC_FAULT(shared_random)) index = atomic_fetch_add(&shared, 1);
#endif
  return uniform_at(n.seed, n.sample, position, purpose, index);
}

int32_t draw_inverse(const double *weight, int32_t n, double u, double *block) {
  for (int32_t b = 0; b < (n + 63) / 64; b++) block[b] = sum_block(weight, n, b);
  return search_blocks(weight, n, u, block);
}

/* Numbers of the race for ids first .. first + 64. */
SPECC_CLONES static void race_numbers(int32_t first, uint64_t seed, uint32_t sample, int32_t position, double *u) {
  for (int i = 0; i < 32; i++) race_pair(seed, sample, position, PURPOSE_RACE, (uint32_t)first / 2 + (uint32_t)i, u + 2 * i);
}

/* Whether any of 64 could arrive before `best`: -log u is at least 1 - u, so most blocks need no logarithm. */
SPECC_CLONES static int race_possible(const double *p, const double *u, double best) {
  int possible = 0;
  for (int i = 0; i < 64; i++) possible |= 1.0 - u[i] < best * p[i] * (1 + 1e-9);
  return possible;
}

SPECC_CLONES static void race_times(const double *p, const double *u, double *time) {
  for (int i = 0; i < 64; i++) time[i] = race_time(u[i], p[i]);
}

static int any_positive(const double *p, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; i++) sum += p[i];
  return sum > 0;
}

typedef struct race { noise noise; int32_t position, winner; double best; } race;

/* Ids first .. first + 64 join; rates [64] are 0 for ids that take no part. */
static void race_block(race *r, const double *rates, int32_t first) {
  double u[64], time[64];
  race_numbers(first, r->noise.seed, r->noise.sample, r->position, u);
  if (r->winner >= 0 && !race_possible(rates, u, r->best)) return;
  race_times(rates, u, time);
  for (int32_t i = 0; i < 64; i++)
    if (time[i] < r->best) { r->best = time[i]; r->winner = first + i; }
}

/* The same race over the ids of a reduced vocabulary: their noise is the ids', not the columns'. */
static void race_mapped(race *r, const double *p, const int32_t *ids, int32_t n) {
  double rates[64];
  for (int32_t c = 0; c < n;) {
    int32_t first = ids[c] / 64 * 64;
    memset(rates, 0, sizeof rates);
    for (; c < n && ids[c] < first + 64; c++) rates[ids[c] - first] = p[c];
    if (any_positive(rates, 64)) race_block(r, rates, first);
  }
}

int32_t draw_race(const double *p, const int32_t *ids, int32_t n, noise noise, int32_t position) {
  race r = {noise, position, -1, INFINITY};
  double tail[64] = {0};
  if (ids) { race_mapped(&r, p, ids, n); return r.winner; }
  for (int32_t first = 0; first < n; first += 64) {
    int32_t m = n - first < 64 ? n - first : 64;
    if (!any_positive(p + first, m)) continue;
    if (m < 64) memcpy(tail, p + first, (size_t)m * sizeof *tail);
    race_block(&r, m < 64 ? tail : p + first, first);
  }
  return r.winner;
}

int32_t draw(const double *p, const int32_t *ids, int32_t n, int rule, noise noise, int32_t position, enum purpose purpose, double *block) {
  if (rule == SPECC_RULE_COUPLED) return draw_race(p, ids, n, noise, position);
  int32_t at = draw_inverse(p, n, noise_uniform(noise, position, purpose), block);
  return ids && at >= 0 ? ids[at] : at;
}

/* (p - q)+ into r; returns its sum. Outside a map q is zero, so that p stays there whole. */
SPECC_CLONES static double residual(const double *p, drawn x, int32_t n, double *r) {
  const double *q = x.q;
  double lanes[16] = {0}, sum = 0;
  if (!q || x.map) memcpy(r, p, (size_t)n * sizeof *r);
  if (!q) {
    r[x.token] = 0;
  } else if (x.map) {
    for (int32_t c = 0; c < x.map->n; c++) { int32_t i = x.map->ids[c]; double d = p[i] - q[c]; r[i] = d > 0 ? d : 0; }
  } else {
    for (int32_t i = 0; i < n; i++) { double d = p[i] - q[i]; r[i] = d > 0 ? d : 0; }
  }
  for (int32_t i = 0; i < n; i++) lanes[i & 15] += r[i];
  for (int i = 0; i < 16; i++) sum += lanes[i];
  return sum;
}

#ifdef SPECC_CONTROLS
static int32_t largest(const double *p, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++) if (p[i] > p[best]) best = i;
  return best;
}
#endif

int judge(workspace *w, const double *p, drawn x, int rule, noise noise, int32_t position, int32_t *token) {
  if (rule == SPECC_RULE_COUPLED) return (*token = draw_race(p, NULL, w->n_ids, noise, position)) == x.token;
  double u = noise_uniform(noise, position, PURPOSE_ACCEPT);
  double q = !x.q ? 1.0 : x.q[x.map ? x.map->column[x.token] : x.token];
  *token = x.token;
  if (u * q < p[x.token]) return 1;
#ifdef SPECC_CONTROLS
  if (SPECC_FAULT(argmax_replacement)) { *token = largest(p, w->n_ids); return 0; }
  if (SPECC_FAULT(no_residual)) { *token = draw_inverse(p, w->n_ids, noise_uniform(noise, position, PURPOSE_TARGET), w->block); return 0; }
#endif
  if (!(residual(p, x, w->n_ids, w->residual) > 0)) return 1;
  *token = draw_inverse(w->residual, w->n_ids, noise_uniform(noise, position, PURPOSE_TARGET), w->block);
  return 0;
}
