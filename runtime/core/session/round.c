/* round.c - one round: what is proposed, the target call that verifies it, and the judgement row by row. */
#include "core/io/clock.h"
#include "core/io/error.h"
#include "core/session/session.h"
#include <math.h>
#include <string.h>

/* Tokens that may be proposed: one slot is the round's own token, the rest must fit context and
 * max_new_tokens. */
static int32_t limit_proposal(const specc_session *s) {
  int32_t room = s->model->context - s->n_tokens,
          left = s->request.max_new_tokens - (s->n_tokens - s->n_prompt);
  int32_t most = (room < left ? room : left) - 1, k = s->k;
  k = most < k ? most : k;
  while (k > 0 && !s->model->verify_width[k]) k--;
  return k;
}

/* q of a node's own token; negative where its map has no column for it. */
static double find_q(const specc_session *s, const specc_proposal *d, int32_t i) {
  const specc_draft_map *map = d->map[i];
  if (!map) return d->q[i][d->token[i]];
  return map->n_ids == s->model->n_ids && map->column[d->token[i]] >= 0 ? d->q[i][map->column[d->token[i]]]
                                                                        : -1;
}

static int check_proposal(const specc_session *s, const specc_proposal *d, int32_t k) {
  if (d->n < 0 || d->n > k)
    return specc_error(SPECC_E_DRAFT, "the drafter %s proposed %d tokens where at most %d were asked for",
        s->model->drafter.name, d->n, k);
  for (int32_t i = 0; i < d->n; i++) {
    if (d->parent[i] != i - 1)
      return specc_error(SPECC_E_DRAFT,
          "the drafter %s proposed a tree (node %d has parent %d); only chains have a rule with a proof yet",
          s->model->drafter.name, i, d->parent[i]);
    if (d->token[i] < 0 || d->token[i] >= s->model->n_ids)
      return specc_error(SPECC_E_DRAFT, "the drafter %s proposed id %d; ids are 0 to %d",
          s->model->drafter.name, d->token[i], s->model->n_ids - 1);
    if (d->q[i] && !(find_q(s, d, i) > 0 && find_q(s, d, i) <= 1.0000001))
      return specc_error(SPECC_E_DRAFT, "the drafter %s gives its own token %d the probability %g",
          s->model->drafter.name, d->token[i], find_q(s, d, i));
  }
  return SPECC_OK;
}

/* A drafter that fails is left out for the rest of the request, and the reason is kept. */
int session_propose(specc_session *s) {
  specc_proposal *d = &s->proposal;
  int32_t k = s->k ? limit_proposal(s) : 0;
  bool paused = k && control_is_paused(&s->control);
  d->n = d->calls = 0;
  d->length = -1;
  memset(d->map, 0, sizeof d->map);
  s->stats.rounds_paused += paused;
  if (k < 1 || paused) return SPECC_OK;
  control_begin_round(&s->control, k);
  double begin = specc_now();
  specc_draft_context context = {s->tokens, s->n_tokens, s->n_prompt, k, s->model->n_ids, s->request.rule,
      s->noise.seed, s->noise.sample, 0, &s->sampler, {0}, s->hidden, s->model->drafter.hidden, 0};
  for (int32_t i = 0; i < k; i++) context.q[i] = s->q + (size_t)i * (size_t)s->model->n_ids;
  int code = s->model->drafter.propose(s->draft, &context, d);
  if (!code) code = check_proposal(s, d, k);
  s->stats.draft_seconds += specc_now() - begin;
  s->stats.draft_calls += d->calls;
  s->stats.draft_length = d->length;
  if (code) {
    d->n = 0;
    s->k = 0;
    s->stats.enabled = 0;
    s->stats.reasons |= SPECC_R_DRAFT_ERROR;
  }
  for (int32_t i = 0; i < d->n; i++) s->tokens[s->n_tokens + i] = s->drafted[i] = d->token[i];
  return SPECC_OK;
}

static void fill_rows(specc_session *s, int32_t rows) {
  int32_t last = s->model->context - 1, past = s->length;
  for (int32_t i = 0; i < rows; i++) {
    s->io.input_ids[i] = s->tokens[s->n_tokens - 1 + (i <= s->proposal.n ? i : s->proposal.n)];
    s->io.position[i] = past + i < last ? past + i : last;
    s->io.logit_rows[i] = i;
  }
  *s->io.past_len = past;
}

/* The target's own choice for a slot with no proposal to judge: plain decoding, or the bonus. */
static int choose_token(specc_session *s, const row *r, int32_t position, int32_t *token) {
  if (s->request.options.temperature == 0)
    return choose_greedy(&s->work, &s->request.options, r, s->p, token);
  int code = compute_distribution(&s->work, &s->request.options, r, s->p);
  if (!code)
    *token = draw(s->p, NULL, r->n_ids, s->request.rule, s->noise, position, PURPOSE_TARGET, s->work.block);
  return code;
}

