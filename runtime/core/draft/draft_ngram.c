/* draft_ngram.c - prompt lookup: what followed the longest earlier match of the last tokens, the latest one
 * of those. One-hot q. Drafted tokens count as last tokens, so that a chain goes on through its match and
 * finds another when that ends. Saxena, "Prompt lookup decoding" (2023). */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include <stdlib.h>

typedef struct ngram {
  int32_t min_match, max_match;
} ngram;

static int ngram_open(void *self, void **state) {
  *state = self;
  return SPECC_OK;
}
static int ngram_commit(void *state, int32_t n_keep) {
  (void)state;
  (void)n_keep;
  return SPECC_OK;
}
static void ngram_close(void *state) {
  (void)state;
}

/* How many tokens before and with `at` equal the last ones, at most `most`. */
static int32_t measure_match(const int32_t *tokens, int32_t n, int32_t at, int32_t most) {
  int32_t length = 0;
  while (length < most && length <= at && tokens[at - length] == tokens[n - 1 - length]) length++;
  return length;
}

/* The last place of the longest earlier match, -1 if there is none of at least min_match; one pass, latest
 * first. */
static int32_t find_match(const ngram *g, const int32_t *tokens, int32_t n, int32_t *length) {
  int32_t best = -1, last = tokens[n - 1];
  *length = g->min_match - 1;
  for (int32_t at = n - 2; at >= 0 && *length < g->max_match; at--) {
    if (tokens[at] != last) continue;
    int32_t found = measure_match(tokens, n, at, g->max_match);
    if (found > *length) {
      *length = found;
      best = at;
    }
  }
  return best;
}

static int ngram_next(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  const ngram *g = state;
  int32_t length, at = find_match(g, c->tokens, c->n_tokens + depth, &length);
  if (at < 0 || !specc_draft_pays(c->sampler, depth, SOURCE_LOOKUP + (length < 14 ? length : 14), 0))
    return SPECC_OK;
  return append_one_hot(c, depth, c->tokens[at + 1], out);
}

static int ngram_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(ngram_next, state, c, out);
}

int specc_ngram_drafter(int32_t min_match, int32_t max_match, specc_drafter *drafter) {
  if (!drafter || min_match < 1 || max_match < min_match)
    return specc_error(SPECC_E_ARGUMENT,
        "n-gram lookup matches %d to %d tokens; give 1 <= min_match <= max_match", min_match, max_match);
  ngram *g = malloc(sizeof *g);
  if (!g) return specc_error(SPECC_E_MEMORY, "no memory for a drafter");
  *g = (ngram){min_match, max_match};
  *drafter = (specc_drafter){.name = "ngram",
      .self = g,
      .open = ngram_open,
      .propose = ngram_propose,
      .commit = ngram_commit,
      .close = ngram_close,
      .release = free,
      .next = ngram_next};
  return SPECC_OK;
}

/* ------------------------------------------------------------------ from a bundle */
int open_ngram_draft(const draft_source *source, specc_drafter *drafter) {
  const manifest *m = source->manifest;
  const json *draft = source->entry;
  int32_t low = 0, high = 0;
  int code = manifest_int(m, draft, "draft", "min_match", 1, 64, &low);
  if (!code) code = manifest_int(m, draft, "draft", "max_match", low, 64, &high);
  return code ? code : specc_ngram_drafter(low, high, drafter);
}
