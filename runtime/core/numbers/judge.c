/* judge.c - inputs of the row kernels, and the kernels' own code run on the CPU by a loop over its threads.
 */
#include "core/numbers/judge.h"
#include "core/io/error.h"
#include <stdlib.h>

int judge_inputs_create(judge_inputs *in, int32_t n_ids, int32_t longest) {
  memset(in, 0, sizeof *in);
  in->room = JUDGE_ROWS * (longest + JUDGE_ROWS < n_ids ? longest + JUDGE_ROWS : n_ids);
  in->edit_ids = calloc((size_t)in->room, sizeof *in->edit_ids);
  in->edit_counts = calloc((size_t)in->room, sizeof *in->edit_counts);
  in->place = calloc((size_t)n_ids, sizeof *in->place);
  in->stamps = calloc((size_t)n_ids, sizeof *in->stamps);
  if (in->edit_ids && in->edit_counts && in->place && in->stamps) return SPECC_OK;
  judge_inputs_free(in);
  return specc_error(
      SPECC_E_MEMORY, "no memory to judge rows of %d ids; free memory or use a smaller vocabulary", n_ids);
}

void judge_inputs_free(judge_inputs *in) {
  free(in->edit_ids);
  free(in->edit_counts);
  free(in->place);
  free(in->stamps);
  memset(in, 0, sizeof *in);
}

/* Adds one id of the history to the list that begins at `first`. */
static void add_edit(judge_inputs *in, int32_t first, int32_t id, int32_t is_output) {
  if (in->stamps[id] != in->stamp) {
    in->stamps[id] = in->stamp;
    in->place[id] = in->n_edits - first;
    in->edit_ids[in->n_edits] = id;
    in->edit_counts[in->n_edits++] = 0;
  }
  in->edit_counts[first + in->place[id]] += is_output;
}

/* Row i sees the history and the i tokens proposed before it: its list is the row's before, one token longer.
 */
static void fill_edits(judge_inputs *in, const specc_round *j) {
  in->n_edits = 0;
  if (++in->stamp == INT32_MAX) in->stamp = 1, memset(in->stamps, 0, (size_t)j->n_ids * sizeof *in->stamps);
  for (int32_t i = 0; i < j->n_history; i++) add_edit(in, 0, j->history[i], i >= j->n_prompt);
  in->rows[0].first_edit = 0, in->rows[0].n_edits = in->n_edits;
  for (int32_t row = 1; row < j->rows; row++) {
    const judge_row *above = &in->rows[row - 1];
    int32_t first = in->n_edits;
    memcpy(in->edit_ids + first, in->edit_ids + above->first_edit,
        (size_t)above->n_edits * sizeof *in->edit_ids);
    memcpy(in->edit_counts + first, in->edit_counts + above->first_edit,
        (size_t)above->n_edits * sizeof *in->edit_counts);
    in->n_edits += above->n_edits;
    add_edit(in, first, j->proposed[row - 1], 1);
    in->rows[row].first_edit = first, in->rows[row].n_edits = in->n_edits - first;
  }
}

static int check(const specc_round *j) {
  if (!j || !j->options || j->n_ids < 1)
    return specc_error(SPECC_E_ARGUMENT, "judging rows needs options and at least one id");
  if (j->rows < 1 || j->rows > JUDGE_ROWS || j->n_proposed != j->rows - 1 || (j->n_proposed && !j->proposed))
    return specc_error(SPECC_E_ARGUMENT,
        "%d rows with %d proposed tokens cannot be judged; rows are the proposed tokens and one more, up to "
        "%d",
        j->rows, j->n_proposed, JUDGE_ROWS);
  if (j->n_history < 0 || j->n_prompt < 0 || j->n_prompt > j->n_history || (j->n_history && !j->history))
    return specc_error(SPECC_E_ARGUMENT,
        "rows were to be judged with a history of %d ids, %d of them the prompt", j->n_history, j->n_prompt);
  for (int32_t i = 0; i < j->n_history; i++)
    if (j->history[i] < 0 || j->history[i] >= j->n_ids)
      return specc_error(SPECC_E_ARGUMENT, "id %d of the history is out of range; ids are 0 to %d",
          j->history[i], j->n_ids - 1);
  for (int32_t i = 0; i < j->n_proposed; i++)
    if (j->proposed[i] < 0 || j->proposed[i] >= j->n_ids)
      return specc_error(
          SPECC_E_ARGUMENT, "proposed id %d is out of range; ids are 0 to %d", j->proposed[i], j->n_ids - 1);
  return SPECC_OK;
}

static void fill_options(judge_options *to, const specc_round *j, int32_t n_logits) {
  const specc_options *o = j->options;
  *to = (judge_options){.temperature = o->temperature,
      .top_p = o->top_p,
      .min_p = o->min_p,
      .repetition_penalty = o->repetition_penalty,
      .presence_penalty = o->presence_penalty,
      .frequency_penalty = o->frequency_penalty,
      .seed = j->seed,
      .sample = j->sample,
      .top_k = o->top_k,
      .coupled = j->rule == SPECC_RULE_COUPLED,
      .n_ids = j->n_ids,
      .n_logits = n_logits,
      .n_bias = o->n_bias,
      .position = j->position,
      .order_room = 2};
  while (to->order_room < j->n_ids) to->order_room *= 2;
}