/* 1: the proposed token is accepted; 0: *token is emitted instead; negative: -error. */
static int judge_slot(specc_session *s, const row *r, int32_t slot, int32_t *token) {
  const specc_proposal *d = &s->proposal;
  specc_options o = s->request.options;
  if (o.temperature == 0) {
    int code = choose_greedy(&s->work, &o, r, s->p, token);
    return code ? -code : *token == d->token[slot];
  }
  int code = compute_distribution(&s->work, &o, r, s->p);
  if (code) return -code;
  draft_token x = {d->token[slot], d->q[slot], d->map[slot]};
  return judge(&s->work, s->p, x, s->request.rule, s->noise, s->n_tokens + slot, token);
}

/* A draw over a row that holds a NaN finds no winner; no such row should get this far. */
static int refuse_empty_draw(void) {
  return specc_error(SPECC_E_NUMERICS, "a row gave no token to draw; nothing of the round was committed");
}

static int accept(specc_session *s) {
  const specc_proposal *d = &s->proposal;
  int32_t vocab = s->model->target.vocab, slot = 0;
  for (; slot < d->n; slot++) {
    row r = session_get_row(s, s->io.logits + (size_t)slot * (size_t)vocab, vocab, slot);
    int accepted = judge_slot(s, &r, slot, &s->emitted[slot]);
    if (accepted < 0) return -accepted;
    if (s->emitted[slot] < 0) return refuse_empty_draw();
    if (s->traced) session_trace(s, slot, accepted);
    if (!accepted) {
      s->n_emitted = slot + 1;
      return SPECC_OK;
    }
  }
  row r = session_get_row(s, s->io.logits + (size_t)slot * (size_t)vocab, vocab, slot);
  s->n_emitted = slot + 1;
  int code = choose_token(s, &r, s->n_tokens + slot, &s->emitted[slot]);
  if (!code && s->emitted[slot] < 0) code = refuse_empty_draw();
  if (!code && s->traced) session_trace(s, slot, 0);
  return code;
}

/* ------------------------------------------------------------------ judged where the logits are */
/* Not where p is to be seen, or where a drafter has a q of its own. */
static bool is_judged_on_device(const specc_session *s) {
  bool on_device = s->model->target.judge && !s->traced;
  for (int32_t i = 0; i < s->proposal.n; i++) on_device = on_device && !s->proposal.q[i];
  return on_device;
}

static int accept_on_device(specc_session *s) {
  const specc_model *m = s->model;
  int32_t n = s->proposal.n, early = s->request.min_new_tokens - (s->n_tokens - s->n_prompt),
          accepted[SPECC_MAX_K + 1];
  int32_t bans = s->request.ignore_eos || early < 0 ? 0 : early < n + 1 ? early : n + 1;
  specc_round j = {.options = &s->request.options,
      .history = s->tokens,
      .proposed = s->proposal.token,
      .banned = m->eos,
      .seed = s->noise.seed,
      .sample = s->noise.sample,
      .rule = s->request.rule,
      .position = s->n_tokens,
      .n_ids = m->n_ids,
      .rows = n + 1,
      .n_proposed = n,
      .n_history = s->n_tokens,
      .n_prompt = s->n_prompt,
      .n_banned = m->n_eos,
      .banned_rows = bans};
  int code = m->target.judge(s->cache, &j, accepted, s->emitted);
  for (s->n_emitted = 1; !code && s->n_emitted <= n && accepted[s->n_emitted - 1];) s->n_emitted++;
  return code;
}

int session_verify(specc_session *s) {
  const specc_model *m = s->model;
  int32_t n = s->proposal.n, rows = n ? m->verify_width[n] : m->law_width;
  if (s->length != s->n_tokens - 1)
    return specc_error(SPECC_E_ENGINE,
        "the cache holds %d entries before a round at %d tokens; this is a fault of the library, please "
        "report it",
        s->length, s->n_tokens);
  fill_rows(s, rows);
  double begin = specc_now();
  bool on_device = is_judged_on_device(s);
  int code = m->target.run(s->cache, rows, on_device ? 0 : rows);
  s->stats.target_seconds += specc_now() - begin;
  if (code) return code;
  session_keep_hidden(s, n + 1);
  s->n_decisions = 0;
  if ((code = on_device ? accept_on_device(s) : accept(s))) return code;
  s->stats.target_calls++;
  s->stats.rounds++;
  s->stats.proposed += n;
  s->stats.accepted += s->n_emitted - 1;
  control_count_round(&s->control, &s->request, &s->proposal, s->n_emitted - 1);
  if (n) {
    s->stats.rounds_proposing++;
    s->stats.accepted_length[s->n_emitted - 1 <= SPECC_MAX_K ? s->n_emitted - 1 : SPECC_MAX_K]++;
  }
  return SPECC_OK;
}
