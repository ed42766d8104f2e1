/* sampler.c - what a drafter may ask of the session: shape a row, draw from it, put a token. Once drawn,
 * judged. */
#include "core/session/sampler.h"
#include "core/io/error.h"
#include "core/session/session.h"

bool sampler_is_cancelled(const specc_sampler *sampler) {
  return is_cancelled(sampler->session);
}

workspace *sampler_get_workspace(const specc_sampler *sampler) {
  return &sampler->session->work;
}

static int check_depth(const specc_sampler *sampler, int32_t depth, const char *what) {
  if (sampler && depth >= 0 && depth < SPECC_MAX_K) return SPECC_OK;
  return specc_error(
      SPECC_E_ARGUMENT, "%s needs the context's sampler and a depth of 0 to %d", what, SPECC_MAX_K - 1);
}

/* The largest probability of a row at temperature 1; q is scratch. */
static int find_greedy_top(specc_session *s, const row *r, double *q, double *top) {
  specc_options soft = s->request.options;
  soft.temperature = 1;
  int code = compute_distribution(&s->work, &soft, r, q);
  *top = 0;
  for (int32_t i = 0; !code && i < row_width(r); i++) *top = q[i] > *top ? q[i] : *top;
  return code;
}

static double find_largest(const double *q, int32_t n) {
  double top = 0;
  for (int32_t i = 0; i < n; i++) top = q[i] > top ? q[i] : top;
  return top;
}

int specc_draft_shape(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, double *top) {
  int code = check_depth(sampler, depth, "specc_draft_shape");
  if (code) return code;
  specc_session *s = sampler->session;
  if (!logits || !q || n_logits < 1 || (map && (map->n_ids != s->model->n_ids || n_logits < map->n)))
    return specc_error(SPECC_E_ARGUMENT,
        "specc_draft_shape needs logits, q, and a map of the target's ids with a logit for each column");
  row r = session_get_row(s, logits, n_logits, depth);
  r.map = map;
  if (top && s->request.options.temperature == 0 && (code = find_greedy_top(s, &r, q, top))) return code;
  if ((code = compute_distribution(&s->work, &s->request.options, &r, q))) return code;
  if (top && s->request.options.temperature > 0) *top = find_largest(q, row_width(&r));
  return SPECC_OK;
}

int specc_draft_pick(
    specc_sampler *sampler, const specc_draft_map *map, int32_t depth, const double *q, int32_t *token) {
  int code = check_depth(sampler, depth, "specc_draft_pick");
  if (code) return code;
  if (!q || !token)
    return specc_error(SPECC_E_ARGUMENT, "specc_draft_pick needs q and a place for the token");
  specc_session *s = sampler->session;
  int32_t n = map ? map->n : s->model->n_ids;
  const int32_t *ids = map ? map->ids : NULL;
  if (s->request.options.temperature == 0) {
    int32_t at = 0;
    while (at + 1 < n && q[at] == 0) at++;
    *token = ids ? ids[at] : at;
  } else {
    *token = draw(q, ids, n, s->request.rule, s->noise, s->n_tokens + depth, PURPOSE_DRAFT, s->work.block);
  }
  if (*token < 0) return specc_error(SPECC_E_NUMERICS, "a draft's row gave no token to draw");
  s->tokens[s->n_tokens + depth] = *token;
  return SPECC_OK;
}

int specc_draft_put(specc_sampler *sampler, int32_t depth, int32_t token) {
  int code = check_depth(sampler, depth, "specc_draft_put");
  if (code) return code;
  specc_session *s = sampler->session;
  if (token < 0 || token >= s->model->n_ids)
    return specc_error(
        SPECC_E_DRAFT, "a drafter proposed id %d; ids are 0 to %d", token, s->model->n_ids - 1);
  s->tokens[s->n_tokens + depth] = token;
  return SPECC_OK;
}

int specc_draft_pays(specc_sampler *sampler, int32_t depth, int32_t source, int32_t calls) {
  if (!sampler || depth < 0 || depth >= SPECC_MAX_K || source < 0 || source >= SOURCES) return 0;
  specc_session *s = sampler->session;
  return control_weigh_node(&s->control, depth, source, calls);
}

int specc_draft_draw(
    specc_sampler *sampler, const float *logits, int32_t n_logits, int32_t depth, double *q, int32_t *token) {
  int code = specc_draft_shape(sampler, logits, n_logits, NULL, depth, q, NULL);
  return code ? code : specc_draft_pick(sampler, NULL, depth, q, token);
}
