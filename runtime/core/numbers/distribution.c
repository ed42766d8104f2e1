/* distribution.c - one row of logits to p, all sampling options in the stated order. */
#include "core/io/error.h"
#include "core/numbers/clones.h"
#include "core/numbers/row_math.h"
#include "core/numbers/sampling.h"
#include "specc_judge.h"
#include <stdbool.h>
#include <stdlib.h>

int workspace_create(workspace *w, int32_t n_ids) {
  size_t n = (size_t)n_ids;
  memset(w, 0, sizeof *w);
  w->n_ids = n_ids;
  w->stamps = calloc(n, sizeof *w->stamps);
  w->counts = calloc(n, sizeof *w->counts);
  w->order = calloc(n, sizeof *w->order);
  w->bucket_count = calloc(BUCKETS, sizeof *w->bucket_count);
  w->bucket_mass = calloc(BUCKETS, sizeof *w->bucket_mass);
  w->residual = calloc(n, sizeof *w->residual);
  w->block = calloc(n / 64 + 1, sizeof *w->block);
  if (w->stamps && w->counts && w->order && w->bucket_count && w->bucket_mass && w->residual && w->block)
    return SPECC_OK;
  workspace_free(w);
  return specc_error(
      SPECC_E_MEMORY, "no memory for the sampler of %d ids; free memory or use a smaller vocabulary", n_ids);
}

void workspace_free(workspace *w) {
  free(w->stamps);
  free(w->counts);
  free(w->order);
  free(w->bucket_count);
  free(w->bucket_mass);
  free(w->residual);
  free(w->block);
  memset(w, 0, sizeof *w);
}

/* How many of n values are no logits; *top is the largest, found in lanes: a maximum has the same bits in any
 * order. */
SPECC_CLONES static int32_t scan_logits(const float *logits, int32_t n, float *top) {
  float lane[16];
  int32_t bad[16] = {0}, i = 0;
  for (int j = 0; j < 16; j++) lane[j] = -INFINITY;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) {
      float x = logits[i + j];
      bad[j] += !is_logit(x);
      lane[j] = x > lane[j] ? x : lane[j];
    }
  for (; i < n; i++) {
    bad[0] += !is_logit(logits[i]);
    lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
  }
  *top = lane[0];
  for (int j = 1; j < 16; j++) {
    *top = lane[j] > *top ? lane[j] : *top;
    bad[0] += bad[j];
  }
  return bad[0];
}

/* logits to doubles; ids without a logit get -infinity. */
SPECC_CLONES static void widen(const float *logits, int32_t n, int32_t n_ids, double *v) {
  for (int32_t i = 0; i < n; i++) v[i] = (double)logits[i];
  for (int32_t i = n; i < n_ids; i++) v[i] = -INFINITY;
}

/* Column of an id in a row, -1 if the row's map lacks it. */
static int32_t find_column(const row *r, int32_t id) {
  return r->map ? r->map->column[id] : id;
}

/* Applies the penalties to each id of the history once. */
static void penalise(workspace *w, const specc_options *o, const row *r, double *v) {
  uint32_t stamp = ++w->stamp;
  if (!stamp) {
    memset(w->stamps, 0, (size_t)w->n_ids * sizeof *w->stamps);
    stamp = w->stamp = 1;
  }
  for (int32_t i = 0; i < r->n_history; i++) {
    int32_t id = r->history[i];
    if (w->stamps[id] != stamp) {
      w->stamps[id] = stamp;
      w->counts[id] = 0;
    }
    w->counts[id] += i >= r->n_prompt;
  }
  for (int32_t i = 0; i < r->n_history; i++) {
    int32_t id = r->history[i];
    if (w->stamps[id] != stamp) continue;
    w->stamps[id] = stamp - 1; /* each id once */
    int32_t at = find_column(r, id);
    if (at >= 0)
      v[at] =
          penalised(v[at], w->counts[id], o->repetition_penalty, o->presence_penalty, o->frequency_penalty);
  }
}

