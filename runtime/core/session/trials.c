/* trials.c - many short generations of one prompt with consecutive seeds, for law tests. */
#include "core/io/error.h"
#include "core/session/session.h"
#include "specc_judge.h"

/* One round into out [2 + 2 k_max + 1]. */
static int record_round(specc_session *s, int32_t *out) {
  specc_event e;
  int32_t k = s->model->k_max;
  for (int32_t i = 0; i < 2 * k + 3; i++) out[i] = -1;
  if (s->phase == PHASE_DONE) return SPECC_OK; /* the generation ended in an earlier round */
  do {
    int code = specc_session_step(s, &e);
    if (code) return code;
  } while (e.prefill);
  out[0] = e.proposed;
  out[1] = e.accepted;
  for (int32_t i = 0; i < e.proposed; i++) out[2 + i] = e.drafted[i];
  for (int32_t i = 0; i < e.n_tokens && i <= k; i++) out[2 + k + i] = e.tokens[i];
  return SPECC_OK;
}

int specc_trials(specc_session *s, const specc_request *request, const int32_t *ids, int32_t n,
    int32_t rounds, int64_t n_trials, int32_t *out) {
  if (!s || !request || !out || rounds < 1 || n_trials < 0)
    return specc_error(SPECC_E_ARGUMENT,
        "specc_trials needs a session, a request, a place for the records, and at least one round");
  specc_request r = *request;
  size_t width = (size_t)(2 * s->model->k_max + 3);
  r.seeded = 1;
  r.ignore_eos = 1;
  for (int64_t t = 0; t < n_trials; t++) {
    r.seed = request->seed + (uint64_t)t;
    int code = specc_session_start(s, &r, ids, n);
    for (int32_t i = 0; i < rounds && !code; i++)
      code = record_round(s, out + ((size_t)t * (size_t)rounds + (size_t)i) * width);
    if (code) return code;
  }
  return SPECC_OK;
}
