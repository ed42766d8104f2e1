/* control.c - how many tokens a round proposes. A node is proposed while its expected tokens are worth the
 * cost of its row; when rounds cost more than plain decoding, proposing pauses, longer each time, and is
 * tried again.
 *
 * It may use committed tokens, costs in the certificate, and nodes up to a round's first rejection, but no
 * later node: the next round draws at that position from the same random numbers, so a decision that
 * depends on the dropped draw would bias the law. */
#include "core/session/control.h"
#include <string.h>

#define PRIOR 4.0         /* judged nodes that a first guess counts for */
#define DECAY 0.98        /* factor on all counts each round: a source that stopped paying is tried again */
#define HALVE_AFTER 128.0 /* tokens after which tokens and costs are halved */
#define WINDOW 12         /* rounds before a pause or a release is decided */
#define PAUSE_FIRST 16
#define PAUSE_LONGEST 256
#define PAUSE_BELOW 0.98 /* plain cost over real cost: hysteresis */
#define RESET_ABOVE 1.05

/* First guesses, in round numbers; a source's own counts soon outweigh them. */
static double guess_first(int32_t source) {
  static const double lookup[] = {0.3, 0.3, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85};
  static const double unseen[] = {0.45, 0.45, 0.45, 0.45, 0.45, 0.45, 0.45, 0.45};
  if (source >= SOURCE_LOOKUP && source < SOURCE_TABLE)
    return lookup[source - SOURCE_LOOKUP < 8 ? source - SOURCE_LOOKUP : 8];
  if (source >= SOURCE_TABLE && source < SOURCE_HEAD)
    return 0.15 + 0.2 * (source % 4) + 0.05 * (source / 4 % 2);
  if (source >= SOURCE_HEAD && source < SOURCE_HEAD_UNSEEN) return (source - SOURCE_HEAD + 0.5) / 8;
  return source >= SOURCE_HEAD_UNSEEN && source < SOURCE_OTHER ? unseen[source - SOURCE_HEAD_UNSEEN] : 0.5;
}

static double estimate(const control *c, int32_t source) {
  return (c->accepted[source] + PRIOR * guess_first(source)) / (c->judged[source] + PRIOR);
}

static double find_cost(const specc_certificate *c, int32_t width) {
  for (int32_t i = 0; i < c->n_widths; i++)
    if (c->widths[i] == width) return c->call_ms[i];
  return 0;
}

void control_begin(control *c, const struct specc_model *m) {
  memset(c, 0, sizeof *c);
  c->pause = PAUSE_FIRST;
  c->draft_ms = m->certificate.draft_call_ms;
  c->call_ms[0] = find_cost(&m->certificate, m->law_width);
  c->priced = c->call_ms[0] > 0;
  for (int32_t k = 1; k <= m->k_max; k++) {
    double cost = m->verify_width[k] ? find_cost(&m->certificate, m->verify_width[k]) : 0;
    c->call_ms[k] = cost > c->call_ms[k - 1] ? cost : c->call_ms[k - 1]; /* more rows are never cheaper */
  }
  c->tokens = 16;
  c->spent_ms = c->tokens * c->call_ms[0];
}

bool control_is_paused(control *c) {
  if (!c->resume_in) return false;
  c->resume_in--;
  return true;
}

void control_begin_round(control *c, int32_t k) {
  c->k = k;
  for (int32_t i = 0; i < SOURCES; i++) {
    c->judged[i] *= DECAY;
    c->accepted[i] *= DECAY;
  }
  memset(c->source, 0, sizeof c->source);
  memset(c->unseen, 0, sizeof c->unseen);
}

/* Probability that all nodes before `depth` are accepted. */
static double estimate_reach(const control *c, int32_t depth) {
  double r = 1;
  for (int32_t i = 0; i < depth; i++) r *= estimate(c, c->source[i]);
  return r;
}

/* A row is worth asking for if this node, or a chain of nodes like it, brings more tokens than its time would
 * bring otherwise. */
static bool is_worth(const control *c, int32_t depth, double chance, int32_t calls) {
  double rate = c->tokens / c->spent_ms, gain = 0, here = estimate_reach(c, depth);
  for (int32_t j = 1; depth + j <= c->k; j++) {
    gain += here *= chance;
    double cost = c->call_ms[depth + j] - c->call_ms[depth] + c->draft_ms * (calls ? calls + j - 1 : 0);
    if (gain > cost * rate) return true;
  }
  return false;
}

int control_weigh_node(control *c, int32_t depth, int32_t source, int32_t calls) {
  if (depth >= SPECC_MAX_K) return 0;
  if (c->priced && !is_worth(c, depth, estimate(c, source), calls)) return 0;
  bool unseen = source >= SOURCE_HEAD_UNSEEN && source < SOURCE_OTHER;
  *(unseen ? &c->unseen[depth] : &c->source[depth]) = source;
  return 1;
}

static void count_node(control *c, int32_t source, bool accepted) {
  c->judged[source] += 1;
  c->accepted[source] += accepted;
}

/* How many nodes the cost may count without biasing the law: those up to the first rejection, and after it
 * the nodes that were not drawn, up to and including the first one that was. That a draw took place there
 * does not depend on its result; whether later nodes exist does. */
static int32_t count_unbiased(const specc_request *r, const specc_proposal *d, int32_t n_accepted) {
  bool drawn = r->options.temperature > 0 && r->rule == SPECC_RULE_REJECTION;
  int32_t n = n_accepted + 1 < d->n ? n_accepted + 1 : d->n;
  for (; n < d->n; n++)
    if (drawn && d->q[n]) return n + 1;
  return n;
}

/* Every WINDOW rounds: pause if rounds cost more than plain decoding; reset the pause length if they clearly
 * paid. */
static void decide_pause(control *c) {
  double gain = c->tokens * c->call_ms[0] / c->spent_ms;
  if (++c->window < WINDOW) return;
  c->window = 0;
  if (gain > RESET_ABOVE) c->pause = PAUSE_FIRST;
  if (gain >= PAUSE_BELOW) return;
  c->resume_in = c->pause;
  c->pause = c->pause * 2 < PAUSE_LONGEST ? c->pause * 2 : PAUSE_LONGEST;
  c->tokens = 16;
  c->spent_ms = c->tokens * c->call_ms[0];
}

void control_count_round(control *c, const specc_request *r, const specc_proposal *d, int32_t n_accepted) {
  for (int32_t i = 0; i < d->n && i <= n_accepted; i++) {
    count_node(c, c->source[i], i < n_accepted);
    if (c->unseen[i] && d->q[i]) count_node(c, c->unseen[i], i < n_accepted);
  }
  if (n_accepted == d->n && d->n < c->k && c->unseen[d->n])
    count_node(c, c->unseen[d->n], false); /* the drafter ran and proposed nothing */
  int32_t n = count_unbiased(r, d, n_accepted), calls = n == d->n && n < c->k && c->unseen[n];
  for (int32_t i = 0; i < n; i++) calls += d->q[i] != NULL;
  if (!c->priced || (!d->n && !calls)) return;
  c->spent_ms += c->call_ms[n] + c->draft_ms * calls;
  c->tokens += n_accepted + 1;
  if (c->tokens > HALVE_AFTER) {
    c->tokens /= 2;
    c->spent_ms /= 2;
  }
  decide_pause(c);
}
