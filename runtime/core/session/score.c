/* score.c - logits of given ids through a session's own cache: for comparing bundles and judging records
 * again. */
#include "core/io/error.h"
#include "core/numbers/arithmetic.h"
#include "core/session/session.h"
#include "specc_judge.h"

static int check_rows(const specc_session *s, const int32_t *ids, int32_t n, int32_t past, int32_t width) {
  const specc_model *m = s->model;
  bool listed = false;
  for (int32_t i = 0; i < m->target.n_widths; i++) listed = listed || m->target.widths[i] == width;
  if (!listed)
    return specc_error(SPECC_E_ARGUMENT, "the engine has no width %d; give one that it lists", width);
  if (n < 1 || n > width)
    return specc_error(
        SPECC_E_ARGUMENT, "%d ids do not fit a call of %d rows; give 1 to %d", n, width, width);
  if (past < 0 || past > s->length)
    return specc_error(SPECC_E_ARGUMENT,
        "the cache holds %d entries and the call starts behind %d; read the places before first", s->length,
        past);
  if (past > m->context - n)
    return specc_error(
        SPECC_E_CAPACITY, "%d ids behind %d do not fit the context of %d", n, past, m->context);
  for (int32_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= m->n_ids)
      return specc_error(
          SPECC_E_ARGUMENT, "token id %d is out of range; ids are 0 to %d", ids[i], m->n_ids - 1);
  return SPECC_OK;
}

static int call_rows(
    specc_session *s, const int32_t *ids, int32_t n, int32_t past, int32_t width, float *logits) {
  const specc_model *m = s->model;
  for (int32_t i = 0; i < width; i++) {
    s->io.input_ids[i] = ids[i < n ? i : n - 1];
    s->io.position[i] = past + i < m->context ? past + i : m->context - 1;
    s->io.logit_rows[i] = i;
  }
  *s->io.past_len = past;
  int code = m->target.run(s->cache, width, logits ? width : 1);
  s->length = code ? past : past + n;
  if (code) return code;
  for (int32_t i = 0; i < n; i++)
    s->tokens[past + i] = -1; /* no prompt shares these places: they may be of another width class */
  if (logits) memcpy(logits, s->io.logits, (size_t)n * (size_t)m->target.vocab * sizeof *logits);
  return SPECC_OK;
}

int specc_session_score(
    specc_session *s, const int32_t *ids, int32_t n, int32_t past, int32_t width, float *logits) {
  if (!s || !ids) return specc_error(SPECC_E_ARGUMENT, "specc_session_score needs a session and ids");
  int code = session_enter(s);
  if (code) return code;
  s->phase = PHASE_IDLE;
  code = check_rows(s, ids, n, past, width);
  uint64_t mode = enter_arithmetic();
  if (!code) code = call_rows(s, ids, n, past, width, logits);
  leave_arithmetic(mode);
  session_leave(s);
  return code;
}