SPECC_CLONES static double find_maximum(const double *v, int32_t n) {
  double lane[16], top;
  int32_t i = 0;
  for (int j = 0; j < 16; j++) lane[j] = -INFINITY;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) lane[j] = v[i + j] > lane[j] ? v[i + j] : lane[j];
  for (; i < n; i++) lane[0] = v[i] > lane[0] ? v[i] : lane[0];
  top = lane[0];
  for (int j = 1; j < 16; j++) top = lane[j] > top ? lane[j] : top;
  return top;
}

static void add_bias(const specc_options *o, const row *r, double *v) {
  for (int32_t i = 0; i < o->n_bias; i++) {
    int32_t at = find_column(r, o->bias_ids[i]);
    if (at >= 0) v[at] += o->bias_values[i];
  }
}

static int refuse_logits(const row *r, int32_t bad) {
  int32_t id = 0;
  while (is_logit(r->logits[id])) id++;
  return specc_error(SPECC_E_NUMERICS,
      "the engine gave %d logits that are NaN or +infinity, the first for id %d; "
      "nothing was sampled from that row; rebuild the bundle or run the gate",
      bad, id);
}

/* Whether there are no penalties, no bias and no mask. */
static int is_unchanged(const specc_options *o, const row *r) {
  return o->repetition_penalty == 1 && o->presence_penalty == 0 && o->frequency_penalty == 0 && !o->n_bias &&
         !r->n_banned;
}

/* Penalties, bias and mask into v [row_width], where there are some (else v is not written); *top is the
 * largest. */
static int adjust(workspace *w, const specc_options *o, const row *r, double *v, double *top) {
  int32_t width = row_width(r), n = r->n_logits < width ? r->n_logits : width;
  float largest;
  int32_t bad = scan_logits(r->logits, n, &largest);
  if (bad) return refuse_logits(r, bad);
  *top = (double)largest;
  if (!is_unchanged(o, r)) {
    widen(r->logits, n, width, v);
    if (o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0)
      penalise(w, o, r, v);
    add_bias(o, r, v);
    for (int32_t i = 0; i < r->n_banned; i++)
      if (find_column(r, r->banned[i]) >= 0) v[find_column(r, r->banned[i])] = -INFINITY;
    *top = find_maximum(v, width);
  }
  if (*top == INFINITY)
    return specc_error(SPECC_E_NUMERICS,
        "repetition_penalty %g makes a logit infinite; give a number nearer to 1", o->repetition_penalty);
  if (!(*top > -INFINITY))
    return specc_error(
        SPECC_E_NUMERICS, "no token is left after logit bias and masks; allow at least one id");
  return SPECC_OK;
}

int choose_greedy(workspace *w, const specc_options *o, const row *r, double *scratch, int32_t *token) {
  double top;
  int32_t n = row_width(r);
  int code = adjust(w, o, r, scratch, &top);
  if (code) return code;
  if (is_unchanged(o, r))
    for (*token = 0; (double)r->logits[*token] != top && *token + 1 < n && *token + 1 < r->n_logits;)
      ++*token;
  else
    for (*token = 0; scratch[*token] != top && *token + 1 < n;) ++*token;
  return SPECC_OK;
}

/* Weights of values, or of the logits themselves where x is not NULL (n of them, the rest of n_ids weigh
 * nothing); their sum in 16 lanes. */
SPECC_CLONES static double compute_weights(
    double *v, const float *x, int32_t n, int32_t n_ids, double top, double temperature) {
  double lanes[16] = {0};
  int32_t i = 0;
  if (x) {
    for (; i + 16 <= n; i += 16)
      for (int j = 0; j < 16; j++) {
        v[i + j] = weight_of((double)x[i + j], top, temperature);
        lanes[j] += v[i + j];
      }
    for (; i < n; i++) {
      v[i] = weight_of((double)x[i], top, temperature);
      lanes[i & 15] += v[i];
    }
    for (; i < n_ids; i++) v[i] = 0;
    return join_lanes(lanes);
  }
  for (; i + 16 <= n_ids; i += 16)
    for (int j = 0; j < 16; j++) {
      v[i + j] = weight_of(v[i + j], top, temperature);
      lanes[j] += v[i + j];
    }
  for (; i < n_ids; i++) {
    v[i] = weight_of(v[i], top, temperature);
    lanes[i & 15] += v[i];
  }
  return join_lanes(lanes);
}

