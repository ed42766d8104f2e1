/* commit.c - commits a round's tokens one by one until an end token, a stop string or max_new_tokens ends the
 * generation, then rolls both KV caches back to the committed length. */
#include "core/session/session.h"

static bool is_end(const specc_session *s, int32_t token) {
  for (int32_t i = 0; i < s->model->n_eos; i++)
    if (s->model->eos[i] == token) return !s->request.ignore_eos;
  return false;
}

/* Commits one token; returns how the generation ends with it, or SPECC_RUNNING. */
static int commit_token(specc_session *s, int32_t token) {
  const specc_model *m = s->model;
  s->tokens[s->n_tokens++] = token;
  s->stats.emitted++;
  if (is_end(s, token)) return SPECC_FINISH_STOP;
  if (m->bytes) {
    uint32_t from = m->offsets[token], to = m->offsets[token + 1];
    if (text_append(&s->text, m->bytes + from, to - from)) return SPECC_FINISH_STOP;
  }
  if (s->n_tokens - s->n_prompt >= s->request.max_new_tokens || s->n_tokens >= m->context)
    return SPECC_FINISH_LENGTH;
  return SPECC_RUNNING;
}

int session_commit(specc_session *s) {
  int finished = SPECC_RUNNING;
  for (int32_t i = 0; i < s->n_emitted && !finished; i++) finished = commit_token(s, s->emitted[i]);
  s->length = s->n_tokens - 1; /* rollback: the KV cache keeps what precedes the last committed token */
  if (s->draft && s->stats.enabled && s->model->drafter.commit(s->draft, s->n_tokens - 1)) {
    s->k = 0;
    s->stats.enabled = 0;
    s->stats.reasons |= SPECC_R_DRAFT_ERROR;
  }
  return finished;
}
