/* distribution.c - one row of logits to p, all sampling options in the stated order. */
#include "internal.h"
#include "row_math.h"
#include "sampling.h"

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
  if (w->stamps && w->counts && w->order && w->bucket_count && w->bucket_mass && w->residual && w->block) return SPECC_OK;
  workspace_free(w);
  return specc_error(SPECC_E_MEMORY, "no memory for the sampler of %d ids; free memory or use a smaller vocabulary", n_ids);
}

void workspace_free(workspace *w) {
  free(w->stamps); free(w->counts); free(w->order); free(w->bucket_count); free(w->bucket_mass); free(w->residual); free(w->block);
  memset(w, 0, sizeof *w);
}

/* logits to doubles; ids without a logit and -infinity are out. Returns the number of values that are no logits. */
SPECC_CLONES static int32_t widen(const float *logits, int32_t n, int32_t n_ids, double *v) {
  int32_t bad = 0;
  for (int32_t i = 0; i < n; i++) { v[i] = (double)logits[i]; bad += !is_logit(logits[i]); }
  for (int32_t i = n; i < n_ids; i++) v[i] = -INFINITY;
  return bad;
}

/* Where an id stands in a row, -1 for nowhere. */
static int32_t place(const row *r, int32_t id) { return r->map ? r->map->column[id] : id; }

/* Each id of the history once. */
static void penalise(workspace *w, const specc_options *o, const row *r, double *v) {
  uint32_t stamp = ++w->stamp;
  if (!stamp) { memset(w->stamps, 0, (size_t)w->n_ids * sizeof *w->stamps); stamp = w->stamp = 1; }
  for (int32_t i = 0; i < r->n_history; i++) {
    int32_t id = r->history[i];
    if (w->stamps[id] != stamp) { w->stamps[id] = stamp; w->counts[id] = 0; }
    w->counts[id] += i >= r->n_prompt;
  }
  for (int32_t i = 0; i < r->n_history; i++) {
    int32_t id = r->history[i];
    if (w->stamps[id] != stamp) continue;
    w->stamps[id] = stamp - 1;                                /* each id once */
    int32_t at = place(r, id);
    if (at >= 0) v[at] = penalised(v[at], w->counts[id], o->repetition_penalty, o->presence_penalty, o->frequency_penalty);
  }
}

SPECC_CLONES static double maximum(const double *v, int32_t n) {
  double lanes[16], top;
  for (int i = 0; i < 16; i++) lanes[i] = -INFINITY;
  for (int32_t i = 0; i < n; i++) lanes[i & 15] = v[i] > lanes[i & 15] ? v[i] : lanes[i & 15];
  top = lanes[0];
  for (int i = 1; i < 16; i++) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

static void add_bias(const specc_options *o, const row *r, double *v) {
  for (int32_t i = 0; i < o->n_bias; i++) {
    int32_t at = place(r, o->bias_ids[i]);
    if (at >= 0) v[at] += o->bias_values[i];
  }
}

/* Penalties, bias and mask into v [row_width]; *top is the largest. */
static int adjust(workspace *w, const specc_options *o, const row *r, double *v, double *top) {
  int32_t width = row_width(r), n = r->n_logits < width ? r->n_logits : width;
  int32_t bad = widen(r->logits, n, width, v);
  if (bad && !SPECC_FAULT(accept_nan)) {
    int32_t id = 0;
    while (is_logit(r->logits[id])) id++;
    return specc_error(SPECC_E_NUMERICS, "the engine gave %d logits that are NaN or +infinity, the first for id %d; "
                       "nothing was sampled from that row; rebuild the bundle or run the gate", bad, id);
  }
  if (o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0) penalise(w, o, r, v);
  add_bias(o, r, v);
  for (int32_t i = 0; i < r->n_banned; i++)
    if (place(r, r->banned[i]) >= 0) v[place(r, r->banned[i])] = -INFINITY;
  *top = maximum(v, width);
  if (*top == INFINITY)
    return specc_error(SPECC_E_NUMERICS, "repetition_penalty %g makes a logit infinite; give a number nearer to 1", o->repetition_penalty);
  if (!(*top > -INFINITY))
    return specc_error(SPECC_E_NUMERICS, "no token is left after logit bias and masks; allow at least one id");
  return SPECC_OK;
}

int greedy(workspace *w, const specc_options *o, const row *r, double *scratch, int32_t *token) {
  double top;
  int code = adjust(w, o, r, scratch, &top);
  if (code) return code;
  for (*token = 0; scratch[*token] != top && *token + 1 < row_width(r);) ++*token;
  return SPECC_OK;
}

SPECC_CLONES static void weigh(double *v, int32_t n, double top, double temperature) {
  for (int32_t i = 0; i < n; i++) v[i] = weight_of(v[i], top, temperature);
}

SPECC_CLONES static double total(const double *v, int32_t n) {
  double lanes[16] = {0};
  int32_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) lanes[j] += v[i + j];
  for (; i < n; i++) lanes[i & 15] += v[i];
  return join_lanes(lanes);
}

static void sift(const double *v, int32_t *order, int32_t i, int32_t n) {
  for (int32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(v, order[child], order[child + 1])) child++;
    if (!before(v, order[i], order[child])) return;
    int32_t t = order[i]; order[i] = order[child]; order[child] = t;
  }
}

