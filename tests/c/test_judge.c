/* test_judge.c - the row kernels' host path against distribution() and judge(): the same bits for random rows
 * and options. */
#include "core/numbers/judge.h"
#include "core/numbers/sampling.h"
#include "expect.h"
#include <math.h>
#include <stdio.h>

#define MOST 3000
#define ROWS 5

static uint64_t state = 20260711;
static uint32_t roll(uint32_t n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)((state >> 33) % n);
}
static double unit(void) {
  return roll(1 << 20) / 1048576.0;
}

typedef struct round {
  specc_options options;
  specc_round j;
  float logits[ROWS * MOST];
  int32_t history[64], proposed[ROWS], bias_ids[3], banned[2];
  double bias_values[3], q[ROWS][MOST];
  const double *rows_q[ROWS];
} round_case;

static void make_options(round_case *c, int32_t n) {
  static const double temperatures[] = {0, 1, 0.7, 2.5, 0.05};
  c->options = (specc_options){.temperature = temperatures[roll(5)],
      .top_p = roll(2) ? 1 : 0.05 + 0.95 * unit(),
      .min_p = roll(3) ? 0 : unit() * 0.2,
      .repetition_penalty = roll(2) ? 1 : 0.5 + unit(),
      .presence_penalty = roll(2) ? 0 : unit() - 0.5,
      .frequency_penalty = roll(2) ? 0 : unit(),
      .top_k = roll(2) ? 0 : (int32_t)roll((uint32_t)n + 20),
      .n_bias = (int32_t)roll(4),
      .bias_ids = c->bias_ids,
      .bias_values = c->bias_values};
  for (int32_t i = 0; i < 3; i++)
    c->bias_ids[i] = (n / 3) * i + (int32_t)roll((uint32_t)(n / 3)),
    c->bias_values[i] = roll(4) ? unit() * 8 - 4 : -INFINITY;
}

static void make_logits(round_case *c, int32_t n_logits) {
  int32_t coarse = roll(3) == 0; /* ties */
  double spread = 1 + 12 * unit();
  for (int32_t i = 0; i < ROWS * n_logits; i++) {
    double x = (unit() + unit() + unit() - 1.5) * spread;
    c->logits[i] = roll(40) == 0 ? -INFINITY : coarse ? (float)(int)x : (float)x;
  }
}

