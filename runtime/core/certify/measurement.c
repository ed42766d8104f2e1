/* measurement.c - the calls of a certificate that is being measured: known text, random rows behind it. */
#include "core/certify/measurement.h"
#include "core/io/error.h"

uint32_t measurement_random(measurement *m, uint32_t below) {
  uint32_t c[4] = {m->counter++, 0, 0, 0}, out[4];
  specc_philox(m->options->seed, c, out);
  return (uint32_t)(((uint64_t)out[0] * below) >> 32);
}

static int64_t get_token(const measurement *m, int32_t position) {
  return m->options->tokens[(position + m->shift) % m->options->n_tokens];
}

int is_finite_row(const float *row, int32_t n) {
  int32_t bad = 0;
  for (int32_t i = 0; i < n; i++) bad += !(row[i] <= 3.4028235e38f);
  return !bad;
}

int measurement_call(
    measurement *m, int32_t width, int32_t n_logits, int32_t past, int32_t real, int is_fresh) {
  const specc_model *model = m->model;
  specc_io *io = is_fresh ? &m->fresh_io : &m->io;
  for (int32_t i = 0; i < width; i++) {
    io->input_ids[i] =
        i < real ? get_token(m, past + i) : (int64_t)measurement_random(m, (uint32_t)model->n_ids);
    io->position[i] = past + i < model->context ? past + i : model->context - 1;
    io->logit_rows[i] = i;
  }
  *io->past_len = past;
  m->certificate->calls++;
  if (m->options->progress &&
      m->options->progress(m->options->user, m->done < m->expected ? m->done++ : m->done, m->expected))
    return specc_error(SPECC_E_BUSY,
        "the certificate was cancelled after %lld calls; the old one stays in force",
        (long long)m->certificate->calls);
  return model->target.run(is_fresh ? m->fresh : m->cache, width, n_logits);
}

int measurement_prefill(measurement *m, int is_fresh) {
  int32_t chunk = m->model->chunk;
  for (int32_t past = 0; past < m->start; past += chunk) {
    int code =
        measurement_call(m, chunk, 1, past, m->start - past < chunk ? m->start - past : chunk, is_fresh);
    if (code) return code;
  }
  return SPECC_OK;
}
