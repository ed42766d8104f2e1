/* sampling.h - rows of logits to distributions, and draws from them. Pure: state comes in, numbers go out. */
#ifndef SPECC_SAMPLING_H
#define SPECC_SAMPLING_H
#include "specc_extend.h"

/* What a draw is for. A number is used once per (seed, position, purpose, index, sample). */
enum purpose { PURPOSE_TARGET = 0, PURPOSE_ACCEPT = 1, PURPOSE_DRAFT = 2, PURPOSE_RACE = 3 };

/* stage 0: the target's judgement and every drafter's draws; 1: what a middle model judges
 * (draft_hierarchy.c). */
typedef struct noise {
  uint64_t seed;
  uint32_t sample, stage;
} noise;

double draw_uniform(noise n, int32_t position, enum purpose purpose); /* [0, 1), 53 bits */

/* Scratch for rows of up to n_ids, laid out once. */
typedef struct workspace {
  int32_t n_ids;
  uint32_t stamp, *stamps; /* [n_ids] ids already penalised in this row carry the row's stamp */
  int32_t *counts;         /* [n_ids] occurrences in the output, valid where stamped */
  int32_t *order;          /* [n_ids] candidates of top_k and top_p */
  uint32_t *bucket_count;  /* [BUCKETS] */
  double *bucket_mass;     /* [BUCKETS] */
  double *residual;        /* [n_ids] (p - q)+ */
  double *block;           /* [n_ids / 64 + 1] partial sums of a draw */
} workspace;
int workspace_create(workspace *w, int32_t n_ids);
void workspace_free(workspace *w);

/* One row to shape: logits and what came before it. banned [n_banned] ids are masked (end tokens before
 * min_new_tokens). */
typedef struct row {
  const float *logits;
  int32_t n_logits, n_ids;
  const int32_t *history;
  int32_t n_history, n_prompt;
  const int32_t *banned;
  int32_t n_banned;
  const specc_draft_map *map; /* a reduced vocabulary: columns instead of ids; NULL for all ids */
} row;

/* Values of a row: ids, or the columns of its map. */
static inline int32_t row_width(const row *r) {
  return r->map ? r->map->n : r->n_ids;
}

/* p [row_width] sums to 1. Temperature 0: one-hot at the argmax. SPECC_E_NUMERICS for NaN, +infinity or
 * nothing left. */
int compute_distribution(workspace *w, const specc_options *o, const row *r, double *p);
/* The argmax of the row (a column where it has a map) after penalties, bias and mask; scratch [row_width]. */
int choose_greedy(workspace *w, const specc_options *o, const row *r, double *scratch, int32_t *token);

/* Ranges of specc.h, SPECC_E_ARGUMENT outside them (options.c). check_bias uses the workspace's stamps. */
int check_options(const specc_options *o);
int check_bias(workspace *w, const specc_options *o);

/* First id whose running sum of weight [n] exceeds u times the total. Sums run over blocks of 64 ids, then
 * over blocks. */
int32_t draw_inverse(const double *weight, int32_t n, double u, double *block);
/* Id that wins the exponential race with rates p [n] of ids (NULL: 0..n-1): argmin -log(u_id) / p_id, lower
 * id on ties. */
int32_t draw_race(const double *p, const int32_t *ids, int32_t n, noise noise, int32_t position);
/* An id by a request's rule; ids as above. */
int32_t draw(const double *p, const int32_t *ids, int32_t n, int rule, noise noise, int32_t position,
    enum purpose purpose, double *block);

/* What a token was drawn from: q [n_ids] or [map->n]; q NULL is one-hot. */
typedef struct draft_token {
  int32_t token;
  const double *q;
  const specc_draft_map *map;
} draft_token;
/* The acceptance rule: verifies the draft token x against p [n_ids]. Returns 1 and *token = x.token if it is
 * accepted, else 0 and *token, the replacement that is emitted. */
int judge(
    workspace *w, const double *p, draft_token x, int rule, noise noise, int32_t position, int32_t *token);
#endif
