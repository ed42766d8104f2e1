/* draft_ngram.c - prompt lookup: what followed the last occurrence of the context's last tokens. One-hot q.
 * Saxena, "Prompt lookup decoding" (2023). */
#include "internal.h"

typedef struct ngram { int32_t min_match, max_match; } ngram;

static int ngram_open(void *self, void **state) { *state = self; return SPECC_OK; }
static int ngram_commit(void *state, int32_t n_keep) { (void)state; (void)n_keep; return SPECC_OK; }
static void ngram_close(void *state) { (void)state; }

/* Place behind the latest earlier occurrence of the last `length` tokens, 0 if there is none. */
static int32_t after_match(const int32_t *tokens, int32_t n, int32_t length) {
  const int32_t *tail = tokens + n - length;
  for (int32_t at = n - length - 1; at >= 0; at--)
    if (tokens[at] == *tail && !memcmp(tokens + at, tail, (size_t)length * sizeof *tail)) return at + length;
  return 0;
}

static int ngram_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  const ngram *g = state;
  int32_t from = 0;
  for (int32_t length = g->max_match < c->n_tokens ? g->max_match : c->n_tokens - 1; length >= g->min_match && !from; length--)
    from = after_match(c->tokens, c->n_tokens, length);
  for (out->n = 0; from && out->n < c->k && from + out->n < c->n_tokens; out->n++) {
    out->parent[out->n] = out->n - 1;
    out->token[out->n] = c->tokens[from + out->n];
    out->q[out->n] = NULL;
  }
  return SPECC_OK;
}

int specc_ngram_drafter(int32_t min_match, int32_t max_match, specc_drafter *drafter) {
  if (!drafter || min_match < 1 || max_match < min_match)
    return specc_error(SPECC_E_ARGUMENT, "n-gram lookup matches %d to %d tokens; give 1 <= min_match <= max_match", min_match, max_match);
  ngram *g = malloc(sizeof *g);
  if (!g) return specc_error(SPECC_E_MEMORY, "no memory for a drafter");
  *g = (ngram){min_match, max_match};
  *drafter = (specc_drafter){.name = "ngram", .self = g, .open = ngram_open, .propose = ngram_propose, .commit = ngram_commit,
                             .close = ngram_close, .release = free};
  return SPECC_OK;
}