SPECC_CLONES static double sum_lanes(const double *v, int32_t n) {
  double lanes[16] = {0};
  int32_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) lanes[j] += v[i + j];
  for (; i < n; i++) lanes[i & 15] += v[i];
  return join_lanes(lanes);
}

static void sift_down(const double *v, int32_t *order, int32_t i, int32_t n) {
  for (int32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(v, order[child], order[child + 1])) child++;
    if (!before(v, order[i], order[child])) return;
    int32_t t = order[i];
    order[i] = order[child];
    order[child] = t;
  }
}

/* Heap sort: falling weight, rising id. In place, no allocation. */
static void sort_candidates(const double *v, int32_t *order, int32_t n) {
  for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(v, order, i, n);
  for (int32_t end = n - 1; end > 0; end--) {
    int32_t t = order[0];
    order[0] = order[end];
    order[end] = t;
    sift_down(v, order, 0, end);
  }
}

/* Ids whose weight is at least `least` > 0, rising; most rows have few. */
SPECC_CLONES static int32_t gather_candidates(const double *v, int32_t n, double least, int32_t *order) {
  int32_t found = 0, i = 0;
  for (; i + 32 <= n; i += 32) {
    int any = 0;
    for (int j = 0; j < 32; j++) any |= v[i + j] >= least;
    if (!any) continue;
    for (int j = 0; j < 32; j++)
      if (v[i + j] >= least) order[found++] = i + j;
  }
  for (; i < n; i++)
    if (v[i] >= least) order[found++] = i;
  return found;
}

/* Ids that top_k or top_p may keep, a superset found by weight and then by bucket, without a full sort.
 * Returns how many. */
static int32_t find_candidates(
    workspace *w, const specc_options *o, const double *v, int32_t n, double whole) {
  static const double thresholds[] = {0x1p-10, 0x1p-20, 4.9406564584124654e-324};
  double wanted = o->top_p < 1 ? o->top_p * whole * (1 + 1e-9) : INFINITY, mass = 0;
  int32_t enough = o->top_k ? o->top_k : n, count = 0, found = 0, kept = 0, limit = BUCKETS;
  for (int step = 0; step < 3; step++) { /* the last one takes all of positive weight */
    found = gather_candidates(v, n, thresholds[step], w->order);
    mass = 0;
    for (int32_t i = 0; i < found; i++) mass += v[w->order[i]];
    if (o->top_k ? found >= enough : mass >= wanted) break;
  }
  for (int32_t i = 0; i < found; i++) {
    uint32_t bucket = bucket_of(v[w->order[i]]);
    w->bucket_count[bucket]++;
    w->bucket_mass[bucket] += v[w->order[i]];
  }
  for (mass = 0; limit > 0 && count < enough && (o->top_k || mass < wanted);) {
    limit--;
    count += (int32_t)w->bucket_count[limit];
    mass += w->bucket_mass[limit];
  }
  for (int32_t i = 0; i < found; i++) { /* buckets are zero between calls */
    uint32_t bucket = bucket_of(v[w->order[i]]);
    w->bucket_count[bucket] = 0;
    w->bucket_mass[bucket] = 0;
    if ((int32_t)bucket >= limit) w->order[kept++] = w->order[i];
  }
  return kept;
}

/* Zeroes what top_k and then top_p drop. The prefix of top_p runs over the sorted order; its whole is what
 * top_k left. */
