/* manifest.c - reads manifest.json, compares its digest, its files and their hashes, and gives its values. */
#include "core/manifest/manifest.h"
#include "core/io/error.h"
#include "core/io/sha256.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ values */
int manifest_refuse(const manifest *m, const char *section, const char *key, const char *expected) {
  return specc_error(SPECC_E_FORMAT, "bundle %s: %s.%s in manifest.json is not %s; " BUILD_AGAIN,
      m->options->folder, section, key, expected);
}

int manifest_object(
    const manifest *m, const json *parent, const char *section, const char *key, const json **out) {
  *out = json_object(parent, key);
  return *out ? SPECC_OK : manifest_refuse(m, section, key, "an object");
}

int manifest_string(
    const manifest *m, const json *object, const char *section, const char *key, const char **out) {
  *out = json_string(object, key);
  return *out ? SPECC_OK : manifest_refuse(m, section, key, "a string");
}

int manifest_int(const manifest *m, const json *object, const char *section, const char *key, int32_t low,
    int32_t high, int32_t *out) {
  int64_t value;
  char expected[64];
  if (json_int(json_get(object, key), low, high, &value)) return *out = (int32_t)value, SPECC_OK;
  snprintf(expected, sizeof expected, "a whole number from %d to %d", low, high);
  return manifest_refuse(m, section, key, expected);
}

static bool is_hash(const char *text) {
  return text && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

int manifest_hash(
    const manifest *m, const json *object, const char *section, const char *key, const char **out) {
  *out = json_string(object, key);
  return is_hash(*out) ? SPECC_OK : manifest_refuse(m, section, key, "a SHA-256 in hexadecimal");
}

int manifest_engine(const manifest *m, const char *name, const json **engine) {
  const json *engines;
  int code = manifest_object(m, m->root, "manifest", "engines", &engines);
  return code ? code : manifest_object(m, engines, "engines", name, engine);
}

/* ------------------------------------------------------------------ manifest.json */
static int check_format(const manifest *m) {
  int64_t format;
  if (!json_int(json_get(m->root, "format"), 1, INT64_MAX, &format))
    return manifest_refuse(m, "manifest", "format", "a whole number from 1");
  if (format <= SPECC_FORMAT) return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "bundle %s has format %lld, but this library reads formats up to %d; update specc or build the bundle "
      "with this version",
      m->options->folder, (long long)format, SPECC_FORMAT);
}

/* The digest is the SHA-256 of the file with its own 64 digits read as zeros. */
static int check_digest(const manifest *m) {
  const json *value = json_get(m->root, "digest");
  const char *digest;
  char zeros[64], hex[65];
  int code = manifest_hash(m, m->root, "manifest", "digest", &digest);
  if (code) return code;
  size_t at = value->at + 1;
  if (m->n_text - at < 65 || memcmp(m->text + at, digest, 64))
    return manifest_refuse(m, "manifest", "digest", "written in plain digits");
  memset(zeros, '0', sizeof zeros);
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, m->text, at);
  specc_sha256_add(&h, zeros, sizeof zeros);
  specc_sha256_add(&h, m->text + at + 64, m->n_text - at - 64);
  specc_sha256_end(&h, hex);
  if (!strcmp(hex, digest)) return SPECC_OK;
  return specc_error(SPECC_E_FORMAT,
      "%s/manifest.json was changed: its digest is %.12s..., but it says %.12s...; copy the bundle again or "
      "build it again",
      m->options->folder, hex, digest);
}

static int read_text(manifest *m) {
  char path[PATH_BYTES];
  int code = file_join(m->options->folder, "manifest.json", path);
  if (!code) code = file_read(path, JSON_MAX_BYTES, &m->text, &m->n_text);
  if (!code) code = json_read(path, m->text, m->n_text, &m->document);
  if (code) return code;
  m->root = m->document.root;
  if (m->root->kind != JSON_OBJECT) return manifest_refuse(m, "manifest", "json", "an object");
  code = check_format(m);
  return code ? code : check_digest(m);
}

/* ------------------------------------------------------------------ its files */
/* A name stays inside the bundle: relative, no "..", no empty part. */
static bool is_inside(const char *name) {
  if (!*name || *name == '/' || strchr(name, '\\')) return false;
  for (const char *part = name; *part;) {
    size_t n = strcspn(part, "/");
    if (n == 0 || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
    part += n;
    if (*part == '/' && !*++part) return false;
  }
  return true;
}

static int check_file(const manifest *m, const json *entry) {
  const char *name, *sha256;
  char path[PATH_BYTES];
  int64_t bytes;
  int code = manifest_string(m, entry, "files", "path", &name);
  if (code) return code;
  if (!is_inside(name))
    return specc_error(SPECC_E_FORMAT,
        "bundle %s: manifest.json names the file %.256s, which may lie outside the bundle; do not use "
        "it, " BUILD_AGAIN,
        m->options->folder, name);
  if (!json_int(json_get(entry, "bytes"), 0, INT64_MAX, &bytes))
    return manifest_refuse(m, "files", "bytes", "a whole number from 0");
  code = manifest_hash(m, entry, "files", "sha256", &sha256);
  if (!code) code = file_join(m->options->folder, name, path);
  return code ? code : file_check(path, bytes, m->options->trust ? NULL : sha256);
}

static int check_files(const manifest *m) {
  const json *files = json_array(m->root, "files");
  if (!files) return manifest_refuse(m, "manifest", "files", "a list");
  int code = SPECC_OK;
  for (const json *entry = files->first; !code && entry; entry = entry->next) code = check_file(m, entry);
  return code;
}

/* Full path of a file that the manifest lists, so that it has been checked. */
int manifest_file(const manifest *m, const char *name, char path[PATH_BYTES]) {
  const json *files = json_array(m->root, "files");
  for (const json *entry = files->first; entry; entry = entry->next)
    if (!strcmp(json_string(entry, "path"), name)) return file_join(m->options->folder, name, path);
  return specc_error(SPECC_E_FORMAT,
      "bundle %s: manifest.json uses the file %.256s but does not list it; " BUILD_AGAIN, m->options->folder,
      name);
}

/* ------------------------------------------------------------------ plan */
static int read_ids(manifest *m) {
  const json *tokenizer;
  int code = manifest_object(m, m->root, "manifest", "tokenizer", &tokenizer);
  return code ? code : manifest_int(m, tokenizer, "tokenizer", "ids", 1, 1 << 24, &m->n_ids);
}

static int read_plan(manifest *m) {
  const json *plan;
  int32_t planned = 0;
  int code = manifest_object(m, m->root, "manifest", "plan", &plan);
  if (!code) code = manifest_int(m, plan, "plan", "k", 1, SPECC_MAX_K, &m->k_max);
  if (!code) code = manifest_int(m, plan, "plan", "context", 1, INT32_MAX / 2, &m->context);
  if (!code) code = manifest_int(m, plan, "plan", "threads", 0, 1024, &planned);
  m->threads = m->options->threads ? m->options->threads : planned;
  if (!m->threads) m->threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  return code ? code : read_ids(m);
}

int manifest_read(const specc_open_options *options, manifest *m) {
  memset(m, 0, sizeof *m);
  m->options = options;
  int code = read_text(m);
  if (!code) code = check_files(m);
  return code ? code : read_plan(m);
}

void manifest_free(manifest *m) {
  json_free(&m->document);
  free(m->text);
}