int judge_inputs_fill(judge_inputs *in, const specc_round *j, int32_t n_logits) {
  int code = check(j);
  if (code) return code;
  const specc_options *o = j->options;
  int penalised = o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
  int32_t longest = j->n_history + j->rows < j->n_ids ? j->n_history + j->rows : j->n_ids;
  if (penalised && (int64_t)longest * j->rows > in->room)
    return specc_error(
        SPECC_E_ARGUMENT, "a history of %d ids is longer than the rows were laid out for", j->n_history);
  fill_options(&in->options, j, n_logits);
  in->n_rows = j->rows;
  for (int32_t i = 0; i < j->rows; i++)
    in->rows[i] = (judge_row){.proposed = i < j->n_proposed ? j->proposed[i] : -1,
        .n_banned = i < j->banned_rows ? j->n_banned : 0};
  if (penalised) fill_edits(in, j);
  return SPECC_OK;
}

int judge_report_failure(const judge_answer *answer, const specc_round *j) {
  switch (answer->status) {
  case JUDGE_NO_LOGITS:
    return specc_error(SPECC_E_NUMERICS, "the engine gave logits that are NaN or +infinity; nothing was "
                                         "sampled from that row; rebuild the bundle or run the gate");
  case JUDGE_INFINITE:
    return specc_error(SPECC_E_NUMERICS,
        "repetition_penalty %g makes a logit infinite; give a number nearer to 1",
        j->options->repetition_penalty);
  case JUDGE_NOTHING_LEFT:
    return specc_error(
        SPECC_E_NUMERICS, "no token is left after logit bias and masks; allow at least one id");
  default:
    return answer->token < 0 ? specc_error(SPECC_E_NUMERICS,
                                   "a row gave no token to draw; nothing of the round was committed")
                             : SPECC_OK;
  }
}

/* ------------------------------------------------------------------ the host path */
typedef struct scratch {
  double *spare, *block, *q;
  int32_t *order;
  uint32_t *buckets;
  judge_answer answers[JUDGE_ROWS];
} scratch;

static int scratch_create(scratch *s, const judge_options *o, const specc_round *j) {
  size_t rows = (size_t)j->rows, n = (size_t)o->n_ids;
  *s = (scratch){.spare = calloc(rows * n, sizeof(double)),
      .block = calloc(rows * (n / 64 + 1), sizeof(double)),
      .q = calloc(rows * n, sizeof(double)),
      .order = calloc(rows * (size_t)o->order_room, sizeof(int32_t)),
      .buckets = calloc(rows * BUCKETS, sizeof(uint32_t))};
  if (!s->spare || !s->block || !s->q || !s->order || !s->buckets)
    return specc_error(SPECC_E_MEMORY, "no memory to judge %d rows", j->rows);
  return SPECC_OK;
}

static void scratch_free(scratch *s) {
  free(s->spare);
  free(s->block);
  free(s->q);
  free(s->order);
  free(s->buckets);
}

/* q of every row, one-hot where a proposal has none. */
static const double *flat_q(const specc_round *j, double *to) {
  if (!j->q) return NULL;
  for (int32_t i = 0; i < j->n_proposed; i++) {
    double *row = to + (size_t)i * (size_t)j->n_ids;
    if (j->q[i])
      memcpy(row, j->q[i], (size_t)j->n_ids * sizeof *row);
    else
      row[j->proposed[i]] = 1;
  }
  return to;
}

static int judge_all(const judge_inputs *in, const specc_round *j, const float *logits, double *p, scratch *s,
    int32_t *accepted, int32_t *token) {
  judge_shared shared;
  judge_buffers b = {.logits = logits,
      .q = flat_q(j, s->q),
      .rows = in->rows,
      .edit_ids = in->edit_ids,
      .edit_counts = in->edit_counts,
      .bias_ids = j->options->bias_ids,
      .bias_values = j->options->bias_values,
      .banned = j->banned,
      .p = p,
      .spare = s->spare,
      .order = s->order,
      .block = s->block,
      .buckets = s->buckets,
      .answers = s->answers};
  uint64_t mode = enter_arithmetic();
  for (int32_t row = 0; row < j->rows; row++) judge_one(&shared, &in->options, &b, row);
  leave_arithmetic(mode);
  for (int32_t row = 0; row < j->rows; row++) {
    int code = judge_report_failure(&s->answers[row], j);
    if (code) return code;
    accepted[row] = s->answers[row].accepted, token[row] = s->answers[row].token;
  }
  return SPECC_OK;
}

int specc_judge_rows(const specc_round *j, const float *logits, int32_t n_logits, double *p,
    int32_t *accepted, int32_t *token) {
  judge_inputs in;
  scratch s = {0};
  if (!logits || n_logits < 1 || !p || !accepted || !token)
    return specc_error(SPECC_E_ARGUMENT, "judging rows needs logits, p, accepted and token");
  int code = check(j);
  if (code) return code;
  if ((code = judge_inputs_create(&in, j->n_ids, j->n_history))) return code;
  code = judge_inputs_fill(&in, j, n_logits);
  if (!code) code = scratch_create(&s, &in.options, j);
  if (!code) code = judge_all(&in, j, logits, p, &s, accepted, token);
  scratch_free(&s);
  judge_inputs_free(&in);
  return code;
}
