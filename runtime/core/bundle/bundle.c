/* bundle.c - opens a bundle: its manifest, tokenizer, engines, draft and certificate become a model. */
#include "core/certificate/certificate.h"
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include "core/manifest/engine.h"
#include "core/numbers/arithmetic.h"
#include "specc_judge.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EOS 256
#define MAX_TABLE_BYTES ((size_t)256 << 20)

typedef struct bundle {
  manifest manifest;
  int32_t n_eos, eos[MAX_EOS];
  char *table; /* id_bytes.bin */
  id_bytes ids;
  bool strip_leading_space;
} bundle;

/* ------------------------------------------------------------------ tokenizer */
static int read_eos(bundle *b, const json *tokenizer) {
  const manifest *m = &b->manifest;
  const json *list = json_array(tokenizer, "eos");
  if (!list || list->n > MAX_EOS) return manifest_refuse(m, "tokenizer", "eos", "a list of at most 256 ids");
  for (const json *id = list->first; id; id = id->next) {
    int64_t value;
    if (!json_int(id, 0, m->n_ids - 1, &value))
      return manifest_refuse(m, "tokenizer", "eos", "a list of ids of the tokenizer");
    b->eos[b->n_eos++] = (int32_t)value;
  }
  return SPECC_OK;
}

static int read_table(bundle *b, const json *tokenizer) {
  const manifest *m = &b->manifest;
  const char *name;
  char path[PATH_BYTES];
  size_t n;
  int code = manifest_string(m, tokenizer, "tokenizer", "bytes", &name);
  if (!code) code = manifest_file(m, name, path);
  if (!code) code = file_read(path, MAX_TABLE_BYTES, &b->table, &n);
  if (!code) code = id_bytes_read(path, b->table, n, &b->ids);
  if (code || b->ids.n == m->n_ids) return code;
  return specc_error(SPECC_E_FORMAT, "%s holds %d ids, but the manifest's tokenizer has %d; " BUILD_AGAIN,
      path, b->ids.n, m->n_ids);
}

static int read_tokenizer(bundle *b) {
  const json *tokenizer = json_object(b->manifest.root, "tokenizer");
  const json *strip = json_get(tokenizer, "strip_leading_space");
  b->strip_leading_space = strip && strip->truth;
  int code = read_eos(b, tokenizer);
  return code ? code : read_table(b, tokenizer);
}

/* ------------------------------------------------------------------ the model */
static int create_model(
    const bundle *b, const specc_backend *target, const specc_drafter *drafter, specc_model **model) {
  const manifest *m = &b->manifest;
  specc_model_parts parts = {.target = target,
      .drafter = drafter->name ? drafter : NULL,
      .n_ids = m->n_ids,
      .context = m->context,
      .k_max = m->k_max,
      .n_eos = b->n_eos,
      .eos = b->eos,
      .bytes = b->ids.bytes,
      .offsets = b->ids.offsets,
      .strip_leading_space = b->strip_leading_space};
  return specc_model_create(&parts, model);
}

/* Engine and drafter belong to the model once it exists. */
static int open_parts(const bundle *b, specc_model **model) {
  specc_backend target;
  specc_drafter drafter = {0};
  int code = open_engine(&b->manifest, "target", &target);
  if (code) return code;
  code = open_draft(&b->manifest, &drafter);
  if (!code) code = create_model(b, &target, &drafter, model);
  if (code) release_draft(&drafter), release_engine(&target);
  return code;
}

/* Hashes that certificates are bound to, and the build's verdict on the graph. */
static int identify(const manifest *m, specc_model *model) {
  const json *engine, *passed = json_get(json_object(m->root, "lint"), "passed");
  const char *sha256;
  int code = manifest_engine(m, "target", &engine);
  if (!code) code = manifest_hash(m, engine, "engines.target", "sha256", &sha256);
  if (code) return code;
  memcpy(model->engine_sha256, sha256, 65);
  memcpy(model->digest, json_string(m->root, "digest"), 65);
  model->threads = model->certificate.threads = m->threads;
  model->lint = passed && passed->truth ? 0 : SPECC_R_LINT;
  model->reasons |= model->lint;
  return SPECC_OK;
}

/* The caller's folder goes before the bundle's own. No certificate is no error: speculation stays off. */
static int find_certificate(const specc_open_options *options, specc_model *model) {
  specc_certificate certificate;
  char folder[PATH_BYTES];
  int code = file_join(options->folder, "certificates", folder);
  if (code) return code;
  bool is_found = options->certificates && specc_certificate_find(model, options->certificates, &certificate);
  if (!is_found) is_found = specc_certificate_find(model, folder, &certificate);
  return is_found ? specc_model_set_certificate(model, &certificate) : SPECC_OK;
}

static int open_bundle(bundle *b, const specc_open_options *options, specc_model **model) {
  int code = manifest_read(options, &b->manifest);
  if (!code) code = read_tokenizer(b);
  if (!code) code = open_parts(b, model);
  if (code) return code;
  code = identify(&b->manifest, *model);
  if (!code) code = find_certificate(options, *model);
  if (code) specc_model_free(*model), *model = NULL;
  return code;
}

int specc_model_open(const specc_open_options *options, specc_model **model) {
  if (!options || !options->folder || !model)
    return specc_error(SPECC_E_ARGUMENT, "no bundle folder was named; set folder");
  if (options->threads < 0 || options->threads > 1024)
    return specc_error(SPECC_E_ARGUMENT, "threads is %d; it must be from 0 to 1024", options->threads);
  *model = NULL;
  bundle *b = calloc(1, sizeof *b);
  if (!b)
    return specc_error(SPECC_E_MEMORY, "no memory left to open %s; close other programs", options->folder);
  uint64_t mode = enter_arithmetic(); /* the engine's threads inherit it */
  int code = open_bundle(b, options, model);
  leave_arithmetic(mode);
  manifest_free(&b->manifest);
  free(b->ids.offsets);
  free(b->table);
  free(b);
  return code;
}
