/* drafting.c - what our drafters share: a chain asked for node by node. */
#include "drafting.h"

int draft_chain(draft_next next, void *state, const specc_draft_context *c, specc_proposal *out) {
  int code = SPECC_OK;
  out->n = 0;
  for (int32_t depth = 0; !code && depth < c->k && out->n == depth; depth++) code = next(state, c, depth, out);
  return code;
}

int draft_one_hot(const specc_draft_context *c, int32_t depth, int32_t token, specc_proposal *out) {
  int code = specc_draft_put(c->sampler, depth, token);
  if (code) return code;
  out->parent[depth] = depth - 1;
  out->token[depth] = token;
  out->q[depth] = NULL;
  out->map[depth] = NULL;
  out->n = depth + 1;
  return SPECC_OK;
}
