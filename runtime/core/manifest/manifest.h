/* manifest.h - manifest.json of a bundle, checked: its values by name, its files, its plan.
 *
 * `section` and `key` name a value in the error's sentence: "engines.target.vocab". Every function that
 * returns int gives SPECC_OK or SPECC_E_FORMAT with such a sentence, where nothing else is said. */
#ifndef SPECC_MANIFEST_H
#define SPECC_MANIFEST_H
#include "core/io/files.h"
#include "core/io/json.h"
#include "specc.h"

#define BUILD_AGAIN "build the bundle again"

typedef struct manifest {
  const specc_open_options *options; /* the caller's: folder, libraries, trust */
  char *text;
  size_t n_text;
  json_document document;
  const json *root;
  int32_t k_max, context, threads; /* of the plan; threads also of the options and of the machine */
  int32_t n_ids;                   /* of the tokenizer */
} manifest;

/* Reads the manifest of options->folder, checks its format, its digest, the size and the hash of every file,
 * and the plan. *m is valid until manifest_free, which also follows an error. */
int manifest_read(const specc_open_options *options, manifest *m);
void manifest_free(manifest *m);

/* Records that a value is not `expected` ("a string"); returns SPECC_E_FORMAT. */
int manifest_refuse(const manifest *m, const char *section, const char *key, const char *expected);
int manifest_object(
    const manifest *m, const json *parent, const char *section, const char *key, const json **out);
int manifest_string(
    const manifest *m, const json *object, const char *section, const char *key, const char **out);
/* A whole number from low to high. */
int manifest_int(const manifest *m, const json *object, const char *section, const char *key, int32_t low,
    int32_t high, int32_t *out);
/* A SHA-256 as 64 lower-case digits. */
int manifest_hash(
    const manifest *m, const json *object, const char *section, const char *key, const char **out);
/* Full path of a file that the manifest lists and that manifest_read has checked. */
int manifest_file(const manifest *m, const char *name, char path[PATH_BYTES]);
/* The entry engines.NAME. */
int manifest_engine(const manifest *m, const char *name, const json **engine);
#endif
