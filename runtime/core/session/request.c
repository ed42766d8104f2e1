/* request.c - what a request may ask for, and its copy into the session. */
#include "core/io/error.h"
#include "core/session/session.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#if defined(__linux__)
  #include <sys/random.h>
#endif

void specc_request_default(specc_request *r) {
  if (!r) return;
  memset(r, 0, sizeof *r);
  r->options.temperature = 1;
  r->options.top_p = 1;
  r->options.repetition_penalty = 1;
  r->speculation = 1;
  r->max_new_tokens = 256;
}

#define REFUSE(condition, ...)                                                                               \
  do {                                                                                                       \
    if (condition) return specc_error(SPECC_E_ARGUMENT, __VA_ARGS__);                                        \
  } while (0)

static int check_loop(const specc_request *r, const specc_model *m) {
  REFUSE(r->rule != SPECC_RULE_REJECTION && r->rule != SPECC_RULE_COUPLED,
      "rule is %d; give rejection (0) or coupled (1)", r->rule);
  REFUSE(r->k < 0 || r->k > m->k_max,
      "k is %d; this model was built for 1 to %d (0 lets the certificate choose)", r->k, m->k_max);
  REFUSE(r->max_new_tokens < 0, "max_new_tokens is %d; give a whole number >= 0", r->max_new_tokens);
  REFUSE(r->min_new_tokens < 0, "min_new_tokens is %d; give a whole number >= 0", r->min_new_tokens);
  REFUSE(r->n_stop < 0 || r->n_stop > 16, "%d stop strings were given; give 0 to 16", r->n_stop);
  REFUSE(r->n_stop && !r->stop, "%d stop strings were announced and none given", r->n_stop);
  for (int32_t i = 0; i < r->n_stop; i++) {
    size_t n = r->stop[i] ? strlen(r->stop[i]) : 0;
    REFUSE(n < 1 || n > 256, "stop string %d has %zu bytes; give 1 to 256", i, n);
  }
  if (r->n_stop && !m->bytes)
    return specc_error(
        SPECC_E_UNSUPPORTED, "stop strings need the text of each id, which this model was made without");
  return SPECC_OK;
}

static int check_prompt(const specc_model *m, const int32_t *ids, int32_t n) {
  REFUSE(!ids || n < 1, "the prompt is empty; give at least one token id");
  if (n >= m->context)
    return specc_error(SPECC_E_CAPACITY,
        "the prompt has %d tokens and the context holds %d with at least one to come; "
        "shorten the prompt or build with a larger context",
        n, m->context);
  for (int32_t i = 0; i < n; i++)
    REFUSE(ids[i] < 0 || ids[i] >= m->n_ids,
        "token id %d at place %d of the prompt is out of range; ids are 0 to %d", ids[i], i, m->n_ids - 1);
  return SPECC_OK;
}

static uint64_t draw_seed(void) {
  uint64_t seed = 0;
#if defined(__linux__)
  if (getrandom(&seed, sizeof seed, 0) == (ssize_t)sizeof seed) return seed;
#endif
  static _Atomic uint64_t counter;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  uint32_t c[4] = {(uint32_t)t.tv_nsec, (uint32_t)t.tv_sec, (uint32_t)atomic_fetch_add(&counter, 1),
      (uint32_t)(uintptr_t)&seed},
           out[4];
  specc_philox(0x5eed, c, out);
  return (uint64_t)out[0] << 32 | out[1];
}

/* Reasons (SPECC_R_ bits) why this request decodes plainly; 0: speculation is on. A model without a drafter
 * gives SPECC_R_REQUESTED. */
static uint32_t find_reasons(const specc_model *m, const specc_request *r) {
  return m->reasons | (r->speculation && m->drafter.name ? 0 : SPECC_R_REQUESTED);
}

int session_read_request(struct specc_session *s, const specc_request *r, const int32_t *ids, int32_t n) {
  specc_model *m = s->model;
  int code;
  REFUSE(!r, "no request was given; fill one with specc_request_default");
  if ((code = check_options(&r->options)) || (code = check_bias(&s->work, &r->options)) ||
      (code = check_loop(r, m)) || (code = check_prompt(m, ids, n)))
    return code;
  int32_t n_bias = r->options.n_bias;
  if (n_bias) {
    memcpy(s->bias_ids, r->options.bias_ids, (size_t)n_bias * sizeof *s->bias_ids);
    memcpy(s->bias_values, r->options.bias_values, (size_t)n_bias * sizeof *s->bias_values);
  }
  s->request = *r;
  s->request.options.bias_ids = s->bias_ids;
  s->request.options.bias_values = s->bias_values;
  s->request.stop = NULL;
  s->noise = (noise){r->seeded ? r->seed : draw_seed(), r->sample, 0};
  text_begin(&s->text, r, m->strip_leading_space);
  memset(&s->stats, 0, sizeof s->stats);
  s->stats.reasons = find_reasons(m, r);
  s->stats.enabled = !s->stats.reasons;
  s->k = !s->stats.enabled ? 0 : r->k ? r->k : m->certificate.k ? m->certificate.k : m->k_max;
  return SPECC_OK;
}