/* Heap sort: falling weight, rising id. In place, no allocation. */
static void sort_candidates(const double *v, int32_t *order, int32_t n) {
  for (int32_t i = n / 2 - 1; i >= 0; i--) sift(v, order, i, n);
  for (int32_t end = n - 1; end > 0; end--) {
    int32_t t = order[0]; order[0] = order[end]; order[end] = t;
    sift(v, order, 0, end);
  }
}

/* Buckets are zero between calls: few ids clean up behind themselves, many take it all. */
static void clear_buckets(workspace *w, const double *v, int32_t n) {
  if (n < BUCKETS / 8) {
    for (int32_t i = 0; i < n; i++) { w->bucket_count[bucket_of(v[i])] = 0; w->bucket_mass[bucket_of(v[i])] = 0; }
    return;
  }
  memset(w->bucket_count, 0, BUCKETS * sizeof *w->bucket_count);
  memset(w->bucket_mass, 0, BUCKETS * sizeof *w->bucket_mass);
}

/* Ids that top_k or top_p may keep, a superset found by bucket without a full sort. Returns how many. */
static int32_t candidates(workspace *w, const specc_options *o, const double *v, int32_t n) {
  double wanted = o->top_p < 1 ? o->top_p * total(v, n) * (1 + 1e-9) : INFINITY, mass = 0;
  int32_t enough = o->top_k ? o->top_k : n, count = 0, found = 0, limit = BUCKETS;
  for (int32_t i = 0; i < n; i++) {
    w->bucket_count[bucket_of(v[i])]++;
    w->bucket_mass[bucket_of(v[i])] += v[i];
  }
  while (limit > 0 && count < enough && (o->top_k || mass < wanted)) {
    limit--;
    count += (int32_t)w->bucket_count[limit];
    mass += w->bucket_mass[limit];
  }
  for (int32_t i = 0; i < n; i++)
    if ((int32_t)bucket_of(v[i]) >= limit && v[i] > 0) w->order[found++] = i;
  clear_buckets(w, v, n);
  return found;
}

/* Zeroes what top_k and then top_p drop. The prefix of top_p runs over the sorted order; its whole is what top_k left. */
static void keep_top(workspace *w, const specc_options *o, double *v, int32_t n) {
  int32_t found = candidates(w, o, v, n), keep = found;
  sort_candidates(v, w->order, found);
  if (o->top_k && o->top_k < keep) keep = o->top_k;
  for (int32_t i = 0; i < keep; i++) w->residual[i] = v[w->order[i]];
  if (o->top_k || keep < found) {
    memset(v, 0, (size_t)n * sizeof *v);
    for (int32_t i = 0; i < keep; i++) v[w->order[i]] = w->residual[i];
  }
  if (o->top_p < 1) {
    double wanted = o->top_p * total(v, n), mass = 0;
    int32_t kept = 0;
    while (kept < keep && (kept == 0 || mass < wanted || (SPECC_FAULT(top_p_extra) && mass <= wanted * (1 + 1e-7)))) mass += w->residual[kept++];
    memset(v, 0, (size_t)n * sizeof *v);
    for (int32_t i = 0; i < kept; i++) v[w->order[i]] = w->residual[i];
  }
}

SPECC_CLONES static void keep_min(double *v, int32_t n, double least) {
  for (int32_t i = 0; i < n; i++) v[i] = v[i] >= least ? v[i] : 0;
}

SPECC_CLONES static void divide(double *v, int32_t n, double by) {
  for (int32_t i = 0; i < n; i++) v[i] /= by;
}

int distribution(workspace *w, const specc_options *o, const row *r, double *p) {
  int32_t n = row_width(r);
  double top;
  if (o->temperature == 0) {
    int32_t token;
    int code = greedy(w, o, r, p, &token);
    if (code) return code;
    memset(p, 0, (size_t)n * sizeof *p);
    p[token] = 1;
    return SPECC_OK;
  }
  int code = adjust(w, o, r, p, &top);
  if (code) return code;
  weigh(p, n, top, o->temperature);
  if ((o->top_k && o->top_k < n) || o->top_p < 1) keep_top(w, o, p, n);
  if (o->min_p > 0) keep_min(p, n, o->min_p);                 /* the largest weight is 1 */
  divide(p, n, total(p, n));
  return SPECC_OK;
}

int specc_distribution(const specc_options *options, const float *logits, int32_t n_logits, int32_t n_ids,
                       const int32_t *history, int32_t n_history, int32_t n_prompt, double *p) {
  workspace w;
  if (!options || !logits || !p || n_ids < 1 || n_logits < 1)
    return specc_error(SPECC_E_ARGUMENT, "specc_distribution needs options, logits, p, and at least one id");
  if (n_history < 0 || n_prompt < 0 || n_prompt > n_history || (n_history && !history))
    return specc_error(SPECC_E_ARGUMENT, "specc_distribution was given a history of %d ids, %d of them the prompt", n_history, n_prompt);
  for (int32_t i = 0; i < n_history; i++)
    if (history[i] < 0 || history[i] >= n_ids)
      return specc_error(SPECC_E_ARGUMENT, "id %d at place %d of the history is out of range; ids are 0 to %d", history[i], i, n_ids - 1);
  int code = workspace_create(&w, n_ids);
  if (code) return code;
  if ((code = check_options(options)) || (code = check_bias(&w, options))) { workspace_free(&w); return code; }
  uint64_t mode = enter_arithmetic();
  row r = {logits, n_logits, n_ids, history, n_history, n_prompt, NULL, 0, NULL};
  code = distribution(&w, options, &r, p);
  leave_arithmetic(mode);
  workspace_free(&w);
  return code;
}
