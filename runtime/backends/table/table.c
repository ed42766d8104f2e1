/* table.c - a Markov table as an engine: p and q are known exactly, the cache is a list of ids. */
#include "core/io/error.h"
#include "specc_judge.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct table {
  int32_t n, vocab, order, capacity, widest, gives_hidden, reads_hidden;
  int32_t heads; /* parallel heads: rows of one call, else 0 */
  float *logits; /* [n^order][vocab] */
} table;

typedef struct table_cache {
  const table *t;
  int32_t *ids; /* [capacity] what stands in the cache */
  specc_io io;
} table_cache;

static void table_close(void *cache) {
  table_cache *c = cache;
  free(c->ids);
  free(c->io.input_ids);
  free(c->io.position);
  free(c->io.logit_rows);
  free(c->io.past_len);
  free(c->io.logits);
  free(c->io.hidden);
  free(c->io.hidden_in);
  free(c);
}

static int table_open(void *self, void **cache, specc_io *io) {
  const table *t = self;
  size_t rows = (size_t)t->widest;
  table_cache *c = calloc(1, sizeof *c);
  if (!c) return specc_error(SPECC_E_MEMORY, "no memory for a table cache");
  c->t = t;
  c->ids = calloc((size_t)t->capacity, sizeof *c->ids);
  c->io.input_ids = calloc(rows, sizeof *c->io.input_ids);
  c->io.position = calloc(rows, sizeof *c->io.position);
  c->io.logit_rows = calloc(rows, sizeof *c->io.logit_rows);
  c->io.past_len = calloc(1, sizeof *c->io.past_len);
  c->io.logits = calloc(rows * (size_t)t->vocab, sizeof *c->io.logits);
  if (t->gives_hidden) c->io.hidden = calloc(rows * (size_t)t->n, sizeof *c->io.hidden);
  if (t->reads_hidden) c->io.hidden_in = calloc(rows * (size_t)t->n, sizeof *c->io.hidden_in);
  bool whole = (!t->gives_hidden || c->io.hidden) && (!t->reads_hidden || c->io.hidden_in);
  if (!whole || !c->ids || !c->io.input_ids || !c->io.position || !c->io.logit_rows || !c->io.past_len ||
      !c->io.logits) {
    table_close(c);
    return specc_error(SPECC_E_MEMORY, "no memory for a table cache of %d entries", t->capacity);
  }
  *cache = c;
  *io = c->io;
  return SPECC_OK;
}

/* The id that a hidden state stands for: its largest column. */
static int32_t find_id(const table *t, const float *hidden) {
  int32_t best = 0;
  for (int32_t i = 1; i < t->n; i++) best = hidden[i] > hidden[best] ? i : best;
  return best;
}

static void copy_row(const table_cache *c, int32_t to, size_t from) {
  size_t n = (size_t)c->t->vocab;
  memcpy(c->io.logits + (size_t)to * n, c->t->logits + from * n, n * sizeof(float));
}

static int run_heads(void *cache, int32_t rows, int32_t n_logits) {
  table_cache *c = cache;
  if (rows != c->t->heads || n_logits != rows)
    return specc_error(SPECC_E_ENGINE, "the table's %d heads were called with %d rows", c->t->heads, rows);
  for (int32_t h = 0; h < rows; h++)
    copy_row(c, h, (size_t)h * (size_t)c->t->n + (size_t)find_id(c->t, c->io.hidden_in));
  return SPECC_OK;
}

static void write_hidden(const table_cache *c, int32_t rows) {
  size_t n = (size_t)c->t->n;
  memset(c->io.hidden, 0, (size_t)rows * n * sizeof(float));
  for (int32_t i = 0; i < rows; i++) c->io.hidden[(size_t)i * n + (size_t)c->io.input_ids[i]] = 1;
}

static int table_run(void *cache, int32_t rows, int32_t n_logits) {
  table_cache *c = cache;
  const table *t = c->t;
  int32_t past = *c->io.past_len;
  if (rows < 1 || rows > t->widest || n_logits > rows || past < 0 || past + rows > t->capacity)
    return specc_error(SPECC_E_ENGINE,
        "the table engine was called with %d rows at length %d; its cache holds %d", rows, past, t->capacity);
  for (int32_t i = 0; i < rows; i++) {
    if (c->io.input_ids[i] < 0 || c->io.input_ids[i] >= t->n)
      return specc_error(SPECC_E_ENGINE, "the table engine was given id %lld; it knows 0 to %d",
          (long long)c->io.input_ids[i], t->n - 1);
    c->ids[past + i] = (int32_t)c->io.input_ids[i];
  }
  for (int32_t j = 0; j < n_logits; j++) {
    int32_t row = (int32_t)c->io.logit_rows[j], slot = past + row, b = c->ids[slot],
            a = t->order == 2 && slot ? c->ids[slot - 1] : 0;
    if (t->reads_hidden) a = find_id(t, c->io.hidden_in + (size_t)row * (size_t)t->n);
    copy_row(c, j, (size_t)a * (size_t)(t->order == 2 ? t->n : 0) + (size_t)b);
  }
  if (t->gives_hidden) write_hidden(c, rows);
  return SPECC_OK;
}