static int32_t likeliest(const float *logits, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

/* Draft rows: a distribution with holes, and a token that has some probability; half of them are good
 * guesses. */
static void make_draft(round_case *c, int32_t n, int32_t n_logits) {
  for (int32_t row = 0; row < ROWS; row++) {
    double sum = 0;
    c->proposed[row] = roll(2) ? (int32_t)roll((uint32_t)n) : likeliest(c->logits + row * n_logits, n_logits);
    for (int32_t i = 0; i < n; i++)
      sum += c->q[row][i] = roll(3) || i == c->proposed[row] ? unit() * unit() + 1e-6 : 0;
    for (int32_t i = 0; i < n; i++) c->q[row][i] /= sum;
    c->rows_q[row] = roll(3) ? c->q[row] : NULL;
  }
}

static int32_t make_case(round_case *c) {
  int32_t n = 6 + (int32_t)roll(roll(4) ? 200 : MOST - 6), n_logits = roll(4) ? n : n - (int32_t)roll(3),
          rows = 1 + (int32_t)roll(ROWS);
  make_options(c, n);
  make_logits(c, n_logits);
  make_draft(c, n, n_logits);
  for (int32_t i = 0; i < 64; i++) c->history[i] = (int32_t)roll((uint32_t)n);
  int32_t n_history = (int32_t)roll(59);
  c->banned[0] = 0, c->banned[1] = n - 1;
  c->j = (specc_round){.options = &c->options,
      .history = c->history,
      .proposed = c->proposed,
      .q = roll(2) ? c->rows_q : NULL,
      .banned = c->banned,
      .seed = state,
      .sample = roll(3),
      .rule = (int32_t)roll(2),
      .position = (int32_t)roll(5000),
      .n_ids = n,
      .rows = rows,
      .n_proposed = rows - 1,
      .n_history = n_history,
      .n_prompt = (int32_t)roll((uint32_t)n_history + 1),
      .n_banned = 2,
      .banned_rows = (int32_t)roll((uint32_t)rows + 1)};
  return n_logits;
}

/* What the session decides for one row: round.c's judge_slot and choose. */
static int reference(
    workspace *w, const round_case *c, int32_t n_logits, int32_t i, double *p, int32_t *token) {
  const specc_round *j = &c->j;
  int32_t history[64 + ROWS];
  memcpy(history, j->history, (size_t)j->n_history * sizeof *history);
  for (int32_t k = 0; k < i; k++) history[j->n_history + k] = j->proposed[k];
  row r = {c->logits + i * n_logits, n_logits, j->n_ids, history, j->n_history + i, j->n_prompt, j->banned,
      i < j->banned_rows ? j->n_banned : 0, NULL};
  noise z = {j->seed, j->sample, 0};
  int code = compute_distribution(w, j->options, &r, p);
  if (code) return -code;
  int32_t x = i < j->n_proposed ? j->proposed[i] : -1;
  if (j->options->temperature == 0)
    return choose_greedy(w, j->options, &r, w->residual, token) ? -1 : *token == x;
  if (x < 0)
    return *token = draw(p, NULL, j->n_ids, j->rule, z, j->position + i, PURPOSE_TARGET, w->block), 0;
  return judge(w, p, (draft_token){x, j->q ? j->q[i] : NULL, NULL}, j->rule, z, j->position + i, token);
}

static int64_t rows_judged, rows_accepted, refused;

static void compare(round_case *c) {
  static double p[ROWS * MOST], want[MOST];
  int32_t n_logits = make_case(c), n = c->j.n_ids, accepted[ROWS], token[ROWS];
  workspace w;
  EXPECT(!workspace_create(&w, n));
  int code = specc_judge_rows(&c->j, c->logits, n_logits, p, accepted, token);
  for (int32_t i = 0; i < c->j.rows; i++) {
    int32_t expected = -1;
    int stood = reference(&w, c, n_logits, i, want, &expected);
    if (stood < 0) {
      EXPECT(code == SPECC_E_NUMERICS);
      refused++;
      break;
    }
    if (code) continue; /* a later row has nothing left */
    EXPECT(!memcmp(want, p + (size_t)i * (size_t)n, (size_t)n * sizeof *want));
    EXPECT(accepted[i] == stood && token[i] == expected);
    rows_judged++, rows_accepted += stood;
  }
  workspace_free(&w);
}

/* A wrong arithmetic would be seen: one ulp in one logit changes the bits of p. */
static void sharpness(round_case *c) {
  static double p[ROWS * MOST], moved[ROWS * MOST];
  int32_t accepted[ROWS], token[ROWS], n_logits;
  do n_logits = make_case(c);
  while (n_logits < 10);
  c->options = (specc_options){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
  c->j.banned_rows = 0;
  EXPECT(!specc_judge_rows(&c->j, c->logits, n_logits, p, accepted, token));
  int32_t at = likeliest(c->logits, n_logits);
  c->logits[at] = nextafterf(c->logits[at], 1e9f);
  EXPECT(!specc_judge_rows(&c->j, c->logits, n_logits, moved, accepted, token));
  EXPECT(memcmp(p, moved, (size_t)c->j.n_ids * sizeof *p));
}

int main(void) {
  round_case *c = calloc(1, sizeof *c);
  for (int i = 0; i < 1500; i++) compare(c);
  for (int i = 0; i < 20; i++) sharpness(c);
  c->logits[2] = NAN, c->j.rows = 1, c->j.n_proposed = 0;
  static double p[MOST];
  int32_t accepted, token;
  EXPECT(specc_judge_rows(&c->j, c->logits, c->j.n_ids, p, &accepted, &token) == SPECC_E_NUMERICS);
  c->j.rows = 3;
  EXPECT(specc_judge_rows(&c->j, c->logits, c->j.n_ids, p, &accepted, &token) == SPECC_E_ARGUMENT);
  printf("%lld rows equal bit for bit, %lld proposals stood, %lld rows had nothing left\n",
      (long long)rows_judged, (long long)rows_accepted, (long long)refused);
  EXPECT(rows_judged > 3000 && rows_accepted > 300 && refused < 300);
  free(c);
  return 0;
}
