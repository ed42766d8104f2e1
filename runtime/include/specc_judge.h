/* specc_judge.h - for tools that show that the law holds: certify a model on this device, replay and score
 * generations, test the law on tables with known p and q, and the pure parts of the arithmetic.
 *
 * Read specc.h first: its rules for errors, threads and memory hold here too. `specc gate` is such a tool.
 */
#ifndef SPECC_JUDGE_H
#define SPECC_JUDGE_H
#include "specc.h"
#include "specc_extend.h"
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain declarations only: the Python binding parses this part; SPECC_API is removed first) */

/* ------------------------------------------------------------------ certify: measure, put in force, keep */
typedef struct specc_certify_options {
  const int32_t *tokens; /* [n_tokens] calibration ids; windows of them are replayed */
  int32_t n_tokens;
  int32_t window; /* positions per window, 0 for the default */
  uint64_t seed;
  /* may be NULL; non-zero cancels with SPECC_E_BUSY */
  int (*progress)(void *user, int64_t done, int64_t total);
  void *user;
  /* sampling options under which rows that differ are compared; NULL: temperature 1, no filter */
  const specc_options *options;
  int32_t bounded_rows; /* positions that are compared where rows differ, 0 for the default */
  int32_t bounded;      /* 1: they are compared even if the widths that a session needs agree bit for bit */
} specc_certify_options;
/* Measures the model's target: every width, every slot, other later rows, poisoned stale cache, repeats,
 * fresh caches, rollbacks, at the start of the context, at block edges, in the middle and near its end. Does
 * not change the model. SPECC_E_ARGUMENT, SPECC_E_MEMORY, SPECC_E_BUSY (cancelled). */
SPECC_API int specc_certify(
    specc_model *model, const specc_certify_options *options, specc_certificate *certificate);
/* Puts a certificate in force for sessions created afterwards. SPECC_E_ARGUMENT: it is not of this engine's
 * widths. */
SPECC_API int specc_model_set_certificate(specc_model *model, const specc_certificate *certificate);
/* Writes it atomically as folder/<device>-<threads>.json, bound to the model's engine hash, backend and
 * version, CPU and threads. report: a JSON object of further findings to keep beside it, or NULL. path
 * [n_path] receives the file's path. SPECC_E_ARGUMENT, SPECC_E_MEMORY, SPECC_E_IO, SPECC_E_UNSUPPORTED (a
 * model without a bundle). */
SPECC_API int specc_certificate_save(specc_model *model, const specc_certificate *certificate,
    const char *report, const char *folder, char *path, size_t n_path);

/* ------------------------------------------------------------------ record, score, repeat */

/* One judged slot of a round, for records that can be judged again (`specc run --record`). */
typedef struct specc_decision {
  int32_t position; /* of the emitted token among prompt and output */
  int32_t drafted;  /* the proposed id; -1: none (plain decoding, or the bonus) */
  /* the id of this place, before end token, stop string or max_new_tokens cut the round */
  int32_t emitted;
  int32_t accepted;            /* 1: the proposed id is the emitted one */
  double p_drafted, q_drafted; /* of the proposed id; 0 without one; one-hot at temperature 0 */
  double p_emitted;
  /* accepted when u * q < p; -1 where no such number decides (coupled, temperature 0, no proposal) */
  double u;
  double draw; /* the number that drew the emitted id from p or from (p - q)+; -1 where none did */
  /* [n_ids] what the proposed id was drawn from, NULL for one-hot; lives until the next step */
  const double *q;
} specc_decision;
/* Switches the record of decisions; off at first. Between steps. Costs nothing when off. SPECC_E_ARGUMENT. */
SPECC_API int specc_session_trace(specc_session *session, int32_t on);
/* [*n] decisions of the last round; valid until the next step. */
SPECC_API const specc_decision *specc_session_decisions(const specc_session *session, int32_t *n);

/* Logits of ids [n] at places past, past + 1, ... of a text, in one call of `width` rows (one that the engine
 * lists; rows behind n are padding). The places before must hold from earlier calls. logits [n][vocab] f32,
 * NULL to fill the cache only. Ends a generation that is under way; the next one reads these places again.
 * SPECC_E_ARGUMENT, SPECC_E_CAPACITY, SPECC_E_BUSY. */
SPECC_API int specc_session_score(
    specc_session *session, const int32_t *ids, int32_t n, int32_t past, int32_t width, float *logits);

/* Runs n_trials single rounds (or `rounds` rounds in a row) of one prompt, trial t with seed request->seed +
 * t, for law tests. out: [n_trials][rounds][2 + 2 * k_max + 1] i32 = proposed, accepted, drafted[k_max],
 * emitted[k_max + 1] (-1 pads, a whole record of -1 means a round after the generation's end). Codes as
 * specc_session_start and specc_session_step. */
SPECC_API int specc_trials(specc_session *session, const specc_request *request, const int32_t *ids,
    int32_t n, int32_t rounds, int64_t n_trials, int32_t *out);

/* ------------------------------------------------------------------ engines with exactly known laws
 * All give SPECC_E_ARGUMENT and SPECC_E_MEMORY. */

/* A Markov table: the logits after token b are table[b], or table[a * n + b] for the last two tokens a, b
 * (order 2, a = 0 before the first), a being read from the cache, so that a wrong length or a stale entry
 * shows. table: [n^order][vocab] f32, copied. n = number of ids the table knows, n <= vocab. */
SPECC_API int specc_table_backend(const float *table, int32_t n, int32_t vocab, int32_t order,
    int32_t capacity, const int32_t *widths, int32_t n_widths, specc_backend *backend);
/* Gives a table engine an output `hidden` [n]: 1 at the row's own id. reads 1: it reads such rows too, as a
 * feature head does, and takes its token a from there instead of from the cache (order 2). */
SPECC_API int specc_table_hidden(specc_backend *table, int32_t reads);
/* Parallel heads as tables: row h of a call is table[h * n + id of the hidden state]. table: [heads *
 * n][vocab] f32, copied. */
SPECC_API int specc_table_heads(
    const float *table, int32_t n, int32_t vocab, int32_t heads, specc_backend *backend);

/* ------------------------------------------------------------------ pure parts, for loops of your own */

/* Philox4x32-10: Salmon et al. 2011. */
SPECC_API void specc_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4]);
/* The stated polynomials that every platform shares. */
SPECC_API double specc_exp(double x);
SPECC_API double specc_log(double x);
/* p [n_ids] f64 of one row under the options; history [n_history] ids, the first n_prompt of them the prompt.
 * Temperature 0 gives a one-hot row. SPECC_E_ARGUMENT, SPECC_E_MEMORY; SPECC_E_NUMERICS for NaN, +infinity,
 * or a row with nothing left. */
SPECC_API int specc_distribution(const specc_options *options, const float *logits, int32_t n_logits,
    int32_t n_ids, const int32_t *history, int32_t n_history, int32_t n_prompt, double *p);
/* The code of the CUDA kernels, run here by a loop over its threads: logits [rows][n_logits] to p
 * [rows][n_ids] and the judgement of each row's slot: accepted [rows] 1 for the proposed token, token [rows]
 * what is emitted. Bit for bit what a session decides, row by row. SPECC_E_ARGUMENT, SPECC_E_MEMORY,
 * SPECC_E_NUMERICS. */
SPECC_API int specc_judge_rows(const specc_round *round, const float *logits, int32_t n_logits, double *p,
    int32_t *accepted, int32_t *token);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