static int table_poison(void *cache, int32_t from, float value) {
  table_cache *c = cache;
  for (int32_t i = from; i < c->t->capacity; i++) c->ids[i] = value > 0 ? c->t->n - 1 : 0;
  return SPECC_OK;
}

static void table_release(void *self) {
  table *t = self;
  free(t->logits);
  free(t);
}

int specc_table_backend(const float *logits, int32_t n, int32_t vocab, int32_t order, int32_t capacity,
    const int32_t *widths, int32_t n_widths, specc_backend *backend) {
  if (!logits || !widths || !backend || n < 1 || vocab < 1 || (order != 1 && order != 2) || n > 32768 ||
      n_widths < 1 || n_widths > SPECC_MAX_WIDTHS)
    return specc_error(SPECC_E_ARGUMENT,
        "a table engine needs 1 to 32768 ids, at least one logit, order 1 or 2, and 1 to %d widths; "
        "given: %d ids, %d logits, order %d, %d widths",
        SPECC_MAX_WIDTHS, n, vocab, order, n_widths);
  for (int32_t i = 0; i < n_widths; i++)
    if (widths[i] < 1 || (i && widths[i] <= widths[i - 1]) || capacity < widths[i])
      return specc_error(SPECC_E_ARGUMENT,
          "a table engine's widths must rise from 1 and fit its cache of %d; place %d is %d", capacity, i,
          widths[i]);
  size_t contexts = order == 2 ? (size_t)n * (size_t)n : (size_t)n;
  table *t = calloc(1, sizeof *t);
  if (t) t->logits = malloc(contexts * (size_t)vocab * sizeof *t->logits);
  if (!t || !t->logits) {
    free(t);
    return specc_error(SPECC_E_MEMORY, "no memory for a table of %zu contexts", contexts);
  }
  memcpy(t->logits, logits, contexts * (size_t)vocab * sizeof *t->logits);
  t->n = n;
  t->vocab = vocab;
  t->order = order;
  t->capacity = capacity;
  t->widest = widths[n_widths - 1];
  *backend = (specc_backend){.name = "table",
      .version = "1",
      .vocab = vocab,
      .capacity = capacity,
      .n_widths = n_widths,
      .self = t,
      .open = table_open,
      .run = table_run,
      .poison = table_poison,
      .close = table_close,
      .release = table_release};
  memcpy(backend->widths, widths, (size_t)n_widths * sizeof *widths);
  return SPECC_OK;
}

int specc_table_hidden(specc_backend *backend, int32_t reads) {
  if (!backend || backend->run != table_run || (reads && ((table *)backend->self)->order != 2))
    return specc_error(
        SPECC_E_ARGUMENT, "hidden states belong to a table engine; one that reads them has order 2");
  table *t = backend->self;
  t->gives_hidden = 1, t->reads_hidden = reads != 0;
  backend->hidden = t->n;
  return SPECC_OK;
}

int specc_table_heads(const float *logits, int32_t n, int32_t vocab, int32_t heads, specc_backend *backend) {
  if (heads < 1 || heads > SPECC_MAX_K || n < 1 || vocab < 1 || !logits || !backend)
    return specc_error(SPECC_E_ARGUMENT,
        "parallel heads as tables are 1 to %d, over at least one id and one logit", SPECC_MAX_K);
  table *t = calloc(1, sizeof *t);
  size_t size = (size_t)heads * (size_t)n * (size_t)vocab * sizeof *logits;
  if (t) t->logits = malloc(size);
  if (!t || !t->logits) {
    free(t);
    return specc_error(SPECC_E_MEMORY, "no memory for %d heads", heads);
  }
  memcpy(t->logits, logits, size);
  t->n = n;
  t->vocab = vocab;
  t->order = 1;
  t->capacity = t->widest = t->heads = heads;
  t->reads_hidden = 1;
  *backend = (specc_backend){.name = "table heads",
      .version = "1",
      .vocab = vocab,
      .capacity = heads,
      .n_widths = 1,
      .widths = {heads},
      .self = t,
      .open = table_open,
      .run = run_heads,
      .poison = table_poison,
      .close = table_close,
      .release = table_release};
  return SPECC_OK;
}