static void keep_top(workspace *w, const specc_options *o, double *v, int32_t n, double whole) {
  int32_t found = find_candidates(w, o, v, n, whole), keep = found;
  sort_candidates(v, w->order, found);
  if (o->top_k && o->top_k < keep) keep = o->top_k;
  for (int32_t i = 0; i < keep; i++) w->residual[i] = v[w->order[i]];
  if (o->top_k || keep < found) {
    memset(v, 0, (size_t)n * sizeof *v);
    for (int32_t i = 0; i < keep; i++) v[w->order[i]] = w->residual[i];
  }
  if (o->top_p < 1) {
    double wanted = o->top_p * (o->top_k || keep < found ? sum_lanes(v, n) : whole), mass = 0;
    int32_t kept = 0;
    while (kept < keep && (kept == 0 || mass < wanted)) mass += w->residual[kept++];
    memset(v, 0, (size_t)n * sizeof *v);
    for (int32_t i = 0; i < kept; i++) v[w->order[i]] = w->residual[i];
  }
}

SPECC_CLONES static void keep_min(double *v, int32_t n, double least) {
  for (int32_t i = 0; i < n; i++) v[i] = v[i] >= least ? v[i] : 0;
}

/* Divides what is not zero: after a filter most blocks are. */
SPECC_CLONES static void divide(double *v, int32_t n, double by) {
  int32_t i = 0;
  for (; i + 64 <= n; i += 64) {
    int any = 0;
    for (int j = 0; j < 64; j++) any |= v[i + j] > 0;
    for (int j = 0; any && j < 64; j++) v[i + j] /= by;
  }
  for (; i < n; i++) v[i] /= by;
}

int compute_distribution(workspace *w, const specc_options *o, const row *r, double *p) {
  int32_t n = row_width(r);
  double top;
  if (o->temperature == 0) {
    int32_t token;
    int code = choose_greedy(w, o, r, p, &token);
    if (code) return code;
    memset(p, 0, (size_t)n * sizeof *p);
    p[token] = 1;
    return SPECC_OK;
  }
  int code = adjust(w, o, r, p, &top);
  if (code) return code;
  bool filtered = (o->top_k && o->top_k < n) || o->top_p < 1;
  double whole = compute_weights(
      p, is_unchanged(o, r) ? r->logits : NULL, r->n_logits < n ? r->n_logits : n, n, top, o->temperature);
  if (filtered) keep_top(w, o, p, n, whole);
  if (o->min_p > 0) keep_min(p, n, o->min_p); /* the largest weight is 1 */
  divide(p, n, filtered || o->min_p > 0 ? sum_lanes(p, n) : whole);
  return SPECC_OK;
}

int specc_distribution(const specc_options *options, const float *logits, int32_t n_logits, int32_t n_ids,
    const int32_t *history, int32_t n_history, int32_t n_prompt, double *p) {
  workspace w;
  if (!options || !logits || !p || n_ids < 1 || n_logits < 1)
    return specc_error(SPECC_E_ARGUMENT, "specc_distribution needs options, logits, p, and at least one id");
  if (n_history < 0 || n_prompt < 0 || n_prompt > n_history || (n_history && !history))
    return specc_error(SPECC_E_ARGUMENT,
        "specc_distribution was given a history of %d ids, %d of them the prompt", n_history, n_prompt);
  for (int32_t i = 0; i < n_history; i++)
    if (history[i] < 0 || history[i] >= n_ids)
      return specc_error(SPECC_E_ARGUMENT,
          "id %d at place %d of the history is out of range; ids are 0 to %d", history[i], i, n_ids - 1);
  int code = workspace_create(&w, n_ids);
  if (code) return code;
  if ((code = check_options(options)) || (code = check_bias(&w, options))) {
    workspace_free(&w);
    return code;
  }
  uint64_t mode = enter_arithmetic();
  row r = {logits, n_logits, n_ids, history, n_history, n_prompt, NULL, 0, NULL};
  code = compute_distribution(&w, options, &r, p);
  leave_arithmetic(mode);
  workspace_free(&w);
  return code;
}
