/* trace.c - what a round decided, kept for records that can be judged again. */
#include "core/io/error.h"
#include "core/session/session.h"
#include "specc_judge.h"

/* A q over a reduced vocabulary, spread over all ids where it lies: column c moves to ids[c] >= c, the
 * highest first. */
static const double *spread_q(specc_session *s, int32_t slot) {
  specc_proposal *d = &s->proposal;
  const specc_draft_map *map = d->map[slot];
  double *q = s->q + (size_t)slot * (size_t)s->model->n_ids;
  if (!map) return d->q[slot];
  if (d->q[slot] != q) return NULL; /* a foreign buffer is as long as its map */
  for (int32_t c = map->n - 1, end = map->n_ids; c >= 0; end = map->ids[c--]) {
    q[map->ids[c]] = q[c];
    for (int32_t i = map->ids[c] + 1; i < end; i++) q[i] = 0;
  }
  for (int32_t i = 0; i < map->ids[0]; i++) q[i] = 0;
  d->map[slot] = NULL;
  return q;
}

/* The numbers behind a decision are drawn again: they depend on seed, position and purpose alone. */
void session_trace(specc_session *s, int32_t slot, int accepted) {
  bool judged = slot < s->proposal.n, greedy = s->request.options.temperature == 0;
  bool drawn = !greedy && s->request.rule == SPECC_RULE_REJECTION;
  int32_t position = s->n_tokens + slot, emitted = s->emitted[slot],
          x = judged ? s->proposal.token[slot] : -1;
  const double *q = judged ? spread_q(s, slot) : NULL;
  s->decisions[s->n_decisions++] = (specc_decision){.position = position,
      .drafted = x,
      .emitted = emitted,
      .accepted = accepted,
      .p_drafted = !judged  ? 0
                   : greedy ? x == emitted
                            : s->p[x],
      .q_drafted = !judged ? 0
                   : q     ? q[x]
                           : 1,
      .p_emitted = greedy ? 1 : s->p[emitted],
      .q = q,
      .u = drawn && judged ? draw_uniform(s->noise, position, PURPOSE_ACCEPT) : -1,
      .draw = drawn && !accepted ? draw_uniform(s->noise, position, PURPOSE_TARGET) : -1};
}

int specc_session_trace(specc_session *s, int32_t on) {
  if (!s) return specc_error(SPECC_E_ARGUMENT, "no session was given");
  s->traced = on != 0;
  s->n_decisions = 0;
  return SPECC_OK;
}

const specc_decision *specc_session_decisions(const specc_session *s, int32_t *n) {
  if (n) *n = s ? s->n_decisions : 0;
  return s ? s->decisions : NULL;
}
