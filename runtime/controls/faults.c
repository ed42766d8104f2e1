/* faults.c - which fault is in force, and the code that replacements in faults.cmake call. */
#include "controls/faults.h"
#include "core/session/session.h"
#include <string.h>

_Atomic int specc_fault_active;

#define SPECC_FAULT_NAME(name) #name,
static const char *const fault_names[] = {"none", SPECC_FAULTS(SPECC_FAULT_NAME)};

const char *specc_fault_name(int index) {
  return index >= 0 && index < SPECC_FAULT_count ? fault_names[index] : NULL;
}

int specc_fault_set(const char *name) {
  for (int i = 0; i < SPECC_FAULT_count; i++)
    if (name && !strcmp(name, fault_names[i])) {
      atomic_store(&specc_fault_active, i);
      return 0;
    }
  return -1;
}

/* q of the row at `depth` under other options than the request's. */
static int shape_otherwise(specc_sampler *sampler, const specc_options *options, const float *logits,
    int32_t n_logits, const specc_draft_map *map, int32_t depth, double *q) {
  specc_session *s = sampler->session;
  row r = session_get_row(s, logits, n_logits, depth);
  r.map = map;
  return compute_distribution(&s->work, options, &r, q);
}

int pick_with_unfiltered_q(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, int32_t *token) {
  int code = specc_draft_pick(sampler, map, depth, q, token);
  if (code) return code;
  specc_options wrong = sampler->session->request.options;
  wrong.top_k = 0;
  wrong.top_p = 1;
  wrong.min_p = 0;
  wrong.n_bias = 0;
  return shape_otherwise(sampler, &wrong, logits, n_logits, map, depth, q);
}

int pick_with_warmer_q(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, int32_t *token) {
  int code = specc_draft_pick(sampler, map, depth, q, token);
  if (code) return code;
  specc_options wrong = sampler->session->request.options;
  wrong.temperature *= 2;
  return shape_otherwise(sampler, &wrong, logits, n_logits, map, depth, q);
}
