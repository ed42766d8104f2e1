/* session.c - the life of a session: its buffers, its lock, and what a program may read from it. */
#include "core/session/session.h"
#include "core/io/error.h"
#include <stdlib.h>
#include <string.h>

int specc_session_create(specc_model *m, specc_session **out) {
  if (!m || !out)
    return specc_error(SPECC_E_ARGUMENT, "specc_session_create needs a model and a place for the session");
  *out = NULL;
  int refused = model_check_process(m);
  if (refused) return refused;
  specc_session *s = calloc(1, sizeof *s);
  if (!s) return specc_error(SPECC_E_MEMORY, "no memory for a session");
  s->model = m;
  s->sampler.session = s;
  atomic_flag_clear(&s->busy);
  size_t n = (size_t)m->n_ids, room = (size_t)m->context + SPECC_MAX_K + 2;
  s->bias_ids = calloc(n, sizeof *s->bias_ids);
  s->bias_values = calloc(n, sizeof *s->bias_values);
  s->tokens = calloc(room, sizeof *s->tokens);
  s->p = calloc(n, sizeof *s->p);
  s->q = m->drafter.name ? calloc(n * (size_t)m->k_max, sizeof *s->q) : s->p;
  size_t features = (size_t)m->drafter.hidden;
  s->hidden = features ? calloc(features * room, sizeof *s->hidden) : NULL;
  s->text.capacity = (size_t)m->max_token_bytes * room;
  s->text.bytes = malloc(s->text.capacity + 1);
  s->text.shown_text = malloc(3 * s->text.capacity + 4);
  int code = specc_error(
      SPECC_E_MEMORY, "no memory for a session over %d ids and %d tokens of context", m->n_ids, m->context);
  if (s->bias_ids && s->bias_values && s->tokens && s->p && s->q && (s->hidden || !features) &&
      s->text.bytes && s->text.shown_text)
    code = workspace_create(&s->work, m->n_ids);
  if (!code) code = m->target.open(m->target.self, &s->cache, &s->io);
  if (!code && m->drafter.name) code = m->drafter.open(m->drafter.self, &s->draft);
  if (code) {
    specc_session_free(s);
    return code;
  }
  *out = s;
  return SPECC_OK;
}

void specc_session_free(specc_session *s) {
  if (!s) return;
  if (s->draft) s->model->drafter.close(s->draft);
  if (s->cache) s->model->target.close(s->cache);
  workspace_free(&s->work);
  if (s->q != s->p) free(s->q);
  free(s->bias_ids);
  free(s->bias_values);
  free(s->tokens);
  free(s->p);
  free(s->hidden);
  free(s->text.bytes);
  free(s->text.shown_text);
  free(s);
}

int session_enter(specc_session *s) {
  int code = model_check_process(s->model);
  if (code || !atomic_flag_test_and_set(&s->busy)) return code;
  return specc_error(
      SPECC_E_BUSY, "the session is in use by another thread; give each thread a session of its own");
}

void session_leave(specc_session *s) {
  atomic_flag_clear(&s->busy);
}

bool is_cancelled(const specc_session *s) {
  return atomic_load(&s->cancel);
}

void specc_session_cancel(specc_session *s) {
  if (s) atomic_store(&s->cancel, 1);
}

void session_keep_hidden(specc_session *s, int32_t rows) {
  size_t n = (size_t)s->model->drafter.hidden;
  if (n) memcpy(s->hidden + (size_t)s->length * n, s->io.hidden, (size_t)rows * n * sizeof *s->hidden);
}

/* The row that decides the token at index n_tokens + depth. */
row session_get_row(const specc_session *s, const float *logits, int32_t n_logits, int32_t depth) {
  const specc_model *m = s->model;
  bool bans_end = s->n_tokens + depth - s->n_prompt < s->request.min_new_tokens && !s->request.ignore_eos;
  return (row){logits, n_logits, m->n_ids, s->tokens, s->n_tokens + depth, s->n_prompt, m->eos,
      bans_end ? m->n_eos : 0, NULL};
}

const int32_t *specc_session_tokens(const specc_session *s, int32_t *n_prompt, int32_t *n_tokens) {
  if (n_prompt) *n_prompt = s ? s->n_prompt : 0;
  if (n_tokens) *n_tokens = s ? s->n_tokens : 0;
  return s ? s->tokens : NULL;
}

uint64_t specc_session_seed(const specc_session *s) {
  return s ? s->noise.seed : 0;
}

int specc_session_stats(const specc_session *s, specc_stats *stats) {
  if (!s || !stats)
    return specc_error(SPECC_E_ARGUMENT, "specc_session_stats needs a session and a place for the numbers");
  specc_session *locked = (specc_session *)s; /* the mark that a thread is inside is not the caller's data */
  int code = session_enter(locked);
  if (code) return code;
  *stats = s->stats;
  stats->target_length = s->length;
  session_leave(locked);
  return SPECC_OK;
}
