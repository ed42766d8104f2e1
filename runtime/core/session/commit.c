/* commit.c - one transaction, token by token: end tokens, stop strings, max_new_tokens, usage and cache end
 * together. */
#include "core/session/session.h"

static bool is_end(const specc_session *s, int32_t token) {
  int32_t n = SPECC_FAULT(first_eos_only) && s->model->n_eos > 1 ? 1 : s->model->n_eos;
  for (int32_t i = 0; i < n; i++)
    if (s->model->eos[i] == token) return !s->request.ignore_eos;
  return false;
}

/* Commits one token; returns how the generation ends with it, or SPECC_RUNNING. */
static int commit_token(specc_session *s, int32_t token, bool last) {
  const specc_model *m = s->model;
  s->tokens[s->n_tokens++] = token;
  s->stats.emitted++;
  if (is_end(s, token) && (last || !SPECC_FAULT(eos_last_only))) return SPECC_FINISH_STOP;
  if (m->bytes) {
    uint32_t from = m->offsets[token], to = m->offsets[token + 1];
    if (text_append(&s->text, m->bytes + from, to - from) && (last || !SPECC_FAULT(stop_last_only)))
      return SPECC_FINISH_STOP;
  }
  if (s->n_tokens - s->n_prompt >= s->request.max_new_tokens || s->n_tokens >= m->context)
    return SPECC_FINISH_LENGTH;
  return SPECC_RUNNING;
}

int session_commit(specc_session *s) {
  int how = SPECC_RUNNING;
  for (int32_t i = 0; i < s->n_emitted && !how; i++)
    how = commit_token(s, s->emitted[i], i == s->n_emitted - 1);
  s->length = s->n_tokens - 1;
  if (s->draft && s->stats.enabled && s->model->drafter.commit(s->draft, s->n_tokens - 1)) {
    s->k = 0;
    s->stats.enabled = 0;
    s->stats.reasons |= SPECC_R_DRAFT_ERROR;
  }
  return how;
}
