/* judge.h - what a round's judgement needs, laid out flat for judge_rows.h. */
#ifndef SPECC_NUMBERS_JUDGE_H
#define SPECC_NUMBERS_JUDGE_H
#include "core/numbers/judge_rows.h"
#include "specc_judge.h"

#define JUDGE_ROWS (SPECC_MAX_K + 1)

/* The inputs of a call, made anew for each round; laid out once. */
typedef struct judge_inputs {
  judge_options options;
  judge_row rows[JUDGE_ROWS];
  int32_t n_rows, n_edits, room;   /* room: places of edit_ids and edit_counts */
  int32_t *edit_ids, *edit_counts; /* [room] */
  int32_t *place, *stamps, stamp; /* [n_ids] where an id stands in the list being made, valid where stamped */
} judge_inputs;

/* n_ids ids, histories of up to `longest` ids. */
int judge_inputs_create(judge_inputs *in, int32_t n_ids, int32_t longest);
void judge_inputs_free(judge_inputs *in);
/* Fills in from j; the caller's pointers (bias, banned, q) are read where they are. */
int judge_inputs_fill(judge_inputs *in, const specc_round *j, int32_t n_logits);
/* The sentence of an answer that is no token. */
int judge_report_failure(const judge_answer *answer, const specc_round *j);
#endif
