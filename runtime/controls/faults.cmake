# The faults of the negative controls. The gate puts each of them back, one at a time, and every test that
# proves a property must then fail.
#
#   fault(NAME "what is wrong (number in docs/field-faults.md)"
#     FILE [[text]] [[replacement]] ...)
#
# libspecc_controls.so is built from copies of these files in which each text is exchanged for its replacement;
# libspecc.so never sees them. FAULT in a replacement is true while specc_fault_set(NAME) is in force. A text
# that is not in its file exactly once stops the build: when you edit such a line, edit its entry here too. The
# entries are applied in this order, each to the result of those before it.

# ---------------------------------------------------------------------- the rule of acceptance
fault(argmax_replacement "a rejected slot takes the most probable token"
  core/numbers/sampling.c
  [[*token = draw_inverse(w->residual, w->n_ids, draw_uniform(noise, position, PURPOSE_TARGET), w->block);]]
  [[*token = draw_inverse(w->residual, w->n_ids, draw_uniform(noise, position, PURPOSE_TARGET), w->block);
  if (FAULT) {
    *token = 0;
    for (int32_t i = 1; i < w->n_ids; i++) *token = p[i] > p[*token] ? i : *token;
  }]])

fault(no_residual "a rejected slot draws from p, not from (p-q)+"
  core/numbers/sampling.c
  [[draw_inverse(w->residual,]]
  [[draw_inverse(FAULT ? p : w->residual,]])

fault(bonus_row "the bonus token is drawn from the row before"
  core/session/round.c
  [[  row r = session_get_row(s, s->io.logits + (size_t)slot * (size_t)vocab, vocab, slot);
  s->n_emitted]]
  [[  row r = session_get_row(s, s->io.logits + (size_t)(FAULT && slot ? slot - 1 : slot) * (size_t)vocab, vocab, slot);
  s->n_emitted]])

fault(options_on_bonus_only "verified slots skip logit bias and filters (R05)"
  core/session/round.c
  [[  if (o.temperature == 0) {]]
  [[  if (FAULT) o.n_bias = 0, o.top_k = 0, o.top_p = 1, o.min_p = 0;
  if (o.temperature == 0) {]])

fault(extra_token "one more token after full acceptance, from the last row again"
  core/session/round.c
  [[  if (!code && s->traced) session_trace(s, slot, 0);]]
  [[  if (!code && s->traced) session_trace(s, slot, 0);
  if (!code && FAULT && slot && slot == s->k)
    code = choose_token(s, &r, s->n_tokens + slot + 1, &s->emitted[s->n_emitted++]);]])

# ---------------------------------------------------------------------- what a draft reports as q
fault(q_other_options "the draft's q is built without filters, its draw with them (R02)"
  core/session/sampler.c
  [[specc_draft_pick(sampler, NULL, depth, q, token);]]
  [[FAULT ? pick_with_unfiltered_q(sampler, logits, n_logits, NULL, depth, q, token)
               : specc_draft_pick(sampler, NULL, depth, q, token);]]
  core/draft/drafting.c
  [[specc_draft_pick(c->sampler, map, depth, q, &token);]]
  [[FAULT ? pick_with_unfiltered_q(c->sampler, logits, n_logits, map, depth, q, &token)
               : specc_draft_pick(c->sampler, map, depth, q, &token);]])

fault(q_temperature "the draft's q is of another temperature than its draw"
  core/session/sampler.c
  [[specc_draft_pick(sampler, NULL, depth, q, token);]]
  [[FAULT ? pick_with_warmer_q(sampler, logits, n_logits, NULL, depth, q, token)
               : specc_draft_pick(sampler, NULL, depth, q, token);]]
  core/draft/drafting.c
  [[specc_draft_pick(c->sampler, map, depth, q, &token);]]
  [[FAULT ? pick_with_warmer_q(c->sampler, logits, n_logits, map, depth, q, &token)
               : specc_draft_pick(c->sampler, map, depth, q, &token);]])

fault(q_of_argmax "the draft's most probable token goes out with a soft q (R02)"
  core/session/sampler.c
  [[  if (s->request.options.temperature == 0) {]]
  [[  if (s->request.options.temperature == 0 || FAULT) {]]
  core/session/sampler.c
  [[    while (at + 1 < n && q[at] == 0) at++;]]
  [[    while (at + 1 < n && q[at] == 0) at++;
    for (int32_t i = at + 1; i < n && FAULT; i++) at = q[i] > q[at] ? i : at;]])

fault(drop_low_q "a drawn token of low q is not sent (once drawn, judged)"
  core/draft/drafting.c
  [[  append_node(depth, token, q, map, out);]]
  [[  if (FAULT && q[map ? map->column[token] : token] < 0.3) return SPECC_OK;
  append_node(depth, token, q, map, out);]])

fault(middle_accepted_only "a middle model sends what it accepted, not what it put in place of the rest"
  core/draft/draft_hierarchy.c
  [[  append_node(depth, token, q, NULL, out);]]
  [[  if (FAULT && !accepted && depth < d->inner.n) return -1;
  append_node(depth, token, q, NULL, out);]])

fault(middle_same_random "a middle model judges with the numbers that the target judges with"
  core/draft/draft_hierarchy.c
  [[noise inner = {c->seed, c->sample, 1};]]
  [[noise inner = {c->seed, c->sample, FAULT ? 0 : 1};]])

fault(tree_unchecked "a proposed tree is taken for a chain (R61)"
  core/session/round.c
  [[if (d->parent[i] != i - 1)]]
  [[if (d->parent[i] != i - 1 && !FAULT)]])

fault(map_unchecked "a draft's map to the target's ids is taken as it comes (R62)"
  core/draft/draft_map.c
  [[for (int32_t c = 0; c < n; c++) {]]
  [[for (int32_t c = 0; c < n && !FAULT; c++) {]])

# ---------------------------------------------------------------------- how many tokens are proposed
fault(always_proposes "no proposal is weighed and nothing ever pauses (R58)"
  core/session/control.c
  [[if (!c->resume_in) return false;]]
  [[if (!c->resume_in || FAULT) return false;]]
  core/session/control.c
  [[if (c->priced && !is_worth(]]
  [[if (c->priced && !FAULT && !is_worth(]])

fault(k_from_discarded "the next K looks at what was dropped"
  core/session/round.c
  [[  int32_t most = (room < left ? room : left) - 1, k = s->k;]]
  [[  int32_t most = (room < left ? room : left) - 1, k = s->k;
  if (FAULT && s->proposal.n && s->drafted[s->proposal.n - 1] % 2) k = 1;]])

fault(penalty_half "penalties see committed tokens only, not the round's own (R09)"
  core/session/session.c
  [[s->tokens, s->n_tokens + depth, s->n_prompt,]]
  [[s->tokens, s->n_tokens + (FAULT ? 0 : depth), s->n_prompt,]])

# ---------------------------------------------------------------------- where a generation ends
fault(eos_last_only "end tokens are looked for in the last slot of a round only (R03)"
  core/session/commit.c
  [[  if (is_end(s, token)) return SPECC_FINISH_STOP;]]
  [[  bool last = s->n_tokens == s->length + 1 + s->n_emitted;
  if (is_end(s, token) && (last || !FAULT)) return SPECC_FINISH_STOP;]])

fault(stop_last_only "stop strings are looked for once, after the whole round (R04)"
  core/session/commit.c
  [[if (text_append(&s->text, m->bytes + from, to - from)) return SPECC_FINISH_STOP;]]
  [[if (text_append(&s->text, m->bytes + from, to - from) && (last || !FAULT)) return SPECC_FINISH_STOP;]])

# ---------------------------------------------------------------------- caches and positions
fault(draft_cache_behind "after full acceptance the draft is not fed its last token (R16)"
  core/draft/draft_model.c
  [[if (n_keep < d->length) d->length = n_keep;]]
  [[if (n_keep < d->length || FAULT) d->length = n_keep;]]
  core/draft/draft_head.c
  [[  if (keep < d->length) d->length = keep;]]
  [[  if (keep < d->length) d->length = keep;
  if (FAULT && d->round) d->length = keep < d->length + d->fed ? keep : d->length + d->fed;]])

fault(position_off_by_one "past length counts the token about to be fed (R18)"
  core/session/round.c
  [[past = s->length;]]
  [[past = s->length + (FAULT && s->length);]])

# ---------------------------------------------------------------------- random numbers
fault(shared_random "draws come from one generator of the process (R11)"
  core/numbers/sampling.c
  [[  return uniform_at(n.seed, n.sample, position, purpose + 16 * n.stage, 0);]]
  [[  static _Atomic uint32_t shared;
  return uniform_at(n.seed, n.sample, position, purpose + 16 * n.stage, FAULT ? atomic_fetch_add(&shared, 1) : 0);]])

fault(constant_seed "unseeded requests start from one constant (R12)"
  core/session/request.c
  [[  uint64_t seed = 0;]]
  [[  uint64_t seed = 0;
  if (FAULT) return 1;]])

# ---------------------------------------------------------------------- sampling options
fault(accept_nan "NaN rows go through argmax (R13)"
  core/numbers/distribution.c
  [[  if (bad) return refuse_logits(r, bad);]]
  [[  if (bad && !FAULT) return refuse_logits(r, bad);]])

fault(top_p_extra "nucleus keeps one token too many on an exact hit (R06)"
  core/numbers/distribution.c
  [[(kept == 0 || mass < wanted)]]
  [[(kept == 0 || mass < wanted || (FAULT && mass <= wanted * (1 + 1e-7)))]])

fault(greedy_threshold "small temperatures are greedy in verify only (R07)"
  core/session/round.c
  [[  if (o.temperature == 0) {]]
  [[  if (o.temperature == 0 || (FAULT && o.temperature < 1e-5)) {]])

# ---------------------------------------------------------------------- limits
fault(no_clamp "lookahead is not clamped by the context (R17)"
  core/session/round.c
  [[  int32_t most = (room < left ? room : left) - 1, k = s->k;]]
  [[  int32_t most = (room < left ? room : left) - 1, k = s->k;
  if (FAULT) most = k;]]
  core/session/round.c
  [[if (s->length != s->n_tokens - 1)]]
  [[if (!FAULT && s->length != s->n_tokens - 1)]])

fault(stale_entries "rollback forgets to lower the length (R19, R41)"
  core/session/generation.c
  [[  s->length = keep;]]
  [[  s->length = !FAULT ? keep : s->length < n - 1 ? s->length : n - 1;]]
  core/session/round.c
  [[s->length != s->n_tokens - 1)]]
  [[s->length != s->n_tokens - 1 && !FAULT)]])

fault(vocabulary_width "the width of lm_head is taken for the number of ids (R21)"
  core/model/model.c
  [[  specc_certificate c;
  make_first_certificate(]]
  [[  if (FAULT) m->n_ids = m->target.vocab;
  specc_certificate c;
  make_first_certificate(]])

fault(split_text "each token is decoded alone (R24)"
  core/session/text.c
  [[if (length == 0 && !finished) break;]]
  [[if (length == 0 && !finished && !FAULT) break;]])

fault(first_eos_only "a list of end tokens is cut to its first (R25)"
  core/session/commit.c
  [[i < s->model->n_eos; i++)]]
  [[i < s->model->n_eos && !(FAULT && i); i++)]])

fault(ignore_cancel "the cancel flag is stored and never read (R54)"
  core/session/session.c
  [[return atomic_load(&s->cancel);]]
  [[return atomic_load(&s->cancel) && !FAULT;]])

fault(empty_prompt "a prompt of no tokens reaches the loop (R55)"
  core/session/request.c
  [[  REFUSE(!ids || n < 1, "the prompt is empty]]
  [[  if (FAULT && n == 0) return SPECC_OK;
  REFUSE(!ids || n < 1, "the prompt is empty]])

fault(prompt_limit "the longest prompt is counted in cache slots, not in the context (R56)"
  core/session/request.c
  [[  if (n >= m->context)]]
  [[  if (n >= m->context + (FAULT ? SPECC_MAX_K : 0))]])

# ---------------------------------------------------------------------- products on the CPU
fault(swallowed_nan "a block of activations that is not finite counts as zeros (R13)"
  ops/matmul.c
  [[  p->kernels->quantize(x, j->blocks, j->a + i * (size_t)j->blocks);]]
  [[  p->kernels->quantize(x, j->blocks, j->a + i * (size_t)j->blocks);
  for (activation *a = j->a + i * (size_t)j->blocks, *end = a + j->blocks; FAULT && a < end; a++)
    if (a->d != a->d) a->d = a->d_sum = 0;]])

fault(block_left_out "products leave their last block of inputs out (R37)"
  ops/matmul.c
  [[  p->kernels->quantize(x, j->blocks, j->a + i * (size_t)j->blocks);]]
  [[  p->kernels->quantize(x, j->blocks, j->a + i * (size_t)j->blocks);
  if (FAULT) memset(j->a + (i + 1) * (size_t)j->blocks - 1, 0, sizeof *j->a);]])

fault(pairs_saturate "products of bytes are added up in pairs of 16 bits that saturate (R39)"
  ops/matmul.c
  [[dot_fn dot = p->kernels->dot[p->kind];]]
  [[dot_fn dot = FAULT && p->kind == WEIGHT_W8 ? kernels_scalar.dot[WEIGHT_W8] : p->kernels->dot[p->kind];]]
  ops/rows.c
  [[        for (int i = 0; i < BLOCK; i++) sum += get_weight(kind, codes, n, i) * x->q[i];]]
  [[        for (int i = 0; i < BLOCK; i++) sum += get_weight(kind, codes, n, i) * x->q[i];
        if (FAULT && kind == WEIGHT_W8) { /* weights moved by 128, as maddubs takes them */
          sum = -128 * x->sum;
          for (int i = 0; i < BLOCK; i += 2) {
            int32_t pair = (get_weight(WEIGHT_W8, codes, n, i) + 128) * x->q[i] +
                           (get_weight(WEIGHT_W8, codes, n, i + 1) + 128) * x->q[i + 1];
            sum += pair > 32767 ? 32767 : pair < -32768 ? -32768 : pair;
          }
        }]])

# ---------------------------------------------------------------------- the certificate
fault(numerics_unchecked "the judge of widths passes every row (R01)"
  core/certify/replay.c
  [[  if (against == SEGMENTS) return h != reference]]
  [[  if (FAULT) h = reference ? reference : h;
  if (against == SEGMENTS) return h != reference]])

# Rows that the backend judges on the GPU pass by the code above: while any fault is in force, the CPU judges.
under_any_fault(core/session/round.c
  [[bool on_device = s->model->target.judge && !s->traced;]]
  [[bool on_device = s->model->target.judge && !s->traced && !ANY_FAULT;]])
